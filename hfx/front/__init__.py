"""The public HTTP port: a process that bounds, checks and passes on requests to Triton's own HTTP port.

Triton's port must not be reachable by callers: one body can end it (docs/front.md). Everything here runs in a process
of its own (`python -m hfx.front SETTINGS`), which `hfx.triton.front` starts, watches and replaces. Beside Triton's V2
protocol it speaks other servers' APIs (dialects/), whose answers it makes of the models' results with `hfx.client`.
"""

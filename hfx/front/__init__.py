"""The public HTTP port: a process that limits requests, checks them and forwards them to Triton's own HTTP port.

Callers must not reach Triton's port, because a single body can end Triton (docs/front.md). This package runs in a
process of its own (`python -m hfx.front`), which `hfx.triton.front` starts, watches and replaces. Besides
Triton's V2 protocol, it speaks the APIs of other servers (dialects/). It makes their answers from the results of the
models, with `hfx.client`.
"""

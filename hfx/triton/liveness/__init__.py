"""The liveness probe: a cheap request over HTTP to each entry point of a running Triton server.

Triton reports a model as ready even if its Python process has died or hangs, so only an answer proves that it is alive.
A busy server is never taken for a dead one. This package alone is also the container's health check (__main__.py), so
it uses only Python 3.10, the standard library and relative imports.
"""

from .calls import NO_ANSWER, call, connect, connect_socket, socket_url
from .probe import PATIENCE_SECONDS, Death, Probe, Target, probes, send
from .process_table import SERVER, STUB, model_of, processes, read_process

__all__ = [
    "NO_ANSWER", "PATIENCE_SECONDS", "SERVER", "STUB", "Death", "Probe", "Target", "call", "connect", "connect_socket",
    "model_of", "probes", "processes", "read_process", "send", "socket_url",
]  # fmt: skip

"""The tritonserver arguments that hold wherever the server runs.

What is served is what is written (no auto-completion, no loading by request), and the parts of the API that no
client needs are closed. Addresses, ports and paths of the machine are added where the server is started.

This file runs alone in the image of docker/Dockerfile: `python3 arguments.py DEVICE` becomes a plain tritonserver of
/models, without hfx.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable

SHARED_MEMORY_BYTES = 1 << 20  # a Python stub's first region; it grows by itself
CONTAINER_MODELS = "/models"
CONTAINER_SECONDS = (300, 30)  # that loading the models, and requests under way at the end, may take
BODY_DEFAULT, BODY_MARGIN = 64 << 20, 8 << 20
CLOSED_APIS = "shared-memory,trace,logging"  # they write files or map memory
# The name of the header that would open them. Every local user can read the arguments, so it is one that can't be sent:
# a name in HTTP/1 has no colon, and the gRPC of Triton 2.51 refuses a request with such a name. Libraries differ in
# that, so its value is another one at each start, which callers from elsewhere can't know.
CLOSED_NAME = "no:key"


def server_arguments(
    repository: str,
    device: str,
    load_seconds: float,
    exit_seconds: int,
    controlled: bool = False,
    secret: str = "",
    load: Iterable[str] = ("*",),
) -> list[str]:
    """Arguments for a server of REPOSITORY on DEVICE (cpu or gpu: configs/DEVICE.pbtxt of each model).

    With `controlled` every client of HTTP can load and unload models; gRPC stays closed to that. Those in `load` are
    loaded at the start (*: all). `secret` is the value of the header that opens what is closed; without, a random one.
    """
    closed = f"{CLOSED_NAME}={secret or secrets.token_hex(16)}"
    loads = [f"--load-model={name}" for name in load]
    control = ["--model-control-mode=explicit", *loads] if controlled else ["--model-control-mode=none"]
    return [
        f"--model-repository={repository}",
        *control,
        "--disable-auto-complete-config",
        f"--model-config-name={device}",
        f"--http-restricted-api={CLOSED_APIS}:{closed}",
        f"--grpc-restricted-protocol={f'model-repository,{CLOSED_APIS}' if controlled else CLOSED_APIS}:{closed}",
        f"--exit-timeout-secs={exit_seconds}",
        f"--backend-config=python,shm-default-byte-size={SHARED_MEMORY_BYTES}",
        f"--backend-config=python,stub-timeout-seconds={int(load_seconds) or 1}",
        "--log-format=ISO8601",
    ]


def body_arguments(largest: int, is_bounded: bool) -> list[str]:
    """Arguments for HTTP bodies of up to `largest` bytes, of a Triton that `is_bounded`.

    The front writes the numbers of JSON anew in up to 8 bytes, and a head: BODY_MARGIN holds both.
    """
    needed = largest + BODY_MARGIN
    return [f"--http-max-input-size={needed}"] if is_bounded and needed > BODY_DEFAULT else []


def trace_arguments(endpoint: str) -> list[str]:
    """Arguments that send spans of requests with a `traceparent`, and of no others, to an OTLP collector."""
    settings = (
        "mode=opentelemetry",
        "rate=0",
        "level=TIMESTAMPS",
        f"opentelemetry,url={endpoint.rstrip('/')}/v1/traces",
        "opentelemetry,resource=service.name=triton",
    )
    return [f"--trace-config={setting}" for setting in settings] if endpoint else []


def grpc_tls_arguments(certificate: str, key: str, client_authorities: str) -> list[str]:
    """Arguments that encrypt gRPC by PEM files; with `client_authorities` clients need a certificate, too."""
    files = [f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}"]
    if client_authorities:
        return ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={client_authorities}", *files]
    return ["--grpc-use-ssl=true", *files]


if __name__ == "__main__":
    os.execvp("tritonserver", ["tritonserver", *server_arguments(CONTAINER_MODELS, sys.argv[1], *CONTAINER_SECONDS)])

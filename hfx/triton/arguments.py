"""The arguments of tritonserver that are the same wherever the server runs.

Triton serves exactly the configurations in the repository (no auto-completion, no loading by request), and the parts of
its API that no client needs are closed. The code that starts the server adds addresses, ports and paths of the machine.

This file also runs alone in the image of docker/Dockerfile: `python3 arguments.py DEVICE` becomes a plain tritonserver
for /models, without hfx.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable

SHARED_MEMORY_BYTES = 1 << 20  # the initial region of a Python stub, which grows by itself
CONTAINER_MODELS = "/models"
CONTAINER_SECONDS = (300, 30)  # for loading the models, and for requests in progress at the end
BODY_DEFAULT, BODY_MARGIN = 64 << 20, 8 << 20
CLOSED_APIS = "shared-memory,trace,logging"  # they write files or map memory
# The name of the header that would open CLOSED_APIS. Every local user can read the arguments, so the name is one that
# can't be sent: a name in HTTP/1 has no colon, and the gRPC of Triton 2.51 refuses a request with such a name. As
# libraries differ in that, the header's value is also new at each start, and unknown to callers on other machines.
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
    """Return the arguments for a server of REPOSITORY on DEVICE (cpu or gpu: configs/DEVICE.pbtxt of each model).

    With `controlled`, every HTTP client can load and unload models, but no gRPC client. The models in `load` are loaded
    at the start (*: all). `secret` is the value of the header that opens the closed parts; by default it is random.
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
    """Return the arguments for HTTP bodies of up to `largest` bytes.

    If Triton has no limit (not `is_bounded`), there are none.

    The front may write each number in JSON anew with up to 8 bytes, and adds a head. BODY_MARGIN covers both.
    """
    needed = largest + BODY_MARGIN
    return [f"--http-max-input-size={needed}"] if is_bounded and needed > BODY_DEFAULT else []


def trace_arguments(endpoint: str) -> list[str]:
    """Return the arguments that send spans to an OTLP collector, only for requests with a `traceparent`."""
    settings = (
        "mode=opentelemetry",
        "rate=0",
        "level=TIMESTAMPS",
        f"opentelemetry,url={endpoint.rstrip('/')}/v1/traces",
        "opentelemetry,resource=service.name=triton",
    )
    return [f"--trace-config={setting}" for setting in settings] if endpoint else []


def grpc_tls_arguments(certificate: str, key: str, client_authorities: str) -> list[str]:
    """Return the arguments that encrypt gRPC with PEM files. With `client_authorities`, clients need a certificate."""
    files = [f"--grpc-server-cert={certificate}", f"--grpc-server-key={key}"]
    if client_authorities:
        return ["--grpc-use-ssl-mutual=true", f"--grpc-root-cert={client_authorities}", *files]
    return ["--grpc-use-ssl=true", *files]


if __name__ == "__main__":
    os.execvp("tritonserver", ["tritonserver", *server_arguments(CONTAINER_MODELS, sys.argv[1], *CONTAINER_SECONDS)])

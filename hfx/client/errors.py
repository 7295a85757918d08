"""Convert a server's failure into an error of hfx.

Messages of hfx's own backends begin with a reason (python_backends/errors.py), which determines the class of the error.
For Triton's messages the HTTP status or gRPC code determines the class, unless the message has one of the phrases in
PHRASES. The phrases are needed because all errors of a generate endpoint are HTTP 400, and errors within a stream have
no status.
"""

from __future__ import annotations

import hfx.errors
from hfx.errors import (
    ModelUnknown,
    RequestCancelled,
    RequestRefused,
    RequestTimeout,
    ServerBusy,
    ServerError,
    ServerUnreachable,
)
from hfx.python_backends.errors import REASONS, split_reason

Kind = type[ServerError]

BY_REASON: dict[str, Kind] = {name: getattr(hfx.errors, reason.error) for name, reason in REASONS.items()}
REFUSED = (
    "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED UNIMPLEMENTED "
    "RESOURCE_EXHAUSTED 400 401 403 413 501"
)
# gRPC codes and HTTP statuses (empty: an error within a stream). Any other code means ServerError.
STATUSES: dict[str, Kind] = {
    **dict.fromkeys(("", *REFUSED.split()), RequestRefused),
    **dict.fromkeys(("UNAVAILABLE", "404", "502"), ServerUnreachable),
    **dict.fromkeys(("DEADLINE_EXCEEDED", "408", "504"), RequestTimeout),
    **dict.fromkeys(("429", "503"), ServerBusy),
    "NOT_FOUND": ModelUnknown,
    "CANCELLED": RequestCancelled,
}
FIXES: dict[Kind, str] = {
    ServerUnreachable: "Start one with `hfx serve`, or give the address of its gRPC port (HOST:PORT) or of its HTTP "
    "port (http://HOST:PORT).",
    ServerBusy: "Send fewer requests at a time, or try again later.",
    RequestTimeout: "Send fewer requests at a time, ask for less, or give a longer timeout.",
    RequestCancelled: "Send it again.",
}
RESTART = "A process of the server died: restart the server (`hfx serve` does so by itself)."
NOT_GRPC = (
    "That port does not speak gRPC: give Triton's gRPC port (8001 unless chosen otherwise), or http://HOST:PORT to "
    "talk HTTP."
)
NOT_HTTP = (
    "That port does not speak HTTP/1: give Triton's HTTP port (8000 unless chosen otherwise), or grpc://HOST:PORT to "
    "talk gRPC."
)
NO_TLS = (
    "For a server without TLS use grpc:// or http://. Otherwise name the authority that signed its certificate: "
    "--tls-ca; in Python, tls=Tls(ca=...)."
)
UNAUTHORIZED_STATUSES = ("UNAUTHENTICATED", "PERMISSION_DENIED", "401", "403")
UNAUTHORIZED = "Send the server's token: --token-file or HFX_TOKEN; in Python, Client(..., token=...)."
UNLOADED = "has no available versions"
# The exceptions that Python raises when the answer does not have the structure of Triton's answers.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError)
# Phrases of Triton 2.51, gRPC 1.7x and h11 0.16, each with the class of the error (None: the status determines it) and
# the fix (empty: the fix of the class).
PHRASES: tuple[tuple[str, Kind | None, str], ...] = (
    ("is not healthy", ServerError, RESTART),  # the process of a Python model
    ("unknown model", ModelUnknown, ""),
    ("maximum queue size", ServerBusy, ""),
    ("Request timeout expired", ServerBusy, ""),  # in the queue of a model
    ("not at ready state", ServerBusy, ""),
    (UNLOADED, ServerBusy, ""),  # the model is being unloaded
    ("Channel closed", RequestCancelled, ""),
    ("decoupled", None, "Ask for the model itself, not for its engine: leave `_stream` out of the name."),
    ("not Triton's", None, "Is the address that of a Triton server's HTTP port?"),
    ("SSL", None, NO_TLS),
    ("handshake", None, NO_TLS),
    ("http1.x server", None, NOT_GRPC),
    ("Failed parsing HTTP/2", None, NOT_GRPC),
    ("failed to connect to all addresses; last error: UNAVAILABLE", None, NOT_GRPC),
    ("illegal ", None, NOT_HTTP),
    ("without sending a response", None, NOT_HTTP),
)


def failure(status: str, text: str, url: str) -> ServerError:
    """Return the error for a failure with the message `text`.

    `status` is a gRPC code or an HTTP status, and empty for an error within a stream.
    """
    reason, text = split_reason(text)
    text = text or "no reason given"
    by_phrase, fix = next(((kind, fix) for phrase, kind, fix in PHRASES if phrase in text), (None, ""))
    kind = BY_REASON.get(reason) or by_phrase or STATUSES.get(status, ServerError)
    if status in UNAUTHORIZED_STATUSES:
        fix = UNAUTHORIZED
    return kind(_message(kind, text, url), fix or FIXES.get(kind, ""), status=status)


def check_authorized(error: ServerError) -> None:
    """Raise `error` if the server refused the token, as trying again would not help."""
    if error.status in UNAUTHORIZED_STATUSES:
        raise error


def no_answer(url: str, waited: float) -> ServerUnreachable:
    """Return the error for a server that does not answer at all."""
    return ServerUnreachable(
        f"Nothing answers at {url} (waited {waited:.3g} s).", "Check the address and port, and the firewall."
    )


def timed_out(url: str, timeout: float, status: str = "DEADLINE_EXCEEDED") -> RequestTimeout:
    """Return the error for an answer that did not arrive in time."""
    text = f"The server at {url} did not answer within {timeout:.3g} s."
    return RequestTimeout(text, FIXES[RequestTimeout], status=status)


def idle(url: str, idle: float) -> RequestTimeout:
    """Return the error for a stream without a new piece for `idle` seconds."""
    return RequestTimeout(
        f"Nothing new of the stream came from {url} for {idle:.3g} s.",
        "The model may be stuck or its queue long: look at the server, or give a longer idle_timeout.",
    )


def client_closed(url: str) -> RequestCancelled:
    """Return the error for a request whose client was closed meanwhile."""
    text = f"The connection to {url} was closed before the answer was complete."
    return RequestCancelled(text, "Close a client when its calls are done.")


def connection_failed(text: str, url: str) -> ServerError:
    """Return the error for an HTTP connection that failed, or on which the answer was something other than HTTP."""
    error = failure("502", text, url)
    error.status = ""
    return error


def unknown_model(error: ModelUnknown, url: str, model: str, present: list[str]) -> ServerError:
    """Return an error like `error` that names the models `present`; ServerBusy if `model` is one of them.

    Triton 2.51 may not find a model at the moment when a new version replaces it.
    """
    if model in present and f"'{model}'" in error.message:
        busy = f"The server at {url} was replacing the model {model!r}."
        return ServerBusy(busy, "Send the request again.", status=error.status)
    if UNLOADED in error.message:
        fix = "Send it to the server's HTTP port: `hfx serve --idle-unload` loads models for requests there."
        return ModelUnknown(f"The model {model!r} of the server at {url} is not loaded.", fix, status=error.status)
    fix = f"It serves: {', '.join(present)}." if present else "It serves no model at all."
    return ModelUnknown(f"The server at {url} has no model {model!r}.", fix, status=error.status)


def _message(kind: Kind, text: str, url: str) -> str:
    if kind is ServerUnreachable:
        return f"The server at {url} can't be reached: {text}"
    if kind is ServerBusy:
        return f"The server at {url} is busy: {text}"
    return text

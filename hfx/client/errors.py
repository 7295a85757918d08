"""A server's failure as an error of hfx: HTTP statuses, gRPC codes, and reasons that hfx's own backends write.

hfx's backends begin a message with `[hfx:REASON]` (python_backends/responses/codes.py), which goes first. Triton has no
such reason: where its status says too little (every error of a generate endpoint is HTTP 400, and within a stream there
is none), its words are looked up in one table.
"""

from __future__ import annotations

import re

from hfx.errors import (
    ModelUnknown,
    RequestCancelled,
    RequestRefused,
    RequestTimeout,
    ServerBusy,
    ServerError,
    ServerUnreachable,
)

Kind = type[ServerError]

# python_backends/responses/codes.py has the same reasons.
REASON = re.compile(r"\[hfx:([A-Z_]+)\] ")
REASONS: dict[str, Kind] = {
    "INVALID_REQUEST": RequestRefused,
    "TOO_LONG": RequestRefused,
    "QUEUE_FULL": ServerBusy,
    "DRAINING": ServerBusy,
    "ENGINE_UNREACHABLE": ServerBusy,  # it has died, or is not there yet: it is started again
    "DEADLINE_EXCEEDED": RequestTimeout,
    "FAILED": ServerError,
}
# Words of Triton 2.51 and of gRPC 1.7x.
WORDS: tuple[tuple[str, Kind], ...] = (
    ("is not healthy", ServerError),  # the process of a Python model has died
    ("unknown model", ModelUnknown),
    ("maximum queue size", ServerBusy),
    ("Request timeout expired", ServerBusy),  # in the queue of a model
    ("not at ready state", ServerBusy),
    ("has no available versions", ServerBusy),  # the model is being unloaded
    ("Channel closed", RequestCancelled),
)
REFUSED = (
    "INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE ALREADY_EXISTS PERMISSION_DENIED UNAUTHENTICATED UNIMPLEMENTED "
    "RESOURCE_EXHAUSTED 400 401 403 413 501"
)
# gRPC codes and HTTP statuses; empty: within a stream. Others are a ServerError.
STATUSES: dict[str, Kind] = {
    **dict.fromkeys(("", *REFUSED.split()), RequestRefused),
    **dict.fromkeys(("UNAVAILABLE", "404", "502"), ServerUnreachable),
    **dict.fromkeys(("DEADLINE_EXCEEDED", "408", "504"), RequestTimeout),
    **dict.fromkeys(("429", "503"), ServerBusy),
    "NOT_FOUND": ModelUnknown,
    "CANCELLED": RequestCancelled,
}
ADVICE: dict[Kind, str] = {
    ServerUnreachable: "Start one with `hfx serve`, or give the address of its gRPC port (HOST:PORT) or of its HTTP "
    "port (http://HOST:PORT).",
    ServerBusy: "Send fewer requests at a time, or try again later.",
    RequestTimeout: "Send fewer requests at a time, ask for less, or give a longer timeout.",
    RequestCancelled: "Send it again.",
}
UNAUTHORIZED = "Give the server's token: Client(..., token=...), or the header that it wants."
NOT_GRPC = (
    "That port does not speak gRPC: give Triton's gRPC port (8001 unless chosen otherwise), or http://HOST:PORT to "
    "talk HTTP."
)
NOT_HTTP = (
    "That port does not speak HTTP/1: give Triton's HTTP port (8000 unless chosen otherwise), or grpc://HOST:PORT to "
    "talk gRPC."
)
NO_TLS = (
    "Do both sides want TLS (grpcs://, https://) or neither, and does tls=Tls(ca=...) name who signed the server's "
    "certificate?"
)
WORDS_ADVICE = (
    ("is not healthy", "A process of the server died: restart the server (`hfx serve` does so by itself)."),
    ("decoupled", "Ask for the model itself, not for its engine: leave `_stream` out of the name."),
    ("not Triton's", "Is the address that of a Triton server's HTTP port?"),
    ("SSL", NO_TLS),
    ("handshake", NO_TLS),
    # Words of gRPC for a peer that speaks something else, or hangs up.
    ("http1.x server", NOT_GRPC),
    ("Failed parsing HTTP/2", NOT_GRPC),
    ("failed to connect to all addresses; last error: UNAVAILABLE", NOT_GRPC),
    # Words of h11 for what is no HTTP answer.
    ("illegal ", NOT_HTTP),
    ("without sending a response", NOT_HTTP),
)


def failure(status: str, text: str, url: str) -> ServerError:
    """The error for a failure with `status` (a gRPC code or an HTTP status; empty within a stream) and `text`."""
    reason = REASON.search(text)
    if reason is not None:
        text = text[: reason.start()] + text[reason.end() :]
    text = text.strip() or "no reason given"
    kind = REASONS.get(reason[1]) if reason is not None else None
    kind = kind or _kind(status, text)
    return kind(_message(kind, text, url), _advice(kind, status, text), status=status)


def silence(url: str, waited: float) -> ServerUnreachable:
    """The error for a server that answers nothing at all."""
    return ServerUnreachable(
        f"Nothing answers at {url} (waited {waited:.3g} s).", "Check the address and port, and the firewall."
    )


def lateness(url: str, timeout: float, status: str = "DEADLINE_EXCEEDED") -> RequestTimeout:
    """The error for an answer that did not come in time."""
    text = f"The server at {url} did not answer within {timeout:.3g} s."
    return RequestTimeout(text, ADVICE[RequestTimeout], status=status)


def stillness(url: str, idle: float) -> RequestTimeout:
    """The error for a stream on which nothing comes any more."""
    return RequestTimeout(
        f"Nothing new of the stream came from {url} for {idle:.3g} s.",
        "The model may be stuck or its queue long: look at the server, or give a longer idle_timeout.",
    )


def closed(url: str) -> RequestCancelled:
    """The error for a request whose client was closed meanwhile."""
    text = f"The connection to {url} was closed before the answer was complete."
    return RequestCancelled(text, "Close a client when its calls are done.")


def broken(text: str, url: str) -> ServerUnreachable:
    """The error for an HTTP connection that failed, or on which something else than HTTP came."""
    message = _message(ServerUnreachable, text, url)
    return ServerUnreachable(message, _advice(ServerUnreachable, "", text))


def unknown(error: ModelUnknown, url: str, model: str, present: list[str]) -> ModelUnknown:
    """`error` with the names of the models that there are."""
    fix = f"It serves: {', '.join(present)}." if present else "It serves no model at all."
    return ModelUnknown(f"The server at {url} has no model {model!r}.", fix, status=error.status)


def _kind(status: str, text: str) -> Kind:
    return next((kind for words, kind in WORDS if words in text), STATUSES.get(status, ServerError))


def _message(kind: Kind, text: str, url: str) -> str:
    if kind is ServerUnreachable:
        return f"The server at {url} can't be reached: {text}"
    if kind is ServerBusy:
        return f"The server at {url} is busy: {text}"
    return text


def _advice(kind: Kind, status: str, text: str) -> str:
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED", "401", "403"):
        return UNAUTHORIZED
    return next((advice for words, advice in WORDS_ADVICE if words in text), ADVICE.get(kind, ""))

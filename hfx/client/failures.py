"""A server's failure as an error of hfx, told by its status and, where that says too little, by its words.

One table of words and one of statuses. Within a stream Triton sends words only, and on its generate endpoints every
error is HTTP 400, so words go first. Nothing here sends anything; model and request are added by the session.
"""

from __future__ import annotations

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

# What Triton 2.51, the engine and gRPC itself say, whatever the status.
WORDS: tuple[tuple[str, Kind], ...] = (
    ("is not healthy", ServerError),
    ("unknown model", ModelUnknown),
    ("deadline passed", RequestTimeout),
    ("maximum queue size", ServerBusy),
    ("Request timeout expired", ServerBusy),
    ("requests wait, of", ServerBusy),
    ("ended before the answer was there", ServerBusy),  # a relay whose engine has died
    ("can't be asked: [Errno", ServerBusy),  # or is not there yet
    ("takes no new ones", ServerBusy),
    ("the server is stopping", ServerBusy),
    ("not at ready state", ServerBusy),
    ("has no available versions", ServerBusy),  # the model is being unloaded
    ("Channel closed", RequestCancelled),
)
STATUSES: dict[str, Kind] = {
    "UNAVAILABLE": ServerUnreachable,
    "DEADLINE_EXCEEDED": RequestTimeout,
    "NOT_FOUND": ModelUnknown,
    "CANCELLED": RequestCancelled,
    "INVALID_ARGUMENT": RequestRefused,
    "FAILED_PRECONDITION": RequestRefused,
    "OUT_OF_RANGE": RequestRefused,
    "ALREADY_EXISTS": RequestRefused,
    "PERMISSION_DENIED": RequestRefused,
    "UNAUTHENTICATED": RequestRefused,
    "UNIMPLEMENTED": RequestRefused,
    "RESOURCE_EXHAUSTED": RequestRefused,
    "": RequestRefused,
    "400": RequestRefused,
    "401": RequestRefused,
    "403": RequestRefused,
    "404": ServerUnreachable,
    "408": RequestTimeout,
    "413": RequestRefused,
    "429": ServerBusy,
    "501": RequestRefused,
    "502": ServerUnreachable,
    "503": ServerBusy,
    "504": RequestTimeout,
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
    # gRPC's words for what answered otherwise, or hung up at the first word.
    ("http1.x server", NOT_GRPC),
    ("Failed parsing HTTP/2", NOT_GRPC),
    ("failed to connect to all addresses; last error: UNAVAILABLE", NOT_GRPC),
    # h11's words for what is no HTTP answer.
    ("illegal ", NOT_HTTP),
    ("without sending a response", NOT_HTTP),
)


def failure(status: str, text: str, url: str) -> ServerError:
    """The error for a failure with STATUS (a gRPC code or an HTTP status; empty within a stream) and TEXT."""
    text = text.strip() or "no reason given"
    kind = _kind(status, text)
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
    """ERROR with the names of the models that there are."""
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

"""What a relay and its engine have agreed upon: the ids of its requests, and how errors come back.

Owns both. Triton passes an error on through a model only if it is the first response, and without its code; a relay's
first response says that the request has arrived, so that its errors are told as a text with a finish reason.
"""

from __future__ import annotations

import secrets

_RELAYED = "hfx-relay-"
_ERROR = "error "


def new_relay_id() -> str:
    """An id for a request of a relay, which nobody can guess and no caller's own ids look like."""
    return _RELAYED + secrets.token_hex(16)


def is_relayed(request_id: str) -> bool:
    """Whether a relay sent a request: it watches its caller itself, and waits for word that the request has arrived."""
    return request_id.startswith(_RELAYED)


def error_reason(code: str) -> str:
    """The finish reason of an error of this code; the text is the error's."""
    return _ERROR + code


def error_code(finish_reason: str) -> str | None:
    """The code of the error that a finish reason stands for, if it does."""
    return finish_reason.removeprefix(_ERROR) if finish_reason.startswith(_ERROR) else None

"""Answers that the front gives by itself: a status, and a message in the form of Triton's errors or of a dialect's.

What goes wrong with a dialect's request, in the client's code or in a model, becomes one here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from http import HTTPStatus

from hfx.client.errors import FIXES, failure
from hfx.errors import (
    HfxError,
    ModelUnknown,
    RequestCancelled,
    RequestRefused,
    RequestTimeout,
    ServerBusy,
    ServerUnreachable,
    UsageError,
)
from hfx.metadata import short
from hfx.metadata import shown as shown_in
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS
from hfx.python_backends.errors import REASONS, InvalidRequest, JsonRepr, split_prefixes
from hfx.python_backends.tasks import TASKS

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
RETRY: Header = (b"retry-after", b"1")
UNKNOWN_PATH, USED_UP = "unknown_url", "RATE"  # reasons of the front's own refusals
PARAM_LENGTH = 100  # characters of a field's name, which may be as long as the body
# The first class that fits; everything else is a 500.
STATUSES: tuple[tuple[type[HfxError], int], ...] = (
    (UsageError, 400),
    (ModelUnknown, 404),
    (RequestRefused, 400),
    (ServerBusy, 429),
    (RequestTimeout, 504),
    (RequestCancelled, 503),
    (ServerUnreachable, 503),
)
AGAIN = (429, 503)
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_JSON_FORM = short(JsonRepr())
FIELD = re.compile(r"(\w+) is ")
OF_TASKS = {name for task in TASKS.values() for name in (*task.needed, *task.options)}
KNOWN_REASONS = REASONS.keys() | {UNKNOWN_PATH, USED_UP}
STATUS_CODES = frozenset(HTTPStatus)
NAMES = frozenset(OF_TASKS | SETTINGS.keys() | ALIASES.keys())


class Refusal(Exception):
    """A request that is not answered: the `status` and `headers` of the answer, and its `message`.

    `param` names the field of the request that can't be taken, `reason` is the one in a message of hfx's backends (such
    as TOO_LONG); both are empty where there is none.
    """

    def __init__(
        self, status: int, message: str, headers: Sequence[Header] = (), *, param: str = "", reason: str = ""
    ) -> None:
        super().__init__(status, message)  # with which it is made again from a pickle
        self.status = status
        self.message = message
        self.headers = headers
        self.param = param[:PARAM_LENGTH]
        self.reason = reason

    def __str__(self) -> str:
        return self.message


def shown(value: object) -> str:
    """`value` of a JSON body in at most 60 characters, in JSON's words; a field that is not there is None."""
    return "missing or null" if value is None else shown_in(value, _JSON_FORM)


def json_type(value: object) -> str:
    """What JSON calls the type of `value`."""
    return JSON_TYPES.get(type(value), "null")


def error_object(refusal: Refusal) -> tuple[int, object]:
    """The status and JSON of a refusal, in the form of Triton's errors."""
    return refusal.status, {"error": refusal.message}


def json_head(body: bytes) -> list[Header]:
    """The headers of an answer that is JSON."""
    return [JSON, (b"content-length", b"%d" % len(body))]


def dumped(content: object) -> bytes:
    """Encode `content` as JSON."""
    return json.dumps(content, separators=(",", ":")).encode()


def overloaded(message: str) -> Refusal:
    """A refusal because of load: 503, and the time after which to try again."""
    return Refusal(503, f"{message} Try again later.", [RETRY])


def refused(error: HfxError) -> Refusal:
    """The refusal for an error of hfx."""
    return _refusal(_status(error), " ".join(part for part in (error.message, error.fix) if part))


def refused_by_model(status: str, text: str) -> Refusal:
    """The refusal for Triton's `status` and the `text` of its error."""
    error = failure(status, text, "")
    reason, text = split_prefixes(text)
    code = REASONS[reason].status if reason in REASONS else _status(error)
    if code >= 500 and not reason:
        text = f"{text} {FIXES.get(type(error), '')}".strip()
    return _refusal(code, text, reason)


def refused_setting(error: InvalidRequest) -> Refusal:
    """The refusal for a setting that can't be taken."""
    message = str(error)
    return Refusal(400, message if message.endswith("?") else f"{message}.", param=error.field)


def refusal_label(status: int, reason: str = "") -> str:
    """The name of a refusal in metrics: the `reason`, else the name of the `status`, such as `unauthorized` for 401.

    An error's text may repeat what a caller has sent, so only known reasons count.
    """
    if reason in KNOWN_REASONS:
        return reason.lower()
    return HTTPStatus(status).name.lower() if status in STATUS_CODES else f"status_{status}"


def _status(error: HfxError) -> int:
    return next((status for kind, status in STATUSES if isinstance(error, kind)), 500)


def _refusal(status: int, message: str, reason: str = "") -> Refusal:
    named = FIELD.match(message)
    param = named[1] if named is not None and named[1] in NAMES else ""
    return Refusal(status, message, [RETRY] if status in AGAIN else [], param=param, reason=reason)

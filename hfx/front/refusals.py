"""Refusals, which are answers of the front itself: a status, and a message in the JSON of Triton or of a dialect.

Errors in a dialect's request, raised by the client's code or by a model, become refusals here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus

from hfx import errors
from hfx.client.errors import FIXES, failure
from hfx.errors import HfxError
from hfx.metadata import short
from hfx.metadata import shown as shown_in
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS
from hfx.python_backends.errors import REASONS, InvalidRequest, JsonRepr, split_prefixes
from hfx.python_backends.tasks import TASKS

Header = tuple[bytes, bytes]
JSON: Header = (b"content-type", b"application/json")
RETRY: Header = (b"retry-after", b"1")
UNKNOWN_PATH, USED_UP = "unknown_url", "RATE"  # reasons for refusals that only the front has
PARAM_LENGTH = 100  # characters of a field's name, which may be as long as the body
# The first class that fits decides; any other error is a 500.
STATUSES: tuple[tuple[type[HfxError], int], ...] = (
    (errors.UsageError, 400),
    (errors.ModelUnknown, 404),
    (errors.RequestRefused, 400),
    (errors.ServerBusy, 429),
    (errors.RequestTimeout, 504),
    (errors.RequestCancelled, 503),
    (errors.ServerUnreachable, 503),
)
AGAIN = (429, 503)
JSON_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_JSON_FORM = short(JsonRepr())
FIELD = re.compile(r"(\w+) (?:is|has|and) ")
OF_TASKS = {name for task in TASKS.values() for name in (*task.needed, *task.options)}
KNOWN_REASONS = REASONS.keys() | {UNKNOWN_PATH, USED_UP}
STATUS_CODES = frozenset(HTTPStatus)
NAMES = frozenset(OF_TASKS | SETTINGS.keys() | ALIASES.keys())


class Refusal(Exception):
    """The refusal of a request, with the `status`, the `headers` and the `message` of the answer.

    `param` names the field of the request that is at fault. `reason` is the reason in a message of hfx's backends,
    such as TOO_LONG. Both are empty if there is none.
    """

    def __init__(
        self, status: int, message: str, headers: Sequence[Header] = (), *, param: str = "", reason: str = ""
    ) -> None:
        super().__init__(status, message)  # unpickling calls the constructor with these arguments
        self.status = status
        self.message = message
        self.headers = headers
        self.param = param[:PARAM_LENGTH]
        self.reason = reason

    def __str__(self) -> str:
        return self.message


def invalid(message: str, param: str = "", reason: str = "") -> Refusal:
    """Return the refusal (400) of an invalid request, whose field `param` is at fault."""
    return Refusal(400, message, param=param, reason=reason)


def shown(value: object) -> str:
    """Return `value` of a JSON body as JSON in at most 60 characters. None stands for a missing or null field."""
    return "missing or null" if value is None else shown_in(value, _JSON_FORM)


def json_type(value: object) -> str:
    """Return JSON's name for the type of `value`."""
    return JSON_TYPES.get(type(value), "null")


def error_object(refusal: Refusal) -> tuple[int, object]:
    """Return the status and JSON of a refusal, in the structure of Triton's errors."""
    return refusal.status, {"error": refusal.message}


def json_head(body: bytes) -> list[Header]:
    """Return the headers of a JSON answer."""
    return [JSON, (b"content-length", b"%d" % len(body))]


def dumped(content: object) -> bytes:
    """Encode `content` as JSON."""
    return json.dumps(content, separators=(",", ":")).encode()


def overloaded(message: str) -> Refusal:
    """Return a refusal because of load: 503, with the time after which to try again."""
    return Refusal(503, f"{message} Try again later.", [RETRY])


def wrong_method(allowed: Sequence[str]) -> Refusal:
    """Return the refusal (405) of a method at a path that takes the methods `allowed`. HEAD goes with GET."""
    names = ", ".join(allowed)
    headers = [(b"allow", names.replace("GET", "GET, HEAD").encode())]
    return Refusal(405, f"This path takes {names} only. Send it with {names}.", headers)


def refused(error: HfxError) -> Refusal:
    """Return the refusal for an error of hfx."""
    return _refusal(_status(error), " ".join(part for part in (error.message, error.fix) if part))


def refused_by_model(status: str, text: str) -> Refusal:
    """Return the refusal for Triton's `status` and the `text` of its error."""
    error = failure(status, text, "")
    reason, text = split_prefixes(text)
    code = REASONS[reason].status if reason in REASONS else _status(error)
    if code >= 500 and not reason:
        text = f"{text} {FIXES.get(type(error), '')}".strip()
    return _refusal(code, text, reason)


def refused_setting(error: InvalidRequest) -> Refusal:
    """Return the refusal of an invalid setting."""
    message = str(error)
    return Refusal(400, message if message.endswith("?") else f"{message}.", param=error.field)


def renamed(refusal: Refusal, names: Mapping[str, str]) -> Refusal:
    """Return `refusal` with the caller's `names` of fields in place of hfx's own, which are their keys."""
    if names:
        own = re.compile(rf"\b({'|'.join(names)})\b")
        refusal.message = own.sub(lambda name: names[name[0]], refusal.message)
        refusal.param = names.get(refusal.param, refusal.param)
    return refusal


def refusal_label(status: int, reason: str = "") -> str:
    """Return the name of a refusal in metrics: `reason`, or the name of `status`, such as `unauthorized` for 401.

    Only known reasons are used, because the text of an error may repeat what a caller has sent.
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

"""What goes wrong with a dialect's request, as the refusal that its client gets."""

from __future__ import annotations

import re

from hfx.client.errors import FIXES, REASON, failure
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
from hfx.front.refusals import RETRY, Refusal
from hfx.python_backends.engine.errors import InvalidRequest
from hfx.python_backends.engine.generation_settings import ALIASES, SETTINGS

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
REASONS = {"DRAINING": 503, "ENGINE_UNREACHABLE": 503, "FAILED": 500}
AGAIN = (429, 503)
# What Triton writes before the message of a model (2.51).
PREFIX = re.compile(r"^(?:in ensemble '[^']*', )?(?:Failed to process the request\(s\)[^,]*, message: )?")
FIELD = re.compile(r"(\w+) is ")
TEXTS = frozenset(
    {"text_input", "question", "context", "query", "candidate_labels", "top_k", "multi_label", "raw_scores"}
    | SETTINGS.keys()
    | ALIASES.keys()
)


def refused(error: HfxError) -> Refusal:
    """The refusal for an error of hfx."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    return _refusal(status, " ".join(part for part in (error.message, error.fix) if part))


def refused_by_model(status: str, text: str) -> Refusal:
    """The refusal for Triton's `status` and the `text` of its error."""
    error = failure(status, text, "")
    reason = REASON.search(text)
    text = REASON.sub("", PREFIX.sub("", text)).strip()
    code = next((code for kind, code in STATUSES if isinstance(error, kind)), 500)
    if reason is not None:
        return _refusal(REASONS.get(reason[1], code), text, reason[1])
    return _refusal(code, text if code < 500 else f"{text} {FIXES.get(type(error), '')}".strip())


def refused_setting(error: InvalidRequest) -> Refusal:
    """The refusal for a setting that can't be taken."""
    message = str(error)
    return Refusal(400, message if message.endswith("?") else f"{message}.", param=error.field)


def _refusal(status: int, message: str, reason: str = "") -> Refusal:
    named = FIELD.match(message)
    param = named[1] if named is not None and named[1] in TEXTS else ""
    return Refusal(status, message, [RETRY] if status in AGAIN else [], param=param, reason=reason)

"""Texts that are longer than the model: cut, refused, or read in overlapping windows.

The windows are those of the tokenizers library, with which transformers' TokenClassificationPipeline (4.57) reads a
text if it has a `stride`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .checks import NAME_LENGTH
from .errors import HAS_NO_WINDOWS, IS_NONE_OF, ROWS_DIFFER, WINDOWS_SHARE, ContextTooLong, InvalidInput
from .inputs import Tensors, column, decoded
from .settings import Settings
from .windows import CONTEXT_BYTES, CONTEXT_TOKENS, REQUEST_TOKENS, without_truncation

LONG, STRIDE, TEXT = "long", "stride", "text_input"
CUT, REFUSED = "truncate", "error"  # values of `long`; all others mean windows
# The values of `long` of each task whose models may read windows; the first one is the default.
WAYS: Mapping[str, tuple[str, ...]] = {
    "text-classification": (CUT, "mean", "max", REFUSED),
    "token-classification": ("chunk", CUT, REFUSED),
}


@dataclass(frozen=True)
class Reading:
    """How a long text is read: the value of `long`, the tokens that two windows share, the most tokens of all windows.

    A window counts as `max_length` tokens.
    """

    long: str = CUT
    stride: int = 0
    most: int = CONTEXT_TOKENS

    @property
    def in_windows(self) -> bool:
        """Whether a long text is read in windows."""
        return self.long not in (CUT, REFUSED)


AS_BEFORE = Reading()  # of models that read no windows


def has_windows(settings: Settings, tensors: Tensors, parameters: str) -> bool:
    """Return whether a request's long texts may be read in windows, which have all of their tokens.

    `parameters` are the request's, in JSON.
    """
    if settings.stride is None:
        return settings.task == "question-answering"
    return Reading(WAYS[settings.task][0]).in_windows or LONG in tensors or f'"{LONG}"' in parameters


class Windows:
    """Makes the windows of long texts, for any number of threads. `tokenizer` is a tokenizers.Tokenizer."""

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        self._settings = settings
        self._length = settings.max_length
        self._side = settings.truncation_side
        self._special = tokenizer  # adds the special tokens
        self._plain = without_truncation(tokenizer)
        self._room = self._length - tokenizer.num_special_tokens_to_add(is_pair=False)

    def readings(self, tensors: Tensors, rows: int) -> list[Reading]:
        """Return how the text of each row of a request is read. Raises InvalidInput for invalid settings."""
        return readings(tensors, rows, self._settings, self._room)

    def encodings(self, raw: bytes, reading: Reading) -> list[Any]:
        """Return a tokenizers.Encoding for each window over the text `raw`. Raises ContextTooLong, InvalidInput."""
        if len(raw) > CONTEXT_BYTES:
            raise ContextTooLong(TEXT, len(raw), "bytes", CONTEXT_BYTES)
        whole = self._plain.encode(decoded(TEXT, raw), add_special_tokens=False)
        windows = 1 + max(0, -((self._room - len(whole)) // (self._room - reading.stride)))
        if windows > 1 and windows * self._length > reading.most:
            raise ContextTooLong(TEXT, windows * self._length, "tokens in its windows", reading.most)
        whole.truncate(self._room, reading.stride, self._side)
        first = self._special.post_process(whole)
        return [first, *first.overflowing]


def readings(tensors: Tensors, rows: int, settings: Settings, room: int) -> list[Reading]:
    """Return how the text of each row of a request is read. Windows share fewer than `room` tokens.

    Raises InvalidInput for invalid settings.
    """
    known, most = WAYS[settings.task], min(CONTEXT_TOKENS, REQUEST_TOKENS // max(1, rows))
    ways = [decoded(LONG, text) for text in column(LONG, tensors)] if LONG in tensors else []
    strides = tensors[STRIDE].ravel().tolist() if STRIDE in tensors else []
    for name, values in ((LONG, ways), (STRIDE, strides)):
        if name in tensors and len(values) != rows:
            raise InvalidInput(ROWS_DIFFER % (TEXT, rows, name, len(values)))
    ways, strides = ways or [known[0]] * rows, strides or [settings.stride or 0] * rows
    read = [Reading(long, stride, most) for long, stride in zip(ways, strides, strict=True)]
    for reading in read:
        if reading.long not in known:
            raise InvalidInput(IS_NONE_OF % (LONG, reading.long[:NAME_LENGTH], " or ".join(known)))
        if not 0 <= reading.stride < room:
            raise InvalidInput(WINDOWS_SHARE % (STRIDE, reading.stride, room - 1))
        if STRIDE in tensors and not reading.in_windows:
            raise InvalidInput(HAS_NO_WINDOWS % (STRIDE, reading.stride, reading.long))
    return read


def refuse_cut(reading: Reading, dropped: int, length: int) -> None:
    """Raise ContextTooLong if `dropped` tokens of a text were cut off behind `length` that the model reads."""
    if dropped and reading.long == REFUSED:
        raise ContextTooLong(TEXT, length + dropped, "tokens or more", length)

"""The inputs of a tokenizing step: the strings of a request, the piece of a text that is tokenized, and refusals.

A tokenizer's time is linear in the text and its memory a hundred times the text's, while a model reads only
`max_length` tokens. The rest of a text is therefore cut off first, with a proof that the cut did not change the tokens
that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .errors import HAS_NO_STRINGS, HAS_TOO_MANY_BYTES, IS_HUGE, IS_MISSING, ROWS_DIFFER, InvalidInput, failure_of

Tensors = Mapping[str, NDArray[Any]]
Text = str | bytes
Result = TypeVar("Result")
Checked = TypeVar("Checked", bound="tuple[Any, ...]")

TOKENS_SHOWN = 3
LONGEST_TEXT = 16_777_216  # bytes (16 MiB), even if only a part of the text is tokenized


def or_refusal(encode: Callable[..., Result], *arguments: Any) -> Result | Exception:
    """Return the result of `encode(*arguments)`, or the error for its request: the other rows of the batch go on."""
    try:
        return encode(*arguments)
    except BaseException as error:  # a panic of the tokenizers library is not an Exception
        return failure_of(error)


def encode_together(
    items: Iterable[tuple[Any, ...]],
    check: Callable[..., Checked],
    tokenize: Callable[[list[Checked]], Iterable[Any]],
    row: Callable[..., Result],
) -> list[Result | Exception]:
    """Return a row, or an error instead of it, for each of `items`, which are tuples of UTF-8 texts.

    `check` is called with the texts of an item. `tokenize` is called with the results of `check` for all items, and
    `row` with the result of `check` for an item and the item's encoding.
    """
    checked = [or_refusal(check, *item) for item in items]
    encodings = iter(_encodings(tokenize, [each for each in checked if not isinstance(each, Exception)]))
    return [each if isinstance(each, Exception) else _row(row, each, next(encodings)) for each in checked]


def _row(row: Callable[..., Result], checked: Any, encoding: Any) -> Result | Exception:
    return encoding if isinstance(encoding, Exception) else or_refusal(row, *checked, encoding)


def _encodings(tokenize: Callable[[list[Any]], Iterable[Any]], texts: list[Any]) -> list[Any]:
    """Return the encodings of all texts; if they can't be tokenized together, the texts are tokenized one by one."""
    together = or_refusal(lambda: list(tokenize(texts)))
    if not isinstance(together, Exception):
        return together
    return [together] if len(texts) == 1 else [each for text in texts for each in _encodings(tokenize, [text])]


def column(field: str, tensors: Tensors) -> list[bytes]:
    """Return the strings of a [rows, 1] tensor, one for each row. Raises InvalidInput."""
    array = _tensor(field, tensors)
    if array.ndim != 2 or array.shape[1] != 1:
        raise InvalidInput(f"{field} must hold one string a row (shape [rows, 1]), not shape {list(array.shape)}")
    texts: list[bytes] = array[:, 0].tolist()
    refuse_huge(field, texts)
    return texts


def table(field: str, tensors: Tensors) -> list[list[bytes]]:
    """Return the strings of a [rows, n] tensor, a list for each row; n is at least 1. Raises InvalidInput."""
    array = _tensor(field, tensors)
    if array.ndim != 2:
        raise InvalidInput(f"{field} must have the shape [rows, strings], not {list(array.shape)}")
    if array.shape[1] == 0:
        raise InvalidInput(HAS_NO_STRINGS % field)
    rows: list[list[bytes]] = array.tolist()
    for texts in rows:
        refuse_huge(field, texts)
    return rows


def _tensor(field: str, tensors: Tensors) -> NDArray[Any]:
    array = tensors.get(field)
    if array is None or array.dtype != np.object_:
        raise InvalidInput(IS_MISSING % field if array is None else f"{field} is no text")
    return array


def refuse_huge(field: str, texts: Iterable[bytes]) -> None:
    """Raise InvalidInput if a text has more than LONGEST_TEXT bytes."""
    longest = max(map(len, texts), default=0)
    if longest > LONGEST_TEXT:
        raise InvalidInput(IS_HUGE % (field, longest, LONGEST_TEXT))


def same_rows(first: str, second: str, tensors: Tensors) -> None:
    """Raise InvalidInput if two tensors have different numbers of rows."""
    left, right = len(_tensor(first, tensors)), len(_tensor(second, tensors))
    if left != right:
        raise InvalidInput(ROWS_DIFFER % (first, left, second, right))


def column_pairs(first: str, second: str, tensors: Tensors) -> list[tuple[Text, Text]]:
    """Return the strings of two [rows, 1] tensors, a pair for each row. Raises InvalidInput."""
    same_rows(first, second, tensors)
    return list(zip(column(first, tensors), column(second, tensors), strict=True))


def encoded(text: Text) -> bytes:
    """Return the UTF-8 bytes of a text that may be bytes already."""
    return text.encode() if isinstance(text, str) else text


def decoded(field: str, raw: bytes) -> str:
    """Return `raw` as text. Raises InvalidInput if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{field} is not UTF-8: {error.reason} at byte {error.start} (0x{raw[error.start]:02x})"
        ) from None


def refuse_tokens(field: str, ids: Iterable[int], vocab_size: int | None, tokenizer: Any) -> None:
    """Raise InvalidInput if `tokenizer` (a tokenizers.Tokenizer) knows a token that the net has no embedding of."""
    if vocab_size is None:
        return
    beyond = sorted({token for token in ids if token >= vocab_size})
    if beyond:
        tokens = ", ".join(f"'{tokenizer.id_to_token(token)}'" for token in beyond[:TOKENS_SHOWN])
        raise InvalidInput(f"{field} has the token {tokens}, which the model has no embedding of")


def strings(*texts: Text) -> NDArray[np.object_]:
    """Return a [len(texts), 1] STRING tensor, as Triton passes it to a model."""
    return np.array([[encoded(text)] for text in texts], dtype=np.object_)


# The first cap is several times what ordinary text needs (English has 4 to 5 bytes a token). A text that does not fill
# the model's tokens with it (runs of blanks or of control characters) gets the next cap, and is then taken as it is.
BYTES_PER_TOKEN = (16, 64, 256)

# A cut changes only the tokens near it: the tokens of the word that it cuts, which has at most 100 characters
# (WordPiece makes one unknown token of a longer word), or the last few tokens of a Viterbi path.
MARGIN = 128


@dataclass(frozen=True)
class Piece:
    """The part of a text that is tokenized; `start` is the number of bytes of the text before it."""

    text: str
    cut: bool
    start: int = 0


def piece(field: str, raw: bytes, limit: int, side: str) -> Piece:
    """Return the first (side "right") or last (side "left") `limit` bytes of `raw`, whole characters only.

    Raises InvalidInput if they are not UTF-8.
    """
    if len(raw) <= limit:
        return Piece(decoded(field, raw), False)
    if side == "right":
        return Piece(decoded(field, raw[: _border(raw, limit, -1)]), True)
    start = _border(raw, len(raw) - limit, 1)
    return Piece(decoded(field, raw[start:]), True, start)


def characters_before(raw: bytes, used: Piece) -> int:
    """Return the number of characters of `raw` before a piece of it; a character has one byte that is not 10xxxxxx."""
    signed = np.frombuffer(raw, np.int8, count=used.start)
    step = 1 << 20  # in the processor's cache
    return sum(int(np.count_nonzero(signed[at : at + step] >= -64)) for at in range(0, used.start, step))


def refuse_longer(field: str, raw: bytes, max_tokens: int) -> None:
    """Raise InvalidInput if a text that may not be cut can't fit into `max_tokens` tokens in any ordinary way."""
    limit = max_tokens * BYTES_PER_TOKEN[0]
    if len(raw) > limit:
        raise InvalidInput(HAS_TOO_MANY_BYTES % (field, len(raw), limit))


def settled(encoding: Any, side: str, sequence: int = 0) -> bool:
    """Whether the tokens kept in the encoding of a cut text equal the tokens of the whole text.

    They do if the cut is in another word than the last kept token, or at least MARGIN tokens away from that token.
    """
    dropped = encoding.overflowing
    if not dropped:
        return False
    kept, outer = _words(encoding, sequence), _words(dropped[-1], sequence)
    if not kept or not outer:
        return False
    other_word = max(outer) > max(kept) if side == "right" else min(outer) < min(kept)
    return other_word or sum(sequence_length(part, sequence) for part in dropped) >= MARGIN


def sequence_length(encoding: Any, sequence: int) -> int:
    """Return the number of tokens of one of an encoding's sequences, without special tokens."""
    return encoding.sequence_ids.count(sequence)  # type: ignore[no-any-return]


def _words(encoding: Any, sequence: int) -> list[int]:
    pairs = zip(encoding.word_ids, encoding.sequence_ids, strict=True)
    return [word for word, of in pairs if word is not None and of == sequence]


def _border(raw: bytes, at: int, step: int) -> int:
    """Return the first start of a character from `at` on, in steps of `step`; continuation bytes are 10xxxxxx."""
    for _ in range(3):
        if at >= len(raw) or raw[at] & 0xC0 != 0x80:
            break
        at += step
    return at

"""What a client may send to the tokenizing step, and how a refusal is worded.

Owns the reading of STRING tensors into rows; knows no tokenizer and no Triton.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tensors = Mapping[str, NDArray[Any]]
Text = str | bytes

TOKENS_SHOWN = 3


class InvalidInput(ValueError):
    """A client's tensor that can't be taken; the text names the tensor and says what is wrong with it."""


def column(field: str, tensors: Tensors) -> list[bytes]:
    """The strings of a [rows, 1] tensor, one a row."""
    array = tensors[field]
    if array.ndim != 2 or array.shape[1] != 1:
        raise InvalidInput(f"{field} must hold one string a row (shape [rows, 1]), not shape {list(array.shape)}")
    return array[:, 0].tolist()  # type: ignore[no-any-return]


def table(field: str, tensors: Tensors) -> list[list[bytes]]:
    """The strings of a [rows, n] tensor, a list a row; n is at least 1."""
    array = tensors[field]
    if array.ndim != 2:
        raise InvalidInput(f"{field} must have the shape [rows, strings], not {list(array.shape)}")
    if array.shape[1] == 0:
        raise InvalidInput(f"{field} is empty: send at least one string")
    return array.tolist()  # type: ignore[no-any-return]


def same_rows(first: str, second: str, tensors: Tensors) -> None:
    """Refuse two tensors of different numbers of rows."""
    left, right = len(tensors[first]), len(tensors[second])
    if left != right:
        raise InvalidInput(f"{first} has {left} rows but {second} has {right}")


def encoded(text: Text) -> bytes:
    """UTF-8 bytes of a text that may be bytes already."""
    return text.encode() if isinstance(text, str) else text


def decoded(field: str, raw: bytes) -> str:
    """`raw` as text. Raises InvalidInput where it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{field} is not UTF-8: {error.reason} at byte {error.start} (0x{raw[error.start]:02x})"
        ) from None


def refuse_tokens(field: str, ids: Iterable[int], vocab_size: int | None, tokenizer: Any) -> None:
    """Refuse a text with a token that `tokenizer` (a tokenizers.Tokenizer) knows and the net has no embedding of."""
    if vocab_size is None:
        return
    beyond = sorted({token for token in ids if token >= vocab_size})
    if beyond:
        tokens = ", ".join(repr(tokenizer.id_to_token(token)) for token in beyond[:TOKENS_SHOWN])
        raise InvalidInput(f"{field} has the token {tokens}, which the model has no embedding of")


def strings(*texts: Text) -> NDArray[np.object_]:
    """A [len(texts), 1] STRING tensor, as Triton hands it to a model."""
    return np.array([[encoded(text)] for text in texts], dtype=np.object_)

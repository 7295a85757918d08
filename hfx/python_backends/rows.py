"""Encoded rows, the base class of encoders, and the padding of rows into the tensors that the net gets."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from .inputs import Piece, piece
from .settings import Settings
from .tasks import TASKS

Encoder = TypeVar("Encoder")
SPECIAL = -1  # in a sequence's places: a token that stands for no characters of the text


@dataclass(frozen=True)
class Sequence:
    """One token sequence; its tokens have the mask 1, or the values in `mask`.

    `places` has the characters (start, end) that each token stands for: [tokens, 2]. For question answering, it has
    [tokens, 4]: a token's own characters are followed by the characters of its word.
    """

    ids: list[int]
    type_ids: list[int]
    places: NDArray[np.int32] | None = None
    mask: int | Many[int] = 1


def sequence(encoding: Any, settings: Settings, places: NDArray[np.int32] | None = None, unpooled: int = 0) -> Sequence:
    """Return the sequence of a tokenizers.Encoding; its first `unpooled` tokens have the mask 2.

    The sequence has type ids only if the net takes them.
    """
    types = encoding.type_ids if "token_type_ids" in settings.inputs else []
    count = len(encoding.ids)
    unpooled = min(unpooled, count)  # the prompt alone may have more tokens than the sequence
    return Sequence(encoding.ids, types, places, [2] * unpooled + [1] * (count - unpooled) if unpooled else 1)


@dataclass(frozen=True)
class Row:
    """The encoding of one row of a request: its sequences, and how many tokens, at least, were left out.

    A row for a bi-encoder has the `vectors` of its labels [labels, numbers].
    """

    sequences: tuple[Sequence, ...]
    truncated_tokens: int
    vectors: NDArray[np.float32] | None = None


class RowEncoder:
    """The base class of encoders: the settings, and a tokenizers.Tokenizer that each encoder configures for itself."""

    pause: Callable[[], None] = staticmethod(lambda: None)  # called between the parts of a row of many sequences

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._side = settings.truncation_side
        tokenizer.no_padding()
        tokenizer.no_truncation()

    def _piece(self, raw: bytes, bytes_per_token: int) -> Piece:
        return piece("text_input", raw, self.settings.max_length * bytes_per_token, self._side)

    def _ids(self, texts: Many[str]) -> list[list[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


def pausing(encoder: Encoder, pause: Callable[[], None]) -> Encoder:
    """Return an encoder like `encoder`, with its tokenizer, that calls `pause` between the parts of a row."""
    other = copy.copy(encoder)
    other.pause = pause  # type: ignore[attr-defined]
    return other


def tensors(requests: Many[Many[Row]], settings: Settings) -> list[dict[str, NDArray[Any]]]:
    """Return the tensors of each request by name: INT32, rows first, padded to the least width that fits the longest.

    input_ids, attention_mask and, if the net takes it, token_type_ids: [rows, width], or [rows, sequences, width]
    (windows; zero-shot: labels; rows with fewer sequences get sequences whose mask is zero).
    truncated_tokens: [rows, 1]. text-classification in windows: window_tokens [rows, sequences]: the tokens of each
    window, 0 where a row has none. token-classification: offsets [rows, sequences, width, 2], -1 for special and
    padding tokens.
    question-answering: spans [rows, sequences, width, 4]: a token's own characters (-1 where no answer may start or
    end, -2 for padding), followed by the characters of its word (-1 where there is none).
    Requests of one shape get parts of the same arrays: 64 texts of 19 tokens take 0.21 ms this way, and 0.38 ms one by
    one.
    """
    groups: dict[tuple[int, int, int], list[int]] = {}
    for at, rows in enumerate(requests):
        longest = max(len(sequence.ids) for row in rows for sequence in row.sequences)
        count = max(len(row.sequences) for row in rows)
        larger = bisect_left(settings.widths, longest)
        width = settings.widths[larger] if larger < len(settings.widths) else longest
        labels = max(0 if row.vectors is None else len(row.vectors) for row in rows)
        groups.setdefault((count, width, labels), []).append(at)
    made: list[dict[str, NDArray[Any]]] = [{}] * len(requests)
    for (count, width, _), members in groups.items():
        whole, start = _fill([row for at in members for row in requests[at]], count, width, settings), 0
        for at in members:
            end = start + len(requests[at])
            made[at] = {name: array[start:end] for name, array in whole.items()}
            start = end
    return made


def _fill(rows: Many[Row], count: int, width: int, settings: Settings) -> dict[str, NDArray[Any]]:
    shape = len(rows), count, width
    ids = np.full(shape, settings.pad_id, np.int32)
    mask = np.zeros(shape, np.int32)
    arrays: dict[str, NDArray[Any]] = {"input_ids": ids, "attention_mask": mask}
    types = places = None
    if "token_type_ids" in settings.inputs:
        types = arrays["token_type_ids"] = np.full(shape, settings.pad_type_id, np.int32)
    task = TASKS[settings.task]
    if task.places is not None:
        shape_of_places = (*shape, task.places.columns)
        places = arrays[task.places.tensor] = np.full(shape_of_places, task.places.padding, np.int32)
    for i, row in enumerate(rows):
        for j, sequence in enumerate(row.sequences):
            length = len(sequence.ids)
            ids[i, j, :length] = sequence.ids
            mask[i, j, :length] = sequence.mask
            if types is not None:
                types[i, j, :length] = sequence.type_ids
            if places is not None:
                places[i, j, :length] = sequence.places
    if not settings.nested:
        arrays = {name: array[:, 0] for name, array in arrays.items()}
    elif settings.task == "text-classification":
        # Some classifiers can't take a sequence whose mask is zero.
        mask[:, :, 0] = np.maximum(mask[:, :, 0], 1)
        counts = [[len(sequence.ids) for sequence in row.sequences] for row in rows]
        arrays["window_tokens"] = np.array([row + [0] * (count - len(row)) for row in counts], np.int32)
    vectors = [row.vectors for row in rows if row.vectors is not None]
    if vectors:
        arrays["label_vectors"] = np.stack(vectors)
    arrays["truncated_tokens"] = np.array([[row.truncated_tokens] for row in rows], np.int32)
    return arrays

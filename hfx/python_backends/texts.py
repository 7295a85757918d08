"""One text a row: text-classification, token-classification, feature-extraction.

Token ids equal those of the checkpoint's own tokenizer with truncation to max_length.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .inputs import (
    BYTES_PER_TOKEN,
    InvalidInput,
    Piece,
    Tensors,
    Text,
    characters_before,
    column,
    encoded,
    or_refusal,
    piece,
    refuse_tokens,
    settled,
)
from .rows import SPECIAL, Row, sequence
from .settings import Settings

FIELD = "text_input"


class TextEncoder:
    """Encodes texts; `tokenizer` is a tokenizers.Tokenizer that the encoder sets up for itself."""

    fields: tuple[str, ...] = (FIELD,)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._side = settings.truncation_side
        self._needs_places = settings.task == "token-classification"
        tokenizer.no_padding()
        tokenizer.enable_truncation(settings.max_length, direction=settings.truncation_side)

    def items(self, tensors: Tensors) -> list[Text]:
        """The texts of a request, one a row."""
        return [*column(FIELD, tensors)]

    def encode(self, items: Many[Text]) -> list[Row | InvalidInput]:
        """One row (or the reason why there is none) for each text, by one call of the tokenizer."""
        raws = [encoded(item) for item in items]
        pieces = [or_refusal(self._piece, raw, BYTES_PER_TOKEN[0]) for raw in raws]
        encodings = iter(self._tokenize([used for used in pieces if isinstance(used, Piece)]))
        return [
            or_refusal(self._row, raw, used, next(encodings)) if isinstance(used, Piece) else used
            for raw, used in zip(raws, pieces, strict=True)
        ]

    def _piece(self, raw: bytes, bytes_per_token: int) -> Piece:
        return piece(FIELD, raw, self.settings.max_length * bytes_per_token, self._side)

    def _tokenize(self, pieces: Many[Piece]) -> Any:
        texts = [each.text for each in pieces]
        # The fast call knows neither offsets nor words; words are what a cut text is checked by.
        if self._needs_places or any(each.cut for each in pieces):
            return self._tokenizer.encode_batch(texts)
        return self._tokenizer.encode_batch_fast(texts)

    def _row(self, raw: bytes, used: Piece, encoding: Any) -> Row:
        for bytes_per_token in BYTES_PER_TOKEN[1:]:
            if not used.cut or settled(encoding, self._side):
                break
            used = self._piece(raw, bytes_per_token)
            encoding = self._tokenizer.encode(used.text)
        if len(encoding) == 0:
            raise InvalidInput(f"{FIELD} has no tokens")
        refuse_tokens(FIELD, encoding.ids, self.settings.vocab_size, self._tokenizer)
        if self._needs_places and used.cut and not settled(encoding, self._side) and self._cuts_word(encoding, used):
            raise InvalidInput(f"{FIELD} has a word without an end in {len(used.text)} characters. Divide it by blanks")
        places = _places(encoding, characters_before(raw, used)) if self._needs_places else None
        return Row((sequence(encoding, self.settings, places),), max(self._dropped(encoding), int(used.cut)))

    def _cuts_word(self, encoding: Any, used: Piece) -> bool:
        """Whether the last word of the tokens kept (the first, where texts lose their beginning) may go on outside."""
        masked = zip(encoding.offsets, encoding.special_tokens_mask, strict=True)
        places = [place for place, special in masked if not special]
        if not places:
            return False
        right = self._side == "right"
        beside = used.text[max(end for _, end in places) :] if right else used.text[: min(start for start, _ in places)]
        return not any(map(str.isspace, beside))

    def _dropped(self, encoding: Any) -> int:
        if len(encoding) < self.settings.max_length:
            return 0
        return sum(len(part) - sum(part.special_tokens_mask) for part in encoding.overflowing)


def _places(encoding: Any, shift: int) -> NDArray[np.int32]:
    places = np.array(encoding.offsets, np.int32).reshape(-1, 2) + np.int32(shift)
    places[np.array(encoding.special_tokens_mask, np.bool_)] = SPECIAL
    return places

"""Text ranking: a query and a text become one sequence, of which the longer text is truncated first.

Token ids are those of sentence-transformers' CrossEncoder (5.7): the checkpoint's own tokenizer, which is given the
pair with truncation `longest_first`.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import Any

from .inputs import (
    BYTES_PER_TOKEN,
    MARGIN,
    InvalidInput,
    Piece,
    Tensors,
    Text,
    column,
    decoded,
    encoded,
    or_refusal,
    piece,
    refuse_longer,
    refuse_tokens,
    same_rows,
)
from .rows import Row, Sequence
from .settings import Settings

QUERY = "query"
TEXT = "text_input"

Item = tuple[Text, Text]


class PairEncoder:
    """Encodes (query, text); `tokenizer` is a tokenizers.Tokenizer that the encoder sets up for itself.

    The two are tokenized without special tokens and joined here: of a pair that it truncates, the tokenizer would also
    build every combination of the parts that it leaves out.
    """

    fields: tuple[str, ...] = (QUERY, TEXT)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        self.settings = settings
        self._tokenizer = tokenizer
        self._side = settings.truncation_side
        self._room = settings.max_length - tokenizer.num_special_tokens_to_add(is_pair=True)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._template = Template(tokenizer.encode("a", "a"))

    def items(self, tensors: Tensors) -> list[Item]:
        """The queries and texts of a request, a pair a row."""
        same_rows(QUERY, TEXT, tensors)
        return list(zip(column(QUERY, tensors), column(TEXT, tensors), strict=True))

    def encode(self, items: Many[Item]) -> list[Row | InvalidInput]:
        """One row (or the reason why there is none) for each item; equal queries are tokenized once."""
        checked = [or_refusal(self._check, encoded(query), encoded(text)) for query, text in items]
        pairs = [pair for pair in checked if not isinstance(pair, InvalidInput)]
        texts = list(dict.fromkeys(text for query, used in pairs for text in (query, used.text)))
        ids = dict(zip(texts, self._ids(texts), strict=True))
        return [
            pair if isinstance(pair, InvalidInput) else or_refusal(self._row, encoded(item[1]), *pair, ids)
            for item, pair in zip(items, checked, strict=True)
        ]

    def _check(self, query: bytes, text: bytes) -> tuple[str, Piece]:
        """The query, and the piece of the text that is tokenized first."""
        refuse_longer(QUERY, query, self.settings.max_length)
        return decoded(QUERY, query), self._piece(text, BYTES_PER_TOKEN[0])

    def _piece(self, text: bytes, bytes_per_token: int) -> Piece:
        return piece(TEXT, text, self.settings.max_length * bytes_per_token, self._side)

    def _ids(self, texts: Many[str]) -> list[list[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _row(self, raw: bytes, query: str, used: Piece, ids: dict[str, list[int]]) -> Row:
        first, second = ids[query], ids[used.text]
        # The tokens kept of a cut text are those of the whole text, and which of the two is longer is certain.
        enough = max(self._room, len(first)) + MARGIN
        for bytes_per_token in BYTES_PER_TOKEN[1:]:
            if not used.cut or len(second) >= enough:
                break
            used = self._piece(raw, bytes_per_token)
            [second] = self._ids([used.text])
        kept = longest_first(len(first), len(second), self._room)
        joined = self._template.joined(self._kept(first, kept[0]), self._kept(second, kept[1]))
        if not joined.ids:
            raise InvalidInput(f"{QUERY} and {TEXT} have no tokens")
        refuse_tokens(f"{QUERY} or {TEXT}", joined.ids, self.settings.vocab_size, self._tokenizer)
        types = joined.type_ids if "token_type_ids" in self.settings.inputs else []
        dropped = len(first) + len(second) - sum(kept)
        return Row((Sequence(joined.ids, types),), max(dropped, int(used.cut)))

    def _kept(self, ids: list[int], count: int) -> list[int]:
        return ids[:count] if self._side == "right" else ids[len(ids) - count :]


class Template:
    """The special tokens and type ids around a pair, taken from the `example` (an Encoding) of one."""

    def __init__(self, example: Any) -> None:
        self._ids, self._types = list(example.ids), list(example.type_ids)
        places = list(example.sequence_ids)
        ends = len(places) - places[::-1].index(0), len(places) - places[::-1].index(1)
        self._borders = places.index(0), ends[0], places.index(1), ends[1]

    def joined(self, first: list[int], second: list[int]) -> Sequence:
        """The sequence of two texts' token ids."""
        begin, _, middle, _ = self._borders
        first_types, second_types = [self._types[begin]] * len(first), [self._types[middle]] * len(second)
        return Sequence(self._around(self._ids, first, second), self._around(self._types, first_types, second_types))

    def _around(self, example: list[int], first: list[int], second: list[int]) -> list[int]:
        begin, end, middle, last = self._borders
        return [*example[:begin], *first, *example[end:middle], *second, *example[last:]]


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many of `first` and `second` tokens are kept in `room`: the shorter text keeps up to half of it."""
    if first + second <= room:
        return first, second
    shorter = min(first, second, room // 2)
    return (shorter, room - shorter) if first <= second else (room - shorter, shorter)

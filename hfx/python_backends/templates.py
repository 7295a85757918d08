"""Pairs, or texts, that a template makes one text of: for language models, or models converted from them."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

from .errors import InvalidInput
from .inputs import (
    BYTES_PER_TOKEN,
    MARGIN,
    Piece,
    Tensors,
    Text,
    column,
    column_pairs,
    decoded,
    encode_together,
    encoded,
    refuse_longer,
    refuse_tokens,
)
from .prompts import prompts
from .rows import Row, RowEncoder, Sequence
from .settings import Settings

PROMPT, QUERY, TEXT = "prompt", "query", "text_input"
FILLERS = "0", "1 2 3 4"  # texts whose last tokens differ


class TemplateEncoder(RowEncoder):
    """Encodes (query, text) in a template for text ranking; rows with a prompt have a template of their own.

    The token ids are those of sentence-transformers' CrossEncoder (6.2): the tokens of the filled template or, if the
    model reads fewer, its first tokens and the tokens that the template puts behind the text. The template contains
    the special tokens.
    """

    fields: tuple[str, ...] = (QUERY, TEXT)

    def __init__(self, tokenizer: Any, settings: Settings) -> None:
        super().__init__(tokenizer, settings)
        self._side = "right"
        template = settings.template or ()
        self._templates = {False: template, True: settings.prompted_template or template}
        self._tails = {prompted: self._tail(parts) for prompted, parts in self._templates.items()}

    def _tail(self, parts: Many[str]) -> list[int]:
        """Return the ids that the template puts behind the text: two filled templates have them in common."""
        first, second = self._ids([rendered(parts, {QUERY: text, TEXT: text, PROMPT: ""}) for text in FILLERS])
        return tail(first, second)

    def items(self, tensors: Tensors) -> list[tuple[bytes, Text, Text]]:
        """Return the prompts, queries and texts of a request."""
        pairs = column_pairs(QUERY, TEXT, tensors)
        before = prompts(tensors, len(pairs), self.settings)
        return [(prompt, query, text) for prompt, (query, text) in zip(before, pairs, strict=True)]

    def encode(self, items: Many[tuple[bytes, Text, Text]]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each item."""
        rows = [(prompt, encoded(query), encoded(text)) for prompt, query, text in items]
        return encode_together(rows, self._check, self._tokenize, self._row)

    def _check(self, prompt: bytes, query: bytes, text: bytes) -> tuple[bytes, dict[str, str], Piece]:
        """Return the text, the other fields, and the piece of the text that is tokenized first."""
        fields = {}
        for name, raw in ((PROMPT, prompt), (QUERY, query)):
            refuse_longer(name, raw, self.settings.max_length)
            fields[name] = decoded(name, raw)
        return text, fields, self._piece(text, BYTES_PER_TOKEN[0])

    def _tokenize(self, checked: Many[tuple[bytes, dict[str, str], Piece]]) -> list[list[int]]:
        return self._ids([self._whole(fields, used) for _, fields, used in checked])

    def _whole(self, fields: Mapping[str, str], used: Piece) -> str:
        return rendered(self._templates[bool(fields[PROMPT])], {**fields, TEXT: used.text})

    def _row(self, raw: bytes, fields: Mapping[str, str], used: Piece, ids: list[int]) -> Row:
        most, tail = self.settings.max_length, self._tails[bool(fields[PROMPT])]
        # With this many tokens, a cut text keeps the same tokens as the whole text.
        for bytes_per_token in BYTES_PER_TOKEN[1:]:
            if not used.cut or len(ids) >= most + len(tail) + MARGIN:
                break
            used = self._piece(raw, bytes_per_token)
            [ids] = self._ids([self._whole(fields, used)])
        kept = cut(ids, tail, most) if len(ids) > most else ids
        refuse_tokens(f"{PROMPT}, {QUERY} or {TEXT}", kept, self.settings.vocab_size, self._tokenizer)
        known = len(self.settings.prefix)
        if tuple(kept[:known]) != self.settings.prefix:
            raise InvalidInput(f"{TEXT} changes the tokens of the template before it")
        kept = kept[known:]
        return Row((Sequence(kept, [0] * len(kept)),), max(len(ids) - most, int(used.cut)))


class MessageEncoder(TemplateEncoder):
    """Encodes texts in a template for text classification; rows lack the ids `prefix`, which the net has."""

    fields: tuple[str, ...] = (TEXT,)

    def items(self, tensors: Tensors) -> list[tuple[bytes, Text, Text]]:
        """Return the texts of a request, without prompts and queries."""
        return [(b"", b"", text) for text in column(TEXT, tensors)]

    def _check(self, prompt: bytes, query: bytes, text: bytes) -> tuple[bytes, dict[str, str], Piece]:
        if self.settings.strips:
            text = decoded(TEXT, text).strip().encode()
        return super()._check(prompt, query, text)


def rendered(parts: Many[str], fields: Mapping[str, str]) -> str:
    """Return a template filled with `fields`; its `parts` alternate texts and names of fields."""
    return "".join(fields[part] if at % 2 else part for at, part in enumerate(parts))


def tail(first: Many[int], second: Many[int]) -> list[int]:
    """Return the longest list of ids that both lists end with."""
    same = 0
    while same < min(len(first), len(second)) and first[-1 - same] == second[-1 - same]:
        same += 1
    return list(first[len(first) - same :])


def cut(ids: Many[int], tail: Many[int], most: int) -> list[int]:
    """Return the first of `ids` and all of `tail`, `most` ids together."""
    return [*ids[: most - len(tail)], *tail]

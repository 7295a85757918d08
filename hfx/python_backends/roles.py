"""Queries and documents of late-interaction models (ColBERT): markers, expanded queries, tokens without a vector.

The mask says how the net treats a token. With 1, the token is read and has a vector. With 2, it is read and has no
vector; in a role whose tokens are looked up, it stands for a number of the vector instead. With -1, it has a vector,
but no other token reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import Any

from .inputs import Tensors, Text, column
from .prompts import PROMPT_NAME, TEXT, prompts
from .rows import Row, Sequence
from .settings import DOCUMENT, QUERY, Role, Settings

Item = tuple[str, Text, bytes]


class RoleEncoder:
    """Encodes the texts of a request with `encoders`, one for each role in `settings`.

    The texts of a request that names the prompt `query` are queries. All other texts are documents, even with a prompt
    of their own.
    """

    fields: tuple[str, ...] = (TEXT,)

    def __init__(self, encoders: Mapping[str, Any], settings: Settings) -> None:
        self.settings = settings
        self._encoders = encoders

    def items(self, tensors: Tensors) -> list[Item]:
        """Return the role, text and prompt of each row."""
        texts = column(TEXT, tensors)
        before = prompts(tensors, len(texts), self.settings)
        named = column(PROMPT_NAME, tensors) if PROMPT_NAME in tensors else [b""] * len(texts)
        roles = [QUERY if name == QUERY.encode() else DOCUMENT for name in named]
        return list(zip(roles, texts, before, strict=True))

    def encode(self, items: Many[Item]) -> list[Row | Exception]:
        """Return a row, or an error instead of it, for each text, with one call of the tokenizer for each role."""
        rows: dict[int, Row | Exception] = {}
        for name, role in (self.settings.roles or {}).items():
            members = [at for at, item in enumerate(items) if item[0] == name]
            encoded = self._encoders[name].encode([items[at][1:] for at in members])
            rows |= {at: _of_role(row, role) for at, row in zip(members, encoded, strict=True)}
        return [rows[at] for at in range(len(items))]


def _of_role(row: Row | Exception, role: Role) -> Row | Exception:
    if not isinstance(row, Row):
        return row
    (plain,) = row.sequences
    marker = [] if role.marker is None else [role.marker]
    read = [*plain.ids[:1], *marker, *plain.ids[1:]]
    filler = [role.filler] * (role.least - len(read))
    mask = [2 if role.looks_up or token in role.skipped else 1 for token in read]
    mask += [1 if role.attends else -1 for _ in filler]
    types = [0] * len(mask) if plain.type_ids else []
    return Row((Sequence(read + filler, types, mask=mask),), row.truncated_tokens)

"""Queries and documents of late-interaction models: what their encoder makes of a request."""

from __future__ import annotations

from typing import Any

from hfx.python_backends.errors import InvalidInput, Unexpected
from hfx.python_backends.roles import RoleEncoder
from hfx.python_backends.rows import Row, Sequence
from hfx.python_backends.settings import DOCUMENT, QUERY, Settings


class Texts:
    """An encoder of texts to one token each; a text that names an error becomes that error."""

    def encode(self, items: list[tuple[bytes, bytes]]) -> list[Row | Exception]:
        errors: dict[bytes, Exception] = {b"refused": InvalidInput("no text"), b"panic": Unexpected(ValueError())}
        return [errors.get(text) or Row((Sequence([7], []),), 0) for text, _ in items]


def test_an_error_of_one_text_leaves_the_other_rows_of_its_batch_alone() -> None:
    roles: Any = {name: {"length": 8} for name in (QUERY, DOCUMENT)}
    settings = Settings("feature-extraction", 8, (8,), roles=roles)
    encoder = RoleEncoder(dict.fromkeys(roles, Texts()), settings)
    texts = [(QUERY, b"a"), (QUERY, b"panic"), (DOCUMENT, b"refused"), (DOCUMENT, b"b")]
    rows = encoder.encode([(*text, b"") for text in texts])
    assert [type(row) for row in rows] == [Row, Unexpected, InvalidInput, Row]

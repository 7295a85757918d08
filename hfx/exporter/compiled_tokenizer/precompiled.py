"""SentencePiece's table of characters as hfx/native/tokenizer/precompiled.h reads it."""

from __future__ import annotations

from hfx.exporter.compiled_tokenizer.file import NotCompiled, Writer, blocks
from hfx.exporter.compiled_tokenizer.graphemes import graphemes


def add_precompiled(writer: Writer, table: bytes) -> int:
    """Add a table, the size of whose double array comes first, and the classes of characters; returns their section."""
    units = 4 * (int.from_bytes(table[:4], "little") // 4)
    if not units:
        raise NotCompiled("an empty table of characters")
    return writer.add(table[4 : 4 + units], table[4 + units :], *blocks(graphemes()))

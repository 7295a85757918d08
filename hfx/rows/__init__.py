"""Rows of CSV, TSV, JSON-lines, plain-text and Parquet files, each with its place in the file.

`read_rows` reads a file from its start, and raises an error at the first row that can't be read. For large inputs,
`find_sources` finds the files, `cut` divides each file into chunks in one pass, and a `ChunkReader` reads the chunks,
bad rows included.
"""

from hfx.rows.chunks import ChunkReader, Rows, columns_of, cut, read_rows, verify
from hfx.rows.row import Chunk, Place, Row, RowError
from hfx.rows.sources import Format, Source, find_sources, format_of, source_of
from hfx.rows.text import MAX_BYTES, Line, json_object, lines

__all__ = [
    "MAX_BYTES", "Chunk", "ChunkReader", "Format", "Line", "Place", "Row", "RowError", "Rows", "Source",
    "columns_of", "cut", "find_sources", "format_of", "json_object", "lines", "read_rows", "source_of", "verify",
]  # fmt: skip

"""Rows of CSV, TSV, JSON-lines, plain-text and Parquet files, one after the other, each with its place in the file.

`read_rows` raises at the first row that can't be read; `lines` and `json_object` are its parts for readers that go on.
"""

from hfx.rows.reading import Place, Row, RowError, Rows, read_rows
from hfx.rows.text import MAX_BYTES, Line, json_object, lines

__all__ = ["MAX_BYTES", "Line", "Place", "Row", "RowError", "Rows", "json_object", "lines", "read_rows"]

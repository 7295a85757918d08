"""The output's formats (CSV, JSON lines, Parquet): writing parts, reading them back to check them, and joining them.

Equal rows have equal bytes on every machine: lines end in "\\n", a float is the shortest decimal text of its float32,
and a part contains nothing about the run (time, host, path).
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import SimpleNamespace
from typing import Any, BinaryIO, Protocol

from hfx.batch.rows import ERROR, ROW, as_float32s
from hfx.errors import UsageError
from hfx.extras import install_command
from hfx.names import TRUNCATED_TOKENS
from hfx.tasks.task import CellKind

Columns = Mapping[str, CellKind]
Block = Sequence[Sequence[Any]]  # the cells of consecutive rows, column by column
# Blocks of rows: the number, the error, and how many tokens of the text the model did not read.
Checks = Iterator[list[tuple[int, str | None, int]]]
ROWS = 1024  # rows that are read back at a time
GROUP = 1 << 16  # rows per row group of a joined Parquet file


class PartFormat(Protocol):
    """A format of parts and output."""

    def write(self, file: BinaryIO, blocks: Iterable[Block]) -> None:
        """Write a part."""

    def join(self, parts: Iterable[BinaryIO], target: BinaryIO) -> Checks:
        """Copy the rows of `parts` to `target`, and yield of each row what the caller checks and counts.

        Raises ValueError for a damaged part.
        """


def format_of(ending: str, columns: Columns, kept: Mapping[str, Any]) -> PartFormat:
    """Return the format for a file's ending.

    `kept` maps kept columns of Parquet inputs to their Arrow types, where known.
    """
    if ending == ".parquet":
        return Parquet(columns, kept)
    return Csv(columns) if ending == ".csv" else JsonLines(columns)


class Csv:
    """Comma-separated values with a header; cells are quoted where needed."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._header = _csv([list(columns)])

    def write(self, file: BinaryIO, blocks: Iterable[Block]) -> None:
        """Write a part, with the header."""
        file.write(self._header)
        kinds = list(self._columns.values())
        for columns in blocks:
            cells = [_texts(kind, values) for kind, values in zip(kinds, columns, strict=True)]
            file.write(_csv(zip(*cells, strict=True)))

    def join(self, parts: Iterable[BinaryIO], target: BinaryIO) -> Checks:
        """Copy the rows after the parts' headers."""
        csv.field_size_limit(sys.maxsize)
        target.write(self._header)
        names = list(self._columns)
        row, error, cut = map(names.index, (ROW, ERROR, TRUNCATED_TOKENS))
        for part in parts:
            if part.read(len(self._header)) != self._header:
                raise ValueError("its header is another")
            _copy(part, target)
            part.seek(len(self._header))
            reader = csv.reader(io.TextIOWrapper(part, "utf-8", newline=""), strict=True)
            try:
                while block := list(islice(reader, ROWS)):
                    if any(len(cells) != len(names) for cells in block):
                        raise ValueError("a row has other columns")
                    yield [(int(cells[row]), cells[error] or None, int(cells[cut] or 0)) for cells in block]
            except csv.Error as bad:
                raise ValueError(f"{bad}") from bad


class JsonLines:
    """One JSON object per line."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def write(self, file: BinaryIO, blocks: Iterable[Block]) -> None:
        """Write a part."""
        names, kinds = list(self._columns), list(self._columns.values())
        for columns in blocks:
            cells = [_json_values(kind, values) for kind, values in zip(kinds, columns, strict=True)]
            for row in zip(*cells, strict=True):
                line = json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
                file.write(_utf8(f"{line}\n"))

    def join(self, parts: Iterable[BinaryIO], target: BinaryIO) -> Checks:
        """Copy the lines of all parts to `target`."""
        for part in parts:
            _copy(part, target)
            part.seek(0)
            rows = ((values[ROW], values[ERROR], values[TRUNCATED_TOKENS] or 0) for values in map(json.loads, part))
            while found := list(islice(rows, ROWS)):
                yield found


class Parquet:
    """Parquet. The joined file has row groups of GROUP rows, so that its bytes do not depend on the parts."""

    def __init__(self, columns: Columns, kept: Mapping[str, Any]) -> None:
        pyarrow = _pyarrow()
        types = {
            "text": pyarrow.string(),
            "json": pyarrow.string(),
            "any": pyarrow.string(),
            "integer": pyarrow.int64(),
            "number": pyarrow.float32(),
            "numbers": pyarrow.list_(pyarrow.float32()),
        }
        self._pyarrow = pyarrow
        self._typed = kept
        self._columns = columns
        self._schema = pyarrow.schema([(name, kept.get(name, types[kind])) for name, kind in columns.items()])

    def write(self, file: BinaryIO, blocks: Iterable[Block]) -> None:
        """Write a part."""
        with self._writer(file) as writer:
            for columns in blocks:
                arrays = [
                    self._pyarrow.array(
                        [_text(value) for value in values] if kind == "any" and name not in self._typed else values,
                        self._schema.field(name).type,
                    )
                    for (name, kind), values in zip(self._columns.items(), columns, strict=True)
                ]
                writer.write_batch(self._pyarrow.record_batch(arrays, schema=self._schema))

    def join(self, parts: Iterable[BinaryIO], target: BinaryIO) -> Checks:
        """Copy the rows in row groups of GROUP rows."""
        table = self._schema.empty_table()
        with self._writer(target) as writer:
            for part in parts:
                for batch in self._pyarrow.parquet.ParquetFile(part).iter_batches():
                    rows, errors, cut = (batch[name].to_pylist() for name in (ROW, ERROR, TRUNCATED_TOKENS))
                    yield list(zip(rows, errors, [tokens or 0 for tokens in cut], strict=True))
                    table = self._pyarrow.concat_tables(
                        [table, self._pyarrow.Table.from_batches([batch], self._schema)]
                    )
                    while table.num_rows >= GROUP:
                        writer.write_table(table.slice(0, GROUP).combine_chunks(), row_group_size=GROUP)
                        table = table.slice(GROUP)
            writer.write_table(table.combine_chunks(), row_group_size=GROUP)

    def _writer(self, file: BinaryIO) -> Any:
        return self._pyarrow.parquet.ParquetWriter(file, self._schema)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow.", f"Run: {install_command('batch')}") from error
    return pyarrow


def _csv(rows: Iterable[Sequence[Any]]) -> bytes:
    """Return CSV lines that end in "\\n".

    They are written with "\\r\\n" first, because CPython 3.11 quotes a cell with "\\r" only then.
    """
    lines: list[str] = []
    csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n").writerows(rows)
    return _utf8("".join([f"{line[:-2]}\n" for line in lines]))


def _utf8(text: str) -> bytes:
    """Encode `text` in UTF-8. Input bytes that were not UTF-8 (surrogates) become U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()


def _copy(part: BinaryIO, target: BinaryIO) -> None:
    """Copy the lines of a part. Raises ValueError if the last line is cut off."""
    shutil.copyfileobj(part, target)
    if part.tell():
        part.seek(-1, os.SEEK_END)
        if part.read(1) != b"\n":
            raise ValueError("its last line has no end")


def _texts(kind: CellKind, values: Sequence[Any]) -> Sequence[Any]:
    """Return the cells of a column in the types that csv.writer accepts."""
    if kind == "number":
        return _numbers(values)
    if kind == "numbers":
        return [None if value is None else json.dumps(as_float32s(value)) for value in values]
    return [_text(value) for value in values] if kind == "any" else values


def _text(value: Any) -> Any:
    """Return a kept value as text: JSON, unless the value is text already."""
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _numbers(values: Sequence[float | None]) -> list[float | None]:
    """Return float32 values as floats with the shortest decimal texts. None stays None."""
    known = iter(as_float32s([value for value in values if value is not None]))
    return [None if value is None else next(known) for value in values]


def _json_values(kind: CellKind, values: Sequence[Any]) -> Sequence[Any]:
    if kind == "number":
        return _numbers(values)
    if kind == "numbers":
        return [None if value is None else as_float32s(value) for value in values]
    if kind == "json":
        return [None if value is None else json.loads(value) for value in values]
    return [  # a value of another type may have no JSON, such as a date, NaN or infinity of a Parquet file
        value if isinstance(value, str | int | None) else json.loads(_text(value), parse_constant=lambda name: None)
        for value in values
    ]

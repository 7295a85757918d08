"""Rows of Parquet files. Only the requested columns are decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any, cast

from hfx.extras import install_command
from hfx.rows.row import Chunk, Place, Row, RowError, check_names, input_changed
from hfx.rows.sources import BUFFER, Source

BATCH = 256  # rows that are decoded at a time; fewer if they are larger than BATCH_BYTES
BATCH_BYTES = 16 * 2**20
UNREADABLE = (ValueError, OverflowError)  # text that is not UTF-8 (a ValueError), dates after the year 9999


class ParquetFile:
    """An open Parquet file; `header` has its columns, `count` is the number of its rows."""

    def __init__(self, source: Source) -> None:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as error:
            raise RowError(source.name, "Parquet needs pyarrow.", f"Run: {install_command('batch')}") from error
        self.source = source
        self._errors = (pyarrow.ArrowException, OSError)
        self._file = source.open()
        try:
            # Read pages only as they are needed, as a row group may be larger than the memory.
            self._parquet = pyarrow.parquet.ParquetFile(
                self._file, buffer_size=BUFFER, pre_buffer=False, page_checksum_verification=True
            )
            self.header = tuple(self._parquet.schema_arrow.names)
            check_names(source.name, self.header)
        except self._errors as error:
            self._file.close()
            raise self._broken(error) from None
        except RowError:
            self._file.close()
            raise
        self.count = self._parquet.metadata.num_rows
        self._ahead: tuple[tuple[int, Collection[str] | None], Iterator[Row]] | None = None  # rows after the last chunk

    def close(self) -> None:
        """Close the file that rows are read from."""
        self._file.close()

    def chunk(self, chunk: Chunk, columns: Collection[str] | None) -> Iterator[Row]:
        """Yield the rows of `chunk`. Raises InputChanged and RowError.

        If the last chunk ended where this one begins, decoding continues from there.
        """
        after = chunk.first - 1
        if self._ahead is None or self._ahead[0] != (after, columns):
            self._ahead = (after, columns), self.rows(columns, after)
        rows, self._ahead = self._ahead[1], None
        count = 0
        for row in islice(rows, chunk.rows):
            yield row
            count += 1
        if count < chunk.rows:
            raise input_changed(self.source.name)
        self._ahead = (after + count, columns), rows

    def verify(self, chunks: Iterable[Chunk]) -> None:
        """Raise InputChanged if the file is not the one that was cut into `chunks`."""
        digest = self.digest()
        if any(chunk.sha256 != digest for chunk in chunks):
            raise input_changed(self.source.name)

    def digest(self) -> str:
        """Return the SHA-256 of the file."""
        self._file.seek(0)
        return hashlib.file_digest(cast(Any, self._file), "sha256").hexdigest()

    def rows(self, columns: Collection[str] | None, after: int = 0) -> Iterator[Row]:
        """Yield the rows after row `after`. Raises RowError if the file is broken."""
        number = after
        for batch in self._batches(columns, after):
            try:
                found = batch.to_pylist()
            except UNREADABLE:
                yield from self._one_by_one(batch, number)
            else:
                yield from (Row(cells, place) for place, cells in enumerate(found, number + 1))
            number += batch.num_rows

    def check(self, columns: Collection[str]) -> None:
        """Decode these columns. Raises RowError if the file is broken."""
        for _ in self._batches(columns, 0):
            pass

    def _batches(self, columns: Collection[str] | None, after: int) -> Iterator[Any]:
        metadata, names = self._parquet.metadata, [name for name in self.header if columns is None or name in columns]
        number, groups = 0, list(range(metadata.num_row_groups))
        while groups and number + metadata.row_group(groups[0]).num_rows <= after:
            number += metadata.row_group(groups.pop(0)).num_rows
        if not groups:  # pyarrow before 20 takes an empty list for an error
            return
        try:
            for batch in self._parquet.iter_batches(self._batch_rows(names), groups, names):
                if number + batch.num_rows > after:
                    yield _without_nanoseconds(batch.slice(max(after - number, 0)))
                number += batch.num_rows
        except self._errors as error:
            raise self._broken(error) from None

    def _batch_rows(self, names: Collection[str]) -> int:
        largest = 1
        for group in map(self._parquet.metadata.row_group, range(self._parquet.metadata.num_row_groups)):
            columns = [group.column(at) for at in range(group.num_columns)]
            size = sum(each.total_uncompressed_size for each in columns if each.path_in_schema.split(".")[0] in names)
            largest = max(largest, size // max(group.num_rows, 1))
        return max(1, min(BATCH, BATCH_BYTES // largest))

    def _one_by_one(self, batch: Any, number: int) -> Iterator[Row]:
        for at in range(batch.num_rows):
            place, cells, error = number + at + 1, {}, None
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                try:
                    cells[name] = column[at].as_py()
                except UNREADABLE as found:
                    reason = f"the column {name!r} can't be read: {found}."
                    error = error or RowError(self.source.name, reason, "Write the cell as UTF-8.", Place(place))
            yield Row(cells, place, error=error)

    def _broken(self, error: Exception) -> RowError:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        fix = "Write it again, or give a CSV."
        return RowError(self.source.name, f"it is not a readable Parquet file: {reason}.", fix)


def _without_nanoseconds(batch: Any) -> Any:
    """Return `batch` with times in nanoseconds as text.

    datetime has no nanoseconds, and pyarrow returns pandas' own type if pandas is installed.
    """
    import pyarrow

    for at, field in enumerate(batch.schema):
        if pyarrow.types.is_timestamp(field.type) and field.type.unit == "ns":
            batch = batch.set_column(at, field.name, batch.column(at).cast(pyarrow.string()))
    return batch

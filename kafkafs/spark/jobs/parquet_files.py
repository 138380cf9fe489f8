"""Records → Parquet files by day, written by a task: staged, synced, and named by the offsets in them.

Values and keys are not dictionary-encoded (they rarely repeat, and trying takes a third of the time); offsets and
timestamps are delta-encoded, which makes them very small.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from kafkafs.arrow.rows import MOST_MILLISECONDS, arrow_batches
from kafkafs.spark.jobs.commits import ExportFile
from kafkafs.spark.jobs.export_layout import NO_DAY, data_file, days_of
from storage.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from storage.files.disk_protocol import Disk, DiskFile
    from storage.format.block import RecordBlock
    from storage.types import TopicPartition

COMPRESSIONS: Final = ("snappy", "zstd", "lz4", "gzip", "none")

# Arrow memory before encoding: of a row group, and of all unwritten batches of a task's files together.
ROW_GROUP_BYTES: Final = 64 << 20
HELD_BYTES: Final = 256 << 20
OPEN_FILES: Final = 64

_DICTIONARY: Final = ("partition", "timestampType")
_DELTA: Final = {"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"}
_STATISTICS: Final = ("partition", "offset", "timestamp", "timestampType")


class DayFiles:
    """The files of one range of offsets of one partition, one or more for each day. Must be closed or abandoned.

    `columns`: names of columns that `arrow.rows` makes. `transform`: replaces columns of each batch, row by row. Days
    may come in any order; if there are too many to keep all files open, a day gets several files. A timestamp that
    microseconds cannot express becomes null: `beyond` counts such messages.
    """

    def __init__(
        self,
        disk: Disk,
        staging: Path,
        tp: TopicPartition,
        columns: Sequence[str],
        compression: str = "snappy",
        transform: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    ) -> None:
        # Constant after construction.
        self._disk = disk
        self._staging = staging
        self._tp = tp
        self._transform = transform
        self._columns = columns
        self._compression = compression
        # Changed by each block.
        self._open: OrderedDict[int, _DayFile] = OrderedDict()  # the day written last at the end
        self.held_bytes = 0
        self.files: list[ExportFile] = []
        self.beyond = 0

    def add(self, block: RecordBlock) -> None:
        """Adds a block's records; the block may be reused afterwards. OSError."""
        if not len(block):
            return
        days = days_of(block.timestamp)
        first = int(days[0])
        if (days == first).all():
            self._add(first, block)
            return
        for day in np.unique(days).tolist():
            self._add(day, block.select(days == day))

    def close(self) -> list[ExportFile]:
        """Finishes and syncs all files. OSError."""
        while self._open:
            self._close_one()
        return self.files

    def abandon(self) -> None:
        """Closes the files as they are; the owner of the staging directory removes them."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()

    def _add(self, day: int, block: RecordBlock) -> None:
        file = self._open.get(day)
        if file is None:
            if len(self._open) == OPEN_FILES:
                self._close_one()
            file = self._open[day] = _DayFile(self._disk, self._staging, self._compression)
        self._open.move_to_end(day)
        before = file.held_bytes
        batches = arrow_batches([(self._tp, block)], self._columns)
        if day == NO_DAY:
            batches = self._without_impossible_times(block)
        if self._transform is not None:
            batches = map(self._transform, batches)
        file.add(batches, int(block.offset[0]), int(block.offset[-1]))
        self.held_bytes += file.held_bytes - before
        while self.held_bytes > HELD_BYTES:
            largest = max(self._open.values(), key=lambda other: other.held_bytes)
            self.held_bytes -= largest.held_bytes
            largest.write_row_group()

    def _without_impossible_times(self, block: RecordBlock) -> Iterator[pa.RecordBatch]:
        beyond = (block.timestamp > MOST_MILLISECONDS) | (block.timestamp < -MOST_MILLISECONDS)
        self.beyond += int(np.count_nonzero(beyond))
        possible = block.select(slice(None))
        possible.timestamp[beyond] = NO_TIMESTAMP
        row = 0
        for batch in arrow_batches([(self._tp, possible)], self._columns):
            at = batch.schema.get_field_index("timestamp")
            unknown = pa.array(beyond[row : row + batch.num_rows])
            times = pc.if_else(unknown, pa.scalar(None, batch.column(at).type), batch.column(at))
            yield batch.set_column(at, batch.schema.field(at), times)
            row += batch.num_rows

    def _close_one(self) -> None:
        """Closes the file that was written to least recently."""
        day, file = next(iter(self._open.items()))
        self.held_bytes -= file.held_bytes
        rows, size = file.close()
        del self._open[day]
        path = data_file(self._tp, day, file.first_offset, file.last_offset)
        self.files.append(ExportFile(file.name, path, rows, size))


class _DayFile:
    """A file being written: batches are kept in memory until a row group is large enough."""

    def __init__(self, disk: Disk, staging: Path, compression: str) -> None:
        # A name that no other attempt at the same task has.
        self.name = f"{uuid4().hex}.parquet"
        self.held_bytes = 0
        self.first_offset = self.last_offset = -1
        self._disk = disk
        self._path = staging / self.name
        self._compression = compression
        self._batches: list[pa.RecordBatch] = []
        self._writer: ParquetFileWriter | None = None
        self._rows = 0

    def add(self, batches: Iterable[pa.RecordBatch], first_offset: int, last_offset: int) -> None:
        if self.first_offset < 0:
            self.first_offset = first_offset
        self.last_offset = last_offset
        for batch in batches:
            self._batches.append(batch)
            self._rows += batch.num_rows
            self.held_bytes += batch.nbytes
        if self.held_bytes >= ROW_GROUP_BYTES:
            self.write_row_group()

    def write_row_group(self) -> None:
        table = pa.Table.from_batches(self._batches)
        if self._writer is None:
            self._writer = ParquetFileWriter(
                self._disk,
                self._path,
                table.schema,
                compression=self._compression,
                use_dictionary=list(_DICTIONARY),
                column_encoding=_DELTA,
                write_statistics=list(_STATISTICS),
            )
        self._writer.write(table)
        self._batches = []
        self.held_bytes = 0

    def abandon(self) -> None:
        if self._writer is not None:
            self._writer.abandon()

    def close(self) -> tuple[int, int]:
        """Finishes and syncs the file; returns its (rows, bytes). OSError."""
        if self._batches:
            self.write_row_group()
        assert self._writer is not None
        return self._rows, self._writer.close()


class ParquetFileWriter:
    """Writes a Parquet file through a Disk; `options`: of pyarrow's ParquetWriter."""

    def __init__(self, disk: Disk, path: Path, schema: pa.Schema, **options: object) -> None:
        self._file = disk.open(path, create=True)
        self._sink = _Sink(self._file)
        try:
            self._writer = parquet.ParquetWriter(pa.PythonFile(self._sink, "w"), schema, **options)
        except BaseException:
            self._file.close()
            raise

    def write(self, table: pa.Table) -> None:
        """Writes a row group. OSError."""
        self._writer.write_table(table, row_group_size=max(len(table), 1))

    def abandon(self) -> None:
        """Closes the file as it is."""
        self._sink.abandoned = True
        self._writer.close()
        self._file.close()

    def close(self) -> int:
        """Writes the footer and syncs; returns the file's size in bytes. OSError: the file is closed nevertheless."""
        try:
            self._writer.close()
            self._file.sync()
        except BaseException:
            self.abandon()
            raise
        self._file.close()
        return self._sink.tell()


class _Sink(io.RawIOBase):
    """A stream for pyarrow that writes to a DiskFile."""

    def __init__(self, file: DiskFile) -> None:
        super().__init__()
        self.abandoned = False  # then what pyarrow still writes is discarded
        self._file = file
        self._position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        view = memoryview(data).cast("B")  # type: ignore[arg-type]  # pyarrow gives bytes or buffers
        if not self.abandoned:
            self._position = self._file.write_at(self._position, view)
        return len(view)

    def tell(self) -> int:
        return self._position

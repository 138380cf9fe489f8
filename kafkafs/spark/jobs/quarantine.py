"""The quarantine table of an export: the bytes that failed their checks, and their positions.

Columns: topic (from the directory), partition, file, position, size (bytes), firstOffset, lastOffset (both included:
the offsets that may have been in them), error, raw. Bytes beyond a row's limit continue in the next row, with its own
position; `raw` is null if the file was removed before it could be read again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

import pyarrow as pa

from kafkafs.spark.jobs.commits import ExportFile
from kafkafs.spark.jobs.export_layout import quarantine_file
from kafkafs.spark.jobs.parquet_files import ParquetFileWriter
from storage.errors import SegmentGone
from storage.files.log_file import LogFile
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.files.disk_protocol import Disk


RAW_BYTES: Final = 16 << 20

_SCHEMA: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("file", pa.string(), nullable=False),
        pa.field("position", pa.int64(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("firstOffset", pa.int64(), nullable=False),
        pa.field("lastOffset", pa.int64(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("raw", pa.binary()),
    ]
)


@dataclass(frozen=True, slots=True)
class BadBytes:
    """Bytes of the file `path` from `position` to `end` (excluded) that hold no valid batch, and the offsets that may
    have been in them, both included."""

    tp: TopicPartition
    path: str
    position: int
    end: int
    first_offset: int
    last_offset: int
    error: str


def merged(found: Iterable[BadBytes]) -> list[BadBytes]:
    """Each damage once, by partition and offset: where a log was divided, the tasks on both sides find the same."""
    merged: dict[tuple[str, int], BadBytes] = {}
    for bad in found:
        other = merged.setdefault((bad.path, bad.position), bad)
        first, last = min(bad.first_offset, other.first_offset), max(bad.last_offset, other.last_offset)
        merged[bad.path, bad.position] = replace(bad, first_offset=first, last_offset=last)
    return sorted(merged.values(), key=lambda bad: (bad.tp, bad.first_offset, bad.position))


def stage(disk: Disk, staging: Path, found: Iterable[BadBytes], compression: str) -> list[ExportFile]:
    """Writes the table's files, one for each partition, with the bytes as they are now. OSError."""
    by_partition: dict[TopicPartition, list[BadBytes]] = {}
    for bad in merged(found):
        by_partition.setdefault(bad.tp, []).append(bad)
    files = []
    for tp, rows in by_partition.items():
        name = f"{uuid4().hex}.parquet"
        writer = ParquetFileWriter(disk, staging / name, _SCHEMA, compression=compression)
        count = 0
        try:
            for row in rows:
                for piece in _pieces(row):
                    writer.write(piece)
                    count += len(piece)
        except BaseException:
            writer.abandon()
            raise
        path = quarantine_file(tp, rows[0].first_offset, max(row.last_offset for row in rows))
        files.append(ExportFile(name, path, count, writer.close()))
    return files


def _pieces(bad: BadBytes) -> Iterator[pa.Table]:
    log = LogFile(Path(bad.path))
    for position in range(bad.position, bad.end, RAW_BYTES):
        size = min(RAW_BYTES, bad.end - position)
        try:
            raw = bytes(log.read(position, size))
        except (SegmentGone, FileNotFoundError):
            raw = None
        row = (bad.tp.partition, bad.path, position, size, bad.first_offset, bad.last_offset, bad.error, raw)
        yield pa.table([pa.array([value], field.type) for value, field in zip(row, _SCHEMA, strict=True)], _SCHEMA)

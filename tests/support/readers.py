"""Reading a log as a consumer does, and comparing the result with what is expected."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from storage.format.batches import BatchTable, scan
from storage.format.block import RecordBlock
from storage.log.read_only_log import ReadOnlyLog
from storage.log.reader import read_range
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TimestampType, TopicPartition
from tests.support.builders import BuiltRecord
from tests.support.fixtures import Golden, copy_log_dir

_TYPE_NAMES = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def open_log(path: Path, log_start: int = 0) -> ReadOnlyLog:
    topic, _, partition = path.name.rpartition("-")
    return ReadOnlyLog(TopicPartition(topic, int(partition)), path, lambda: log_start)


def table_of(data: bytes | memoryview, position: int = 0) -> BatchTable:
    """The headers of the batches in `data`, which lies at `position` of its file."""
    table = BatchTable.empty(len(data) // 26 + 1)
    scan(data, position, table)
    return table


def records_of(block: RecordBlock) -> list[Golden]:
    types = block.table.timestamp_type
    return [
        Golden(
            int(block.offset[i]),
            int(block.timestamp[i]),
            _TYPE_NAMES[TimestampType(int(types[block.batch[i]]))],
            block.key(i),
            block.value(i),
            tuple(block.headers(i)),
        )
        for i in range(len(block))
    ]


def read_all(
    snapshot: LogSnapshot,
    start: int | None = None,
    end: int | None = None,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    window: int = 1 << 20,
) -> list[Golden]:
    """All records of a range; fails at the first damage."""
    records = []
    first = snapshot.log_start_offset if start is None else start
    for block in read_range(snapshot, first, end, isolation=isolation, window=window):
        assert block.damage is None, str(block.damage)
        records += records_of(block)
    return records


def read_past_damage(
    snapshot: LogSnapshot, isolation: Isolation = Isolation.READ_UNCOMMITTED, window: int = 1 << 20
) -> tuple[list[Golden], list[Exception]]:
    """All records that can be read, and the damage met on the way."""
    records: list[Golden] = []
    errors: list[Exception] = []
    for block in read_range(snapshot, snapshot.log_start_offset, isolation=isolation, window=window):
        records += records_of(block)
        if block.damage is not None:
            errors.append(block.damage.error)
    return records, errors


def built(records: Iterable[Golden]) -> list[BuiltRecord]:
    """Records in the form that the builders have."""
    return [BuiltRecord(r.offset, r.timestamp, r.key, r.value, r.headers) for r in records]


def copy_partition(source: Path, destination: Path) -> Path:
    return copy_log_dir(source, destination)

"""The content of an export's directory, read with pyarrow as any reader would."""

import contextlib
import os
import signal
from typing import NamedTuple
from urllib.parse import unquote

from pyarrow import parquet

from storage.files.disk import RealDisk, RealFile
from storage.types import TopicPartition


class Row(NamedTuple):
    """A message of the table. `timestamp` in epoch milliseconds; `day` from the directory's name."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] | None
    day: str


def read_table(directory):
    """All visible messages, by partition and offset; AssertionError if an offset appears twice."""
    rows = {}
    for path in sorted(directory.glob("topic=*/day=*/*.parquet")):
        topic = unquote(path.parent.parent.name.removeprefix("topic="))
        day = path.parent.name.removeprefix("day=")
        _, partition, first, last = path.stem.split("-")
        tp = TopicPartition(topic, int(partition))
        records = _records(path)
        offsets = [record["offset"] for record in records]
        assert offsets == sorted(offsets)
        assert (offsets[0], offsets[-1]) == (int(first), int(last))
        assert {record["partition"] for record in records} == {tp.partition}
        for record in records:
            row = Row(
                record["offset"],
                record["timestamp"] // 1000,
                record["timestampType"],
                record["key"],
                record["value"],
                record.get("headers") and [(header["key"], header["value"]) for header in record["headers"]],
                day,
            )
            assert row.offset not in rows.setdefault(tp, {}), f"{tp} has offset {row.offset} twice"
            rows[tp][row.offset] = row
    return {tp: [found[offset] for offset in sorted(found)] for tp, found in rows.items()}


def read_quarantine(directory):
    """The rows of the quarantine table, by position."""
    files = sorted((directory / "_quarantine").glob("topic=*/*.parquet"))
    return sorted((row for path in files for row in _records(path)), key=lambda row: row["position"])


def _records(path):
    # File by file: for a directory pyarrow would add columns from the names.
    table = parquet.ParquetFile(path).read()
    if "timestamp" in table.column_names:
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table.column("timestamp").cast("int64"))
    return table.to_pylist()


class CallingDisk(RealDisk):
    """Calls something before each write to a staged file. For one process."""

    def __init__(self, call):
        self.call = call

    def open(self, path, *, create=False):
        file = super().open(path, create=create)
        return _CallingFile(self.call, file) if path.suffix == ".parquet" else file


class _CallingFile(RealFile):
    __slots__ = ("_call",)

    def __init__(self, call, file):
        super().__init__(file.path, file.fileno())
        self._call = call

    def write_at(self, position, *buffers):
        self._call(self.path)
        return super().write_at(position, *buffers)


class LethalDisk(CallingDisk):
    """Kills the first process that comes to its `at`-th write to a staged file. `marks`: where it leaves a file."""

    def __init__(self, marks, at):
        super().__init__(self.written)
        self.marks = marks
        self.at = at
        self.writes = 0

    def written(self, _path):
        self.writes += 1
        if self.writes == self.at:
            with contextlib.suppress(FileExistsError):
                (self.marks / "killed").touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)

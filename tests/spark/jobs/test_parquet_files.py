"""Files by day as one task writes them: disordered days, many days, large rows, full disks."""

import errno
import os

import pytest

from kafkafs.spark.jobs import parquet_files
from kafkafs.spark.jobs.parquet_files import DayFiles
from storage.files.disk import RealDisk
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.spark.jobs.exported import CallingDisk, read_table
from tests.support.builders import Batch, build_log_dir

TP = TopicPartition("t", 0)
DAY_MS = 86_400_000
COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType")


def write_files(tmp_path, records, disk=None):
    """Writes the records to a log, one batch for each hundred, and from there to files in tmp_path/staged."""
    if not (tmp_path / "log").exists():
        build_log_dir(tmp_path / "log", {"t": [[Batch(records[at : at + 100]) for at in range(0, len(records), 100)]]})
    (tmp_path / "staged").mkdir(exist_ok=True)
    files = DayFiles(disk or RealDisk(), tmp_path / "staged", TP, COLUMNS)
    try:
        for block in blocks(tmp_path, 2_000):
            files.add(block)
        return files.close()
    except BaseException:
        files.abandon()
        raise


def blocks(tmp_path, window):
    return read_range(LogDir.open_read_only(tmp_path / "log").log(TP).snapshot(), 0, window=window)


def table_of(tmp_path, files):
    for file in files:
        target = tmp_path / "out" / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        assert not target.exists()
        (tmp_path / "staged" / file.staged).rename(target)
        assert target.stat().st_size == file.size_bytes
    return read_table(tmp_path / "out").get(TP, [])


def check(rows, records):
    expected = [(offset, record.timestamp, record.value) for offset, record in enumerate(records)]
    assert [(row.offset, row.timestamp, row.value) for row in rows] == expected


def test_disordered_days(tmp_path):
    stamps = [3 * DAY_MS, 2 * DAY_MS + 5, 3 * DAY_MS + 1, -1, 2 * DAY_MS, 4 * DAY_MS, -1]
    records = [Record(None, b"%d" % n, (), stamp) for n, stamp in enumerate(stamps)]
    files = write_files(tmp_path, records)
    assert sum(file.rows for file in files) == len(records)
    rows = table_of(tmp_path, files)
    check(rows, records)
    none = "__HIVE_DEFAULT_PARTITION__"
    days = ["1970-01-04", "1970-01-03", "1970-01-04", none, "1970-01-03", "1970-01-05", none]
    assert [row.day for row in rows] == days
    assert len(files) == len(set(days))


def test_more_days_than_files_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_files, "OPEN_FILES", 3)
    records = [Record(None, b"%d" % n, (), (n * 7 % 10) * DAY_MS) for n in range(400)]
    files = write_files(tmp_path, records)
    assert len(files) > 10
    check(table_of(tmp_path, files), records)


def test_memory_is_bounded(tmp_path, monkeypatch):
    """Row groups are written when a file, or all files together, hold too much."""
    monkeypatch.setattr(parquet_files, "ROW_GROUP_BYTES", 40_000)
    monkeypatch.setattr(parquet_files, "HELD_BYTES", 60_000)
    records = [Record(b"k%d" % n, bytes([n % 251]) * 1000, (), (n % 5) * DAY_MS) for n in range(1000)]
    held = []
    staged = tmp_path / "staged"
    staged.mkdir()
    files = DayFiles(RealDisk(), staged, TP, COLUMNS)
    build_log_dir(tmp_path / "log", {"t": [[Batch(records[at : at + 10]) for at in range(0, 1000, 10)]]})
    for block in blocks(tmp_path, 20_000):
        files.add(block)
        held.append(files.held_bytes)
    assert 40_000 < max(held) < 100_000
    check(table_of(tmp_path, files.close()), records)


def test_a_full_disk_at_any_write(tmp_path):
    """The error is raised unchanged, and no file is left open."""
    records = [Record(None, b"%d" % n, (), (n % 3) * DAY_MS) for n in range(300)]
    writes = []
    whole = write_files(tmp_path, records, CallingDisk(writes.append))
    assert len(whole) == 3
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for strike in range(len(writes)):
        left = iter(range(strike))

        def fail(path, left=left):
            if next(left, None) is None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

        with pytest.raises(OSError, match="No space left") as raised:
            write_files(tmp_path, records, CallingDisk(fail))
        assert raised.value.errno == errno.ENOSPC
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_nothing(tmp_path):
    assert DayFiles(RealDisk(), tmp_path, TP, COLUMNS).close() == []
    assert list(tmp_path.iterdir()) == []

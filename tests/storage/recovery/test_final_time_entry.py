"""A power loss after a roll that follows a flush: the full segment's last time index entry is lost or spoilt."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from storage.append.appender import Appender
from storage.files import checkpoints, names
from storage.files.disk_protocol import DiskFile
from storage.format.block import Record
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.owned_dirs import NOW_MS, HastyDisk, StandingClock, close_clean, opened, read

TP = TopicPartition("t", 0)
SEGMENT_BYTES = 3000


def rolled_after_flush(path: Path, interval_bytes: int = 500) -> tuple[Path, list[bytes]]:
    """A log of two segments whose recovery point is where the second begins: the first one's time index, and the
    values. It was not closed."""
    owned = opened(path)
    overrides = {"segment.bytes": str(SEGMENT_BYTES), "index.interval.bytes": str(interval_bytes)}
    owned.create_topic("t", 1, overrides)
    log = owned.log(TP)
    values: list[bytes] = []
    while len(log.snapshot().segments) < 2:
        log.flush()
        flushed = log.log_end_offset
        values.append(b"%d" % len(values) + b"v" * 100)
        Appender(log, clock=StandingClock()).append([Record(None, values[-1], (), NOW_MS + len(values))])
    first, second = log.snapshot().segments
    assert log.recovery_point == flushed == second.base_offset
    owned.checkpoint()
    owned._logs.abandon()
    owned._dir_lock.release()
    assert checkpoints.read(path / names.RECOVERY_POINT_CHECKPOINT)[TP] == second.base_offset
    return first.directory / f"{first.base_offset:020}.timeindex", values


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda data: data[:-12], id="missing"),
        pytest.param(lambda data: data[:-5], id="torn"),
        pytest.param(lambda data: data[:-12] + bytes(12), id="zeros"),
        pytest.param(lambda data: data[:-4] + b"\0\0\0\xff", id="beyond"),
        pytest.param(lambda data: data[:-12] + bytes([data[-12] + 1]) + data[-11:], id="later time"),
        pytest.param(lambda data: data[:-12] + b"\x7f" * 12, id="garbage"),
        pytest.param(lambda data: data, id="as it was"),
    ],
)
def test_it_is_mended(tmp_path: Path, spoil: object) -> None:
    times, values = rolled_after_flush(tmp_path)
    whole = times.read_bytes()
    assert len(whole) > 24
    times.write_bytes(spoil(whole))  # type: ignore[operator]
    owned = opened(tmp_path)
    assert read(owned, "t") == values
    close_clean(owned)
    assert times.read_bytes() == whole
    assert not verify_log_dir(tmp_path)


def test_an_only_entry_that_is_garbage_is_not_none(tmp_path: Path) -> None:
    """Found by the simulation: an entry that cannot be right was taken for one that is being written, and the time
    index for one without entries, which is left as it is."""
    times, values = rolled_after_flush(tmp_path, SEGMENT_BYTES)
    whole = times.read_bytes()
    assert len(whole) == 12
    times.write_bytes(whole[:8] + b"\xff" * 4)
    owned = opened(tmp_path)
    assert read(owned, "t") == values
    close_clean(owned)
    assert times.read_bytes() == whole
    assert not verify_log_dir(tmp_path)


class _Syncs(HastyDisk):
    """Remembers the files that were synced."""

    def __init__(self) -> None:
        self.synced: list[Path] = []

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        file, synced = super().open(path, create=create), self.synced

        class _File:
            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

            def sync(self) -> None:
                synced.append(path)
                file.sync()

        return cast("DiskFile", _File())


def test_it_is_synced_by_the_process_after_a_killed_one(tmp_path: Path) -> None:
    """The killed process may have written the entry only; the next one's flushes begin at the recovery point."""
    times, _values = rolled_after_flush(tmp_path)
    disk = _Syncs()
    owned = opened(tmp_path, disk=disk)
    owned.log(TP)
    assert times in disk.synced
    close_clean(owned)

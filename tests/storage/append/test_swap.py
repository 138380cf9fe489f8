"""Segments put in the place of others, stopped at every disk operation: the old messages or the new, never fewer."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from storage.append.partition_log import PartitionLog
from storage.append.swap import CleanedSegment, Replacement, remove_cleaned
from storage.errors import SegmentGone
from storage.files.names import FileKind, FileState, parse_segment_file, segment_file
from storage.format.batches import BatchTable, scan
from storage.log.segment import Segment
from storage.types import TopicPartition
from tests.support.crash_points import Sessions, every_crash
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import append, close_clean, opened, read, values_of

TP = TopicPartition("t", 0)
ALL = [b"%d" % n * 20 for n in range(16)]
SOURCES = slice(1, 4)  # of segments of three messages each


def made(path: Path) -> None:
    """A log of one-message batches, three to a segment, shut down in order."""
    owned = opened(path)
    owned.create_topic("t", 1, {"index.interval.bytes": "0"})
    log = owned.log(TP)
    for value in ALL:
        if value != ALL[0] and ALL.index(value) % 3 == 0:
            log.roll()
        append(log, [value])
    close_clean(owned)


def cleaned(log: PartitionLog, sources: tuple[Segment, ...], kept: list[int], owned_disk: object) -> CleanedSegment:
    """A segment of those batches of `sources` that hold the offsets `kept`."""
    segment = CleanedSegment(owned_disk, log.path, sources[0].base_offset, interval_bytes=0)  # type: ignore[arg-type]
    for source in sources:
        data = bytes(source.log.read(0, source.size))
        table = BatchTable.empty(16)
        scan(data, 0, table)
        for row in range(table.rows):
            if int(table.base_offset[row]) in kept:
                batch = memoryview(data)[int(table.position[row]) : int(table.end[row])]
                one = BatchTable.empty(1)
                scan(batch, 0, one)
                segment.append(batch, one)
    segment.finish([], sources[-1].log.stat().st_mtime_ns)
    return segment


def replaced(log: PartitionLog, kept: list[int], disk: object) -> list[Path]:
    sources = log.snapshot().segments[SOURCES]
    cleaned(log, sources, kept, disk)
    return log.replace_segments([Replacement(sources[0].base_offset, sources)])


def names_in(path: Path) -> set[str]:
    return {file.name for file in (path / "t-0").iterdir() if parse_segment_file(file.name)}


def test_a_segment_takes_the_place_of_its_sources(tmp_path: Path) -> None:
    made(tmp_path / "log")
    owned = opened(tmp_path / "log")
    log = owned.log(TP)
    before = log.snapshot()
    mtime = before.segments[3].log.stat().st_mtime_ns
    removed = replaced(log, [4, 8, 11], owned.disk)
    after = log.snapshot()
    assert values_of(after) == [*ALL[:3], ALL[4], ALL[8], ALL[11], *ALL[12:]]
    assert values_of(before) == ALL  # whoever holds the old segments reads them under their later names
    assert [segment.base_offset for segment in after.segments] == [0, 3, 12, 15]
    assert after.log_end_offset == before.log_end_offset
    assert after.generation == before.generation
    assert after.segments[1].log.stat().st_mtime_ns == mtime
    assert after.segments[1].sealed
    assert {path.name for path in removed} == {
        *(segment_file(n, kind, FileState.DELETED) for n in (3, 6, 9) for kind in list(FileKind)[:3]),
        *(segment_file(n, FileKind.PRODUCER_SNAPSHOT, FileState.DELETED) for n in (6, 9)),
    }
    for path in removed:
        path.unlink()
    with pytest.raises(SegmentGone):
        values_of(before)
    append(log, [b"more"])
    close_clean(owned)
    assert {name for name in names_in(tmp_path / "log") if name.endswith(".snapshot")} == {
        segment_file(n, FileKind.PRODUCER_SNAPSHOT) for n in (3, 12, 15, 16, 17)
    }


def test_sources_that_are_gone_are_not_replaced(tmp_path: Path) -> None:
    made(tmp_path / "log")
    owned = opened(tmp_path / "log")
    log = owned.log(TP)
    sources = log.snapshot().segments[SOURCES]
    segment = cleaned(log, sources, [4], owned.disk)
    for path in log.remove_segments(log.snapshot().segments[:2]):
        path.unlink()
    with pytest.raises(SegmentGone):
        log.replace_segments([Replacement(segment.base_offset, sources)])
    with pytest.raises(SegmentGone):
        log.replace_segments([Replacement(segment.base_offset, ())])
    remove_cleaned(owned.disk, log.path, segment.base_offset)
    assert read(owned, "t") == ALL[6:]
    close_clean(owned)


@pytest.mark.parametrize("kept", [[4, 8, 11], [3], []], ids=["each", "first", "none"])
def test_stopped_anywhere(tmp_path: Path, kept: list[int]) -> None:
    """Old or new. Of sources behind the last message of the new segment, as with Kafka, some may be left."""
    made(tmp_path / "before")

    def work(sessions: Sessions, _: list[str]) -> None:
        owned = sessions.open()
        for path in replaced(owned.log(TP), kept, sessions.disk):
            sessions.disk.unlink(path)
        owned.close()

    new = [*ALL[:3], *(ALL[n] for n in kept), *ALL[12:]]
    covered = kept[-1] + 1 if kept else 3
    seen = set()
    for stopped, _ in every_crash(tmp_path, tmp_path / "before", work, list, power_losses=3, any_order=True):
        owned = opened(stopped.path)
        found = read(owned, "t")
        states = {"old": ALL, "new": new} | {
            f"left from {first}": [*ALL[:3], *(ALL[n] for n in kept), *ALL[first:12], *ALL[12:]]
            for first in (6, 9)
            if first >= covered
        }
        assert found in states.values(), f"{stopped}: {found}"
        seen.add(next(name for name, values in states.items() if values == found))
        close_clean(owned, stopped)
        left = {name.rpartition(".")[2] for name in names_in(stopped.path)}
        assert left <= {"log", "index", "timeindex", "snapshot"}, f"{stopped}: {left}"
    assert {"old", "new"} <= seen


@pytest.mark.parametrize("kind", [FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX])
def test_a_segment_of_which_one_file_cannot_be_created_leaves_none(tmp_path: Path, kind: FileKind) -> None:
    """Found by the simulation: with few descriptors the files that were created first stayed, after an orderly end
    too."""
    disk = FaultyDisk(tmp_path)
    missing = segment_file(7, kind, FileState.CLEANED)
    disk.fail = lambda what, path: errno.EMFILE if what.startswith("create") and path.name == missing else None
    with pytest.raises(OSError, match="Too many open files"):
        CleanedSegment(disk, tmp_path, 7, interval_bytes=0)
    assert not list(tmp_path.iterdir())

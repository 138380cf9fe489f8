"""PartitionLog: the files that Kafka would have left, byte for byte, its refusals; and segments that replace others."""

from __future__ import annotations

import errno
import shutil

import pytest

from storage.append.appender import Appender
from storage.append.swap import CleanedSegment, remove_cleaned
from storage.config import BrokerConfig, LogConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptBatch, InvalidRecord, PartitionOffline, RecordTooLarge, SegmentGone
from storage.files import leader_epochs, names
from storage.files.leader_epochs import EpochEntry
from storage.files.names import FileKind, FileState, parse_segment_file, segment_file
from storage.format.block import Record
from storage.format.record_batch import BatchFields, encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.crash_points import every_crash
from tests.support.faults import FaultyDisk, full_disk
from tests.support.fixtures import FIXTURES, topics_of
from tests.support.owned_dirs import (
    ONE_THREAD,
    HastyDisk,
    StandingClock,
    append,
    close_clean,
    killed,
    opened,
    read,
    tree_of,
    values_of,
)
from tests.support.readers import table_of
from tests.support.replayed_logs import BESIDE, replayed

# PartitionLog: the files that Kafka would have left, byte for byte, and what it refuses.

TP = TopicPartition("t", 0)


def batches_of(directory):
    """The batches of a log, in order."""
    for path in sorted(directory.glob("*.log")):
        data = memoryview(path.read_bytes())
        table = table_of(data)
        for position, size in zip(table.position.tolist(), table.size.tolist(), strict=True):
            yield data[position : position + size]


@pytest.mark.parametrize(("fixture", "name"), replayed())
@pytest.mark.parametrize("at_once", [True, False], ids=["whole files", "batch by batch"])
def test_equals_what_kafka_wrote(tmp_path, fixture, name, at_once):
    topic, _, partition = name.rpartition("-")
    described = topics_of(fixture)[topic]
    tp = TopicPartition(topic, int(partition))
    source = FIXTURES / fixture / "log" / name
    owned = opened(tmp_path)
    owned.create_topic(topic, tp.partition + 1, {key: str(value) for key, value in described["config"].items()})
    restarts = list(described.get("restart_at_offsets", []))
    parts = (memoryview(path.read_bytes()) for path in sorted(source.glob("*.log"))) if at_once else batches_of(source)
    for part in batches_of(source) if restarts else parts:
        if restarts and int.from_bytes(part[:8], "big") >= restarts[0]:
            del restarts[0]
            close_clean(owned)
            owned = opened(tmp_path)
        if len(part):
            owned.log(tp).append_batches(part)
    close_clean(owned)
    assert not restarts
    assert tree_of(tmp_path / name, BESIDE) == tree_of(source, BESIDE)


@pytest.fixture
def owned(tmp_path):
    """A directory with the topic t."""
    directory = opened(tmp_path / "dir")
    directory.create_topic("t", 1)
    yield directory
    directory.close()


def _batch(base_offset, values, *, epoch=0):
    records = [Record(None, value, (), 1_763_700_000_000) for value in values]
    return encode_batch(records, base_offset=base_offset, fields=BatchFields(leader_epoch=epoch))


def test_follower_takes_gaps_and_refuses_what_goes_back(owned):
    log = owned.log(TP)
    log.append_batches(memoryview(_batch(5, [b"a", b"b"]) + _batch(20, [b"c"])))
    assert log.log_end_offset == 21
    with pytest.raises(InvalidRecord, match="offsets from 21 on"):
        log.append_batches(memoryview(_batch(20, [b"c"])))
    with pytest.raises(InvalidRecord):
        log.append_batches(memoryview(_batch(30, [b"d"]) + _batch(30, [b"e"])))
    assert values_of(log.snapshot()) == [b"a", b"b", b"c"]


def test_follower_refuses_damage(owned):
    log = owned.log(TP)
    data = bytearray(_batch(0, [b"abc"]))
    data[-2] ^= 1
    with pytest.raises(CorruptBatch):
        log.append_batches(memoryview(data))
    with pytest.raises(CorruptBatch, match="not whole batches"):
        log.append_batches(memoryview(_batch(0, [b"abc"])[:-1]))
    assert log.log_end_offset == 0
    assert log.snapshot().size_bytes == 0


def test_batch_above_segment_bytes(owned):
    owned.alter_config("t", {"segment.bytes": "200"})
    with pytest.raises(RecordTooLarge, match=r"segment.bytes = 200"):
        owned.log(TP).append_batches(memoryview(_batch(0, [b"x" * 200])))


def test_a_log_ends_where_its_segment_begins(tmp_path):
    """A follower's batch after a gap rolls the log, and is not appended: the disk is full."""
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1, {"segment.bytes": "200"})
    log = owned.log(TP)
    log.append_batches(memoryview(_batch(0, [b"a" * 80])))
    new = names.segment_file(5, names.FileKind.LOG)
    disk.fail = lambda what, _path: errno.ENOSPC if what == f"write {new}" else None
    with pytest.raises(OSError, match="No space"):
        log.append_batches(memoryview(_batch(5, [b"b" * 80])))
    disk.fail = lambda _what, _path: None
    assert log.log_end_offset == 5
    with pytest.raises(InvalidRecord):
        log.append_batches(memoryview(_batch(1, [b"c"])))
    log.append_batches(memoryview(_batch(5, [b"d"])))
    assert read(owned, "t") == [b"a" * 80, b"d"]
    assert owned.close().clean


def test_an_epoch_that_a_failed_append_has_left_is_not_in_a_gap(tmp_path):
    """The next append may begin beyond a gap, in another segment, with the epoch of another leader."""
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1, {"segment.bytes": "300"})
    log = owned.log(TP)
    log.append_batches(memoryview(_batch(0, [b"a" * 80], epoch=1)))
    disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("write 0") else None
    with pytest.raises(OSError, match="No space"):
        log.append_batches(memoryview(_batch(1, [b"b"], epoch=5)))
    disk.fail = lambda _what, _path: None
    log.append_batches(memoryview(_batch(7, [b"c" * 200], epoch=3)))
    assert log.snapshot().epochs.entries == (EpochEntry(1, 0), EpochEntry(3, 7))


@pytest.mark.parametrize("preallocated", [False, True])
def test_what_was_cut_off_does_not_come_back_in_a_full_segment(tmp_path, preallocated):
    """An append to a full disk is undone in a segment of which all is flushed, or it was preallocated, and then the log
    is rolled: after a power loss the segment is below the recovery point, where nobody cuts off what is back."""
    for seed in range(20):
        path = tmp_path / str(seed)
        path.mkdir()
        disk = FaultyDisk(path, seed=seed)
        owned = opened(path, disk=disk)
        config = {"segment.bytes": "300", "index.interval.bytes": "0", "preallocate": str(preallocated).lower()}
        owned.create_topic("t", 1, config)
        log = owned.log(TP)
        for value in (b"n" * 200, b"kept", b"too"):  # only a segment that follows another is preallocated
            append(log, [value])
        log.flush()
        owned.checkpoint()
        full = path / "t-0" / names.segment_file(1, names.FileKind.LOG)
        size = log.snapshot().active_size
        assert (full.stat().st_size > size) == preallocated
        if not preallocated:
            disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("write 0") else None
            with pytest.raises(OSError, match="No space"):
                append(log, [b"undone"])
            disk.fail = lambda _what, _path: None
        append(log, [b"n" * 120])  # in the next segment
        killed(owned)
        disk.power_loss()
        again = opened(path)
        assert read(again, "t")[1:3] == [b"kept", b"too"]
        assert full.stat().st_size == size
        close_clean(again)


def test_what_was_cut_off_does_not_come_back_in_a_later_leader_epoch(tmp_path):
    """A follower's append to a full disk is undone, and at the same offset a new leader's batch follows."""
    for seed in range(20):
        path = tmp_path / str(seed)
        path.mkdir()
        disk = FaultyDisk(path, seed=seed)
        owned = opened(path, disk=disk)
        owned.create_topic("t", 1, {"index.interval.bytes": "0"})
        log = owned.log(TP)
        for value in (b"kept", b"too"):
            append(log, [value])
        disk.fail = lambda what, _path: errno.ENOSPC if "write" in what and ".index" in what else None
        with pytest.raises(OSError, match="No space"):
            log.append_batches(memoryview(_batch(2, [b"undone"])))
        disk.fail = lambda _what, _path: None
        log.append_batches(memoryview(_batch(2, [b"later"], epoch=3)))
        killed(owned)
        disk.power_loss()
        close_clean(opened(path))
        assert not verify_log_dir(path)


def test_what_recovery_cut_off_does_not_come_back_in_a_full_segment(tmp_path):
    """Recovery cuts a torn batch off behind the recovery point, and the log is rolled at once."""
    for seed in range(20):
        path = tmp_path / str(seed)
        path.mkdir()
        owned = opened(path)
        owned.create_topic("t", 1, {"segment.bytes": "300"})
        append(owned.log(TP), [b"kept"])
        close_clean(owned)
        (path / names.CLEAN_SHUTDOWN).unlink()
        with (path / "t-0" / names.segment_file(0, names.FileKind.LOG)).open("ab") as file:
            file.write(_batch(1, [b"torn" * 20])[:100])
        disk = FaultyDisk(path, seed=seed)
        owned = opened(path, disk=disk)
        append(owned.log(TP), [b"n" * 210])  # in the next segment
        killed(owned)
        disk.power_loss()
        again = opened(path)
        assert read(again, "t")[:1] == [b"kept"]
        close_clean(again)
        assert not verify_log_dir(path)


@pytest.mark.parametrize("kind", [names.FileKind.OFFSET_INDEX, names.FileKind.TIME_INDEX])
@pytest.mark.parametrize("removal", ["succeeds", "fails once"])
def test_a_segment_that_could_not_be_created_does_not_come_back(tmp_path, kind, removal):
    """The disk is full while a log is rolled, and the log grows on in the old segment: after a crash an empty segment
    in the middle of its messages would be the active one."""
    for seed in range(40):
        path = tmp_path / str(seed)
        path.mkdir()
        disk = FaultyDisk(path, seed=seed)
        owned = opened(path, disk=disk)
        owned.create_topic("t", 1, {"segment.bytes": "400"})
        log = owned.log(TP)
        append(log, [b"first" * 20])
        log.flush()
        owned.checkpoint()
        failing = {f"create {names.segment_file(1, kind)}"}
        if removal == "fails once":
            failing.add(f"unlink {names.segment_file(1, names.FileKind.LOG)}")
        disk.fail = lambda what, _path, failing=failing: errno.ENOSPC if what in failing else None
        with pytest.raises(OSError, match="No space"):
            append(log, [b"x" * 300])
        if removal == "fails once":
            with pytest.raises(OSError, match="No space"):  # nothing is appended as long as it is there
                append(log, [b"second"])
        disk.fail = lambda _what, _path: None
        for value in (b"second", b"third"):
            append(log, [value])
        killed(owned)
        if seed % 4:
            disk.power_loss()
        again = opened(path)
        found = read(again, "t")
        assert found == [b"first" * 20, b"second", b"third"][: len(found)]
        append(again.log(TP), [b"last"])
        assert read(again, "t") == [*found, b"last"]
        close_clean(again)
        assert not verify_log_dir(path)


def test_a_log_that_begins_where_a_segment_could_not_be_created(tmp_path):
    """A log without messages has to roll for an offset that its first segment cannot hold, and begins again there."""
    base = 1 << 32
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1)
    log = owned.log(TP)
    disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("create 0") and what.endswith(".index") else None
    with pytest.raises(OSError, match="No space"):
        log.append_batches(memoryview(_batch(base, [b"b"])))
    disk.fail = lambda _what, _path: None
    log.restart_at(base)
    log.append_batches(memoryview(_batch(base, [b"c"])))
    assert read(owned, "t") == [b"c"]
    close_clean(owned)
    assert read(opened(tmp_path), "t") == [b"c"]


def test_no_epoch_is_left_of_a_batch_that_was_not_appended(tmp_path):
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1)
    log = owned.log(TP)
    log.append_batches(memoryview(_batch(0, [b"a"])))
    disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("write 0") else None
    fields = BatchFields(leader_epoch=3)
    with pytest.raises(OSError, match="No space"):
        log.append_batches(memoryview(encode_batch([Record(None, b"b")], base_offset=7, fields=fields)))
    disk.fail = lambda _what, _path: None
    close_clean(owned)


def test_an_epoch_begins_below_where_a_batch_that_was_not_appended_would_have_begun_it(tmp_path):
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 1)
    log = owned.log(TP)
    disk.fail = lambda what, _path: errno.ENOSPC if what.startswith("write 0") else None
    with pytest.raises(OSError, match="No space"):
        log.append_batches(memoryview(_batch(2, [b"a"], epoch=3)))
    disk.fail = lambda _what, _path: None
    log.append_batches(memoryview(_batch(0, [b"b"], epoch=3)))
    found = leader_epochs.read(owned.path / "t-0" / names.LEADER_EPOCH_CHECKPOINT)
    assert found.entries == (EpochEntry(3, 0),)
    close_clean(owned)


def test_a_log_without_messages_begins_at_a_later_offset(owned):
    log = owned.log(TP)
    log.restart_at(50)
    append(log, [b"a"])
    with pytest.raises(ValueError, match="without messages"):
        log.restart_at(70)
    log.roll()
    for path in log.remove_segments(log.snapshot().segments[:1]):
        path.unlink()
    with pytest.raises(ValueError, match="later offset"):
        log.restart_at(50)
    log.restart_at(70)
    append(log, [b"b"])
    assert (log.log_start_offset, log.log_end_offset) == (70, 71)
    assert values_of(log.snapshot()) == [b"b"]
    assert [path.name for path in sorted((owned.path / "t-0").glob("*.log"))] == ["00000000000000000070.log"]
    assert not list((owned.path / "t-0").glob("*.snapshot"))


@pytest.mark.parametrize("limit", range(12))
def test_full_disk_leaves_a_valid_log(tmp_path, limit):
    """Whatever write finds the disk full: what had returned is there, nothing else is, and later appends go on."""
    path = tmp_path / "dir"
    first = opened(path)
    first.create_topic("t", 1, {"segment.bytes": "300", "index.interval.bytes": "0"})
    first.close()
    disk = FaultyDisk(path, seed=limit)
    owned = opened(path, disk=disk)
    log = owned.log(TP)
    disk.fail = full_disk(limit)
    kept = []
    failures = 0
    for n in range(12):
        outcome = Appender(log, clock=StandingClock()).append([Record(None, b"message %d" % n)] * 2)
        if outcome.error is None:
            kept += [b"message %d" % n] * 2
        else:
            failures += isinstance(outcome.error, OSError) and outcome.error.errno == errno.ENOSPC
            assert outcome.taken == 0
        assert values_of(log.snapshot()) == kept
    assert failures
    assert log.failure is None
    disk.fail = lambda _what, _path: None
    append(log, [b"room again"])
    kept.append(b"room again")
    assert values_of(log.snapshot()) == kept
    close_clean(owned)
    again = opened(path)
    assert read(again, "t") == kept
    assert again.close().clean


def test_failing_disk_takes_one_partition_offline(tmp_path):
    path = tmp_path / "dir"
    first = opened(path)
    first.create_topic("t", 2)
    first.close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    bad, good = owned.log(TP), owned.log(TopicPartition("t", 1))
    append(bad, [b"before"])
    bad.flush()
    disk.fail = lambda what, place: (
        errno.EIO if what.startswith(("write", "sync")) and place.parts[:1] == ("t-0",) else None
    )
    with pytest.raises(OSError, match="Input/output error"):
        append(bad, [b"lost"])
    with pytest.raises(PartitionOffline, match="offline after an earlier failure"):
        append(bad, [b"refused"])
    append(good, [b"fine"])
    good.flush()
    assert list(owned.failures()) == [TP]
    assert values_of(bad.snapshot()) == [b"before"]
    disk.fail = lambda _what, _path: None
    closing = owned.close()
    assert not closing.clean
    assert list(closing.errors) == [TP]
    assert not (path / names.CLEAN_SHUTDOWN).exists()
    again = opened(path)
    assert read(again, "t") == [b"before"]
    assert read(again, "t", 1) == [b"fine"]
    assert again.close().clean


def test_segments_roll_by_the_clock_of_messages(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {"segment.ms": "1000"})
    log = owned.log(TP)
    clock = StandingClock()
    writer = Appender(log, clock=clock)
    for step in (0, 1000, 1, 1000, 1):
        clock.time_ms += step
        assert writer.append([Record(None, b"x")]).error is None
    assert [segment.base_offset for segment in log.snapshot().segments] == [0, 2, 4]
    close_clean(owned)


def test_reconfiguring_counts_from_the_next_append(owned):
    log = owned.log(TP)
    append(log, [b"x" * 100])
    config = LogConfig.from_overrides(BrokerConfig().topic_defaults, {"segment.bytes": "200"})
    log.reconfigure(config)
    append(log, [b"y" * 100])
    assert len(log.snapshot().segments) == 2


def test_preallocated_space_is_no_message_and_goes(tmp_path):
    owned = opened(tmp_path / "log")
    owned.create_topic("t", 1, {"preallocate": "true", "segment.bytes": "4096"})
    values = [b"%0300d" % number for number in range(20)]
    for value in values:
        append(owned.log(TP), [value])
    *sealed, active = owned.log(TP).snapshot().segments
    assert [segment.log.path.stat().st_size for segment in sealed] == [segment.size for segment in sealed]
    assert active.size < active.log.path.stat().st_size == 4096
    assert active.log.path.read_bytes()[active.size :] == bytes(4096 - active.size)
    looking_on = LogDir.open_read_only(tmp_path / "log")
    assert read(owned, "t") == values_of(looking_on.log(TP).snapshot()) == values
    looking_on.close()
    shutil.copytree(tmp_path / "log", tmp_path / "killed")  # as a kill leaves it
    close_clean(owned)
    assert active.log.path.stat().st_size == active.size
    for name in ("log", "killed"):
        again = opened(tmp_path / name)
        append(again.log(TP), [b"more"])
        assert read(again, "t") == [*values, b"more"]
        close_clean(again)


# Segments put in the place of others, stopped at every disk operation: the old messages or the new, never fewer.

ALL = [b"%d" % n * 20 for n in range(16)]
SOURCES = slice(1, 4)  # of segments of three messages each


def made(path):
    """A log of one-message batches, three to a segment, shut down in order."""
    owned = opened(path)
    owned.create_topic("t", 1, {"index.interval.bytes": "0"})
    log = owned.log(TP)
    for value in ALL:
        if value != ALL[0] and ALL.index(value) % 3 == 0:
            log.roll()
        append(log, [value])
    close_clean(owned)


def cleaned(log, sources, kept, owned_disk):
    """A segment of those batches of `sources` that hold the offsets `kept`."""
    segment = CleanedSegment(owned_disk, log.path, sources[0].base_offset, interval_bytes=0)
    for source in sources:
        data = bytes(source.log.read(0, source.size))
        table = table_of(data)
        for row in range(table.rows):
            if int(table.base_offset[row]) in kept:
                batch = memoryview(data)[int(table.position[row]) : int(table.end[row])]
                one = table_of(batch)
                segment.append(batch, one)
    segment.finish([], sources[-1].log.stat().st_mtime_ns)
    return segment


def replaced(log, kept, disk):
    sources = log.snapshot().segments[SOURCES]
    cleaned(log, sources, kept, disk)
    return log.replace_segments(sources)


def names_in(path):
    return {file.name for file in (path / "t-0").iterdir() if parse_segment_file(file.name)}


def test_a_segment_takes_the_place_of_its_sources(tmp_path):
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


def test_sources_that_are_gone_are_not_replaced(tmp_path):
    made(tmp_path / "log")
    owned = opened(tmp_path / "log")
    log = owned.log(TP)
    sources = log.snapshot().segments[SOURCES]
    segment = cleaned(log, sources, [4], owned.disk)
    for path in log.remove_segments(log.snapshot().segments[:2]):
        path.unlink()
    with pytest.raises(SegmentGone):
        log.replace_segments(sources)
    with pytest.raises(SegmentGone):
        log.replace_segments(())
    remove_cleaned(owned.disk, log.path, segment.base_offset)
    assert read(owned, "t") == ALL[6:]
    close_clean(owned)


@pytest.mark.parametrize("kept", [[4, 8, 11], [3], []], ids=["each", "first", "none"])
def test_stopped_anywhere(tmp_path, kept):
    """Old or new. Of sources behind the last message of the new segment, as with Kafka, some may be left."""
    made(tmp_path / "before")

    def work(sessions, _):
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
def test_a_segment_of_which_one_file_cannot_be_created_leaves_none(tmp_path, kind):
    """Found by the simulation: with few descriptors the files that were created first stayed, after an orderly end
    too."""
    disk = FaultyDisk(tmp_path)
    missing = segment_file(7, kind, FileState.CLEANED)
    disk.fail = lambda what, path: errno.EMFILE if what.startswith("create") and path.name == missing else None
    with pytest.raises(OSError, match="Too many open files"):
        CleanedSegment(disk, tmp_path, 7, interval_bytes=0)
    assert not list(tmp_path.iterdir())


def test_segments_roll_at_random_times_within_the_jitter(tmp_path):
    """segment.jitter.ms: some time before segment.ms is over, so that not all partitions roll at once."""
    clock = StandingClock()
    owned = OwnedDir.open(tmp_path, Opening(create=True), config=ONE_THREAD, disk=HastyDisk(), clock=clock)
    owned.create_topic("t", 40, {"segment.ms": "1000", "segment.jitter.ms": "500"})
    logs = [owned.log(TopicPartition("t", number)) for number in range(40)]

    def rolled():
        """How many have rolled when each has got one more message."""
        for log in logs:
            assert Appender(log, clock=clock).append([Record(None, b"x")]).error is None
        return sum(len(log.snapshot().segments) > 1 for log in logs)

    began_ms = clock.time_ms
    counts = []
    for after_ms in (0, 500, 750, 1001):
        clock.time_ms = began_ms + after_ms
        counts.append(rolled())
    assert counts[:2] == [0, 0]
    assert 0 < counts[2] < len(logs)
    assert counts[3] == len(logs)
    close_clean(owned)

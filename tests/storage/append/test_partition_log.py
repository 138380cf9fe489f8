"""PartitionLog: the files that Kafka would have left, byte for byte, its refusals; full disks, and what a power loss
leaves after them."""

import errno
import shutil

import pytest

from storage.append.appender import Appender
from storage.append.swap import CleanedSegment
from storage.config import BrokerConfig, LogConfig
from storage.errors import CorruptBatch, InvalidRecord, PartitionOffline, RecordTooLarge
from storage.files import names
from storage.files.leader_epochs import EpochEntry
from storage.files.names import FileKind, FileState, segment_file
from storage.format.block import Record
from storage.format.record_batch import BatchFields, encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.storage.append.failing_disks import failing
from tests.support.faults import FaultyDisk, full_disk
from tests.support.fixtures import FIXTURES, topics_of
from tests.support.owned_dirs import StandingClock, append, close_clean, killed, opened, read, tree_of, values_of
from tests.support.readers import table_of
from tests.support.replayed_logs import BESIDE, replayed

TP = TopicPartition("t", 0)


def batches_of(directory):
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
def faulty(tmp_path):
    (tmp_path / "dir").mkdir()
    return FaultyDisk(tmp_path / "dir")


@pytest.fixture
def owned(faulty):
    directory = opened(faulty.root, disk=faulty)
    directory.create_topic("t", 1)
    yield directory
    close_clean(directory)


def test_an_empty_segment_is_kept_as_it_is(owned, faulty):
    log = owned.log(TP)
    append(log, [b"x"])
    log.roll()
    before = list(faulty.operations)
    log.roll()
    assert faulty.operations == before


def batch(base_offset, *values, epoch=0):
    records = [Record(None, value, (), 1_763_700_000_000) for value in values]
    return memoryview(encode_batch(records, base_offset=base_offset, fields=BatchFields(leader_epoch=epoch)))


def test_what_a_follower_takes_and_refuses(owned):
    log = owned.log(TP)
    damaged = bytearray(batch(0, b"abc"))
    damaged[-2] ^= 1
    for data, words in ((damaged, "checksum differs"), (batch(0, b"abc")[:-1], "not whole batches")):
        with pytest.raises(CorruptBatch, match=words):
            log.append_batches(memoryview(data))
    assert (log.log_end_offset, log.snapshot().size_bytes) == (0, 0)
    log.append_batches(memoryview(bytes(batch(5, b"a", b"b")) + bytes(batch(20, b"c"))))
    assert log.log_end_offset == 21
    with pytest.raises(InvalidRecord, match="offsets from 21 on"):
        log.append_batches(batch(20, b"c"))
    with pytest.raises(InvalidRecord):
        log.append_batches(memoryview(bytes(batch(30, b"d")) + bytes(batch(30, b"e"))))
    owned.alter_config("t", {"segment.bytes": "200"})
    with pytest.raises(RecordTooLarge, match=r"segment.bytes = 200"):
        log.append_batches(batch(21, b"x" * 200))
    assert values_of(log.snapshot()) == [b"a", b"b", b"c"]


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


def test_segments_roll_by_the_clock_of_messages(owned):
    owned.alter_config("t", {"segment.ms": "1000"})
    log, clock = owned.log(TP), StandingClock()
    for step in (0, 1000, 1, 1000, 1):
        clock.time_ms += step
        assert Appender(log, clock=clock).append([Record(None, b"x")]).error is None
    assert [segment.base_offset for segment in log.snapshot().segments] == [0, 2, 4]
    # Another configuration counts from the next append on.
    log.reconfigure(LogConfig.from_overrides(BrokerConfig().topic_defaults, {"segment.bytes": "100"}))
    append(log, [b"y"])
    assert len(log.snapshot().segments) == 4


def test_segments_roll_at_random_times_within_the_jitter(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 40, {"segment.ms": "1000", "segment.jitter.ms": "500"})
    logs = [owned.log(TopicPartition("t", number)) for number in range(40)]
    counts = []
    for step_ms in (0, 500, 250, 251):
        owned.clock.time_ms += step_ms
        for log in logs:
            assert Appender(log, clock=owned.clock).append([Record(None, b"x")]).error is None
        counts.append(sum(len(log.snapshot().segments) > 1 for log in logs))
    assert counts[:2] == [0, 0]
    assert 0 < counts[2] < len(logs)
    assert counts[3] == len(logs)
    close_clean(owned)


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


def test_a_log_ends_where_its_segment_begins(owned, faulty):
    """A follower's batch after a gap rolls the log, and is not appended: the disk is full."""
    owned.alter_config("t", {"segment.bytes": "200"})
    log = owned.log(TP)
    log.append_batches(batch(0, b"a" * 80))
    with failing(faulty, f"write {segment_file(5, FileKind.LOG)}"):
        log.append_batches(batch(5, b"b" * 80))
    assert log.log_end_offset == 5
    with pytest.raises(InvalidRecord):
        log.append_batches(batch(1, b"c"))
    log.append_batches(batch(5, b"d"))
    assert read(owned, "t") == [b"a" * 80, b"d"]


def test_a_log_that_begins_where_a_segment_could_not_be_created(owned, faulty):
    """A log without messages has to roll for an offset that its first segment cannot hold, and begins again there."""
    base = 1 << 32
    log = owned.log(TP)
    with failing(faulty, f"create {segment_file(base, FileKind.OFFSET_INDEX)}"):
        log.append_batches(batch(base, b"b"))
    log.restart_at(base)
    log.append_batches(batch(base, b"c"))
    assert read(owned, "t") == [b"c"]


@pytest.mark.parametrize(
    ("failed", "appended", "epochs"),
    [
        ((1, 5), (7, 3), (EpochEntry(1, 0), EpochEntry(3, 7))),  # beyond a gap, in another segment, of another leader
        ((7, 3), None, (EpochEntry(1, 0),)),
        ((3, 3), (1, 3), (EpochEntry(1, 0), EpochEntry(3, 1))),  # below where it would have begun
    ],
)
def test_no_epoch_is_left_of_a_batch_that_was_not_appended(owned, faulty, failed, appended, epochs):
    owned.alter_config("t", {"segment.bytes": "300"})
    log = owned.log(TP)
    log.append_batches(batch(0, b"a" * 80, epoch=1))
    with failing(faulty, "write 0"):
        log.append_batches(batch(failed[0], b"b", epoch=failed[1]))
    if appended is not None:
        log.append_batches(batch(appended[0], b"c" * 200, epoch=appended[1]))
        assert log.snapshot().epochs.entries == epochs
    log.flush()
    owned.checkpoint()
    assert LogDir.open_read_only(owned.path).log(TP).snapshot().epochs.entries[: len(epochs)] == epochs


@pytest.mark.parametrize("limit", range(12))
def test_a_full_disk_leaves_a_valid_log(faulty, limit):
    """Whatever write finds the disk full: what had returned is there, nothing else is, and later appends go on."""
    owned = opened(faulty.root, disk=faulty)
    owned.create_topic("t", 1, {"segment.bytes": "300", "index.interval.bytes": "0"})
    log = owned.log(TP)
    faulty.fail = full_disk(limit)
    kept, failures = [], 0
    for n in range(12):
        outcome = Appender(log, clock=StandingClock()).append([Record(None, b"message %d" % n)] * 2)
        if outcome.error is None:
            kept += [b"message %d" % n] * 2
        else:
            assert (outcome.error.errno, outcome.taken) == (errno.ENOSPC, 0)
            failures += 1
        assert values_of(log.snapshot()) == kept
    assert failures
    assert log.failure is None
    faulty.fail = lambda _what, _path: None
    append(log, [b"room again"])
    close_clean(owned)
    again = opened(owned.path)
    assert read(again, "t") == [*kept, b"room again"]
    close_clean(again)


def test_a_failing_disk_takes_one_partition_offline(tmp_path):
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    owned.create_topic("t", 2)
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
    assert not (tmp_path / names.CLEAN_SHUTDOWN).exists()
    again = opened(tmp_path)
    assert (read(again, "t"), read(again, "t", 1)) == ([b"before"], [b"fine"])
    close_clean(again)


@pytest.mark.parametrize("kind", [FileKind.LOG, FileKind.OFFSET_INDEX, FileKind.TIME_INDEX])
def test_a_segment_of_which_one_file_cannot_be_created_leaves_none(tmp_path, kind):
    """Found by the simulation: with few descriptors the files that were created first stayed."""
    disk = FaultyDisk(tmp_path)
    with failing(disk, f"create {segment_file(7, kind, FileState.CLEANED)}", code=errno.EMFILE):
        CleanedSegment(disk, tmp_path, 7, interval_bytes=0)
    assert not list(tmp_path.iterdir())


# Power losses after such failures: each scenario returns how many messages are durable, and what may be there.


def undone_in_a_full_segment(owned, disk):
    """All of the segment is flushed. After the roll it is below the recovery point, where nobody would cut off what was
    undone, or preallocated (which only a segment is that follows another)."""
    log = owned.log(TP)
    for value in (b"n" * 200, b"kept", b"too"):
        append(log, [value])
    log.flush()
    owned.checkpoint()
    active = log.snapshot().segments[-1]
    assert (active.log.path.stat().st_size > active.size) == log.config.preallocate
    if not log.config.preallocate:
        with failing(disk, "write 0"):
            append(log, [b"undone"])
    append(log, [b"n" * 120])
    assert len(log.snapshot().segments) == 3
    return 3, [[b"n" * 200, b"kept", b"too", b"n" * 120]]


def followed_by_a_later_epoch(owned, disk):
    log = owned.log(TP)
    for value in (b"kept", b"too"):
        append(log, [value])
    with failing(disk, f"write {segment_file(0, FileKind.OFFSET_INDEX)}"):
        log.append_batches(batch(2, b"undone"))
    log.append_batches(batch(2, b"later", epoch=3))
    return 0, [[b"kept", b"too", b"later"], [b"kept", b"too", b"undone"]]


def cut_off_by_recovery(owned, disk):
    """The log is rolled right after recovery has cut a torn batch off."""
    append(owned.log(TP), [b"kept"])
    close_clean(owned)
    disk.unlink(owned.path / names.CLEAN_SHUTDOWN)
    file = disk.open(owned.path / "t-0" / segment_file(0, FileKind.LOG))
    file.write_at(file.size(), batch(1, b"torn" * 20)[:100])
    file.close()
    owned = opened(owned.path, disk=disk)
    append(owned.log(TP), [b"n" * 210])
    killed(owned)
    return 1, [[b"kept", b"n" * 210]]


def not_created(kind, removal):
    def scenario(owned, disk):
        """The log grows on in the old segment. After a crash the empty one would be active, amid its messages."""
        log = owned.log(TP)
        append(log, [b"first" * 20])
        log.flush()
        owned.checkpoint()
        operations = [f"create {segment_file(1, kind)}"]
        if removal == "fails once":
            operations.append(f"unlink {segment_file(1, FileKind.LOG)}")
        with failing(disk, *operations):
            append(log, [b"x" * 300])
        if removal == "fails once":
            with failing(disk, *operations):  # nothing is appended as long as it is there
                append(log, [b"second"])
        for value in (b"second", b"third"):
            append(log, [value])
        return 1, [[b"first" * 20, b"second", b"third"]]

    return pytest.param(scenario, {"segment.bytes": "400"}, id=f"no {kind.name}, whose removal {removal}")


@pytest.mark.parametrize(
    ("scenario", "config"),
    [
        (undone_in_a_full_segment, {"segment.bytes": "300", "index.interval.bytes": "0"}),
        (undone_in_a_full_segment, {"segment.bytes": "300", "index.interval.bytes": "0", "preallocate": "true"}),
        (followed_by_a_later_epoch, {"index.interval.bytes": "0"}),
        (cut_off_by_recovery, {"segment.bytes": "300"}),
        *(
            not_created(kind, removal)
            for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
            for removal in ("succeeds", "fails once")
        ),
    ],
)
def test_what_was_cut_off_does_not_come_back(tmp_path, scenario, config):
    for seed in range(24):
        path = tmp_path / str(seed)
        path.mkdir()
        disk = FaultyDisk(path, seed=seed)
        owned = opened(path, disk=disk)
        owned.create_topic("t", 1, config)
        durable, outcomes = scenario(owned, disk)
        killed(owned)
        if seed % 4:
            disk.power_loss()
        again = opened(path)
        messages = read(again, "t")
        assert messages in [outcome[: len(messages)] for outcome in outcomes], seed
        assert len(messages) >= durable, seed
        append(again.log(TP), [b"last"])
        assert read(again, "t") == [*messages, b"last"]
        close_clean(again, seed)

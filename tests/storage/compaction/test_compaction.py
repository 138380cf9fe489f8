"""The cleaner's pass on logs of our own and on those that Kafka's cleaner has cleaned; stopped anywhere."""

import contextlib
import random
import shutil

import numpy as np
import pytest

from storage.compaction.compaction import DirtyRange, dirty_range, group_by_size
from storage.compaction.partition_compaction import compact_partition, dirty_range_of
from storage.config import BrokerConfig, LogConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import CorruptIndex, SegmentGone
from storage.files import checkpoints, names
from storage.files.names import FileKind, FileState, parse_segment_file, segment_file
from storage.format.batches import BatchTable
from storage.format.block import Record
from storage.format.columns import Column
from storage.format.compression import Codec
from storage.format.control_records import ControlType
from storage.format.record_batch import PLAIN, BatchFields
from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition
from storage.verify.findings import FaultKind, Severity
from storage.verify.verify import verify_log_dir
from tests.support.compacted_logs import TP, compact, contents, latest, opened, put, updates
from tests.support.control_batches import marker_batch
from tests.support.crash_points import Sessions, every_crash
from tests.support.faults import Crash, FaultyDisk
from tests.support.fixtures import FIXTURES, copy_log_dir, log_dir_of, read_golden, requires_fixtures, topics_of
from tests.support.owned_dirs import NOW_MS, HastyDisk, StandingClock, close_clean
from tests.support.readers import read_all, table_of
from tests.support.uncompiled import plain_kernels

HORIZON_MS = 86_400_000


@pytest.fixture
def owned(tmp_path):
    """A directory with a compacted topic."""
    directory = opened(tmp_path / "log")
    yield directory
    close_clean(directory)


@pytest.fixture
def log(owned):
    return owned.log(TP)


def headers(log):
    return BatchTable.concat([table_of(segment.log.read(0, segment.size)) for segment in log.snapshot().segments[:-1]])


def any_batches(log, dice, count):
    for _ in range(count):
        magic = dice.choice((0, 1, 2, 2, 2, 2))
        codecs = (Codec.NONE, Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
        codec = dice.choice(codecs[: 6 if magic == 2 else 5])
        records = [
            Record(
                None if dice.random() < 0.05 else b"k%d" % dice.randrange(25),
                None if dice.random() < 0.1 else dice.randbytes(dice.choice((0, 3, 90))),
                ((b"h", dice.choice((None, b"x"))),) * dice.choice((0, 0, 1, 2)) if magic == 2 else (),
                NOW_MS + dice.randrange(-(10**6), 10**6),
            )
            for _ in range(dice.choice((1, 1, 3, 12)))
        ]
        fields = BatchFields(log_append_time_ms=NOW_MS if magic == 2 and dice.random() < 0.2 else None)
        put(log, records, magic=magic, codec=codec, fields=fields)


@pytest.mark.parametrize("seed", range(6))
def test_the_latest_of_each_key_stays_whatever_the_batches(owned, log, seed):
    dice = random.Random(seed)
    for _ in range(4):
        any_batches(log, dice, 60)
        before = read_all(log.snapshot())
        result = compact(owned)
        after = read_all(log.snapshot())
        end = log.snapshot().segments[-1].base_offset
        assert result.is_complete
        assert result.end_offset == end
        assert [(r.offset, r.key, r.value) for r in after] == latest([(r.offset, r.key, r.value) for r in before], end)
        # Formats v0 and v1 become v2, and with it their timestamps' type; all else is as it was.
        told = {r.offset: r._replace(timestamp_type="") for r in before}
        assert all(r._replace(timestamp_type="") == told[r.offset] for r in after)
        assert set(headers(log).magic.tolist()) <= {2}
        assert result.counts.records_kept == sum(r.offset < end for r in after)


def test_deletes_go_once_their_horizon_has_passed(owned, log):
    put(log, updates([(b"a", b"1"), (b"b", b"1"), (b"a", None)]))
    put(log, updates([(b"c", None)]), codec=Codec.GZIP)
    log.roll()
    compact(owned)
    table = headers(log)
    assert table.has_delete_horizon.all()
    assert table.base_timestamp.tolist() == [NOW_MS + HORIZON_MS] * 2
    assert table.max_timestamp.tolist() == [NOW_MS] * 2
    kept = [(1, b"b", b"1"), (2, b"a", None), (3, b"c", None)]
    for later_ms, expected in ((HORIZON_MS - 1, kept), (1, kept[:1])):
        owned.clock.time_ms += later_ms
        put(log, updates([(b"x%d" % later_ms, b"")]))
        log.roll()
        result = compact(owned)
        assert contents(owned)[: len(expected)] == expected
        assert result.counts.keys_gone == len(kept) - len(expected)
    assert read_all(log.snapshot())[0].timestamp == NOW_MS


def test_old_formats_deletes_go_by_the_files_times(tmp_path):
    owned = opened(tmp_path / "log", delete_retention_ms="1000")
    log = owned.log(TP)
    put(log, updates([(b"a", None)]), magic=1)
    log.roll()
    put(log, updates([(b"b", None)]), magic=1)
    log.roll()
    first, second = log.snapshot().segments[:2]
    owned.disk.set_mtime(first.log.path, 10**15)
    owned.disk.set_mtime(second.log.path, 10**15 + 2 * 10**9)
    owned.checkpoints.set_cleaner_offset(TP, 2)  # both are clean: the younger is the last one of the clean part
    put(log, updates([(b"c", b"")]))
    log.roll()
    compact(owned)
    assert contents(owned) == [(1, b"b", None), (2, b"c", b"")]
    close_clean(owned)


def test_the_last_batch_of_the_round_and_of_each_producer_stays_empty(owned, log):
    for producer, sequence in ((7, 0), (8, 0), (7, 1)):
        put(log, updates([(b"k", b"%d" % producer)]), fields=BatchFields(producer_id=producer, producer_epoch=0,
                                                                        base_sequence=sequence))  # fmt: skip
    put(log, updates([(None, b"no key")] * 2))
    log.roll()
    put(log, updates([(b"k", b"active")]))
    compact(owned)
    table = headers(log)
    # Producer 7's first batch is gone, 8's only one is empty; the end of the round is, too.
    assert list(zip(table.producer_id.tolist(), table.base_offset.tolist(), table.count.tolist(), strict=True)) == [
        (8, 1, 0), (7, 2, 1), (-1, 3, 0)
    ]  # fmt: skip
    assert table.last_offset.tolist() == [1, 2, 4]
    assert contents(owned) == [(2, b"k", b"7"), (5, b"k", b"active")]
    # A day later both are forgotten.
    owned.clock.time_ms += 86_400_000
    log.roll()
    compact(owned)
    assert headers(log).producer_id.tolist() == [-1]


def transact(log, producer, pairs, end):
    fields = BatchFields(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True)
    for pair in pairs:
        put(log, updates([pair]), fields=fields)
    if end is not None:
        marker = marker_batch(end, producer, base_offset=log.log_end_offset, timestamp=NOW_MS)
        log.append_batches(memoryview(marker))


def test_transactions(owned, log):
    transact(log, 1, [(b"a", b"committed"), (b"b", b"old")], ControlType.COMMIT)  # 0 1, 2
    transact(log, 2, [(b"a", b"aborted"), (b"c", b"aborted")], ControlType.ABORT)  # 3 4, 5
    transact(log, 3, [(b"b", b"new")], ControlType.COMMIT)  # 6, 7
    log.roll()
    put(log, updates([(b"x", b"filler")]))
    transact(log, 4, [(b"a", b"open")], None)
    log.roll()
    assert dirty_range_of(owned, TP).first_uncleanable == 8  # the segment of the open transaction is not touched
    compact(owned)
    for isolation in (Isolation.READ_UNCOMMITTED, Isolation.READ_COMMITTED):
        found = [(r.offset, r.key, r.value) for r in read_all(log.snapshot(), isolation=isolation)]
        expected = [(0, b"a", b"committed"), (6, b"b", b"new"), (8, b"x", b"filler"), (9, b"a", b"open")]
        assert found == expected[: len(expected) - (isolation is Isolation.READ_COMMITTED)]
    table = headers(log)
    # Producer 2's last batch stays, empty, for its sequence; so its marker does, and the entry of the .txnindex.
    assert table.last_offset.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert table.count.tolist() == [1, 0, 1, 0, 1, 1, 1, 1, 1]
    assert log.snapshot().segments[0].path_of(FileKind.TRANSACTION_INDEX).exists()

    transact(log, 4, [], ControlType.COMMIT)
    owned.clock.time_ms += 2 * HORIZON_MS  # producers are forgotten
    log.roll()
    compact(owned)  # the batches go; while they were passed their markers were still needed
    assert [(r.offset, r.value) for r in read_all(log.snapshot())] == [(6, b"new"), (8, b"filler"), (9, b"open")]
    assert headers(log).last_offset.tolist() == [2, 5, 6, 7, 8, 9, 10]
    aborted = log.snapshot().segments[0].path_of(FileKind.TRANSACTION_INDEX)
    assert aborted.exists()
    for n, left in enumerate(([2, 5, 6, 7, 8, 9, 10], [6, 7, 8, 9, 10])):
        put(log, updates([(b"y%d" % n, b"")]))
        log.roll()
        compact(owned)  # the markers of empty transactions wait for delete.retention.ms, too
        assert headers(log).last_offset.tolist() == [*left, *range(11, 12 + n)]
        assert headers(log).has_delete_horizon.tolist()[:3] == [n == 0, n == 0, False]
        assert not aborted.exists()
        owned.clock.time_ms += HORIZON_MS


def any_transactions(log, dice):
    open_producers = set()
    for _ in range(40):
        producer = dice.randrange(1, 5)
        pairs = [(b"k%d" % dice.randrange(12), b"%d" % producer) for _ in range(dice.choice((1, 1, 3)))]
        end = dice.choice((None, ControlType.COMMIT, ControlType.ABORT))
        is_alone = dice.random() < 0.2  # in its segment, and the marker in the next
        if is_alone:
            log.roll()
        transact(log, producer, pairs, None if is_alone else end)
        if is_alone:
            log.roll()
            transact(log, producer, [], end)
        (open_producers.add if end is None else open_producers.discard)(producer)
        if dice.random() < 0.3:
            put(log, updates([(b"k%d" % dice.randrange(12), dice.choice((None, b"plain")))]))
    for producer in open_producers:
        transact(log, producer, [], dice.choice((ControlType.COMMIT, ControlType.ABORT)))


@pytest.mark.parametrize("most_keys", [1000, 8])
@pytest.mark.parametrize("seed", range(4))
def test_the_latest_committed_message_of_each_key_stays(tmp_path, seed, most_keys):
    """Also when the map is full within a batch or a transaction, and several passes follow each other."""
    owned = opened(
        tmp_path / "log",
        config={"log.cleaner.dedupe.buffer.size": str(24 * most_keys), "log.cleaner.threads": "1"},
    )
    log, dice = owned.log(TP), random.Random(seed)
    for _ in range(2):
        any_transactions(log, dice)
        log.roll()
        committed = read_all(log.snapshot(), isolation=Isolation.READ_COMMITTED)
        passes = 1
        while not compact(owned).is_complete:
            passes += 1
        assert (passes > 1) is (most_keys == 8)
        after = read_all(log.snapshot(), isolation=Isolation.READ_COMMITTED)
        expected = latest([(r.offset, r.key, r.value) for r in committed], log.log_end_offset)
        assert [(r.offset, r.key, r.value) for r in after] == expected
        assert [(r.offset, r.key, r.value) for r in read_all(log.snapshot())] == expected
    close_clean(owned)


def test_what_a_compaction_on_spark_left_is_noted_and_removed(tmp_path):
    """An earlier release built segments under names of their own; a killed task left them."""
    owned = opened(tmp_path / "log")
    put(owned.log(TP), updates([(b"a", b"1")]))
    directory = owned.log(TP).path
    close_clean(owned)
    left = [directory / f"{0:020d}{suffix}.{'0a' * 16}.staged" for suffix in (".log", ".index", ".timeindex")]
    for path in left:
        path.write_bytes(b"of a task that was killed")
    notes = verify_log_dir(tmp_path / "log")
    assert {(note.kind, note.severity) for note in notes} == {(FaultKind.FILE_LEFT_OVER, Severity.NOTE)}
    assert {note.path for note in notes} == set(left)
    again = opened(tmp_path / "log")
    assert contents(again) == [(0, b"a", b"1")]
    assert not any(path.exists() for path in left)
    close_clean(again)


def test_a_lost_txnindex_does_not_make_aborted_messages_committed(owned, log):
    transact(log, 2, [(b"a", b"aborted")], ControlType.ABORT)
    log.roll()
    log.snapshot().segments[0].path_of(FileKind.TRANSACTION_INDEX).unlink()
    with pytest.raises(CorruptIndex, match=r"not in the \.txnindex"):
        compact(owned)
    owned.reindex(TP)
    compact(owned)
    assert not read_all(owned.log(TP).snapshot())


def test_an_aborted_transaction_before_the_first_dirty_offset_of_its_segment(tmp_path):
    """A full map ends a pass anywhere; the next one passes batches from an index entry before that."""
    small = {"log.cleaner.dedupe.buffer.size": str(24 * 8), "log.cleaner.threads": "1"}
    owned = opened(tmp_path / "log", config=small, segment_bytes="100000", index_interval_bytes="4096")
    log = owned.log(TP)
    transact(log, 1, [(b"a", b"aborted")], ControlType.ABORT)
    for n in range(20):
        put(log, updates([(b"k%d" % n, b"v")]))
    log.roll()
    ends = [compact(owned).end_offset]
    while ends[-1] < 22:
        ends.append(compact(owned).end_offset)
    assert len(ends) > 2
    assert [value for _, _, value in contents(owned)] == [b"v"] * 20
    close_clean(owned)


def _config(**values):
    overrides = {name.replace("_", "."): value for name, value in values.items()}
    return LogConfig.from_overrides(BrokerConfig().topic_defaults, overrides)


def test_the_dirty_range(tmp_path):
    owned = opened(tmp_path / "log", segment_bytes="100000")
    log = owned.log(TP)
    for n in range(4):
        put(log, updates([(b"k", b"x" * 10 * (n + 1))], timestamp=NOW_MS - 1000 + 100 * n))
        log.roll()
    snapshot = log.snapshot()
    sizes = [segment.size for segment in snapshot.segments]
    plain = _config()
    assert dirty_range(snapshot, plain, None, NOW_MS) == DirtyRange(0, 4, 0, sum(sizes), True, 0)
    assert dirty_range(snapshot, plain, 2, NOW_MS) == DirtyRange(2, 4, sum(sizes[:2]), sum(sizes[2:]), True, 0)
    assert dirty_range(snapshot, plain, 2, NOW_MS).ratio == sum(sizes[2:]) / sum(sizes)
    assert dirty_range(snapshot, plain, 5, NOW_MS) == DirtyRange(0, 4, 0, sum(sizes), False, 0)
    assert dirty_range(snapshot, plain, 4, NOW_MS).ratio == 0
    # The second youngest is 200 ms old.
    assert dirty_range(snapshot, _config(min_compaction_lag_ms="799"), None, NOW_MS).first_uncleanable == 3
    assert dirty_range(snapshot, _config(min_compaction_lag_ms="800"), None, NOW_MS).first_uncleanable == 3
    assert dirty_range(snapshot, _config(min_compaction_lag_ms="801"), None, NOW_MS).first_uncleanable == 2
    assert dirty_range(snapshot, _config(min_compaction_lag_ms="1001"), None, NOW_MS).first_uncleanable == 0
    assert dirty_range(snapshot, plain, None, NOW_MS, high_watermark=2).first_uncleanable == 2
    late = dirty_range(snapshot, _config(max_compaction_lag_ms="850"), 1, NOW_MS)
    assert late.delay_ms == 50
    assert late.is_due(_config(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="850"))
    in_time = dirty_range(snapshot, _config(max_compaction_lag_ms="900"), 1, NOW_MS)
    assert not in_time.delay_ms
    assert not in_time.is_due(_config(min_cleanable_dirty_ratio="1", max_compaction_lag_ms="900"))
    put(log, updates([(b"k", b"x")], timestamp=0))
    log.roll()
    assert not dirty_range(log.snapshot(), _config(max_compaction_lag_ms="900"), 4, NOW_MS).delay_ms  # 0 is no time
    assert not DirtyRange(0, 1, 50, 50, True, 0).is_due(_config())  # must be above, not at it
    assert DirtyRange(0, 1, 49, 51, True, 0).is_due(_config())
    close_clean(owned)


def test_groups(tmp_path):
    owned = opened(tmp_path / "log", segment_bytes="100000")
    log = owned.log(TP)
    for n in (1, 2, 3, 4):
        put(log, updates([(b"k", b"x" * 100 * n)]))
        log.roll()
    segments = log.snapshot().segments[:-1]
    sizes = [segment.size for segment in segments]

    def grouped(limit, end=4):
        groups = group_by_size(segments, _config(internal_segment_bytes=str(limit)), end)
        return [[segment.base_offset for segment in group] for group in groups]

    assert grouped(sum(sizes)) == [[0, 1, 2, 3]]
    assert grouped(sum(sizes) - 1) == [[0, 1, 2], [3]]
    assert grouped(sizes[0]) == [[0], [1], [2], [3]]
    assert grouped(sum(sizes), end=2**31) == [[0, 1, 2, 3]]
    assert grouped(sum(sizes), end=2**31 + 1) == [[0, 1, 2], [3]]
    close_clean(owned)


def test_readers_keep_the_segments_that_a_pass_replaces(tmp_path):
    owned = opened(tmp_path / "log", segment_bytes="100000")
    log = owned.log(TP)
    for n in range(4):
        put(log, updates([(b"k%d" % n, b"1"), (b"k", b"2")]))
        log.roll()
    before = log.snapshot()
    mtime = 10**18
    owned.disk.set_mtime(before.segments[3].log.path, mtime)
    expected = contents(owned)
    result = compact_partition(owned, TP)
    after = log.snapshot()
    assert contents(owned) == latest(expected, after.log_end_offset)
    assert [segment.base_offset for segment in after.segments] == [0, 8]
    assert (after.log_end_offset, after.generation) == (before.log_end_offset, before.generation)
    assert (after.segments[0].log.stat().st_mtime_ns, after.segments[0].sealed) == (mtime, True)
    # Whoever holds the old segments reads them under their later names.
    assert [(r.offset, r.key, r.value) for r in read_all(before)] == expected
    assert {path.name for path in result.files} == {
        *(segment_file(n, kind, FileState.DELETED) for n in (0, 2, 4, 6) for kind in list(FileKind)[:3]),
        *(segment_file(n, FileKind.PRODUCER_SNAPSHOT, FileState.DELETED) for n in (2, 4, 6)),
    }
    for path in result.files:
        path.unlink()
    with pytest.raises(SegmentGone):
        read_all(before)
    with pytest.raises(SegmentGone):
        log.replace_segments(())
    close_clean(owned)


def test_segments_that_retention_removes_meanwhile(owned, log):
    any_batches(log, random.Random(1), 60)
    before = contents(owned)
    removed = []

    def pace(_):
        if not removed:
            removed.extend(log.remove_segments(log.snapshot().segments[:2]))

    with pytest.raises(SegmentGone):
        compact(owned, pace)
    for path in removed:
        path.unlink()
    assert contents(owned) == [m for m in before if m[0] >= log.log_start_offset]
    compact(owned)


def test_stopped_anywhere(tmp_path):
    """No last value of a key is lost; the next pass gives what an undisturbed one does."""
    path = tmp_path / "before"
    owned = opened(path, segment_bytes="1500")
    dice = random.Random(2)
    for n in range(20):
        put(owned.log(TP), updates([(b"k%d" % dice.randrange(6), b"%d" % n * 20), (b"k%d" % dice.randrange(6), b"")]))
        if n % 3 == 2:
            owned.log(TP).roll()
    transact(owned.log(TP), 9, [(b"k1", b"aborted")], ControlType.ABORT)
    owned.log(TP).roll()
    before = contents(owned)
    end = owned.log(TP).log_end_offset
    close_clean(owned)

    def work(sessions, _):
        own = sessions.open()
        result = compact_partition(own, TP)
        assert result.segments_before > result.segments_after > 1
        for file in result.files:
            own.disk.unlink(file)
        own.close()

    values = {key: (offset, value) for offset, key, value in before if value != b"aborted"}
    expected = sorted((offset, key, value) for key, (offset, value) in values.items())
    for stopped, _ in every_crash(tmp_path, path, work, list, power_losses=2, any_order=True):
        again = opened(stopped.path)
        found = contents(again)
        assert set(expected) <= set(found), str(stopped)
        assert set(found) <= set(before), str(stopped)
        result = compact(again)
        assert [m for m in contents(again) if m[2] != b"aborted"] == expected, str(stopped)
        assert result.end_offset == end, str(stopped)
        close_clean(again, stopped)
        assert not verify_log_dir(stopped.path)


@pytest.mark.parametrize("deleted", [True, False])
def test_a_replacement_reaches_the_disk_in_its_order(tmp_path, deleted):
    """Neither a deleted key nor a second copy of a message comes back, whichever renames a power loss leaves out, and
    the index of aborted transactions stays."""
    path, place = tmp_path / "before", tmp_path / "log"
    owned = opened(path, segment_bytes="3000")
    log = owned.log(TP)
    gone = BatchFields(delete_horizon_ms=NOW_MS - 1)
    put(log, updates([(b"a", b"1")]))
    log.roll()
    transact(log, 9, [(b"b", b"aborted")], ControlType.ABORT)
    put(log, updates([(b"b", b"2")]))
    log.roll()
    deletion = [((b"deleted", b"x"), PLAIN), ((b"deleted", None), gone)] if deleted else []
    for pair, fields in (*deletion, ((b"z", bytes(2800)), PLAIN)):
        put(log, updates([pair]), fields=fields)
        log.roll()
    close_clean(owned)
    kept = [(0, b"a", b"1"), (3, b"b", b"2"), (6 if deleted else 4, b"z", bytes(2800))]

    def stopped(stop_at):
        """The disk of a pass that stops before one of its operations."""
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(path, place)
        disk = FaultyDisk(place, stop_at=stop_at)
        sessions = Sessions(place, disk)
        with contextlib.suppress(Crash):
            compact_partition(sessions.open(), TP)
        disk.stopped = True
        sessions.end()
        return disk

    done = stopped(None).operations
    replacing = next(number for number, what in enumerate(done) if what.endswith(FileState.DELETED.value))
    new = [segment_file(0, kind, FileState.SWAP) for kind in (FileKind.LOG, FileKind.OFFSET_INDEX)]
    syncs = [number for number, what in enumerate(done) if number > replacing and what == "sync_dir t-0"]
    for stop_at in (*syncs, len(done)):
        for lost in ([], new, *([name] for name in stopped(stop_at).unsynced_renames())):
            disk = stopped(stop_at)
            disk.lost_renames = lost
            disk.power_loss()
            again = opened(place)
            found = contents(again)
            assert [message for message in found if message in kept] == kept, (stop_at, lost)
            assert {key: value for _, key, value in found}.get(b"deleted") is None, (stop_at, lost)
            close_clean(again, (stop_at, lost))


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_tombstone_gets_its_horizon_in_the_first_pass_whatever_its_format(owned, log, magic):
    """MemoryRecords.filterTo: the batch of format v2 that an old one becomes has it too."""
    put(log, updates([(b"a", None), (b"b", b"x")]), magic=magic)
    log.roll()
    put(log, updates([(b"c", b"x")]))
    compact(owned)
    table = headers(log)
    assert table.magic.tolist() == [2] * table.rows
    assert table.base_timestamp[table.has_delete_horizon].tolist() == [NOW_MS + HORIZON_MS]


# Our cleaner on the logs of `compaction-before`: what Kafka's cleaner made of them (`compaction-after`).

PARTITIONS = sorted(path.name for path in log_dir_of("compaction-after").iterdir() if path.is_dir())
# Among the producers' and the markers' times: when the broker's cleaner ran, where no batch tells.
_THEN_MS = 1_795_254_398_300
# What a later encoder makes of the same records may have other bytes.
_ENCODED = (Column.POSITION, Column.SIZE, Column.CRC)


def horizons(directory):
    tables = [table_of(path.read_bytes()) for path in sorted(directory.glob("*.log"))]
    return {int(t) for table in tables for t in table.base_timestamp[table.has_delete_horizon]}


def cleaned_at(name):
    new = horizons(log_dir_of("compaction-after") / name) - horizons(log_dir_of("compaction-before") / name)
    retention_ms = int(topics_of("compaction-before")[name[:-2]]["config"].get("delete.retention.ms", 86_400_000))
    return new.pop() - retention_ms if new else _THEN_MS


def prepared(tmp_path, name):
    path = copy_log_dir(log_dir_of("compaction-before"), tmp_path / "log")
    topic = name[:-2]
    config = topics_of("compaction-before")[topic]["config"]
    for other in PARTITIONS:
        if other[:-2] == topic:
            lines = "".join(f"{key}={value}\n" for key, value in config.items())
            (path / other / names.TOPIC_PROPERTIES).write_text(lines)
        else:
            shutil.rmtree(path / other)
    return path


def compacted(path, name, now_ms):
    tp = TopicPartition(name[:-2], int(name[-1]))
    owned = OwnedDir.open(path, Opening(only=[tp]), disk=HastyDisk(), clock=StandingClock(now_ms))
    result = compact_partition(owned, tp)
    for file in result.files:
        owned.disk.unlink(file)
    assert owned.close().clean
    return result


def segment_files(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if parse_segment_file(path.name)}


@requires_fixtures
@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_as_kafkas_cleaner(tmp_path, name):
    path, after = prepared(tmp_path, name), log_dir_of("compaction-after") / name
    result = compacted(path, name, cleaned_at(name))
    assert result.is_complete
    ours, theirs = segment_files(path / name), segment_files(after)
    assert set(ours) == set(theirs)
    for file in sorted(ours):
        kind = parse_segment_file(file).kind
        if kind is FileKind.PRODUCER_SNAPSHOT:
            continue  # who is forgotten when depends on when the broker was last started
        if kind is not FileKind.LOG or name not in ("cmp-codecs-0", "cmp-empty-0"):
            if name != "cmp-codecs-0" and (name != "cmp-empty-0" or kind is not FileKind.OFFSET_INDEX):
                assert ours[file] == theirs[file], file
            continue
        mine, other = table_of((path / name / file).read_bytes()), table_of((after / file).read_bytes())
        for column in Column:
            if column not in _ENCODED:
                ours_here, theirs_here = mine.data[column, : mine.rows], other.data[column, : other.rows]
                assert ours_here.tolist() == theirs_here.tolist(), (file, column)
        plain = np.flatnonzero(other.codec == 0)
        assert mine.crc[plain].tolist() == other.crc[plain].tolist(), file
    tp = TopicPartition(name[:-2], int(name[-1]))
    there = checkpoints.read(log_dir_of("compaction-after") / names.CLEANER_CHECKPOINT)
    assert checkpoints.read(path / names.CLEANER_CHECKPOINT)[tp] == there[tp]
    golden = read_golden(FIXTURES / "compaction-after" / "golden" / f"{name}.jsonl.gz")
    assert read_all(LogDir.open_read_only(path).log(tp).snapshot()) == golden
    assert not verify_log_dir(path, [tp])
    again = compacted(path, name, cleaned_at(name))
    assert (again.first_dirty, again.end_offset, again.segments_before) == (there[tp], there[tp], 0)
    assert segment_files(path / name) == ours


def test_the_same_with_plain_kernels(tmp_path):
    files = []
    for name, kernels in (("compiled", contextlib.nullcontext), ("plain", plain_kernels)):
        owned = opened(tmp_path / name)
        any_batches(owned.log(TP), random.Random(3), 40)
        with kernels():
            compact(owned)
        close_clean(owned)
        files.append(segment_files(tmp_path / name / "t-0"))
    assert files[0] == files[1]

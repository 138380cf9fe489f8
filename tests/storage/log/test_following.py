"""A log that somebody else writes while we look: growth, rolls, retention, compaction, truncation, leftovers."""

import os
import shutil

import pytest

from storage.errors import SegmentGone, UnknownTopicOrPartition
from storage.files import names, partition_metadata
from storage.files.names import segment_file
from storage.format.block import Record
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.readers import built, open_log, read_all


@pytest.fixture
def source(tmp_path):
    """Three segments of 30 offsets, ten batches each, with an index entry for nearly every batch."""
    batches = [Batch(many(3, 50)) for _ in range(10)]
    spec = Partition([*batches, ROLL, *batches, ROLL, *batches], index_interval_bytes=100)
    return build_log_dir(tmp_path / "source", {"t": [spec]})["t", 0]


class Live:
    """A partition's directory to which a "broker" gives parts of another one's files."""

    def __init__(self, source, path):
        self.source = source
        self.path = path
        path.mkdir(parents=True)

    def copy(self, *segments, size=None):
        """Makes each segment's .log its first `size` bytes, keeping the inode, and copies its indexes."""
        for segment in segments:
            target = self.log(segment)
            overwrite(target, self.source.log(segment).read_bytes()[:size])
            for suffix in (".index", ".timeindex"):
                shutil.copy(self.source.log(segment).with_suffix(suffix), target.with_suffix(suffix))

    def log(self, segment):
        return self.path / self.source.log(segment).name

    def delete(self, segment):
        """As a broker begins with it."""
        self.log(segment).rename(self.log(segment).with_suffix(".log.deleted"))

    def end(self, segment, batches):
        """The position behind the first `batches` batches of a segment."""
        batch = self.source.batches[segment * 10 + batches - 1]
        return batch.position + batch.size


@pytest.fixture
def live(source, tmp_path):
    return Live(source, tmp_path / "live" / "t-0")


def overwrite(path, data):
    """As when another file gets the inode number of one that was removed, or a log is cut and written on."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(data)
        file.truncate()


def bases_of(snapshot):
    return [segment.base_offset for segment in snapshot.segments]


def offsets_of(records):
    return [record.offset for record in records]


def test_growth_by_bytes_shows_whole_batches_only(live):
    live.copy(0, size=0)
    log = open_log(live.path)
    assert log.snapshot().log_end_offset == 0
    seen = set()
    for length in range(0, live.end(0, 10) + 1, 7):
        live.copy(0, size=length)
        snapshot = log.snapshot()
        assert log.snapshot() is snapshot
        whole = sum(live.end(0, count) <= length for count in range(1, 11))
        assert snapshot.log_end_offset == 3 * whole
        assert snapshot.active_end == (live.end(0, whole) if whole else 0)
        assert (snapshot.active_size, snapshot.generation) == (length, 0)
        seen.add(snapshot.log_end_offset)
    assert len(seen) == 10


def test_roll_under_one_name_with_preallocation(live):
    """preallocate=true: the file has its full size from the start, zeros behind the data; a roll trims it."""
    data, target = live.source.log(0).read_bytes(), live.log(0)
    torn = data[: live.end(0, 5) - 10] + bytes(100_000)
    target.write_bytes(torn)
    log = open_log(live.path)
    first = log.snapshot()
    assert (first.log_end_offset, first.active_end) == (12, live.end(0, 4))
    overwrite(target, data[: live.end(0, 5)] + bytes(100_000))
    assert log.snapshot().log_end_offset == 15
    overwrite(target, data + bytes(100_000))
    grown = log.snapshot()
    assert grown.log_end_offset == 30
    assert grown.active_size > grown.active_end == len(data)
    os.truncate(target, len(data))
    live.copy(1)
    rolled = log.snapshot()
    assert rolled.log_end_offset == 60
    assert rolled.segments[0] is first.segments[0]
    assert rolled.generation == 0
    assert built(read_all(rolled)) == live.source.records[:60]


def test_compaction_takes_the_name(live):
    """The cleaned segment has other bytes under the same name; it may stand for several sources."""
    live.copy(0, 1, 2)
    log = open_log(live.path)
    before = log.snapshot()
    kept = (0, 3, 4, 12, 19)
    cleaned = live.path / f"{0:020d}.log.cleaned"
    cleaned.write_bytes(b"".join(live.source.batches[i].stored.data for i in kept))
    (live.path / f"{0:020d}.index.cleaned").write_bytes(b"")
    assert bases_of(log.snapshot()) == [0, 30, 60]
    cleaned.rename(live.path / f"{0:020d}.log.swap")
    (live.path / f"{0:020d}.index.cleaned").rename(live.path / f"{0:020d}.index.swap")
    assert log.snapshot().segments == before.segments
    for segment in (0, 1):
        for suffix in (".log", ".index", ".timeindex"):
            path = live.log(segment).with_suffix(suffix)
            path.rename(path.with_name(path.name + ".deleted"))
        during = log.snapshot()
        assert bases_of(during) == [0, 60]
    for suffix in (".log", ".index"):
        (live.path / f"{0:020d}{suffix}.swap").rename(live.path / f"{0:020d}{suffix}")
    after = log.snapshot()
    assert after.segments == during.segments
    assert after.segments[-1] is before.segments[-1]
    assert after.generation == 0
    offsets = [offset for i in kept for offset in range(3 * i, 3 * i + 3)] + list(range(60, 90))
    assert offsets_of(read_all(after)) == offsets_of(read_all(during)) == offsets
    assert built(read_all(before)) == live.source.records
    # An offset in a gap means the next batch.
    assert offsets_of(read_all(after, 15, 40)) == [36, 37, 38]
    # Compacted again: whoever holds the segments from before the first time is given nothing of the new.
    for path in live.path.glob("*.log.deleted"):
        path.unlink()
    live.delete(0)
    live.log(0).write_bytes(live.source.batches[19].stored.data)
    assert offsets_of(read_all(log.snapshot(), 0, 60)) == [57, 58, 59]
    assert offsets_of(read_all(after, 0, 60)) == offsets[:15]
    with pytest.raises(SegmentGone):
        read_all(before)


def test_split_of_a_segment(live):
    """A segment whose offsets overflow is split: several .swap files take the place of one."""
    live.copy(0, 2)
    data = live.source.log(0).read_bytes()
    log = open_log(live.path)
    cut = live.end(0, 6)
    swaps = []
    for base, content in ((0, data[:cut]), (18, data[cut:])):
        swaps.append(live.path / (segment_file(base, names.FileKind.LOG) + ".swap"))
        swaps[-1].write_bytes(content)
    steps = [lambda: live.delete(0), *(lambda swap=swap: swap.rename(swap.with_suffix("")) for swap in swaps)]
    for bases, step in (([0, 60], lambda: None), *(([0, 18, 60], step) for step in steps)):
        step()
        snapshot = log.snapshot()
        assert bases_of(snapshot) == bases
        assert offsets_of(read_all(snapshot)) == [*range(30), *range(60, 90)]


@pytest.fixture
def other(source):
    """The segments of `source` with other values in messages of the same sizes: files of the same names and sizes."""
    segments = []
    for number in range(3):
        records = [Record(None, record.value[::-1], (), record.timestamp) for record in many(3, 50)]
        path = source.path.parents[1] / f"other-{number}"
        made = build_log_dir(path, {"t": [Partition([Batch(records)] * 10, start_offset=30 * number)]})["t", 0]
        segments.append(made.log(0).read_bytes())
    return segments


def values_in(records):
    return {record.value for record in records}


@pytest.mark.parametrize("seen_in_directory", [True, False])
def test_a_sealed_segment_that_was_written_over_is_another(live, other, seen_in_directory):
    live.copy(0, 1, 2)
    if not seen_in_directory:  # the last changes lie so far back that the next one would show in the times
        for path in (*live.path.iterdir(), live.path):
            os.utime(path, ns=(1_600_000_000_500_000_000, 1_600_000_000_500_000_000))
    log = open_log(live.path)
    before = log.snapshot()
    records = read_all(before)
    overwrite(live.log(1), other[1])
    assert live.log(1).stat().st_size == before.segments[1].size
    if seen_in_directory:
        live.log(2).with_suffix(".snapshot").touch()
    else:
        assert log.snapshot() is before
        with pytest.raises(SegmentGone):  # then a reader that finds it makes the log look again
            read_all(before, 30, 60)
    after = log.snapshot()
    assert after.generation == 1
    assert after.segments[0] is before.segments[0]
    assert after.segments[1] is not before.segments[1]
    fresh = read_all(after, 30, 60)
    assert len(fresh) == 30
    assert not values_in(records[30:60]) & values_in(fresh)
    # Whoever holds the old one is given nothing of the new.
    with pytest.raises(SegmentGone):
        read_all(before, 30, 60)
    assert log.snapshot() is after


def test_a_log_that_was_truncated_across_a_segment_and_rolled_unwatched(live, other):
    live.copy(0, 1, 2)
    log = open_log(live.path)
    old = read_all(log.snapshot())
    # Cut to offset 45, written on up to 60 and rolled, and in the new segment up to 90.
    live.log(2).unlink()
    kept = live.end(1, 5)
    overwrite(live.log(1), live.log(1).read_bytes()[:kept] + other[1][kept:])
    live.log(2).write_bytes(other[2])
    after = log.snapshot()
    assert after.generation == 1
    fresh = read_all(after)
    assert (fresh[:45], len(fresh)) == (old[:45], 90)
    assert not values_in(old[45:]) & values_in(fresh[45:])


def test_truncation_within_the_active_segment_over_segments_and_to_nothing(live):
    live.copy(0, 1, 2)
    log = open_log(live.path)
    before = log.snapshot()
    live.copy(2, size=live.end(2, 4))
    after = log.snapshot()
    assert (after.log_end_offset, after.generation) == (72, 1)
    assert after.segments[:2] == before.segments[:2]
    assert after.segments[2] is not before.segments[2]
    with pytest.raises(SegmentGone):
        read_all(before)
    live.log(2).unlink()
    live.copy(1, size=live.end(1, 2))
    after = log.snapshot()
    assert (after.log_end_offset, after.generation) == (36, 2)
    assert built(read_all(after)) == live.source.records[:36]
    # truncateFullyAndStartAt: the follower was behind the leader's log start. All was removed, as by retention.
    live.log(0).unlink()
    live.log(1).unlink()
    live.copy(2)
    after = log.snapshot()
    assert (after.log_start_offset, after.log_end_offset, after.generation) == (60, 90, 2)


def test_truncated_and_rewritten_between_two_looks(live, tmp_path):
    """The file is longer than before, yet what we knew is not in it any more."""
    live.copy(0, size=live.end(0, 5))
    log = open_log(live.path)
    before = log.snapshot()
    batches = [*(Batch(many(3, 50)) for _ in range(3)), *(Batch(many(4, 60)) for _ in range(5))]
    other = build_log_dir(tmp_path / "other", {"t": [batches]})["t", 0]
    overwrite(live.log(0), other.log().read_bytes())
    after = log.snapshot()
    assert (after.log_end_offset, after.generation) == (29, 1)
    assert after.segments[0] is not before.segments[0]
    assert after.segments[0].log.identity == before.segments[0].log.identity
    assert built(read_all(after)) == other.records


@pytest.mark.parametrize("garbage", [b"", bytes(range(256)) * 4])
def test_a_last_segment_without_a_batch_ends_at_its_base_offset(live, garbage):
    """Of no bytes, or of garbage. Indexes whose .log is not there (yet) are no segment."""
    live.copy(0, 2)
    live.log(2).unlink()
    log = open_log(live.path)
    assert log.snapshot().log_end_offset == 30
    live.log(1).write_bytes(garbage)
    snapshot = log.snapshot()
    assert bases_of(snapshot) == [0, 30]
    assert (snapshot.log_end_offset, snapshot.active_end, snapshot.active_size) == (30, 0, len(garbage))
    assert built(read_all(snapshot)) == live.source.records[:30]


def test_directory_without_segments(live):
    log = open_log(live.path, log_start=7)
    snapshot = log.snapshot()
    assert (snapshot.segments, snapshot.log_start_offset, snapshot.log_end_offset) == ((), 7, 7)
    assert (snapshot.active, read_all(snapshot), last_stable_offset(snapshot)) == (None, [], 7)
    assert log.snapshot() is snapshot


@pytest.mark.parametrize("known_at_first", [True, False])
def test_topic_made_anew_with_the_inodes_of_the_one_before(live, other, known_at_first):
    """The topic's id tells, which a broker may write later."""
    metadata = live.path / names.PARTITION_METADATA

    def write_id():
        metadata.unlink(missing_ok=True)
        metadata.write_bytes(partition_metadata.encode(partition_metadata.random_id()))

    if known_at_first:
        write_id()
    live.copy(0, 1, 2)
    log_dir, tp = LogDir.open_read_only(live.path.parent), TopicPartition("t", 0)
    log = log_dir.log(tp)
    before = log.snapshot()
    if not known_at_first:
        write_id()
        assert log.snapshot() == before
        log_dir.refresh()
        assert log_dir.log(tp) is log
    write_id()
    for number in range(3):
        overwrite(live.log(number), other[number])
    with pytest.raises(UnknownTopicOrPartition, match="created again"):
        log.snapshot()
    (live.path.parent / "x.tmp").touch()
    log_dir.refresh()
    now = log_dir.log(tp)
    assert now is not log
    assert len(read_all(now.snapshot())) == 90
    with pytest.raises(SegmentGone):
        read_all(before)

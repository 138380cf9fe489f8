"""What is asked of whole logs, as brokers answer it and against plain scans: offsets, cuts, counts."""

import json
import os
import random
import struct
from pathlib import Path

import pytest

from storage.errors import CorruptBatch
from storage.format.block import Record
from storage.log.counting import count_messages, nth_message
from storage.log.greatest_timestamp import greatest_timestamp
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.time_cut import MixedBatch, cut_at
from storage.types import Isolation, TimestampOffset, TopicPartition
from tests.support.builders import ROLL, START_MS, Batch, Codec, Partition, build_log_dir, commit, many
from tests.support.damaged_bytes import flip, overwrite
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.readers import open_log, read_all


def snapshot_in(logs, name="t-0"):
    topic, _, number = name.rpartition("-")
    return LogDir.open_read_only(logs).log(TopicPartition(topic, int(number))).snapshot()


def snapshot_of(path, items, **options):
    build_log_dir(path, {"t": [Partition(items, **options)]})
    return snapshot_in(path)


def stamped(*timestamps):
    return [Record(None, b"at %d" % stamp, (), stamp) for stamp in timestamps]


# ListOffsets: as brokers answered it, and against a plain scan on logs of every kind.


@requires_fixtures
@pytest.mark.parametrize("indexes", ["as they are", "no .timeindex", "no index", "garbage .timeindex", "cut"])
def test_answers_equal_the_brokers(tmp_path, indexes):
    source = FIXTURES / "times/log"
    path = source if indexes == "as they are" else copy_log_dir(source, tmp_path / "log")
    rng = random.Random(indexes)
    for index in path.glob("*/*index") if path != source else ():
        if indexes == "no index" or (indexes == "no .timeindex" and index.suffix == ".timeindex"):
            index.unlink()
        elif index.suffix == ".timeindex" and indexes == "garbage .timeindex":
            # Ascending, so that only the log can tell that it lies.
            index.write_bytes(b"".join(struct.pack(">qi", 10**12 + i, rng.randint(0, 9) + i * 10) for i in range(5)))
        elif index.suffix == ".timeindex" and indexes == "cut":
            index.write_bytes(index.read_bytes()[:-7])
    asked = 0
    for name, expected in json.loads((FIXTURES / "times/golden/list-offsets.json").read_text()).items():
        snapshot = snapshot_in(path, name)
        assert (snapshot.log_start_offset, snapshot.log_end_offset) == (expected["earliest"], expected["latest"])
        for timestamp, offset, found_timestamp in expected["for_timestamp"]:
            answer = None if offset == -1 else TimestampOffset(found_timestamp, offset)
            assert offset_for_timestamp(snapshot, timestamp) == answer, f"{name} at {timestamp}"
            asked += 1
    assert asked == 160


def disordered(path, seed, *, clean=True, interval=200):
    rng = random.Random(seed)
    items = []
    for number in range(80):
        if number in (30, 31, 60):
            items.append(ROLL)
        records = [
            Record(None, bytes(rng.randint(0, 60)), (), 10**12 + number * 10 + rng.randint(-300, 300))
            for _ in range(rng.randint(1, 4))
        ]
        items.append(Batch(records, log_append_time_ms=10**12 + number * 10 if number % 17 == 3 else None))
    return build_log_dir(path, {"t": [Partition(items, index_interval_bytes=interval)]}, clean=clean)["t", 0]


def check_against_a_scan(partition):
    """Kafka's rule, on plain lists."""
    bounds = [*partition.segments[1:], partition.log_end_offset]
    segments = [
        [record for record in partition.records if base <= record.offset < end]
        for base, end in zip(partition.segments, bounds, strict=True)
    ]
    snapshot = open_log(partition.path).snapshot()
    for timestamp in (*range(10**12 - 400, 10**12 + 1200, 7), *(record.timestamp for record in partition.records)):
        reaching = [records for records in segments if any(record.timestamp >= timestamp for record in records)]
        later = [record for record in reaching[0] if record.timestamp >= timestamp] if reaching else []
        expected = TimestampOffset(later[0].timestamp, later[0].offset) if later else None
        assert offset_for_timestamp(snapshot, timestamp) == expected


@pytest.mark.parametrize("seed", range(6))
def test_disordered_timestamps(tmp_path, seed):
    partitions = [
        disordered(tmp_path / str(interval), seed, clean=seed % 2 == 0, interval=interval)
        for interval in (0, 200, 4096)
    ]
    entries = [sum(path.stat().st_size for path in one.path.glob("*.timeindex")) for one in partitions]
    assert seed % 2 or entries[0] > entries[1] > entries[2]
    for partition in partitions:
        check_against_a_scan(partition)


@pytest.mark.parametrize("missing", ["file", "content", "last entry", None])
@pytest.mark.parametrize(("later", "further"), [(0, 0), (5, 0), (0, 3)])
def test_damaged_time_index(tmp_path, missing, later, further):
    """Every time a little later than it is: earlier messages would be passed over. Or every offset too far along."""
    partition = disordered(tmp_path, 11)
    for index in partition.path.glob("*.timeindex"):
        entries = struct.iter_unpack(">qi", index.read_bytes())
        data = b"".join(struct.pack(">qi", timestamp + later, offset + further) for timestamp, offset in entries)
        index.write_bytes({"content": b"", "last entry": data[:-12]}.get(missing, data))
        if missing == "file":
            index.unlink()
    check_against_a_scan(partition)


@pytest.mark.parametrize("harm", [None, "preallocated", "unsound at the end", "cut", "no .index"])
def test_the_end_of_a_long_index_is_enough(tmp_path, monkeypatch, harm):
    """Of sealed segments, whose indexes are a hundredth of the log; what is wrong there costs time only."""
    count, items = 500, []
    for number in range(2 * count):
        items += [ROLL] if number == count else []
        items.append(Batch(stamped(START_MS + (number if number != 460 else 5000))))
    snapshot = snapshot_of(tmp_path, items, index_interval_bytes=1)
    files = {suffix: tmp_path / f"t-0/{0:020}.{suffix}" for suffix in ("index", "timeindex")}
    data = {suffix: file.read_bytes() for suffix, file in files.items()}
    assert sum(map(len, data.values())) > 9_000
    if harm == "preallocated":
        files["timeindex"].write_bytes(data["timeindex"] + bytes(12_000))
    elif harm == "unsound at the end":
        files["timeindex"].write_bytes(data["timeindex"] + data["timeindex"][:120])
    elif harm == "cut":
        files["timeindex"].write_bytes(data["timeindex"][:1200])
    elif harm is not None:
        files["index"].unlink()
    read, size = os.pread, 0

    def counting(fd, *where):
        nonlocal size
        part = read(fd, *where)
        size += len(part) if Path(f"/proc/self/fd/{fd}").readlink() in files.values() else 0
        return part

    monkeypatch.setattr(os, "pread", counting)
    assert greatest_timestamp(snapshot, snapshot.segments[0]) == TimestampOffset(START_MS + 5000, 460)
    assert harm is not None or 0 < size < 6000


def test_greatest_timestamp_follows_growth(tmp_path):
    partition = disordered(tmp_path, 2)
    target = tmp_path / "live" / "t-0" / partition.log().name
    target.parent.mkdir(parents=True)
    target.write_bytes(b"")
    log = open_log(target.parent)
    data = partition.log().read_bytes()
    for batch in partition.batches[:30]:
        target.write_bytes(data[: batch.position + batch.size])
        greatest = max(r.timestamp for r in partition.records if r.offset <= batch.stored.last_offset)
        snapshot = log.snapshot()
        assert greatest_timestamp(snapshot, snapshot.segments[0]).timestamp == greatest


def test_records_below_the_log_start_are_no_answer(tmp_path):
    records = stamped(*range(1000, 1010))
    items = [Batch(records[:4]), Batch(records[4:8]), ROLL, Batch(records[8:])]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path, log_start=6).snapshot()
    for asked, offset in ((0, 6), (1007, 7), (1008, 8)):
        assert offset_for_timestamp(snapshot, asked) == TimestampOffset(1000 + offset, offset)
    assert offset_for_timestamp(snapshot, 1010) is None
    # Kafka asks only the first segment that reaches the time, even if it lies below the log start.
    assert offset_for_timestamp(open_log(partition.path, log_start=8).snapshot(), 1003) is None


def test_what_is_not_stable_is_unknown_to_read_committed(tmp_path):
    items = [Batch(many(2)), Batch(many(2), producer_id=1, transactional=True), Batch(many(2))]
    snapshot = snapshot_of(tmp_path, items)
    late = START_MS + 3000
    assert offset_for_timestamp(snapshot, late) == TimestampOffset(late, 3)
    assert offset_for_timestamp(snapshot, late, Isolation.READ_COMMITTED) is None
    first_unstable, last_stable = (TimestampOffset(START_MS + 1000 * number, number) for number in (2, 1))
    assert offset_for_timestamp(snapshot, first_unstable.timestamp) == first_unstable
    assert offset_for_timestamp(snapshot, first_unstable.timestamp, Isolation.READ_COMMITTED) is None
    assert offset_for_timestamp(snapshot, last_stable.timestamp, Isolation.READ_COMMITTED) == last_stable


def test_damage_below_the_log_start_hides_nothing(tmp_path):
    items = [Batch(many(1)) for _ in range(6)]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=1)]})["t", 0]
    overwrite(partition.path / f"{0:020}.log", partition.batches[1].position + 8, bytes(4))
    snapshot = open_log(partition.path, log_start=4).snapshot()
    assert offset_for_timestamp(snapshot, START_MS) == TimestampOffset(START_MS + 4000, 4)


def test_messages_without_timestamps_and_logs_without_messages(tmp_path):
    """A v0 segment counts by its mtime; it hides later segments, as it does at a broker."""
    items = [Batch(many(3), magic=0), ROLL, Batch(stamped(5000))]
    snapshot = snapshot_of(tmp_path / "v0", items, mtime=1_700_000_000)
    assert greatest_timestamp(snapshot, snapshot.segments[0]).timestamp == -1
    assert offset_for_timestamp(snapshot, 4000) is None
    assert offset_for_timestamp(snapshot_of(tmp_path / "empty", [], start_offset=9), 0) is None
    # Kafka's search does not leave control records out.
    marked = snapshot_of(tmp_path / "marker", [Batch(stamped(1000), producer_id=1, transactional=True), commit(1)])
    assert offset_for_timestamp(marked, 1001).offset == 1


@pytest.mark.parametrize(("harm", "indexed"), [("zeros", True), ("zeros", False), ("crc", True)])
def test_damage_that_may_hide_the_answer(tmp_path, harm, indexed):
    """The end of a segment is destroyed: the next segment is not where messages of that time begin."""
    items = [*(Batch(stamped(1000 * n)) for n in (1, 2, 3)), ROLL, Batch(stamped(4000))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    batch = partition.batches[2]
    if harm == "zeros":
        overwrite(partition.log(), batch.position, bytes(batch.size))
    else:
        overwrite(partition.log(), batch.position + 35, bytes(8))  # the greatest timestamp
    if not indexed:
        partition.log().with_suffix(".timeindex").unlink()
    snapshot = open_log(partition.path).snapshot()
    with pytest.raises(CorruptBatch) as error:
        offset_for_timestamp(snapshot, 2500)
    assert error.value.path == partition.log()
    assert offset_for_timestamp(snapshot, 1500) == TimestampOffset(2000, 1)
    assert offset_for_timestamp(snapshot, 4001) is None


# Where a log is cut at a moment: against a rule in plain Python over all batches.


def end_at(snapshot, until):
    return cut_at(snapshot, until).snapshot.log_end_offset


@pytest.mark.parametrize("seed", range(20))
def test_timestamps_in_any_order(tmp_path, seed):
    dice = random.Random(seed)
    batches = [[dice.randrange(100) for _ in range(dice.randrange(1, 5))] for _ in range(30)]
    items = []
    for batch in batches:
        codec, append_time = dice.choice((Codec.NONE, Codec.LZ4)), dice.choice((None, None, dice.randrange(100)))
        if append_time is not None:
            batch[:] = [append_time] * len(batch)
        items += [Batch(stamped(*batch), codec=codec, log_append_time_ms=append_time), *dice.choice(([], [], [ROLL]))]
    whole = snapshot_of(tmp_path / "log", items)
    for until in (-1, 0, 5, 50, 99, *dice.choices(range(100), k=5)):
        # The last batch with a message of that time is the last.
        kept = max((n for n, batch in enumerate(batches) if min(batch) <= until), default=-1)
        end = sum(map(len, batches[: kept + 1]))
        cut = cut_at(whole, until)
        assert [r.offset for r in read_all(cut.snapshot)] == list(range(end))
        assert cut.snapshot.log_end_offset == end
        later = sum(stamp > until for stamp in batches[kept]) if kept >= 0 else 0
        assert cut.mixed == (MixedBatch(end - len(batches[kept]), end - 1, later) if later else None)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(tmp_path, magic, codec):
    """Messages of format v0 have no timestamp: they are from before any moment."""
    whole = snapshot_of(tmp_path / "log", [Batch(stamped(10, 20), codec, magic), Batch(stamped(30, 40), codec, magic)])
    assert end_at(whole, 5) == (4 if magic == 0 else 0)
    assert end_at(whole, 30) == (3 if magic and not codec else 4)


def test_cuts_at_commits_below_the_log_start_and_of_nothing(tmp_path):
    transaction = [Batch(many(2), producer_id=7, transactional=True), commit(7), Batch(many(1))]
    whole = snapshot_of(tmp_path / "commit", transaction)
    assert (end_at(whole, START_MS + 2000), end_at(whole, START_MS + 1999)) == (3, 2)
    cut = cut_at(snapshot_of(tmp_path / "later", [Batch(stamped(10))], start_offset=100), 9).snapshot
    assert (cut.log_start_offset, cut.log_end_offset, cut.size_bytes) == (100, 100, 0)
    assert end_at(snapshot_of(tmp_path / "empty", []), 9) == 0
    begun = snapshot_of(tmp_path / "start", [Batch(stamped(n)) for n in (10, 20, 30)], log_start_offset=2)
    assert (cut_at(begun, 15).snapshot.log_start_offset, end_at(begun, 15)) == (1, 1)


def test_damage_after_the_cut_is_an_error(tmp_path):
    """It may hide a message of that time."""
    whole = snapshot_of(tmp_path, [Batch(stamped(10)), Batch(stamped(30)), ROLL, Batch(stamped(40))])
    flip(whole.segments[0].log.path, -1)
    with pytest.raises(CorruptBatch):
        cut_at(snapshot_in(tmp_path), 20)


def test_damage_is_an_error(tmp_path):
    snapshot = snapshot_of(tmp_path, [Batch(many(3)), ROLL, Batch(many(3)), ROLL, Batch(many(3))])
    second, third = (segment.log.path for segment in snapshot.segments[1:])
    overwrite(second, 8, b"\xff\xff\xff\xff")  # a length that no batch has
    snapshot = snapshot_in(tmp_path)
    assert count_messages(snapshot, 6, 9, Isolation.READ_UNCOMMITTED) == 3
    assert nth_message(snapshot, 6, 3, Isolation.READ_UNCOMMITTED) == 8
    with pytest.raises(CorruptBatch, match=second.name):
        count_messages(snapshot, 0, 9, Isolation.READ_UNCOMMITTED)
    flip(third, 70)  # within the records
    with pytest.raises(CorruptBatch, match="checksum"):
        count_messages(snapshot, 7, 9, Isolation.READ_UNCOMMITTED)

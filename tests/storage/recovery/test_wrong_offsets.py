"""Wrong offsets, which no CRC covers, and segments whose offsets pass 32 bits."""

import re
import shutil
from contextlib import nullcontext

import pytest

from storage.append.message_sets import encode
from storage.config import LogConfig
from storage.directory.owned_dir import Opening
from storage.errors import PartitionOffline
from storage.files import names, time_index, transaction_index
from storage.files.disk import RealDisk
from storage.files.names import FileKind
from storage.files.transaction_index import AbortedTxn
from storage.format.batches import MAGIC_AT
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import BatchFields, encode_batch
from storage.log import intact
from storage.recovery.overflow_split import OffsetsOutOfRange
from storage.recovery.recovery import Recovery, RecoveryPlan
from storage.recovery.rehearsal import rehearse
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir
from tests.support.crash_points import every_crash
from tests.support.owned_dirs import StandingClock, append, close_clean, opened, read, tree_of

TP = TopicPartition("t", 0)
HEADER_BYTES = {0: 18, 1: 26, 2: 61}


def batch(offset, magic=2, codec=Codec.NONE, value=b"a value of "):
    records = [Record(None, value + b"%d" % offset, (), 1_763_700_000_000)]
    if magic == 2:
        return encode_batch(records, base_offset=offset, fields=BatchFields(leader_epoch=0))
    return encode(records, magic=magic, codec=codec, base_offset=offset)


def made(path, segments):
    directory = path / "t-0"
    directory.mkdir(exist_ok=True)
    for file in directory.iterdir():
        file.unlink()
    for base, data in segments.items():
        (directory / names.segment_file(base, FileKind.LOG)).write_bytes(data)
        for kind in (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX):
            (directory / names.segment_file(base, kind)).touch()
    return directory


def recovered(directory, *, gentle, clean=False, recovery_point=0):
    plan = RecoveryPlan(TP, directory, LogConfig(), clean, recovery_point=recovery_point, gentle=gentle)
    recovery = Recovery(plan, disk=RealDisk(), clock=StandingClock(0))
    recovery.run()
    return recovery.report


def left(directory):
    return b"|".join(file.read_bytes() for file in sorted(directory.glob("*.log")))


@pytest.mark.parametrize(("flipped", "clean"), [(0, False), (2, False), (2, True), (4, False)])
@pytest.mark.parametrize("magic", HEADER_BYTES)
def test_a_gentle_recovery_removes_no_intact_batch(tmp_path, magic, flipped, clean):
    """It takes the partition offline instead, but not where nothing is lost: the last batch alone is torn, the log was
    closed in order, or the bit is of the leader epoch, which no CRC covers."""
    batches = [batch(offset, magic) for offset in range(5)]
    length = len(batches[0]) - 12
    assert length.bit_count() > 1, "a length of 0 means that nothing was written"
    refused = set()
    for bit in range(HEADER_BYTES[magic] * 8):
        hurt = bytearray(batches[flipped])
        hurt[bit // 8] ^= 1 << bit % 8
        directory = made(tmp_path, {0: b"".join([*batches[:flipped], hurt, *batches[flipped + 1 :]])})
        try:
            recovered(directory, gentle=True, clean=clean)
        except PartitionOffline:
            refused.add(bit)
        kept = left(directory)
        lost = [number for number, data in enumerate(batches) if number != flipped and data not in kept]
        assert not lost, f"bit {bit} of the header"
    length_bit, first_other_bit = 64, 96
    harmless = range(0)
    if flipped == len(batches) - 1:
        harmless = range(length_bit, HEADER_BYTES[magic] * 8)
    elif clean:
        harmless = range(first_other_bit, HEADER_BYTES[magic] * 8)
    elif magic == 2:
        harmless = range(first_other_bit, 8 * MAGIC_AT)
    assert refused.isdisjoint(harmless)
    assert refused or flipped == len(batches) - 1


@pytest.mark.parametrize("magic", HEADER_BYTES)
@pytest.mark.parametrize("recovery_point", [0, 1, 3])
@pytest.mark.parametrize("clean", [False, True])
def test_what_is_intact_behind_a_length_of_zero_is_not_cut(tmp_path, magic, recovery_point, clean):
    """After a clean shutdown it is damage for readers, as to a broker."""
    first, second, third = (batch(offset, magic) for offset in range(3))
    data = first + second[:8] + bytes(4) + second[12:] + third
    directory = made(tmp_path, {0: data})
    offline = nullcontext() if clean else pytest.raises(PartitionOffline, match="an intact batch at position")
    with offline:
        recovered(directory, gentle=True, clean=clean, recovery_point=recovery_point)
    assert left(directory) == data


def test_a_forced_recovery_tells_that_it_cuts_off_intact_messages(tmp_path):
    batches = [batch(offset) for offset in range(5)]
    hurt = bytearray(batches[3])
    hurt[-1] ^= 1
    directory = made(tmp_path, {0: b"".join([*batches[:3], hurt, batches[4]])})
    position = sum(map(len, batches[:3]))
    plan = RecoveryPlan(TP, directory, LogConfig(), clean=False)
    for report in (rehearse(plan, clock=StandingClock(0)), recovered(directory, gentle=False)):
        assert [change for change in report.changes if "cuts" in change] == [
            f"cuts 00000000000000000000.log at position {position}, offset 3: {2 * len(batches[0])} bytes "
            f"are removed, with an intact batch at position {position + len(batches[3])}; `kafkafs salvage` keeps it"
        ]


@pytest.mark.parametrize(("offsets", "falls"), [((0, 1, 3, 2, 4), 1), ((0, 1, 2 + 2**12, 3, 4), 1), ((3, 2, 1), 2)])
@pytest.mark.parametrize("clean", [False, True])
def test_a_forced_recovery_keeps_what_a_broker_keeps(tmp_path, offsets, falls, clean):
    """Offsets that go back: a mount refuses, `recover` says so and removes nothing."""
    data = b"".join(batch(offset) for offset in offsets)
    directory = made(tmp_path, {0: data})
    with pytest.raises(PartitionOffline, match="an intact batch"):
        recovered(directory, gentle=True, clean=clean)
    report = recovered(directory, gentle=False, clean=clean)
    assert left(directory) == data
    assert report.log_end_offset == max(offsets) + 1
    said = f"leaves {falls} batches of 00000000000000000000.log whose offsets do not ascend, as a broker does"
    assert (said in report.changes) == (not clean)


@pytest.mark.parametrize("offsets", [(0, 1, 2, 2, 3), (0, 1, 2, 0, 1, 2), (0, 1, 1, 0, 2, 1)], ids=str)
@pytest.mark.parametrize("clean", [False, True])
def test_a_log_with_batches_twice_is_opened_for_writing(tmp_path, offsets, clean):
    """As by a broker. What is appended follows the greatest offset, and everything is read once."""
    data = b"".join(batch(offset) for offset in offsets)
    copies = len(offsets) - len(set(offsets))
    for gentle in (True, False):
        report = recovered(made(tmp_path, {0: data}), gentle=gentle, clean=clean)
        assert left(tmp_path / "t-0") == data
        assert report.log_end_offset == max(offsets) + 1
        said = f"leaves {copies} batches that 00000000000000000000.log has twice, as a broker does"
        assert (said in report.changes) == (gentle and not clean)
    shutil.rmtree(tmp_path / "t-0")
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    close_clean(owned)
    directory = made(tmp_path, {0: data})
    if clean:
        times = time_index.encode([1_763_700_000_000], [0], 0)
        (directory / names.segment_file(0, FileKind.TIME_INDEX)).write_bytes(times)
    else:
        (tmp_path / names.CLEAN_SHUTDOWN).unlink()
    owned = opened(tmp_path, Opening(gentle=True))
    append(owned.log(TP), [b"after"])
    expected = [*(b"a value of %d" % offset for offset in sorted(set(offsets))), b"after"]
    assert read(owned, "t") == expected
    assert owned.close().clean
    owned = opened(tmp_path, Opening(gentle=True))
    assert read(owned, "t") == expected
    assert owned.close().clean


def test_recovery_takes_a_copy_of_the_first_batch(tmp_path):
    """Where an index entry is due. A broker writes one, which is none of an index: readers stop before it."""
    data = b"".join(batch(offset) for offset in (0, 0, 1))
    directory = made(tmp_path, {0: data})
    config = LogConfig.from_overrides(LogConfig(), {"index.interval.bytes": "0"})
    for gentle in (True, False):
        plan = RecoveryPlan(TP, directory, config, clean=False, gentle=gentle)
        recovery = Recovery(plan, disk=RealDisk(), clock=StandingClock(0))
        recovery.run()
        assert (recovery.report.log_end_offset, recovery.report.misordered_segments) == (2, [])
        assert left(directory) == data


def test_only_the_segment_that_a_broker_cuts_as_it_loads_it_is_cut(tmp_path):
    """One without an index, below the recovery point: the segments after it stay, as with a broker."""
    hurt = bytearray(batch(1))
    hurt[-1] ^= 1
    for point in (0, 4):
        directory = made(tmp_path, {0: batch(0) + hurt, 2: batch(2) + batch(3)})
        (directory / names.segment_file(0, FileKind.OFFSET_INDEX)).unlink()
        report = recovered(directory, gentle=False, recovery_point=point)
        assert (report.cut.next_offset, report.removed_segments, report.log_end_offset) == (1, [], 4)
        assert left(directory) == batch(0) + b"|" + batch(2) + batch(3)


def test_what_cannot_be_told_is_not_cut(tmp_path, monkeypatch):
    """More bytes look like batches than are checked: the partition is damaged, and a forced recovery says so."""

    def used_up(_budget, _count):
        raise intact.Undecided

    monkeypatch.setattr(intact.Budget, "spend", used_up)
    lie = bytearray(batch(1)[:61])
    lie[8:12] = bytes([0, 0, 0, 100])
    directory = made(tmp_path, {0: batch(0) + lie * 3})
    unknown = "more bytes that look like batches than can be checked"
    for clean in (False, True):
        with pytest.raises(PartitionOffline, match=unknown):
            recovered(directory, gentle=True, clean=clean)
        assert left(directory) == batch(0) + lie * 3
    changes = recovered(directory, gentle=False).changes
    assert [change for change in changes if change.endswith(f"with {unknown}; `kafkafs salvage` keeps it")]
    assert left(directory) == batch(0)


SHAPES = [
    {0: [2**40, 1]},
    {0: [0, 2**40, 2]},
    {0: [2**63 - 1, 1]},
    {0: [0, 2**63 - 1, 2]},
    {0: [0, 2**63 - 1]},
    {0: [0, 2**62, 2**63 - 2]},
    {0: [0, 2**32, 2, 3]},
    {0: [2**32, 2**33, 2]},
    {0: [0, 1, 2**31, 2**31 + 1]},
    {2**63 - 1: [2**63 - 1]},
    {2**63 - 9: [2**63 - 9, 2**63 - 8]},
    *({0: [first], 10: [second]} for first in (0, 5, 2**32, 2**62, 2**63 - 1) for second in (0, 9, 2**40)),
]


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_recovery_removes_nothing_whatever_the_offsets(tmp_path, shape, magic):
    """A forced one too: a broker does not start, or moves a batch to the end of the log."""
    for codec in [Codec.NONE] if magic == 2 else [Codec.NONE, Codec.GZIP]:
        data = {base: b"".join(batch(offset, magic, codec) for offset in offsets) for base, offsets in shape.items()}
        directory = made(tmp_path, data)
        before = left(directory)
        plan = RecoveryPlan(TP, directory, LogConfig(), clean=False)
        if _has_sound_offsets(shape):
            recovered(directory, gentle=True)
            assert left(directory).replace(b"|", b"") == before.replace(b"|", b"")
            directory = made(tmp_path, data)
            told = rehearse(plan, clock=StandingClock(0))
            done = recovered(directory, gentle=False)
            assert told.log_end_offset == done.log_end_offset
            assert told.changes == done.changes
            assert not recovered(directory, gentle=True).changes
        else:
            with pytest.raises(PartitionOffline):
                recovered(directory, gentle=True)
            with pytest.raises(OffsetsOutOfRange) as done:
                recovered(directory, gentle=False)
            with pytest.raises(OffsetsOutOfRange, match=re.escape(str(done.value))):
                rehearse(plan, clock=StandingClock(0))
        assert left(directory).replace(b"|", b"") == before.replace(b"|", b"")


def _has_sound_offsets(shape):
    ends = [*list(shape)[1:], 2**63 - 1]
    return all(
        base <= offsets[0] and offsets == sorted(offsets) and offsets[-1] < end
        for (base, offsets), end in zip(shape.items(), ends, strict=True)
    )


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_set_that_spans_more_than_a_segment_can_is_not_divided(tmp_path, magic):
    hurt = bytearray(batch(1, magic, Codec.GZIP))
    hurt[2] ^= 1
    directory = made(tmp_path, {0: batch(0, magic) + hurt})
    assert recovered(directory, gentle=True).log_end_offset == 2**40 + 2
    assert bytes(hurt) in left(directory)


COMPACTED = {0: range(4), 4: range(4, 8), 8: range(8, 12)}  # the first two became the messages 1, 3, 5 and 7
ENDINGS = {"swap": ("", ""), "first": (".deleted", ""), "all": (".deleted", ".deleted")}


def replacing(tmp_path, magic, step, batches):
    """A log of twelve batches, the first two of three segments of which are being replaced by these."""
    originals = [batch(offset, magic) for offset in range(12)]
    segments = {base: b"".join(originals[offset] for offset in offsets) for base, offsets in COMPACTED.items()}
    directory = made(tmp_path, segments)
    for base, ending in zip((0, 4), ENDINGS[step], strict=True):
        name = names.segment_file(base, FileKind.LOG)
        (directory / name).rename(directory / (name + ending))
    (directory / (names.segment_file(0, FileKind.LOG) + ".swap")).write_bytes(b"".join(batches))
    return directory


@pytest.mark.parametrize("step", ENDINGS)
@pytest.mark.parametrize("magic", HEADER_BYTES)
def test_a_wrong_offset_in_a_replacement_removes_nothing_else(tmp_path, magic, step):
    """What the `.swap` covers is known by its offsets, and where a batch has those by its magic: no CRC covers either.
    A gentle recovery does not follow what cannot be right."""
    batches = [batch(offset, magic) for offset in range(12)]
    for hurt in (0, 2, 3):
        for bit in (*range(0, 64, 3), *range(8 * MAGIC_AT, 8 * MAGIC_AT + 8)):
            kept = [bytearray(batches[offset]) for offset in (1, 3, 5, 7)]
            kept[hurt][bit // 8] ^= 1 << bit % 8
            directory = replacing(tmp_path, magic, step, kept)
            with pytest.raises(PartitionOffline):
                recovered(directory, gentle=True, recovery_point=8)
            there = b"".join(file.read_bytes() for file in directory.glob("*.log*"))
            # Nothing shows of an offset that could be right; the intact batch of a wrong magic is in what is covered.
            seen = step == "swap" and bit >= 8 * MAGIC_AT
            expected = {1, 3, 5, 7, 8, 9, 10, 11} - (set() if seen else {2 * hurt + 1})
            assert not [offset for offset in expected if batches[offset] not in there], f"bit {bit} of {hurt}"
    sound = b"".join(batches[1:8:2])
    directory = replacing(tmp_path, magic, step, [sound])
    assert recovered(directory, gentle=True).log_end_offset == 12
    assert left(directory) == sound + b"|" + b"".join(batches[8:])


# Segments whose offsets pass 32 bits: split when they are opened, as a broker does, and whatever stops it.

SPAN = 2**31
CONFIG = LogConfig.from_overrides(LogConfig(), {"index.interval.bytes": "100"})
TIME = 1_763_700_000_000
# By name: offsets of the batches of two messages each; the segments that come of it.
OVERFLOW_SHAPES = {
    "beyond": ([0, 2, SPAN - 2, SPAN, SPAN + 7, 3 * SPAN, 3 * SPAN + 2], [0, SPAN, 3 * SPAN]),
    "late": ([SPAN + 1, SPAN + 3, 3 * SPAN], [SPAN + 1, 3 * SPAN]),
    "named wrongly": ([5, 7, SPAN - 1], [5]),
}


def overflow_batch(offset, *, magic=2):
    records = [Record(None, b"%d" % (offset + n), (), TIME + offset % 1000 + n) for n in range(2)]
    if magic == 2:
        return encode_batch(records, base_offset=offset, fields=BatchFields(leader_epoch=0))
    return encode(records, magic=magic, codec=Codec.GZIP, base_offset=offset)


def values(offsets):
    return [b"%d" % (offset + n) for offset in offsets for n in range(2)]


def overflow_made(path, offsets, *, clean, later=False, magic=2):
    """A log with one segment of these batches, as an old broker left it; `later`: and another one after it."""
    owned = opened(path)
    owned.create_topic("t", 1, {"index.interval.bytes": "100"})
    close_clean(owned)
    data = b"".join(overflow_batch(offset, magic=magic) for offset in offsets)
    (path / "t-0" / names.segment_file(0, FileKind.LOG)).write_bytes(data)
    if later:
        base = 4 * SPAN
        times = b"" if magic == 0 else time_index.encode([TIME + base % 1000 + 1], [base + 1], base)
        contents = {
            FileKind.LOG: overflow_batch(base, magic=magic),
            FileKind.OFFSET_INDEX: b"",
            FileKind.TIME_INDEX: times,
        }
        for kind, content in contents.items():
            (path / "t-0" / names.segment_file(base, kind)).write_bytes(content)
    if not clean:
        (path / names.CLEAN_SHUTDOWN).unlink()


def bases(path):
    return sorted(int(file.stem) for file in (path / "t-0").glob("*.log"))


def segments_in(path):
    """The segments' files. (How many producer snapshots are written depends on how the directory was found.)"""
    return {name: data for name, data in tree_of(path / "t-0").items() if not name.endswith(".snapshot")}


@pytest.mark.parametrize("later", [False, True], ids=["the last", "not the last"])
@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
@pytest.mark.parametrize(
    ("shape", "magic"),
    [
        *((shape, 2) for shape in OVERFLOW_SHAPES.values()),
        *((([0, SPAN + 10, SPAN + 12], [0, SPAN + 10]), m) for m in (0, 1)),
    ],
    ids=[*OVERFLOW_SHAPES, "message sets v0", "message sets v1"],
)
def test_it_is_split(tmp_path, shape, magic, clean, later):
    """Message sets are named by their first message. A rehearsal tells of it."""
    offsets, expected = shape
    overflow_made(tmp_path, offsets, clean=clean, later=later, magic=magic)
    more = [4 * SPAN] if later else []
    before = tree_of(tmp_path)
    told = rehearse(RecoveryPlan(TP, tmp_path / "t-0", CONFIG, clean=clean), clock=StandingClock())
    assert tree_of(tmp_path) == before
    owned = opened(tmp_path, Opening(gentle=True))
    assert read(owned, "t") == values(offsets + more)
    assert bases(tmp_path) == expected + more
    assert any("splits" in change for change in owned.reports()[TP].changes)
    assert told.changes == owned.reports()[TP].changes
    append(owned.log(TP), [b"after"])
    close_clean(owned)
    owned = opened(tmp_path)
    assert read(owned, "t") == [*values(offsets + more), b"after"]
    assert not owned.reports()[TP].changes
    close_clean(owned)


def test_the_snapshot_at_its_base_stays(tmp_path):
    """As in a broker, although the producer in it has expired by now."""
    records = [Record(None, b"x", (), StandingClock().now_ms() - 2 * 86_400_000)]
    items = [Batch(records, producer_id=7), ROLL, Batch(records), ROLL, Batch(records)]
    build_log_dir(tmp_path, {"t": [Partition(items, recovery_point=2)]}, clean=False)
    with (tmp_path / "t-0" / names.segment_file(2, FileKind.LOG)).open("ab") as file:
        file.write(overflow_batch(SPAN + 3))
    snapshot = tmp_path / "t-0" / names.segment_file(2, FileKind.PRODUCER_SNAPSHOT)
    before = snapshot.read_bytes()
    owned = opened(tmp_path)
    assert any("splits" in change for change in owned.reports()[TP].changes)
    assert bases(tmp_path) == [0, 1, 2, SPAN + 3]
    assert snapshot.read_bytes() == before
    close_clean(owned)


@pytest.mark.leaves_damage("txn-index-invented")  # its log has no transactions
def test_aborted_transactions_go_with_their_markers(tmp_path):
    overflow_made(tmp_path, OVERFLOW_SHAPES["beyond"][0], clean=True, later=True)
    aborted = [
        AbortedTxn(1, 0, 1, 2),
        AbortedTxn(2, 3, SPAN, SPAN + 1),
        AbortedTxn(3, SPAN, 3 * SPAN + 2, 3 * SPAN + 3),
    ]
    index = tmp_path / "t-0" / names.segment_file(0, FileKind.TRANSACTION_INDEX)
    index.write_bytes(transaction_index.encode(aborted))
    owned = opened(tmp_path)
    owned.log(TP)
    for base, entry in zip([0, SPAN, 3 * SPAN], aborted, strict=True):
        found = transaction_index.load(index.with_name(names.segment_file(base, FileKind.TRANSACTION_INDEX)), base)
        assert found.entries() == [entry]
    owned.close()


def test_what_is_not_sound_behind_the_span_is_cut(tmp_path):
    offsets = OVERFLOW_SHAPES["beyond"][0]
    overflow_made(tmp_path, offsets, clean=False, later=True)
    log = tmp_path / "t-0" / names.segment_file(0, FileKind.LOG)
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    before = tree_of(tmp_path)
    owned = opened(tmp_path, Opening(gentle=True))
    assert list(owned.failures()) == [TP]
    owned.close()
    assert tree_of(tmp_path / "t-0") == {name[4:]: data for name, data in before.items() if name.startswith("t-0/")}
    owned = opened(tmp_path)
    assert owned.reports()[TP].removed_segments == [4 * SPAN]
    assert read(owned, "t") == values(offsets[:-1])
    close_clean(owned)


@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
@pytest.mark.parametrize("shape", OVERFLOW_SHAPES)
@pytest.mark.leaves_damage("time-index-incomplete")  # before it is opened
def test_stopped_anywhere(tmp_path, shape, clean):
    offsets, expected = OVERFLOW_SHAPES[shape]
    before = tmp_path / "before"
    overflow_made(before, offsets, clean=clean, later=True)
    whole = shutil.copytree(before, tmp_path / "whole")
    owned = opened(whole)
    owned.log(TP)
    close_clean(owned)
    after = segments_in(whole)

    def work(sessions, _notes):
        sessions.open(opening=Opening()).log(TP)

    stopped = None
    for stopped, _ in every_crash(tmp_path, before, work, lambda: None):
        owned = opened(stopped.path)
        assert read(owned, "t") == values([*offsets, 4 * SPAN]), str(stopped)
        assert bases(stopped.path) == [*expected, 4 * SPAN], str(stopped)
        close_clean(owned, stopped)
        assert segments_in(stopped.path) == after, str(stopped)
    assert stopped is not None
    assert stopped.stop_at > 30

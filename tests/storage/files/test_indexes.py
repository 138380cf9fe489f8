"""The indexes of segments, against plain lists and against what Kafka's own tool says of those that brokers wrote."""

import gzip
import random
import re
import struct
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.files import offset_index, producer_state, time_index, transaction_index
from storage.files.names import FileKind, parse_segment_file, segment_file
from storage.files.transaction_index import AbortedTxn
from storage.types import OffsetPosition, TimestampOffset
from tests.support.fixtures import FIXTURES, KAFKA_SKIPS_DATA, log_dir_of, requires_fixtures
from tests.support.nightly import rounds

# The offset index and the time index: what is trusted, what is noticed, and lookups against a plain list.

BASE, END = 1000, 6000  # the segment's base offset, and its size in bytes


class Kind(NamedTuple):
    """An index of pairs. `columns`: the two that an entry has, with the entry's form in the file."""

    module: Any
    name: str
    form: str
    columns: tuple[str, str]
    entries: list[tuple[int, int]]

    @property
    def data(self):
        return self.module.encode(*zip(*self.entries, strict=True), BASE)

    @property
    def size(self):
        return struct.calcsize(self.form)

    @property
    def limits(self):
        """What its functions take besides the base offset: the offset index, the size of the log."""
        return (END,) if self is OFFSETS else ()

    def found(self, index):
        return list(zip(*(getattr(index, column).tolist() for column in self.columns), strict=True))


OFFSETS = Kind(
    offset_index, "index", ">ii", ("offsets", "positions"), [(1004, 500), (1010, 900), (1011, 5000), (2000, 5001)]
)
TIMES = Kind(
    time_index, "time index", ">qi", ("timestamps", "offsets"), [(50, 1004), (60, 1004), (61, 1011), (90, 2000)]
)
both = pytest.mark.parametrize("kind", [OFFSETS, TIMES], ids=["offset", "time"])


def sums(steps):
    """The pairs that such steps lead to."""
    return list(zip(*map(accumulate, zip(*steps, strict=True)), strict=True))


def some_entries(dice, kind):
    """Entries that mostly ascend, by small steps, with numbers of any kind between them, and zeros behind them."""
    step = partial(dice.choice, (1, 1, 1, 1, 1, 2, 3, 0, -1))
    entries = sums([(step(), step()) for _ in range(dice.randrange(9))])
    if entries and dice.random() < 0.2:
        first = dice.choice((0, 2**31 - 1, -(2**31), 2**31 - 1 if kind is OFFSETS else 2**63 - 1))
        entries[dice.randrange(len(entries))] = first, dice.choice((0, 2**31 - 1, -(2**31)))
    return entries + [(0, 0)] * dice.choice((0, 0, 1, 2, 9))


def trusted(kind, entries, end, growing):
    """(how many entries are trusted, the slot that the problem is at, None without one) by the rules."""
    used = list(entries)
    while used and used[-1] == (0, 0):
        used.pop()
    if kind is TIMES and not used and len(entries) == 1:
        used = entries  # a trimmed index of one entry; with more zeros it may be none, and tells nothing anyway
    rows, problem = len(used), None
    before = (0, 0) if kind is OFFSETS else (-1, 0)
    for slot, (first, second) in enumerate(used):
        if first <= before[0] or second < before[1] + (kind is OFFSETS):
            rows, problem = slot, None if growing and slot == len(used) - 1 else slot
            break
        before = first, second
    if kind is OFFSETS and rows and used[rows - 1][1] >= end:
        rows = next(slot for slot, (_, position) in enumerate(used) if position >= end)
        problem = problem if growing else rows
    return rows, problem


@both
def test_entries_are_trusted_up_to_the_first_that_breaks_a_rule(kind):
    dice = random.Random(1)
    for _ in range(rounds(5_000, 100_000)):
        entries, base = some_entries(dice, kind), dice.choice((0, 7, 2**62))
        end, growing = dice.choice((dice.randrange(12), 2**31, 2**62)), dice.random() < 0.5
        stored = b"".join(struct.pack(kind.form, *entry) for entry in entries) + bytes(dice.randrange(kind.size))
        index = kind.module.parse(stored, base, *((end,) if kind is OFFSETS else ()), growing=growing)
        rows, problem = trusted(kind, entries, end, growing)
        add = (base, 0) if kind is OFFSETS else (0, base)
        assert kind.found(index) == [(first + add[0], second + add[1]) for first, second in entries[:rows]], entries
        assert (index.problem and index.problem.position) == (None if problem is None else problem * kind.size), entries


@both
def test_preallocated_tail_is_no_problem(tmp_path, kind):
    path = tmp_path / "x.index"
    for zeros in (1, 7, 8, 64, 12, 120, 8 * 12 * 8192, 8 * 12 * 20_000):
        path.write_bytes(kind.data + bytes(zeros))
        index = kind.module.load(path, BASE, *kind.limits)
        assert kind.found(index) == kind.entries
        assert (index.problem is None) == (zeros % kind.size == 0)


@pytest.mark.parametrize("load", [offset_index.load, time_index.load, transaction_index.load])
def test_missing_and_unreadable(tmp_path, load):
    limits = (END,) if load is offset_index.load else ()
    missing = load(tmp_path / "no.index", BASE, *limits)
    assert (len(missing), missing.missing, missing.problem) == (0, True, None)
    (tmp_path / "dir.index").mkdir()
    unreadable = load(tmp_path / "dir.index", BASE, *limits)
    assert (len(unreadable), unreadable.missing) == (0, False)
    assert unreadable.problem.path == tmp_path / "dir.index"


@both
def test_odd_size_is_noticed(tmp_path, kind):
    path = tmp_path / "x.index"
    for cut in range(1, 12):
        path.write_bytes(kind.data[:-cut])
        index = kind.module.load(path, BASE, *kind.limits)
        whole = (len(kind.data) - cut) // kind.size
        assert kind.found(index) == kind.entries[:whole]
        if cut % kind.size:
            assert (index.problem.what, index.problem.path) == ("index file ends within an entry", path)
            assert index.problem.position == whole * kind.size


ascending = st.lists(st.tuples(st.integers(1, 3_000_000), st.integers(1, 2_000_000)), max_size=40).map(sums)


@given(ascending, st.integers(0, 2**62), st.integers(0, 200_000_000), st.integers(0, 100))
def test_round_trip_and_lookup(table, base, wanted, zeros):
    offsets = [base + relative for relative, _ in table]
    positions = [position for _, position in table]
    data = offset_index.encode(offsets, positions, base)
    index = offset_index.parse(data + bytes(zeros * OFFSETS.size), base)
    assert (index.offsets.tolist(), index.positions.tolist(), index.problem) == (offsets, positions, None)
    before = [OffsetPosition(base, 0)] + [OffsetPosition(*pair) for pair in zip(offsets, positions, strict=True)]
    assert index.floor(base + wanted) == [entry for entry in before if entry.offset <= base + wanted][-1]
    after = [entry for entry in before[1:] if entry.position >= wanted]
    assert index.first_from_position(wanted) == (after[0] if after else None)


@given(ascending, st.integers(0, 2**62), st.integers(-5, 200_000_000), st.integers(0, 100))
def test_round_trip_and_lookup_of_times(table, base, wanted, zeros):
    timestamps = [timestamp for timestamp, _ in table]
    offsets = [base + relative for _, relative in table]
    data = time_index.encode(timestamps, offsets, base)
    index = time_index.parse(data + bytes(zeros * TIMES.size) if table else data, base)
    assert (index.timestamps.tolist(), index.offsets.tolist(), index.problem) == (timestamps, offsets, None)
    entries = [TimestampOffset(*pair) for pair in zip(timestamps, offsets, strict=True)]
    before = [entry for entry in entries if entry.timestamp <= wanted]
    assert index.floor(wanted) == (before[-1] if before else TimestampOffset(-1, base))


@both
def test_encode_refuses_what_kafka_never_writes(kind):
    refused = {
        OFFSETS.name: [([BASE], [5]), ([BASE + 1], [0]), ([BASE + 1] * 2, [1, 2]), ([BASE + 2**31], [1])],
        TIMES.name: [
            *(([-1], [BASE]), ([5, 5], [BASE, BASE]), ([5, 6], [BASE + 1, BASE])),
            *(([5], [BASE - 1]), ([5], [BASE + 2**31])),
        ],
    }
    for first, second in refused[kind.name]:
        with pytest.raises(ValueError, match="ascending"):
            kind.module.encode(first, second, BASE)


# The transaction index: what is trusted, what is noticed, and Kafka's collection rule.

TXN_BASE = 100
TXNS = [
    AbortedTxn(5, 90, 110, 95),
    AbortedTxn(6, 95, 120, 121),
    AbortedTxn(5, 130, 140, 126),
    AbortedTxn(7, 126, 150, 151),
]
TXN_DATA = transaction_index.encode(TXNS)


def test_txn_first_broken_entry_ends_the_trust():
    for slot, position, value in (
        (0, 0, 0x01),  # version
        (0, 1, 0x01),
        (1, 2, 0x80),  # producer id below 0
        (2, 10, 0x80),  # first offset below 0
        (1, 17, 0x79),  # first offset above the last
        (0, 25, 0x63),  # last offset below the segment's base
        (2, 25, 0x77),  # last offsets not ascending
        (3, 25, 0x8C),  # the same last offset twice
        (0, 33, 0x70),  # stable beyond the abort marker
        (3, 26, 0xFF),  # stable below 0
    ):
        data = bytearray(TXN_DATA)
        data[slot * transaction_index.ENTRY_SIZE + position] = value
        index = transaction_index.parse(bytes(data), TXN_BASE)
        assert index.entries() == TXNS[:slot]
        assert index.problem.what == "transaction index entry is impossible"
        least = TXNS[slot - 1].last_offset if slot else TXN_BASE - 1
        assert str(index.problem.expected).endswith(f"last offset above {least}")
        assert index.problem.position == slot * transaction_index.ENTRY_SIZE


def test_txn_cut_anywhere():
    for position in range(len(TXN_DATA)):
        slot, rest = divmod(position, transaction_index.ENTRY_SIZE)
        cut = transaction_index.parse(TXN_DATA[:position], TXN_BASE)
        assert (cut.entries(), cut.problem is None) == (TXNS[:slot], not rest)
        growing = transaction_index.parse(TXN_DATA[:position], TXN_BASE, growing=True)
        assert (growing.entries(), growing.problem) == (TXNS[:slot], None)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 9), st.integers(0, 30)), max_size=12))
def test_collect_is_kafkas_loop(steps):
    txns = []
    last = TXN_BASE
    for producer, back, forward, stable_back in steps:
        last += forward
        txns.append(AbortedTxn(producer, last - back, last, last + 1 - stable_back))
    index = transaction_index.parse(transaction_index.encode(txns), TXN_BASE)
    assert index.entries() == txns
    for start in range(TXN_BASE - 2, last + 3, 3):
        for end in range(start + 1, last + 5, 4):
            expected = []
            complete = False
            for txn in txns:
                if txn.last_offset >= start and txn.first_offset < end:
                    expected.append(txn)
                if txn.last_stable_offset >= end:
                    complete = True
                    break
            slots, whole = index.collect(start, end)
            assert ([index.entry(slot) for slot in slots.tolist()], whole) == (expected, complete)


def test_encode_refuses_disorder():
    with pytest.raises(ValueError, match="ascending"):
        transaction_index.encode([TXNS[1], TXNS[0]])


# Every index and snapshot that real brokers wrote, against what Kafka's own tool (DumpLogSegments) says is in it.


class Dumped(NamedTuple):
    """A file of a fixture, and the tool's text of it."""

    file: Path
    text: str

    @property
    def base_offset(self):
        return parse_segment_file(self.file.name).offset

    def rows(self, pattern):
        """The numbers that a pattern's groups find, line by line."""
        return [tuple(map(int, found)) for found in re.findall(pattern, self.text)]


def dumped(suffix):
    """All dumped files with this suffix, damaged ones (`recovery/before`) left out."""
    for dump in sorted(FIXTURES.glob(f"*/golden/dump/*/*{suffix}.txt.gz")):
        log_dir = log_dir_of(dump.relative_to(FIXTURES).parts[0])
        if suffix.endswith("index") and any(topic in dump.parent.name for topic in KAFKA_SKIPS_DATA):
            continue  # beside the garbage that a broker leaves in place the tool stops
        # The first line names the file.
        text = gzip.decompress(dump.read_bytes()).decode().partition("\n")[2]
        yield Dumped(log_dir / dump.parent.name / dump.name.removesuffix(".txt.gz"), text)


@requires_fixtures
@pytest.mark.parametrize(
    ("kind", "suffix", "pattern"),
    [
        (OFFSETS, ".index", r"offset: (\d+) position: (\d+)"),
        (TIMES, ".timeindex", r"timestamp: (\d+) offset: (\d+)"),
    ],
)
def test_offset_and_time_indexes(kind, suffix, pattern):
    cases = entries = 0
    for case in dumped(suffix):
        log_size = (case.file.parent / segment_file(case.base_offset, FileKind.LOG)).stat().st_size
        index = kind.module.load(case.file, case.base_offset, *([log_size] if kind is OFFSETS else []))
        expected = case.rows(pattern)
        assert kind.found(index) == expected, case.file
        assert (index.problem, index.missing, index.entries) == (None, False, len(expected)), case.file
        if kind is TIMES:
            assert index.last == index.entry(-1) if expected else index.last.timestamp == -1, case.file
        columns = (getattr(index, column) for column in kind.columns)
        assert kind.module.encode(*columns, case.base_offset) == case.file.read_bytes(), case.file
        cases, entries = cases + 1, entries + len(expected)
    assert cases > 400
    assert entries > 2_000


@requires_fixtures
def test_transaction_indexes():
    cases = aborted = 0
    for case in dumped(".txnindex"):
        index = transaction_index.load(case.file, case.base_offset)
        expected = case.rows(
            r"version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)"
        )
        assert index.entries() == [AbortedTxn(*row) for row in expected], case.file
        assert index.problem is None, case.file
        assert transaction_index.encode(index.entries()) == case.file.read_bytes(), case.file
        cases, aborted = cases + 1, aborted + len(expected)
    assert cases > 50
    assert aborted > 50


PRODUCER = re.compile(
    r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
    r"currentTxnFirstOffset: Optional(?:Long\[(\d+)\]|Long\.empty) lastTimestamp: (-?\d+)"
    r"(?: firstSequence: (-?\d+) lastSequence: (-?\d+) lastOffset: (\d+) offsetDelta: (\d+) timestamp: (-?\d+))?"
)


@requires_fixtures
def test_producer_snapshots():
    cases = producers = 0
    for case in dumped(".snapshot"):
        snapshot = producer_state.read(case.file)
        found = []
        for entry in snapshot.entries():
            first_sequence = entry.last_sequence - entry.offset_delta
            batch = (first_sequence, entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp)
            open_from = "" if entry.current_txn_first_offset < 0 else str(entry.current_txn_first_offset)
            known = map(str, batch) if entry.last_offset >= 0 else [""] * 5
            head = map(str, (entry.producer_id, entry.epoch, entry.coordinator_epoch))
            found.append((*head, open_from, str(entry.timestamp), *known))
        assert found == PRODUCER.findall(case.text), case.file
        assert producer_state.encode(snapshot.entries()) == case.file.read_bytes(), case.file
        cases, producers = cases + 1, producers + len(found)
    assert cases > 300
    assert producers > 300

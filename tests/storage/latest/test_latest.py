"""The latest record of each key, and the cleaner's map of keys, against a dict; compiled and plain."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CorruptBatch, InvalidConfig, TooManyKeys
from storage.format.batches import BatchTable, scan
from storage.format.block import Record, RecordBlock
from storage.format.decoder import Decoder
from storage.format.record_batch import encode_batch
from storage.latest import key_table_kernel, latest_records, offset_map_kernel
from storage.latest.latest_records import LatestKeys, latest_offsets, rows_among
from storage.latest.offset_map import ENTRY_BYTES, OffsetMap
from storage.latest.offset_map_kernel import DISCARD, KEEP, KEEP_DELETES
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, BuiltRecord, Item, Partition, abort, build_log_dir, commit
from tests.support.uncompiled import plain_kernels, uncompiled

# The table of latest records against a dict: any keys, sizes and offsets, compiled and plain; how much memory it
# takes.

MEMORY = 1 << 20
KEYS = st.none() | st.binary(max_size=2) | st.sampled_from([b"k1", b"k2", b"k" * 300])
PAIRS = st.tuples(KEYS, st.none() | st.just(b"v"))
RECORDS = st.lists(PAIRS.map(lambda pair: Record(*pair)), min_size=1, max_size=60)
ORIGINS = st.sampled_from([0, 5, 2**32 - 20, 2**62])
FARTHEST = 2**37  # in slots of five words
KERNELS = [key_table_kernel, uncompiled("storage.latest.key_table_kernel")]


def blocks(count: int, keys: int, each: int = 2000) -> Iterator[RecordBlock]:
    """Records of so many keys, in no order; one of five is a tombstone."""
    for first in range(0, count, each):
        numbers = range(first, first + each)
        yield block_of([Record(b"%d" % (n * 7919 % keys), b"v" if n % 5 else None) for n in numbers], first)


def latest_of(many: Iterator[RecordBlock]) -> list[int]:
    last: dict[bytes, tuple[int, bool]] = {}
    for block in many:
        for start, length, offset, value in zip(
            block.key_start.tolist(),
            block.key_length.tolist(),
            block.offset.tolist(),
            block.value_length.tolist(),
            strict=True,
        ):
            last[bytes(block.buffer[start : start + length])] = offset, value < 0
    return sorted(offset for offset, is_tombstone in last.values() if not is_tombstone)


@settings(max_examples=60)
@given(st.lists(st.tuples(RECORDS, st.sampled_from([0, 1, 2**20])), max_size=5), ORIGINS, st.booleans(), st.booleans())
def test_any_records(parts: list[tuple[list[Record], int]], origin: int, wide: bool, compiled: bool) -> None:
    """Also with gaps between offsets, and with the last offset that there can be."""
    size = sum(len(records) + gap for records, gap in parts)
    last: dict[bytes, tuple[int, bool]] = {}
    with nullcontext() if compiled else plain_kernels():
        end = origin + (FARTHEST + 1 if wide else FARTHEST)
        keys = LatestKeys(MEMORY, origin, end)
        assert keys.slot_bytes == (24 if wide else 20)
        at = end - size
        for records, gap in parts:
            at += gap
            assert keys.put(block_of(records, at))
            for offset, record in enumerate(records, at):
                if record.key is not None:
                    last[record.key] = offset, record.value is None
            at += len(records)
        assert at == end
        assert len(keys) == len(last)
        assert keys.offsets().tolist() == sorted(offset for offset, is_tombstone in last.values() if not is_tombstone)


@pytest.mark.parametrize("end", [10**6, 2**50])
@pytest.mark.parametrize(("count", "distinct"), [(120_000, 10**9), (200_000, 50_000)])
def test_a_table_that_grows_often(count: int, distinct: int, end: int) -> None:
    keys = LatestKeys(16 << 20, 0, end)
    for block in blocks(count, distinct):
        assert keys.put(block)
    assert len(keys) == min(count, distinct)
    assert keys.offsets().tolist() == latest_of(blocks(count, distinct))


def test_uncompiled_it_grows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(latest_records, "_FIRST_SLOTS", key_table_kernel.LEAST_SLOTS)
    with plain_kernels():
        keys = LatestKeys(MEMORY, 0, 10**6)
        for block in blocks(4_000, 3_000, 500):
            assert keys.put(block)
        assert keys.memory_bytes > 3_000 * keys.slot_bytes
        assert keys.offsets().tolist() == latest_of(blocks(4_000, 3_000, 500))


def test_at_most_24_bytes_a_key_at_any_moment() -> None:
    """The memory is never smaller than before, and there is no other: so it is the peak up to each moment."""
    keys, worst, before = LatestKeys(16 << 20, 0, FARTHEST), 0.0, 0
    for block in blocks(300_000, 10**9, 500):
        assert keys.put(block)
        assert keys.memory_bytes >= before
        before = keys.memory_bytes
        if len(keys) >= 100_000:
            worst = max(worst, before / len(keys))
    assert 22.2 < worst <= 24
    assert keys.offsets().nbytes == 8 * 240_000
    assert keys.memory_bytes == 8 * 240_000


@pytest.mark.parametrize("memory", [64 << 10, 256 << 10, 1 << 20, 3 << 20])
def test_the_memory_is_a_limit(memory: int) -> None:
    keys, count = LatestKeys(memory, 0, FARTHEST), 0
    for block in blocks(10**6, 10**9, 500):
        fits = keys.put(block)
        assert keys.memory_bytes <= memory
        if not fits:
            break
        count = len(keys)
    else:
        pytest.fail("the memory was no limit")
    # The last block may have been half in it. A small table must keep its keys closer to their homes.
    assert count >= memory / (24 if memory >= 1 << 20 else 80)


def test_too_little_memory_for_any_keys() -> None:
    with pytest.raises(InvalidConfig, match="too little memory"):
        LatestKeys(1 << 10, 0, 1)


def test_no_records() -> None:
    assert LatestKeys(MEMORY, 0, 0).offsets().tolist() == []
    keys = LatestKeys(MEMORY, 0, 10)
    assert keys.put(block_of([Record(b"a", b""), Record(b"a", None), Record(None, b"x")]))
    assert keys.offsets().tolist() == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_keys_whose_hashes_begin_alike(kernel: ModuleType) -> None:
    """They all have the same home: so few of them fit, and each is compared by all of its bits."""
    slots = key_table_kernel.LEAST_SLOTS * 4
    table, state = np.zeros(5 * (slots + key_table_kernel.HEAD_SLOTS), np.uint32), np.zeros(2, np.int64)
    one = (7 << 40) + 9
    hashes = np.array([(one, 5), (one + 1, 5), (one, 6), (one, 5 + 2**32), (one, 5), (one + 2**63, 5)], np.uint64)
    offsets, lengths = np.arange(6, dtype=np.int64), np.zeros(6, np.int64)
    assert kernel.put(table, 5, slots, slots - 1, state, hashes, offsets, lengths, lengths, 0, 0) == 6
    assert state[0] == 5
    many = np.stack((np.full(100, one, np.uint64), np.arange(100, dtype=np.uint64)), axis=1)
    offsets, lengths = np.arange(100, dtype=np.int64), np.zeros(100, np.int64)
    added = kernel.put(table, 5, slots, slots - 1, state, many, offsets, lengths, lengths, 0, 0)
    assert 5 < added < slots >> 8 < 100


@pytest.mark.parametrize("words", [5, 6])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("spread", [2**9, 2**20, 2**64])
def test_any_growth_keeps_all_keys(kernel: ModuleType, words: int, spread: int) -> None:
    """Also of hashes at both ends of the table, and with the table nearly full, and growing by any factor."""
    dice = np.random.default_rng(words + spread % 1000)
    slots, most = 1100, 4000
    table = np.zeros(words * (most + key_table_kernel.HEAD_SLOTS), np.uint32)
    state, known = np.zeros(2, np.int64), dict[tuple[int, int], int]()
    for round_ in range(40):
        rows = 300
        hashes = dice.integers(0, 2**64, (rows, 2), np.uint64, endpoint=False)
        if spread < 2**64:
            # Close to one of the places where the highest seven bits change, or to an end.
            hashes[:, 0] = hashes[:, 0] >> np.uint64(57) << np.uint64(57)
            hashes[:, 0] += dice.integers(0, spread, rows, np.uint64) << np.uint64(30)
        offsets = np.arange(round_ * rows, (round_ + 1) * rows, dtype=np.int64)
        lengths, row = np.zeros(rows, np.int64), 0
        while row < rows and slots < most:
            row = kernel.put(table, words, slots, slots - 1, state, hashes, offsets, lengths, lengths, 0, row)
            if row < rows:
                larger = min(most, slots + int(dice.integers(1, 60)))
                kernel.grow(table, words, slots, larger)
                slots = larger
        known.update(zip(map(tuple, hashes[:row].tolist()), offsets[:row].tolist(), strict=True))
        if slots == most:
            break
    assert state[0] == len(known)
    # Adding each again finds it.
    hashes, lengths = np.array(list(known), np.uint64), np.zeros(len(known), np.int64)
    offsets = np.array(list(known.values()), np.int64)
    assert kernel.put(table, words, slots, slots - 1, state, hashes, offsets, lengths, lengths, 0, 0) == len(known)
    assert state[0] == len(known)
    kept = table.reshape(-1, words)[:, 4]
    assert sorted((kept[kept != 0] >> 2).tolist()) == sorted(known.values())


# The offsets of the latest records against a dict: any logs, both isolations, too little memory.

RECORDS_PAIRS = st.tuples(KEYS, st.none() | st.binary(max_size=3))
RECORDS_RECORDS = st.lists(RECORDS_PAIRS.map(lambda pair: Record(*pair)), min_size=1, max_size=8)
TRANSACTIONS = st.tuples(RECORDS_RECORDS, st.sampled_from([1, 2]))
ITEMS = st.one_of(
    RECORDS_RECORDS.map(Batch),
    TRANSACTIONS.map(lambda drawn: Batch(drawn[0], producer_id=drawn[1], transactional=True)),
    st.sampled_from([1, 2]).map(commit),
    st.sampled_from([1, 2]).map(abort),
    st.just(ROLL),
)


def expected(records: list[BuiltRecord]) -> list[int]:
    """By the plainest rule there is."""
    last: dict[bytes, BuiltRecord] = {record.key: record for record in records if record.key is not None}
    return sorted(record.offset for record in last.values() if record.value is not None)


def snapshot_of(path: Path) -> LogSnapshot:
    return LogDir.open_read_only(path).log(TopicPartition("t", 0)).snapshot()


@settings(max_examples=60)
@given(st.lists(ITEMS, max_size=12), st.integers(0, 20))
def test_any_log(items: list[Item], start: int) -> None:
    with tempfile.TemporaryDirectory() as path:
        written = build_log_dir(Path(path), {"t": [Partition(items)]})["t", 0]
        start = min(start, written.log_end_offset)
        built = build_log_dir(Path(path) / "again", {"t": [Partition(items, log_start_offset=start)]})["t", 0]
        snapshot = snapshot_of(built.path.parent)
        for isolation, records in (
            (Isolation.READ_UNCOMMITTED, built.records),
            (Isolation.READ_COMMITTED, built.read_committed),
        ):
            assert latest_offsets(snapshot, isolation, MEMORY).tolist() == expected(records)


def keyed(count: int, keys: int, first: int = 0) -> list[Record]:
    return [Record(b"key-%d" % ((first + i) * 7919 % keys), b"v") for i in range(count)]


def test_too_many_keys_name_the_way_out(tmp_path: Path) -> None:
    built = build_log_dir(tmp_path, {"t": [Partition([Batch(keyed(3_000, 10**9))])]})["t", 0]
    with pytest.raises(TooManyKeys, match=r"t/0 has more keys.*latest_memory=.*kafkafs spark latest"):
        latest_offsets(snapshot_of(built.path.parent), Isolation.READ_UNCOMMITTED, 32 << 10)


def test_damage_may_hide_the_latest(tmp_path: Path) -> None:
    built = build_log_dir(tmp_path, {"t": [Partition([Batch(keyed(5, 3)), Batch(keyed(5, 3)), ROLL])]})["t", 0]
    data = bytearray(built.log(0).read_bytes())
    data[-3] ^= 1
    built.log(0).write_bytes(data)
    with pytest.raises(CorruptBatch):
        latest_offsets(snapshot_of(built.path.parent), Isolation.READ_UNCOMMITTED, MEMORY)


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_rows_among(offsets: set[int], chosen: set[int]) -> None:
    of, among = np.array(sorted(offsets), np.int64), np.array(sorted(chosen), np.int64)
    assert rows_among(of, among).tolist() == [offset in chosen for offset in sorted(offsets)]


# The offset map against a dict: what it holds, when it is full, what it says of records; compiled and plain.

MAP_KEYS = st.none() | st.binary(max_size=3) | st.sampled_from([b"x" * n for n in (7, 8, 9, 300)])


def block_of(records: list[Record], base_offset: int = 0) -> RecordBlock:
    data = encode_batch(records, base_offset=base_offset)
    table = BatchTable.empty(1)
    scan(data, 0, table)
    return Decoder().decode(data, table, origin=0)


def kept(
    offsets: OffsetMap, block: RecordBlock, verdict: int = KEEP_DELETES
) -> tuple[list[int], int, int, tuple[int, int]]:
    """Offsets that stay, how many, how many of them deletes; null keys and deleted keys."""
    stay, deletes, counts = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(3, np.int64)
    keep = offsets.retain(block, np.array([verdict], np.uint8), stay, deletes, counts)
    return block.offset[keep != 0].tolist(), int(stay[0]), int(deletes[0]), (int(counts[0]), int(counts[1]))


@settings(max_examples=60)
@given(st.lists(MAP_KEYS, min_size=1, max_size=60), st.integers(0, 20), st.booleans())
def test_the_latest_of_each_key(keys: list[bytes | None], first: int, compiled: bool) -> None:
    block = block_of([Record(key, b"v") for key in keys])

    def work() -> None:
        offsets = OffsetMap(10_000, 0.9, most_keys=len(keys))
        assert offsets.put(block, first) == len(keys)
        latest = {key: n for n, key in enumerate(keys) if key is not None and n >= first}
        assert len(offsets) == len(latest)
        assert offsets.latest_offset == max(latest.values(), default=-1)
        offsets.latest_offset = len(keys)
        stay, _, _, (null_keys, _) = kept(offsets, block)
        assert stay == [n for n, key in enumerate(keys) if key is not None and n >= latest.get(key, -1)]
        assert null_keys == keys.count(None)
        offsets.complete(first)
        assert kept(offsets, block)[0] == stay

    if compiled:
        work()
    else:
        with plain_kernels():
            work()


def test_full_at_kafkas_share_of_kafkas_slots() -> None:
    """SkimpyOffsetMap: memory / 24 slots; Cleaner: full when slots times the load factor are taken."""
    offsets = OffsetMap(10 * ENTRY_BYTES + 23, 0.5, most_keys=1000)
    block = block_of([Record(b"%d" % (n // 2), b"") for n in range(40)])
    assert offsets.slots == 10
    assert offsets.put(block, 0) == 9  # Kafka stops at the next key, were it a known one
    assert (len(offsets), offsets.latest_offset, offsets.utilization) == (5, 8, 0.5)
    assert offsets.put(block, 0) == 0
    assert offsets.latest_offset == 8


def test_memory_is_bounded_by_the_limit_and_by_what_can_be_needed() -> None:
    assert OffsetMap(1 << 20, 0.9, most_keys=10**12)._table.nbytes <= 1 << 20
    assert OffsetMap(1 << 30, 0.9, most_keys=10)._table.nbytes <= 24 * 14
    with pytest.raises(InvalidConfig, match="too small"):
        OffsetMap(2 * ENTRY_BYTES, 0.5, most_keys=5)
    with pytest.raises(InvalidConfig):
        OffsetMap(10 * ENTRY_BYTES, 0.0, most_keys=5)


def test_a_map_with_all_slots_but_one_taken_still_finds_its_end() -> None:
    offsets = OffsetMap(1000 * ENTRY_BYTES, 1.0, most_keys=10**6)
    block = block_of([Record(b"%d" % n, b"") for n in range(2000)])
    assert offsets.put(block, 0) == len(offsets) == 999
    assert kept(offsets, block_of([Record(b"other", b"")]))[0] == [0]
    assert kept(offsets, block_of([Record(b"7", b"")]))[0] == []


def test_what_is_beyond_the_map_stays() -> None:
    offsets = OffsetMap(10_000, 0.9, most_keys=10)
    offsets.put(block_of([Record(b"k", b"")] * 3), 0)
    later = block_of([Record(b"k", None), Record(None, b"")], base_offset=2)
    assert kept(offsets, later, verdict=0)[0] == [3]
    assert kept(offsets, block_of([Record(b"k", b"")] * 3))[0] == [2]


def test_verdicts() -> None:
    offsets = OffsetMap(10_000, 0.9, most_keys=10)
    block = block_of([Record(b"a", b"1"), Record(b"a", None), Record(b"b", None), Record(None, b"")])
    offsets.put(block, 0)
    offsets.latest_offset = 3
    assert kept(offsets, block, KEEP_DELETES) == ([1, 2], 2, 2, (1, 0))
    assert kept(offsets, block, 0) == ([], 0, 0, (1, 2))
    assert kept(offsets, block, KEEP) == ([0, 1, 2, 3], 4, 2, (0, 0))
    assert kept(offsets, block, DISCARD) == ([], 0, 0, (0, 0))


def test_offsets_are_marked_where_that_takes_little_memory() -> None:
    for gap, marked in ((1000, True), (10**6, False)):
        offsets = OffsetMap(10_000, 0.9, most_keys=300)
        offsets.put(block_of([Record(b"a", b""), Record(b"b", b"")], base_offset=5), 5)
        offsets.put(block_of([Record(b"a", b"")], base_offset=gap), 5)
        offsets.complete(5)
        assert bool(len(offsets._marks)) is marked
        assert kept(offsets, block_of([Record(b"x", b""), Record(b"a", b""), Record(b"b", b"")]))[0] == [0]
        assert kept(offsets, block_of([Record(b"a", b""), Record(b"b", b"")], base_offset=5))[0] == [6]
        assert kept(offsets, block_of([Record(b"a", b"")] * 2, base_offset=gap))[0] == [gap, gap + 1]


@pytest.mark.parametrize("kernel", KERNELS)
def test_columns_that_do_not_fit_a_table_are_refused(kernel: ModuleType) -> None:
    slots = key_table_kernel.LEAST_SLOTS
    table, state = np.zeros(5 * (slots + key_table_kernel.HEAD_SLOTS), np.uint32), np.zeros(2, np.int64)
    hashes, column = np.ones((2, 2), np.uint64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="fewer"):
        kernel.put(table, 5, slots, 9, state, hashes[:1], column, column, column, 0, 0)
    with pytest.raises(ValueError, match="no state"):
        kernel.put(table, 5, slots, 9, state[:1], hashes, column, column, column, 0, 0)
    for size, words in ((slots + 1, 5), (slots, 6), (slots, 4), (slots - 1, 5)):
        with pytest.raises(ValueError, match="another size"):
            kernel.put(table, words, size, 9, state, hashes, column, column, column, 0, 0)
    for offset in (-1, FARTHEST):
        with pytest.raises(ValueError, match="no bits"):
            kernel.put(table, 5, slots, 9, state, hashes, column + offset, column, column, 0, 0)
    with pytest.raises(ValueError, match="too small"):
        kernel.grow(table, 5, slots, slots + 1)
    with pytest.raises(ValueError, match="another size"):
        kernel.grow(table, 5, slots, slots - 1)
    table[5 * (slots + key_table_kernel.HEAD_SLOTS - 1) + 4] = 1  # taken, and no such hash has its home at the end
    with pytest.raises(ValueError, match="not in order"):
        kernel.grow(np.concatenate((table, table[:5])), 5, slots, slots + 1)


@pytest.mark.parametrize("kernel", [offset_map_kernel, uncompiled("storage.latest.offset_map_kernel")])
def test_columns_that_do_not_fit_a_map_are_refused(kernel: object) -> None:
    table, state = np.zeros(9, np.uint64), np.zeros(3, np.int64)
    hashes, column = np.ones((2, 2), np.uint64), np.zeros(2, np.int64)
    with pytest.raises(ValueError, match="fewer"):
        kernel.put(table, 1, state, hashes[:1], column, column, 0)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="free slot"):
        kernel.put(table, 3, state, hashes, column, column, 0)  # type: ignore[attr-defined]
    counts, keep = np.zeros(3, np.int64), np.zeros(2, np.uint8)
    verdicts = np.zeros(1, np.uint8)
    with pytest.raises(ValueError, match="no batch"):
        kernel.retain(  # type: ignore[attr-defined]
            table, 5, 0, keep[:0], hashes, column, column, column, column + 1, verdicts, keep, column, column, counts
        )
    with pytest.raises(ValueError, match="fit"):
        kernel.retain(  # type: ignore[attr-defined]
            table, 5, 0, keep[:0], hashes, column, column, column, column, verdicts, keep[:1], column, column, counts
        )

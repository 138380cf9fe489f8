"""The offset map against a dict: what it holds, when it is full, what it says of records; compiled and plain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InvalidConfig
from storage.format.batches import BatchTable, scan
from storage.format.block import Record, RecordBlock
from storage.format.decoder import Decoder
from storage.format.record_batch import encode_batch
from storage.latest import offset_map_kernel
from storage.latest.offset_map import ENTRY_BYTES, OffsetMap
from storage.latest.offset_map_kernel import DISCARD, KEEP, KEEP_DELETES
from tests.support.uncompiled import plain_kernels, uncompiled

KEYS = st.none() | st.binary(max_size=3) | st.sampled_from([b"x" * n for n in (7, 8, 9, 300)])


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
@given(st.lists(KEYS, min_size=1, max_size=60), st.integers(0, 20), st.booleans())
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


@pytest.mark.parametrize("kernel", [offset_map_kernel, uncompiled("storage.latest.offset_map_kernel")])
def test_columns_that_do_not_fit_are_refused(kernel: object) -> None:
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

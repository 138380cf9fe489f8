"""The table of latest records against a dict: any keys, sizes and offsets, compiled and plain; how much memory it
takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import InvalidConfig
from storage.format.block import Record, RecordBlock
from storage.latest import key_table_kernel, latest_records
from storage.latest.latest_records import LatestKeys
from tests.storage.latest.test_offset_map import block_of
from tests.support.uncompiled import plain_kernels, uncompiled

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


@pytest.mark.parametrize("kernel", KERNELS)
def test_columns_that_do_not_fit_are_refused(kernel: ModuleType) -> None:
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

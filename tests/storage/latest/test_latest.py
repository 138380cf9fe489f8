"""The latest record of each key, and the cleaner's map of keys, against a dict; compiled and plain."""

import tempfile
import tracemalloc
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage.errors import InvalidConfig
from storage.format.batches import BatchTable, scan
from storage.format.block import Record
from storage.format.decoder import Decoder
from storage.format.record_batch import encode_batch
from storage.latest import offset_map_kernel
from storage.latest.latest_records import LatestKeys, latest_offsets, rows_among
from storage.latest.offset_map import ENTRY_BYTES, OffsetMap
from storage.latest.offset_map_kernel import DISCARD, KEEP, KEEP_DELETES
from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit
from tests.support.uncompiled import plain_kernels, uncompiled

MEMORY = 1 << 20
KEYS = st.none() | st.binary(max_size=3) | st.sampled_from([b"k1", b"k2", *(b"x" * n for n in (7, 8, 9, 300))])
RECORDS = st.tuples(KEYS, st.none() | st.binary(max_size=3)).map(lambda pair: Record(*pair))


def block_of(records, base_offset=0):
    data = encode_batch(records, base_offset=base_offset)
    table = BatchTable.empty(1)
    scan(data, 0, table)
    return Decoder().decode(data, table, origin=0)


def latest_of(records):
    """By the plainest rule there is: keys, and offsets of their latest records that are no tombstones."""
    last = {key: (offset, value is None) for offset, key, value in records if key is not None}
    return len(last), sorted(offset for offset, is_tombstone in last.values() if not is_tombstone)


@example([([Record(b"at 0", b"")], 0)], 0, True)
@given(
    st.lists(st.tuples(st.lists(RECORDS, min_size=1, max_size=60), st.sampled_from([0, 1, 2**20])), max_size=5),
    st.sampled_from([0, 5, 2**32 - 20, 2**62]),
    st.booleans(),
)
def test_any_records(parts, origin, compiled):
    """Also with gaps between offsets, and with the last offset that there can be."""
    put = []
    with nullcontext() if compiled else plain_kernels():
        keys = LatestKeys(MEMORY, sum(len(records) for records, _ in parts))
        at = origin
        for records, gap in parts:
            at += gap
            assert keys.put(block_of(records, at))
            put += [(offset, record.key, record.value) for offset, record in enumerate(records, at)]
            at += len(records)
        assert (len(keys), keys.offsets().tolist()) == latest_of(put)


def numbered(count, keys, each):
    """Records of so many keys, in no order, by their offsets; one of five is a tombstone."""
    for first in range(0, count, each):
        yield [(n, b"%d" % (n * 7919 % keys), b"v" if n % 5 else None) for n in range(first, first + each)]


def block_from(rows):
    return block_of([Record(key, value) for _, key, value in rows], rows[0][0])


@pytest.mark.parametrize(("count", "distinct"), [(120_000, 10**9), (200_000, 50_000)])
def test_a_map_that_is_replaced_by_larger_ones(count, distinct):
    keys = LatestKeys(16 << 20, 10**9)
    for rows in numbered(count, distinct, 2000):
        assert keys.put(block_from(rows))
    expected = latest_of(row for rows in numbered(count, distinct, 2000) for row in rows)
    assert (len(keys), keys.offsets().tolist()) == expected


@pytest.mark.parametrize("memory", [64 << 10, 256 << 10, 1 << 20, 3 << 20, 4_500_000])
def test_the_memory_is_a_limit_and_36_bytes_a_key_suffice(memory):
    keys, count, slots = LatestKeys(memory, 10**9), 0, [0]
    for rows in numbered(10**6, 10**9, 500):
        fits = keys.put(block_from(rows))
        if keys.slots != slots[-1]:
            slots.append(keys.slots)
            assert ENTRY_BYTES * sum(slots[-2:]) <= memory  # a map, and the one that it replaces
        if not fits:
            break
        count = len(keys)
    else:
        pytest.fail("the memory was no limit")
    assert ENTRY_BYTES * slots[-1] + 8 * count <= memory  # the result is made beside the map
    assert count + 500 >= memory / 36


ITEMS = st.one_of(
    st.lists(RECORDS, min_size=1, max_size=8).map(Batch),
    st.builds(Batch, st.lists(RECORDS, min_size=1), producer_id=st.sampled_from([1, 2]), transactional=st.just(True)),
    st.sampled_from([1, 2]).map(commit),
    st.sampled_from([1, 2]).map(abort),
    st.just(ROLL),
)


@given(st.lists(ITEMS, max_size=12), st.integers(0, 20))
def test_any_log(items, start):
    with tempfile.TemporaryDirectory() as path:
        written = build_log_dir(Path(path), {"t": [items]})["t", 0]
        start = min(start, written.log_end_offset)
        built = build_log_dir(Path(path) / "again", {"t": [Partition(items, log_start_offset=start)]})["t", 0]
        snapshot = LogDir.open_read_only(built.path.parent).log(TopicPartition("t", 0)).snapshot()
        for isolation, records in zip(Isolation, (built.records, built.read_committed), strict=True):
            _, expected = latest_of((record.offset, record.key, record.value) for record in records)
            assert latest_offsets(snapshot, isolation, MEMORY).tolist() == expected


def test_the_bytes_that_were_read_are_counted(tmp_path):
    items = [Batch([Record(b"k", b"v")]), ROLL, Batch([Record(b"k", b"value")])]
    build_log_dir(tmp_path, {"t": [items]})
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    counted = []
    latest_offsets(snapshot, Isolation.READ_UNCOMMITTED, MEMORY, counted.append)
    assert sum(counted) == snapshot.size_bytes


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_rows_among(offsets, chosen):
    of, among = np.array(sorted(offsets), np.int64), np.array(sorted(chosen), np.int64)
    assert rows_among(of, among).tolist() == [offset in chosen for offset in sorted(offsets)]


def kept(offsets, block, verdict=KEEP_DELETES):
    """Offsets that stay, how many, how many of them deletes; null keys and deleted keys."""
    stay, deletes, counts = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(3, np.int64)
    keep = offsets.retain(block, np.array([verdict], np.uint8), stay, deletes, counts)
    return block.offset[keep != 0].tolist(), int(stay[0]), int(deletes[0]), (int(counts[0]), int(counts[1]))


@given(st.lists(KEYS, min_size=1, max_size=60), st.integers(0, 20), st.booleans())
def test_the_latest_of_each_key(keys, first, compiled):
    with nullcontext() if compiled else plain_kernels():
        block = block_of([Record(key, b"v") for key in keys])
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


def test_full_at_kafkas_share_of_kafkas_slots():
    """SkimpyOffsetMap: memory / 24 slots; Cleaner: full when slots times the load factor are taken."""
    offsets = OffsetMap(10 * ENTRY_BYTES + 23, 0.5, most_keys=1000)
    block = block_of([Record(b"%d" % (n // 2), b"") for n in range(40)])
    assert offsets.slots == 10
    assert offsets.put(block, 0) == 9  # Kafka stops at the next key, were it a known one
    assert (len(offsets), offsets.latest_offset, offsets.utilization) == (5, 8, 0.5)
    assert (offsets.put(block, 0), offsets.latest_offset) == (0, 8)
    # With all slots but one taken it still finds its end.
    offsets = OffsetMap(1000 * ENTRY_BYTES, 1.0, most_keys=10**6)
    assert offsets.put(block_of([Record(b"%d" % n, b"") for n in range(2000)]), 0) == len(offsets) == 999
    assert kept(offsets, block_of([Record(b"other", b"")]))[0] == [0]
    assert kept(offsets, block_of([Record(b"7", b"")]))[0] == []
    for memory, factor in ((2 * ENTRY_BYTES, 0.5), (10 * ENTRY_BYTES, 0.0)):
        with pytest.raises(InvalidConfig, match="too small"):
            OffsetMap(memory, factor, most_keys=5)


@pytest.fixture
def allocated():
    """How much memory is in use now."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()


@pytest.mark.parametrize(("memory", "most_keys", "most"), [(1 << 20, 10**12, 1 << 20), (1 << 30, 10, 24 * 14)])
def test_memory_is_bounded_by_the_limit_and_by_what_can_be_needed(allocated, memory, most_keys, most):
    before = allocated()
    offsets = OffsetMap(memory, 0.9, most_keys=most_keys)
    assert allocated() - before < most + 2000
    assert len(offsets) == 0


@pytest.mark.parametrize("gap", [1000, 10**6])
def test_offsets_are_marked_where_that_takes_little_memory(allocated, gap):
    """A bit for each offset up to the latest; what the map says is the same."""
    offsets = OffsetMap(10_000, 0.9, most_keys=300)
    offsets.put(block_of([Record(b"a", b""), Record(b"b", b"")], base_offset=5), 5)
    offsets.put(block_of([Record(b"a", b"")], base_offset=gap), 5)
    before = allocated()
    offsets.complete(5)
    assert allocated() - before < 2000
    assert kept(offsets, block_of([Record(b"x", b""), Record(b"a", b""), Record(b"b", b"")]))[0] == [0]
    assert kept(offsets, block_of([Record(b"a", b""), Record(b"b", b"")], base_offset=5))[0] == [6]
    assert kept(offsets, block_of([Record(b"a", b"")] * 2, base_offset=gap))[0] == [gap, gap + 1]


def test_what_is_beyond_the_map_stays():
    offsets = OffsetMap(10_000, 0.9, most_keys=10)
    offsets.put(block_of([Record(b"k", b"")] * 3), 0)
    later = block_of([Record(b"k", None), Record(None, b"")], base_offset=2)
    assert kept(offsets, later, verdict=0)[0] == [3]
    assert kept(offsets, block_of([Record(b"k", b"")] * 3))[0] == [2]


def test_verdicts():
    offsets = OffsetMap(10_000, 0.9, most_keys=10)
    block = block_of([Record(b"a", b"1"), Record(b"a", None), Record(b"b", None), Record(None, b"")])
    offsets.put(block, 0)
    offsets.latest_offset = 3
    assert kept(offsets, block, KEEP_DELETES) == ([1, 2], 2, 2, (1, 0))
    assert kept(offsets, block, 0) == ([], 0, 0, (1, 2))
    assert kept(offsets, block, KEEP) == ([0, 1, 2, 3], 4, 2, (0, 0))
    assert kept(offsets, block, DISCARD) == ([], 0, 0, (0, 0))


@pytest.mark.parametrize("kernel", [offset_map_kernel, uncompiled("storage.latest.offset_map_kernel")])
def test_columns_that_do_not_fit_a_map_are_refused(kernel):
    table, state = np.zeros(9, np.uint64), np.zeros(3, np.int64)
    hashes, column = np.ones((2, 2), np.uint64), np.zeros(2, np.int64)
    for limit, rows, match in ((1, hashes[:1], "fewer"), (3, hashes, "free slot")):
        with pytest.raises(ValueError, match=match):
            kernel.put(table, limit, state, rows, column, column, 0)
    counts, keep, verdicts = np.zeros(3, np.int64), np.zeros(2, np.uint8), np.zeros(1, np.uint8)
    for batch, room, match in ((column + 1, keep, "no batch"), (column, keep[:1], "fit")):
        of_rows = (hashes, column, column, column, batch, verdicts, room, column, column, counts)
        with pytest.raises(ValueError, match=match):
            kernel.retain(table, 5, 0, keep[:0], *of_rows)

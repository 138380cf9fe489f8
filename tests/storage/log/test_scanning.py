"""Windows of batches: where they begin and end, and what of a segment no byte flip can bring about."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.errors import StorageError
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.compression import Codec
from storage.log.reader import find_batch, read_blocks
from storage.log.scanning import scan_batches
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation
from tests.support.builders import ROLL, Batch, BuiltPartition, Partition, abort, build_log_dir, commit, many
from tests.support.readers import built, open_log, read_past_damage


@pytest.fixture
def partition(tmp_path: Path) -> BuiltPartition:
    items = [Batch(many(2, size)) for size in (50, 5000, 100, 90_000, 10, 10, 2000)]
    return build_log_dir(tmp_path, {"t": [[*items, ROLL, Batch(many(1))]]})["t", 0]


@pytest.mark.parametrize("window", [100, 4096, 70_000, 1 << 20])
def test_batches_that_begin_in_the_span(partition: BuiltPartition, window: int) -> None:
    snapshot = open_log(partition.path).snapshot()
    starts = [batch.position for batch in partition.batches[:-1]]
    size = snapshot.segments[0].size
    for first in starts:
        for end in (*starts, size, size - 1, starts[3] + 1, starts[3] + 70, size + 100):
            windows = []
            for part in scan_batches(snapshot, snapshot.segments[0], first, end, window=window):
                assert part.damage is None
                last = int(part.table.end[-1])
                assert part.origin <= int(part.table.position[0])
                assert last <= part.origin + len(part.buffer)
                windows += part.table.position.tolist()
            assert windows == [start for start in starts if first <= start < end]


def test_many_tiny_batches_fill_tables(tmp_path: Path) -> None:
    batches = [Batch(many(1, 1), magic=0) for _ in range(9000)]
    partition = build_log_dir(tmp_path, {"t": [batches]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    tables = [part.table.rows for part in scan_batches(snapshot, snapshot.segments[0], 0)]
    assert sum(tables) == 9000
    assert len(tables) > 2


def test_interleaved_readers_do_not_share_buffers(partition: BuiltPartition) -> None:
    snapshot = open_log(partition.path).snapshot()
    readers = [read_blocks(snapshot, snapshot.segments[0], 0, window=100) for _ in range(5)]
    blocks = [next(reader) for reader in readers]
    for block in blocks:
        assert block.value(1) == partition.records[1].value
    for reader in readers:
        later = next(reader)
        assert later.value(0) == partition.records[2].value
        reader.close()


def _whole(items_partition: BuiltPartition) -> tuple[dict[int, object], dict[int, object]]:
    return (
        {record.offset: record for record in items_partition.records},
        {record.offset: record for record in items_partition.read_committed},
    )


@pytest.mark.parametrize("seed", range(60))
def test_flipped_bytes_never_show_wrong_records(tmp_path: Path, seed: int) -> None:
    """Whatever single file is damaged: what is shown was written, in order, and what is missing was told of or lies at
    the end. (A batch's base offset is outside of its CRC and is left alone here: see DESIGN.md.)"""
    rng = random.Random(seed)
    items = [
        item
        for number in range(24)
        for item in (
            Batch(many(rng.randint(1, 5), rng.randint(1, 200)), codec=rng.choice([0, 0, 1, 2, 3, 4])),  # type: ignore[arg-type]
            Batch(many(2), producer_id=1, transactional=True),
            *([rng.choice([abort, commit])(1)] if number % 3 == 0 else []),
            *([ROLL] if number in (8, 16) else []),
        )
    ]
    partition = build_log_dir(tmp_path, {"t": [Partition([*items, commit(1)], index_interval_bytes=500)]})["t", 0]
    uncommitted, committed = _whole(partition)
    starts = {(batch.segment, batch.position + at) for batch in partition.batches for at in range(8)}
    files = sorted(path for path in partition.path.iterdir() if path.suffix != ".metadata" and path.stat().st_size)
    path = rng.choice([*files, *(file for file in files if file.suffix == ".log")])
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 1, 5, 40])):
        at = rng.randrange(len(data))
        if path.suffix != ".log" or (int(path.stem), at) not in starts:
            data[at] ^= rng.randint(1, 255)
    path.write_bytes(data)
    snapshot = open_log(partition.path).snapshot()
    for isolation, whole in ((Isolation.READ_UNCOMMITTED, uncommitted), (Isolation.READ_COMMITTED, committed)):
        records, errors = read_past_damage(snapshot, isolation)
        shown = built(records)
        offsets = [record.offset for record in shown]
        assert offsets == sorted(set(offsets))
        assert [whole.get(offset) for offset in offsets] == shown
        if path.suffix != ".log":
            assert (len(shown), errors) == (len(whole), [])
        elif not errors and isolation is Isolation.READ_UNCOMMITTED:
            assert offsets == sorted(whole)[: len(offsets)]
    _all_offsets_are_found(snapshot)


def _all_offsets_are_found(snapshot: LogSnapshot) -> None:
    for offset in range(snapshot.log_start_offset, snapshot.log_end_offset):
        assert find_batch(snapshot, offset) is not None


@pytest.mark.parametrize("window", [100, 1 << 20])
@pytest.mark.parametrize("magic", [0, 1, 2])
def test_a_flipped_bit_of_a_header_hides_its_batch_alone(tmp_path: Path, magic: int, window: int) -> None:
    """Without an index that would help. A last offset that is too high does not make the batches after it wrong."""
    codec = Codec.NONE if magic == 2 else Codec.GZIP
    items = [Batch(many(3), magic=magic, codec=codec) for _ in range(8)]
    partition = build_log_dir(tmp_path, {"t": [[*items, ROLL, Batch(many(2))]]})["t", 0]
    path = partition.path / f"{0:020d}.log"
    intact = path.read_bytes()
    for number in (0, 3, 7):
        batch = partition.batches[number]
        offsets = [record.offset for record in partition.records if not 3 * number <= record.offset < 3 * number + 3]
        for bit in range(8 * 12, 8 * (BATCH_HEADER_SIZE if magic == 2 else 30)):
            if magic == 2 and bit // 8 in range(12, 16):
                continue  # the leader epoch: nothing protects it, and readers do not need it
            data = bytearray(intact)
            data[batch.position + bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            records, errors = read_past_damage(open_log(partition.path).snapshot(), window=window)
            assert [record.offset for record in records] == offsets, bit
            assert [error.position for error in errors if isinstance(error, StorageError)] == [batch.position], bit

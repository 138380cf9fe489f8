"""Directories as a crash or a disk left them: what is shown is right, whole and in order; what is damaged says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CorruptBatch, UnsupportedFormat
from storage.files.names import FileState
from storage.format.compression import Codec
from storage.log import segment
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.reader import find_batch, read_range
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TopicPartition
from tests.support.builders import Batch, BuiltPartition, Partition, build_log_dir, many
from tests.support.fixtures import FIXTURES, read_golden, requires_fixtures
from tests.support.readers import built, copy_partition, open_log, read_all, read_past_damage

_RECOVERY = FIXTURES / "recovery"

# Where reading `before` must differ from what the recovered broker served, or fails on the way: the offsets that are
# lost (first, end), and the error. All other cases equal the broker's golden files.
_LOST = {
    "c-flip-active": (98, 101, CorruptBatch),  # the broker cut here, and lost the good batches behind it
    "c2-flip-older": (73, 77, CorruptBatch),
    "c3-flip-length": (98, 104, CorruptBatch),  # up to the next batch that the index knows
    "c4-flip-magic": (98, 101, UnsupportedFormat),
    "m-flip-below-recovery-point": (73, 77, CorruptBatch),
}
# Complete .swap files beside all their sources: the broker went on with the swap, we still show the sources.
_SOURCES_SHOWN = {"i2-swap-one", "i3-swap-two", "i6-swap-with-indexes"}
# Garbage indexes behind which Kafka's own consumer skipped data.
_KAFKA_SKIPPED = {"f3-garbage-index-below-recovery-point", "f4-plausible-index-below-recovery-point"}


def _cases() -> list[object]:
    return list(_facts())


def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((_RECOVERY / "cases.json").read_text())
    return facts


@pytest.mark.parametrize("case", _cases())
def test_before_recovery(case: str) -> None:
    directory = _RECOVERY / "before" / f"rec-{case}-0"
    snapshot = open_log(directory).snapshot()
    undamaged = read_golden(_RECOVERY / "golden-undamaged/rec-undamaged-0.jsonl.gz")
    committed = read_golden(_RECOVERY / "golden/rec-undamaged-0.read_committed.jsonl.gz")
    for isolation, whole in ((Isolation.READ_UNCOMMITTED, undamaged), (Isolation.READ_COMMITTED, committed)):
        records, errors = read_past_damage(snapshot, isolation)
        if case in _LOST:
            first, end, error = _LOST[case]
            assert records == [record for record in whole if not first <= record.offset < end]
            assert [type(found) for found in errors] == [error]
            assert isinstance(errors[0], CorruptBatch | UnsupportedFormat)
            assert errors[0].offset == first
            assert errors[0].path is not None
            assert errors[0].path.parent == directory
        elif case in _SOURCES_SHOWN | _KAFKA_SKIPPED:
            assert (records, errors) == (whole, [])
        else:
            suffix = "" if isolation is Isolation.READ_UNCOMMITTED else ".read_committed"
            assert (records, errors) == (read_golden(_RECOVERY / f"golden/rec-{case}-0{suffix}.jsonl.gz"), [])
            assert (
                snapshot.log_end_offset
                == json.loads((_RECOVERY / "cases.json").read_text())[case]["log_end_offset_after"]
            )
    assert last_stable_offset(snapshot) == snapshot.log_end_offset


@pytest.mark.parametrize("case", _cases())
def test_any_offset_is_found_whatever_the_indexes_say(case: str) -> None:
    snapshot = open_log(_RECOVERY / "before" / f"rec-{case}-0").snapshot()
    whole, _ = read_past_damage(snapshot)
    first, end, error = _LOST.get(case, (-1, -1, CorruptBatch))
    for offset in range(snapshot.log_start_offset, snapshot.log_end_offset):
        expected = next((record.offset for record in whole if record.offset >= offset), None)
        damage_comes_first = offset < end and (expected is None or expected > first)
        block = next(read_range(snapshot, offset), None)
        if damage_comes_first:
            assert block is not None
            assert len(block) == 0
            assert block.damage is not None
            assert type(block.damage.error) is error
        else:
            assert (None if block is None else int(block.offset[0])) == expected


@requires_fixtures
def test_swap_is_read_once_a_source_is_gone(tmp_path: Path) -> None:
    """Kafka renames the sources to .deleted in ascending order; the .swap stands for all of them from the first on."""
    directory = copy_partition(_RECOVERY / "before/rec-i3-swap-two-0", tmp_path / "rec-i3-swap-two-0")
    log = open_log(directory)
    before = log.snapshot()
    assert [segment.base_offset for segment in before.segments] == [0, 24, 62, 84]

    (directory / f"{24:020d}.log").rename(directory / f"{24:020d}.log.deleted")
    half = log.snapshot()
    assert [segment.base_offset for segment in half.segments] == [0, 24, 84]
    assert half.segments[1].state is FileState.SWAP
    assert read_all(half) == read_golden(_RECOVERY / "golden/rec-i3-swap-two-0.jsonl.gz")
    assert half.generation == before.generation
    # Readers who hold the first snapshot still see the sources.
    assert read_all(before) == read_golden(_RECOVERY / "golden-undamaged/rec-undamaged-0.jsonl.gz")

    (directory / f"{62:020d}.log").rename(directory / f"{62:020d}.log.deleted")
    (directory / f"{24:020d}.log.swap").rename(directory / f"{24:020d}.log")
    done = log.snapshot()
    assert done.segments[1] is half.segments[1]
    assert done.segments[0] is before.segments[0]
    assert read_all(half) == read_all(done) == read_golden(_RECOVERY / "golden/rec-i3-swap-two-0.jsonl.gz")


@pytest.mark.parametrize("magic", [0, 1])
def test_old_compressed_sets_tell_only_their_last_offset(tmp_path: Path, magic: int) -> None:
    items = [Batch(many(9, 400), codec=Codec.GZIP, magic=magic) for _ in range(30)]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=200)]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    for offset in range(0, partition.log_end_offset, 4):
        found = find_batch(snapshot, offset)
        assert found is not None
        assert found.position == partition.batches[offset // 9].position
        assert built(read_all(snapshot, offset, offset + 5)) == partition.records[offset : offset + 5]


@pytest.mark.parametrize("believed_bytes", [16 << 20, 4096])
def test_a_wild_length_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, believed_bytes: int) -> None:
    """A length of many megabytes that even fits the file must be borne out before memory is taken for it."""
    monkeypatch.setattr(segment, "BELIEVED_BYTES", believed_bytes)
    items = [Batch(many(1, 1000)) for _ in range(60)]
    partition = build_log_dir(tmp_path, {"t": [Partition(items, index_interval_bytes=0, tail=b"")]})["t", 0]
    batch = partition.batches[10]
    length = partition.batches[50].position - batch.position - 12 + 7
    with partition.log().open("r+b") as file:
        file.seek(batch.position + 8)
        file.write(length.to_bytes(4, "big"))
    snapshot = open_log(partition.path).snapshot()
    for window in (1 << 20, 4096):
        records, errors = read_past_damage(snapshot, window=window)
        assert len(errors) == 1
        assert built(records) == [record for record in partition.records if record.offset != 10]


@pytest.mark.parametrize("size", [3_000_000, 40_000_000])
def test_batch_larger_than_any_window(tmp_path: Path, size: int) -> None:
    items = [Batch(many(2)), Batch(many(1, size)), Batch(many(2))]
    partition = build_log_dir(tmp_path, {"t": [items]})["t", 0]
    snapshot = open_log(partition.path).snapshot()
    assert snapshot.log_end_offset == 5
    records = read_all(snapshot, window=4096)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4]
    assert built(records) == partition.records
    assert read_all(snapshot, 3)[0].offset == 3


def _flipped(partition: BuiltPartition, batch: int) -> LogSnapshot:
    with partition.log().open("r+b") as file:
        file.seek(partition.batches[batch].position + 70)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    return open_log(partition.path).snapshot()


@pytest.mark.parametrize(("recovery_point", "damaged"), [(6, False), (9, True)])
def test_a_bad_last_batch_is_damage_below_the_recovery_point_only(
    tmp_path: Path, recovery_point: int, damaged: bool
) -> None:
    partition = build_log_dir(tmp_path, {"t": [[Batch(many(3)) for _ in range(3)]]})["t", 0]
    (tmp_path / "recovery-point-offset-checkpoint").write_text(f"0\n1\nt 0 {recovery_point}\n")
    _flipped(partition, 2)
    snapshot = LogDir.open_read_only(tmp_path).log(TopicPartition("t", 0)).snapshot()
    records, errors = read_past_damage(snapshot)
    assert [record.offset for record in records] == list(range(6))
    assert len(errors) == damaged
    assert snapshot.log_end_offset == (9 if damaged else 6)

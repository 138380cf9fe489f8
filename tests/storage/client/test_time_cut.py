"""Where a log is cut at a moment: against a rule in plain Python over all batches."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from storage.errors import CorruptBatch
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import MixedBatch, cut_at
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition
from tests.support.builders import ROLL, START_MS, Batch, Codec, Item, Partition, build_log_dir, commit, many
from tests.support.readers import read_all

TP = TopicPartition("t", 0)


def snapshot_of(path: Path, items: list[Item] | Partition) -> LogSnapshot:
    build_log_dir(path, {"t": [items]})
    return LogDir.open_read_only(path).log(TP).snapshot()


def stamped(*timestamps: int) -> list[Record]:
    return [Record(None, b"at %d" % stamp, (), stamp) for stamp in timestamps]


def test_the_last_batch_with_a_message_of_that_time_is_the_last(tmp_path: Path) -> None:
    items: list[Item] = [
        Batch(stamped(10, 20)),
        ROLL,
        Batch(stamped(30, 40)),
        Batch(stamped(50)),
        ROLL,
        Batch(stamped(60)),
    ]
    whole = snapshot_of(tmp_path / "log", items)
    ends = {9: 0, 10: 2, 19: 2, 20: 2, 29: 2, 30: 4, 39: 4, 40: 4, 49: 4, 50: 5, 59: 5, 60: 6, 1000: 6}
    for until, end in ends.items():
        cut = cut_at(whole, until)
        assert cut.snapshot.log_end_offset == end, until
        assert [r.offset for r in read_all(cut.snapshot)] == list(range(end))
        assert cut.mixed == {10: MixedBatch(0, 1, 1), 19: MixedBatch(0, 1, 1), 30: MixedBatch(2, 3, 1),
                             39: MixedBatch(2, 3, 1)}.get(until)  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_timestamps_in_any_order(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    batches = [[dice.randrange(100) for _ in range(dice.randrange(1, 5))] for _ in range(30)]
    items: list[Item] = []
    for batch in batches:
        codec, append_time = dice.choice((Codec.NONE, Codec.LZ4)), dice.choice((None, None, dice.randrange(100)))
        if append_time is not None:
            batch[:] = [append_time] * len(batch)
        items += [Batch(stamped(*batch), codec=codec, log_append_time_ms=append_time), *dice.choice(([], [], [ROLL]))]
    whole = snapshot_of(tmp_path / "log", items)
    for until in (-1, 0, 5, 50, 99, *dice.choices(range(100), k=5)):
        kept = max((n for n, batch in enumerate(batches) if min(batch) <= until), default=-1)
        cut = cut_at(whole, until)
        assert cut.snapshot.log_end_offset == sum(map(len, batches[: kept + 1]))
        later = sum(stamp > until for stamp in batches[kept]) if kept >= 0 else 0
        assert (0 if cut.mixed is None else cut.mixed.later) == later
        assert len(read_all(cut.snapshot)) == cut.snapshot.log_end_offset


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_old_formats(tmp_path: Path, magic: int, codec: Codec) -> None:
    """Messages of format v0 have no timestamp: they are from before any moment."""
    whole = snapshot_of(tmp_path / "log", [Batch(stamped(10, 20), codec, magic), Batch(stamped(30, 40), codec, magic)])
    assert cut_at(whole, 5).snapshot.log_end_offset == (4 if magic == 0 else 0)
    expected = 4 if magic == 0 else 4 if codec else 3
    assert cut_at(whole, 30).snapshot.log_end_offset == expected


def test_a_commit_of_that_time_belongs_to_it(tmp_path: Path) -> None:
    items: list[Item] = [Batch(many(2), producer_id=7, transactional=True), commit(7), Batch(many(1))]
    whole = snapshot_of(tmp_path / "log", items)
    assert cut_at(whole, START_MS + 2000).snapshot.log_end_offset == 3
    assert cut_at(whole, START_MS + 1999).snapshot.log_end_offset == 2


def test_nothing_of_that_time_and_nothing_at_all(tmp_path: Path) -> None:
    later = snapshot_of(tmp_path / "later", Partition([Batch(stamped(10))], start_offset=100))
    cut = cut_at(later, 9).snapshot
    assert (cut.log_start_offset, cut.log_end_offset, cut.size_bytes) == (100, 100, 0)
    empty = snapshot_of(tmp_path / "empty", [])
    assert cut_at(empty, 9).snapshot.log_end_offset == 0


def test_messages_below_the_log_start_count(tmp_path: Path) -> None:
    items: list[Item] = [Batch(stamped(10)), Batch(stamped(20)), Batch(stamped(30))]
    whole = snapshot_of(tmp_path / "log", Partition(items, log_start_offset=2))
    cut = cut_at(whole, 15).snapshot
    assert (cut.log_start_offset, cut.log_end_offset) == (1, 1)


def test_damage_after_the_cut_is_an_error(tmp_path: Path) -> None:
    """It may hide a message of that time."""
    built = build_log_dir(tmp_path / "log", {"t": [[Batch(stamped(10)), Batch(stamped(30)), ROLL, Batch(stamped(40))]]})
    data = bytearray(built["t", 0].log().read_bytes())
    data[-1] ^= 1
    built["t", 0].log().write_bytes(data)
    with pytest.raises(CorruptBatch):
        cut_at(LogDir.open_read_only(built.path).log(TP).snapshot(), 20)

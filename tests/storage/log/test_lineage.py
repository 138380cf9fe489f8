"""Which messages of a log are still those that were read, by leader epochs, and where these lack by what is seen."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.log.lineage import agreed_end, first_difference
from storage.log.log_dir import LogDir
from storage.log.snapshot import Log
from storage.types import TopicPartition
from tests.support.replicas import Replica


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochEntry(*entry) for entry in entries))


@pytest.mark.parametrize(
    ("before", "now", "end", "expected"),
    [
        (epochs((1, 0)), epochs((1, 0)), 10, None),
        (epochs((1, 0)), epochs((1, 0), (2, 5)), 10, 5),
        (epochs((1, 0)), epochs((1, 0), (2, 10)), 10, None),  # what a new leader appended
        (epochs((1, 0), (2, 5)), epochs((1, 0), (3, 6)), 8, 5),  # leader 1 had written one more
        (epochs((1, 0), (2, 5)), epochs((2, 7)), 8, None),  # retention
        (epochs((1, 0), (2, 5)), epochs((3, 7)), 8, 7),
        (epochs((1, 0), (2, 9)), epochs((1, 0), (3, 9)), 9, None),  # leader 2 wrote nothing
        (epochs(), epochs((1, 0)), 10, None),
    ],
)
def test_the_first_difference(before: LeaderEpochs, now: LeaderEpochs, end: int, expected: int | None) -> None:
    assert first_difference(before, now, end) == expected


def opened(path: Path) -> Log:
    return LogDir.open_read_only(path).log(TopicPartition("t", 0))


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("count", [1, 3, 20])
def test_a_cut_that_is_seen_after_others_were_written(tmp_path: Path, checkpoint: bool, count: int) -> None:
    replica = Replica(tmp_path, checkpoint=checkpoint)
    replica.append(5)
    log = opened(tmp_path)
    log.snapshot()
    replica.append(3)
    before = log.snapshot()
    replica.truncate(5)
    replica.append(count)
    now = log.snapshot()
    assert now.cuts == (5,)
    assert agreed_end(before, now) == 5


def test_a_cut_outlives_the_cleaning_of_the_file(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    replica.append(10)
    log = opened(tmp_path)
    before = log.snapshot()
    replica.truncate(5)
    replica.append(8)
    log.snapshot()
    replica.roll()
    replica.append(3)
    log.snapshot()
    replica.compact(lambda offset: offset != 2)
    assert agreed_end(before, log.snapshot()) == 5


def test_a_cut_and_a_cleaning_between_two_looks(tmp_path: Path) -> None:
    """No file says so any more, but the epochs do."""
    replica = Replica(tmp_path)
    replica.append(10)
    log = opened(tmp_path)
    before = log.snapshot()
    replica.truncate(5)
    replica.append(8)
    replica.roll()
    replica.append(3)
    replica.compact(lambda offset: offset != 2)
    assert agreed_end(before, log.snapshot()) == 5


def test_neither_a_new_leader_nor_a_cleaning_is_a_cut(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    replica.append(10)
    log = opened(tmp_path)
    before = log.snapshot()
    replica.elect()
    replica.append(10)
    replica.roll()
    replica.append(3)
    log.snapshot()
    replica.compact(lambda offset: offset % 3 == 0)
    now = log.snapshot()
    assert (now.cuts, agreed_end(before, now)) == ((), 23)


@pytest.mark.parametrize("content", [b"0\n1\n7 0\n", b"garbage", b"0\n2\n1 0\n2 4\n"])
def test_a_checkpoint_that_is_wrong_does_no_harm(tmp_path: Path, content: bytes) -> None:
    replica = Replica(tmp_path, checkpoint=False)
    (replica.path / "leader-epoch-checkpoint").write_bytes(content)
    replica.append(10)
    log = opened(tmp_path)
    assert log.snapshot().log_end_offset == 10
    replica.append(10)
    assert (log.snapshot().log_end_offset, log.snapshot().cuts) == (20, ())


def test_an_unchanged_log_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = Replica(tmp_path)
    replica.append(10)
    for path in (replica.path, *replica.path.iterdir()):
        os.utime(path, (1, 1.5))
    log = opened(tmp_path)
    before = log.snapshot()
    monkeypatch.setattr(os, "open", None)
    assert log.snapshot() is before

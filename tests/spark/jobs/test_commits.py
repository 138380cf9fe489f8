"""The commit list after kills and power losses at every disk operation, with full disks, and with other writers."""

import random
import shutil
from itertools import count

import pytest

from kafkafs.spark.jobs.commits import CommitList, ExportedRange, ExportFile, ExportSet, Position, committed_sets
from storage.errors import CorruptCheckpoint
from storage.files.disk import RealDisk, opened
from storage.types import OffsetRange, TopicPartition
from tests.support.faults import Crash, FaultyDisk

TP = TopicPartition("orders", 0)
SETS = 3  # each with two files, in two directories


def set_files(number):
    return [
        ExportFile(f"staged-{number}-{slot}", f"topic=orders/day={slot}/part-{number}", 10, len(content(number, slot)))
        for slot in range(2)
    ]


def content(number, slot):
    return f"messages of set {number}, day {slot}".encode() * 20


def write_sets(directory, disk, sets=SETS):
    """Commits sets, after those in the list, until there are `sets`."""
    commits = CommitList(directory, disk)
    try:
        position = commits.positions.get(TP)
        for number in range(position.next_offset // 10 if position else 0, sets):
            staging = commits.begin()
            files = set_files(number)
            for slot, file in enumerate(files):
                with opened(disk, staging / file.staged, create=True) as staged:
                    staged.write_at(0, content(number, slot))
                    staged.sync()
            commits.commit(files, [ExportedRange(TP, number * 10, number * 10 + 10, "id")])
    finally:
        commits.close()


def visible(directory):
    """What a reader sees that lists the directory instead of reading the commit list."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and not any(part.startswith(("_", ".")) for part in path.relative_to(directory).parts)
    }


def expected(sets):
    return {file.path: content(number, slot) for number in range(sets) for slot, file in enumerate(set_files(number))}


def crashed(directory, stop_at, seed):
    """The disk of a process that was stopped at this operation, or None if it came to its end before."""
    directory.mkdir(exist_ok=True)
    disk = FaultyDisk(directory, stop_at=stop_at, seed=seed)
    try:
        write_sets(directory, disk)
    except Crash:
        return disk
    return None


def finish(directory):
    """The next process commits what is missing."""
    write_sets(directory, RealDisk())
    assert visible(directory) == expected(SETS)
    assert [done.number for done in committed_sets(directory)] == [1, 2, 3]
    assert not list((directory / "_export" / "staging").iterdir())


@pytest.mark.parametrize("loss", ["kill", "power loss"])
def test_a_crash_at_every_operation(tmp_path, loss):
    halves = 0
    for stop_at in count():
        directory = tmp_path / f"{stop_at}"
        disk = crashed(directory, stop_at, stop_at)
        if disk is None:
            break
        if loss == "power loss":
            disk.power_loss()
        seen = visible(directory)
        assert seen.items() <= expected(SETS).items()  # whole files only
        committed = {file.path for done in committed_sets(directory) for file in done.files}
        assert committed <= seen.keys()
        halves += len(seen) % 2
        if loss == "kill" and len(seen) % 2:
            loses_a_file(shutil.copytree(directory, tmp_path / f"{stop_at}-lost"), committed)

        CommitList(directory).close()
        seen = visible(directory)
        assert seen == expected(len(seen) // 2)  # whole sets only
        assert committed <= seen.keys()
        assert len(committed_sets(directory)) * 2 == len(seen)

        finish(directory)
    assert halves  # the case that the list is there for was among them


def loses_a_file(directory, committed):
    """A pending set of which a visible file is gone again is dropped."""
    (half,) = visible(directory).keys() - committed
    (directory / half).unlink()
    CommitList(directory).close()
    assert visible(directory) == expected(len(committed) // 2)
    finish(directory)


def test_a_crash_while_a_crash_is_repaired(tmp_path):
    rng = random.Random(5)
    disk = FaultyDisk(tmp_path)
    write_sets(tmp_path, disk)
    for number in range(40):
        directory = tmp_path / f"{number}"
        for _ in range(4):
            stopped = crashed(directory, rng.randrange(len(disk.operations)), number)
            if stopped is not None and rng.random() < 0.5:
                stopped.power_loss()
            assert visible(directory).items() <= expected(SETS).items()
        finish(directory)


def test_positions_go_on_in_the_last_set(tmp_path):
    write_sets(tmp_path, RealDisk(), 2)
    other = TopicPartition("orders", 1)
    commits = CommitList(tmp_path)
    assert commits.positions == {TP: Position(20, "id")}
    commits.begin()
    lost = (OffsetRange(3, 5),)
    done = commits.commit([], [ExportedRange(other, 3, 9, None, lost)])
    commits.close()
    commits = CommitList(tmp_path)
    assert commits.positions == {TP: Position(20, "id"), other: Position(9, None)}
    commits.close()
    assert committed_sets(tmp_path)[-1] == done
    assert ExportSet.load(tmp_path / "_export/sets/000000000003.json").ranges[0].lost == lost


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"format":2}', b"\xff"])
def test_a_set_that_does_not_parse(tmp_path, text):
    write_sets(tmp_path, RealDisk())
    (tmp_path / "_export/sets/000000000003.json").write_bytes(text)
    with pytest.raises(CorruptCheckpoint):
        CommitList(tmp_path)
    with pytest.raises(CorruptCheckpoint):
        CommitList(tmp_path)  # not "in use": the first attempt let go

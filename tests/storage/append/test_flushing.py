"""What counts as synced when several threads flush one log: never more than what is on the disk."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.append.partition_files import PartitionFiles
from storage.append.partition_log import PartitionLog
from storage.directory.owned_dir import OwnedDir, OwnedLogs
from storage.errors import PartitionOffline
from storage.files import checkpoints, names
from storage.files.commit_ledger import WriteId
from storage.format.control_records import ControlType
from storage.staged_writes import commit
from storage.types import TopicPartition
from tests.storage.append.threads import Gate, WatchedLock, Worker
from tests.storage.staged_writes.test_commit import stage
from tests.support.builders import Batch, Marker, Partition, build_log_dir, many
from tests.support.crash_points import Sessions
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import append, opened, values_of

TP = TopicPartition("t", 0)
VALUES: list[bytes | None] = [b"message %04d " % n + b"x" * 80 for n in range(30)]


class World:
    """A log of some segments of which nothing is synced yet; then flush.messages is 1."""

    def __init__(self, path: Path, seed: int = 0) -> None:
        self.path = path
        owned = opened(path)
        owned.create_topic("t", 1, {"segment.bytes": "1500", "flush.messages": "1000"})
        assert owned.close().clean
        self.disk = FaultyDisk(path, seed=seed)
        self._sessions = Sessions(path, self.disk)
        self.owned: OwnedDir = self._sessions.open()
        self.log: PartitionLog = self.owned.log(TP)
        for value in VALUES:
            append(self.log, [value])
        assert len(self.log.snapshot().segments) > 2
        self.log._flushing._held = WatchedLock()  # type: ignore[assignment]
        self.owned.alter_config("t", {"flush.messages": "1"})

    def held_flush(self, *, only_sealed: bool = True) -> tuple[Gate, Worker[int]]:
        """A flush that is held at its first sync."""
        gate = Gate("sync ")
        self.disk.fail = gate
        flush = Worker(lambda: self.log.flush(only_sealed=only_sealed))
        gate.until_reached()
        return gate, flush

    def writer(self, value: bytes) -> Worker[None]:
        """A writer that has its answer, or waits for a flush."""
        worker = Worker(lambda: append(self.log, [value]))
        worker.until_settled()
        return worker

    def unsynced(self) -> list[str]:
        """The files of the partition whose bytes a power loss may take."""
        tracked = self.disk._volatile[self.path / TP.dir_name]
        return sorted(name for name, inode in tracked.items() if inode is not None and inode.pending)

    def lose_power(self) -> None:
        self.disk.power_loss()
        self.disk.stopped = True

    def end(self) -> None:
        self.disk.stopped = True
        self._sessions.end()

    def reopened(self) -> list[bytes | None]:
        """What the log holds when it is opened again; nothing in it may be damaged."""
        owned = opened(self.path)
        found = values_of(owned.log(TP).snapshot())
        assert owned.close().clean
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "dir")
    yield made
    made.end()


@pytest.fixture(autouse=True)
def _nothing_below_the_recovery_point_is_unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever the recovery point moves, files of segments that lie wholly below it have nothing left to be synced."""
    move = PartitionFiles.synced

    def checked(files: PartitionFiles, offset: int, now_ms: int | None) -> None:
        move(files, offset, now_ms)
        disk = files._disk
        if isinstance(disk, FaultyDisk):
            tracked = disk._volatile[files._directory]
            bases = sorted(int(name[:20]) for name in tracked if name.endswith(".log"))
            below = [base for base, following in itertools.pairwise(bases) if following <= offset]
            for base in below:
                for suffix in (".log", ".index", ".timeindex"):
                    inode = tracked[f"{base:020d}{suffix}"]
                    assert inode is not None
                    assert not inode.pending, f"{base}{suffix} below {offset}"

    monkeypatch.setattr(PartitionFiles, "synced", checked)


def test_a_writer_waits_for_a_flush_under_way(world: World) -> None:
    gate, flush = world.held_flush()
    writer = world.writer(b"last")
    assert writer.waits
    assert writer.is_alive()
    assert world.log.recovery_point == 0
    assert world.log.log_end_offset == 31  # the log's own lock is free: others append and read
    assert values_of(world.log.snapshot()) == [*VALUES, b"last"]
    world.owned.checkpoint()
    assert checkpoints.read(world.path / names.RECOVERY_POINT_CHECKPOINT)[TP] == 0
    gate.open()
    active = world.log.snapshot().segments[-1].base_offset
    assert flush.result() >= active
    writer.result()
    assert world.log.recovery_point == 31
    assert world.unsynced() == []


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_while_a_writer_waits_for_a_flush(tmp_path: Path, seed: int) -> None:
    """What was acknowledged is there, and nothing below the recovery point is damaged or gone."""
    world = World(tmp_path / "dir", seed)
    gate, _ = world.held_flush()
    acknowledged = []
    writer = world.writer(b"last")
    if not writer.is_alive():
        writer.result()
        acknowledged = [*VALUES, b"last"]
    world.owned.checkpoint()
    point = checkpoints.read(world.path / names.RECOVERY_POINT_CHECKPOINT)[TP]
    world.lose_power()
    gate.open()
    writer.join()
    world.end()
    found = world.reopened()
    assert found[: len(acknowledged)] == acknowledged
    assert found[:point] == VALUES[:point]


@pytest.mark.parametrize("seed", range(20))
def test_power_loss_when_the_writer_has_its_answer(tmp_path: Path, seed: int) -> None:
    world = World(tmp_path / "dir", seed)
    gate, flush = world.held_flush()
    writer = world.writer(b"last")
    gate.open()
    flush.result()
    writer.result()
    world.owned.checkpoint()
    world.lose_power()
    world.end()
    assert world.reopened() == [*VALUES, b"last"]


def test_one_flush_is_for_all_who_wait(world: World) -> None:
    gate, flush = world.held_flush()
    writers = [world.writer(b"last %d" % number) for number in range(3)]
    assert all(writer.waits for writer in writers)
    done = len(world.disk.operations)
    gate.open()
    flush.result()
    for writer in writers:
        writer.result()
    active = names.segment_file(world.log.snapshot().segments[-1].base_offset, names.FileKind.LOG)
    assert world.disk.operations[done:].count(f"sync {active}") == 1
    assert world.log.recovery_point == 33
    assert world.unsynced() == []


def test_a_failed_flush_fails_those_who_wait_for_it(world: World) -> None:
    gate, flush = world.held_flush()
    writer = world.writer(b"last")
    gate.open(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        flush.result()
    with pytest.raises(PartitionOffline):
        writer.result()
    assert world.log.recovery_point == 0
    closing = world.owned.close()
    assert list(closing.errors) == [TP]
    assert not closing.clean


def test_what_a_flush_could_not_open_is_synced_by_the_next(world: World) -> None:
    gate, flush = world.held_flush()
    writer = world.writer(b"last")
    gate.open(errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        flush.result()
    writer.result()
    assert world.log.recovery_point == 31
    assert world.unsynced() == []


def test_a_writer_whose_flush_fails_for_want_of_descriptors(world: World) -> None:
    """Its messages are in the log and not on the disk: nobody may take them for either."""
    world.disk.fail = lambda what, _path: errno.EMFILE if what.startswith("sync ") else None
    with pytest.raises(OSError, match="Too many open files"):
        append(world.log, [b"last"])
    world.disk.fail = lambda _what, _path: None
    with pytest.raises(PartitionOffline):
        append(world.log, [b"more"])
    assert world.log.recovery_point == 0


@pytest.mark.parametrize("code", [None, errno.EIO])
def test_closing_waits_for_a_flush_under_way(world: World, code: int | None) -> None:
    gate, flush = world.held_flush(only_sealed=False)
    closing = Worker(world.owned.close)
    closing.until_settled()
    assert closing.waits
    assert not (world.path / names.CLEAN_SHUTDOWN).exists()
    gate.open(code)
    if code is None:
        assert flush.result() == 30
    else:
        with pytest.raises(OSError, match="Input/output error"):
            flush.result()
    assert closing.result().clean is (code is None)
    assert (world.path / names.CLEAN_SHUTDOWN).exists() is (code is None)


def test_what_others_append_meanwhile_is_not_synced_by_a_flush(world: World) -> None:
    gate, flush = world.held_flush(only_sealed=False)
    world.owned.alter_config("t", {"flush.messages": "1000"})
    append(world.log, [b"later"])
    gate.open()
    assert flush.result() == world.log.recovery_point == 30
    assert world.log.flush() == 31
    assert world.unsynced() == []


def test_a_checkpoint_never_brings_back_the_recovery_point_of_before_a_truncation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.log.flush()
    assert world.log.recovery_point == 30
    gate = Gate("looked at")
    look = OwnedLogs.offsets_of

    def held(logs: OwnedLogs, log: PartitionLog) -> object:
        offsets = look(logs, log)
        gate("looked at", log.path)
        return offsets

    monkeypatch.setattr(OwnedLogs, "offsets_of", held)
    world.owned._logs._checkpointing = WatchedLock()  # type: ignore[assignment]
    checkpoint = Worker(world.owned.checkpoint)
    gate.until_reached()
    truncation = Worker(lambda: world.owned.truncate_to(TP, 3))
    truncation.until_settled()
    gate.open()
    checkpoint.result()
    truncation.result()
    assert world.log.log_end_offset == 3
    assert checkpoints.read(world.path / names.RECOVERY_POINT_CHECKPOINT)[TP] == 3


def test_a_truncation_leaves_all_that_it_changed_to_the_next_flush(tmp_path: Path) -> None:
    """The index of aborted transactions and the producers' snapshots, too."""
    items = [
        Batch(many(3), producer_id=7, transactional=True),
        Marker(ControlType.ABORT, 7),
        Batch(many(3), producer_id=7, transactional=True),
        Marker(ControlType.ABORT, 7),
    ]
    build_log_dir(tmp_path, {"t": [Partition(items)]}, clean=True)
    disk = FaultyDisk(tmp_path)
    owned = opened(tmp_path, disk=disk)
    log = owned.log(TP)
    log.flush()
    for path in owned.truncate_to(TP, 4):
        owned.disk.unlink(path)
    assert log.log_end_offset == 4
    log.flush()
    tracked = disk._volatile[tmp_path / TP.dir_name]
    assert [name for name, inode in tracked.items() if inode is not None and inode.pending] == []
    assert owned.close().clean


def test_a_sync_that_fails_in_a_whole_append_may_have_lost_what_was_before(tmp_path: Path) -> None:
    """A full disk is told to the first who syncs: the next sync of the same file would say that all is well."""
    world = World(tmp_path / "dir")
    world.owned.alter_config("t", {"flush.messages": "1000", "segment.bytes": "100000"})
    files = stage(world.path, WriteId("job", None), {TP: [b"share"]}, world.disk)
    active = names.segment_file(world.log.snapshot().segments[-1].base_offset, names.FileKind.LOG)
    world.disk.fail = lambda what, _path: errno.ENOSPC if what == f"sync {active}" else None
    with pytest.raises(commit.CommitUnfinished):
        commit.commit(world.owned, WriteId("job", None), files)
    world.disk.fail = lambda _what, _path: None
    with pytest.raises(PartitionOffline):
        world.log.flush()
    assert world.log.recovery_point == 0
    world.end()
    assert world.reopened() == [*VALUES, b"share"]

"""The background work, driven by hand: a clock that stands, a waiter that is told, failing disks."""

import errno
import logging
from pathlib import Path
from threading import Event

import pytest

from storage.append.partition_log import PartitionLog
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import PartitionOffline
from storage.files import checkpoints, names
from storage.types import TopicPartition
from storage.upkeep.maintenance import CHECKPOINTS, DELETION, FLUSH, RETENTION, Maintenance
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import NOW_MS, StandingClock, append, close_clean, killed, opened, read, values_of

TP, OTHER = TopicPartition("t", 0), TopicPartition("u", 0)
CONFIG = {
    "num.recovery.threads.per.data.dir": "1",
    "log.initial.task.delay.ms": "1000",
    "log.retention.check.interval.ms": "30000",
    "replica.high.watermark.checkpoint.interval.ms": "5000",
}


class World:
    """A directory with two topics on a failing disk, its clock, and its maintenance, which the tests drive."""

    def __init__(self, path, broker=None, **overrides):
        path.mkdir(exist_ok=True)
        self.clock, self.disk = StandingClock(), FaultyDisk(path)
        config = BrokerConfig.from_values(CONFIG | (broker or {}))
        self.owned = OwnedDir.open(path, Opening(create=True), config=config, disk=self.disk, clock=self.clock)
        values = {name.replace("_", "."): value for name, value in overrides.items()}
        for topic in ("t", "u"):
            if topic not in self.owned.log_dir.topics():
                self.owned.create_topic(topic, 1, {"segment.bytes": "600", "index.interval.bytes": "100", **values})
        self.free_bytes = 10**15
        self.maintenance = Maintenance(self.owned, waiter=self, free_bytes=lambda: self.free_bytes)

    def wait(self, timeout_ms):
        raise AssertionError("the tests drive the work")

    def wake(self):
        pass

    def fill(self, tp=TP, count=60):
        values = [b"message %04d" % n for n in range(count)]
        for first in range(0, count, 4):
            append(self.owned.log(tp), values[first : first + 4])
        return values

    def pass_ms(self, *times_ms):
        """Lets time pass, then does what is due; the milliseconds until something will be."""
        for time_ms in times_ms:
            self.clock.time_ms += time_ms
            wait_ms = self.maintenance.run_due()
        return wait_ms

    def fail(self, code=None, fails=lambda _what, _path: True):
        self.disk.fail = lambda what, path: code if fails(what, path) else None

    def task(self, name):
        return next(task for task in self.maintenance.status().tasks if task.name == name)

    def checkpointed(self, name, tp=TP):
        return checkpoints.read(self.owned.path / name).get(tp)

    def end(self):
        self.maintenance.stop()
        close_clean(self.owned)


def test_flush_ms(tmp_path):
    """A message waits for its sync no longer than flush.ms, also after the clock was set back."""
    world = World(tmp_path, flush_ms="200")
    log = world.owned.log(TP)
    assert world.pass_ms(0) <= 200
    world.pass_ms(10_000)
    append(log, [b"one"])
    assert log.recovery_point == 0
    assert world.maintenance.run_due() == 200
    assert world.pass_ms(200) == 200
    assert log.recovery_point == 1
    append(log, [b"two"])
    assert world.pass_ms(150) == 50
    assert log.recovery_point == 1
    world.pass_ms(50)
    assert log.recovery_point == 2
    assert world.task(FLUSH).result == "1 log(s) flushed"
    assert world.task(FLUSH).last_run_ms == world.clock.time_ms
    # The last sync then lies in the future: that is no reason to wait until it has passed once more.
    world.clock.time_ms -= 3_600_000
    append(log, [b"three"])
    world.pass_ms(0, 200)
    assert log.recovery_point == 3
    world.end()


def test_flush_ms_after_the_clock_was_wrong_for_a_moment(tmp_path, monkeypatch):
    """It goes an hour ahead while something is done, and back again: what was planned meanwhile goes back with it."""
    world = World(tmp_path, flush_ms="200")
    log = world.owned.log(TP)
    append(log, [b"one"])
    flush = log.flush

    def ahead():
        world.clock.time_ms += 3_600_000
        return flush()

    with monkeypatch.context() as patch:
        patch.setattr(log, "flush", ahead)
        world.pass_ms(200)
    assert log.recovery_point == 1
    world.clock.time_ms -= 3_600_000
    append(log, [b"two"])
    world.pass_ms(200, 200)
    assert log.recovery_point == 2
    world.end()


def test_what_was_rolled_is_synced(tmp_path):
    """As after UnifiedLog.roll: the recovery point moves to the active segment, which waits for flush.ms."""
    world = World(tmp_path / "dir")
    log = world.owned.log(TP)
    append(log, [b"one"])
    world.pass_ms(10**9)
    assert log.recovery_point == 0
    values = [b"one", *world.fill()]
    active = log.snapshot().segments[-1].base_offset
    world.pass_ms(1000)
    assert log.recovery_point == active > 0
    assert world.task(FLUSH).result == "1 log(s) flushed"
    runs = world.task(FLUSH).runs
    world.pass_ms(1000)
    assert world.task(FLUSH).runs == runs
    log.flush()
    log.roll()  # its final time index entry is younger than the flush
    assert log.has_unsynced_sealed
    world.pass_ms(1000)
    assert not log.has_unsynced_sealed
    world.owned.checkpoint()
    killed(world.owned)
    world.disk.power_loss()
    owned = opened(tmp_path / "dir", Opening(gentle=True))
    assert owned.reports()[TP].recovered_segments == [len(values)]
    assert values_of(owned.log(TP).snapshot()) == values
    close_clean(owned)


def test_retention_and_the_delayed_deletion(tmp_path):
    world = World(tmp_path, retention_bytes="1000", file_delete_delay_ms="7000")
    values = world.fill()
    log = world.owned.log(TP)
    world.pass_ms(999)
    assert log.log_start_offset == 0
    held = log.snapshot()
    world.pass_ms(1)
    assert log.log_start_offset > 0
    status = world.maintenance.status()
    left = sorted(log.path.glob("*.deleted"))
    assert status.awaiting_deletion_files == len(left) >= 3
    assert status.awaiting_deletion_bytes == sum(path.stat().st_size for path in left)
    assert values_of(held) == values
    world.pass_ms(6999)
    assert all(path.exists() for path in left)
    # Files that cannot be deleted are tried again.
    world.fail(errno.EIO, lambda what, _path: what.startswith("unlink"))
    world.pass_ms(1)
    assert world.maintenance.status().awaiting_deletion_files == len(left)
    assert dict(world.task(DELETION).errors).keys() == {"t-0"}
    world.fail()
    world.pass_ms(10_000)
    assert not any(path.exists() for path in left)
    assert world.maintenance.status().awaiting_deletion_files == 0
    assert world.task(DELETION).result == f"{len(left)} file(s) deleted"
    assert world.task(RETENTION).runs == 1
    assert world.task(RETENTION).next_run_ms == NOW_MS + 1000 + 30_000
    assert values_of(log.snapshot()) == values[log.log_start_offset :]
    world.end()


@pytest.mark.parametrize("retention_ms", ["1000", "0", "-1"])
def test_retention_of_logs_that_nobody_has_opened(tmp_path, retention_ms):
    world = World(tmp_path, retention_ms=retention_ms)
    world.fill()
    world.end()
    world = World(tmp_path)
    assert world.owned.logs() == []
    world.pass_ms(50_000)
    assert world.task(RETENTION).runs == 1
    assert bool(world.owned.logs()) is (retention_ms != "-1")
    assert world.owned.log(TP).is_empty is (retention_ms != "-1")
    assert world.owned.log(TP).log_start_offset == (60 if retention_ms != "-1" else 0)
    world.end()


def test_space_that_will_be_free_counts_as_free(tmp_path):
    """Else each pass, and each partition in a pass, would remove as much once more."""
    world = World(tmp_path, retention_free_bytes="1000000", file_delete_delay_ms="10000000")
    world.fill(TP)
    world.fill(OTHER)
    world.free_bytes = 999_500
    world.pass_ms(1000)
    first = world.owned.log(TP).log_start_offset
    assert first > 0
    assert world.owned.log(OTHER).log_start_offset == 0
    world.pass_ms(30_000)
    assert world.owned.log(TP).log_start_offset == first
    world.end()


def test_checkpoints(tmp_path):
    world = World(tmp_path)
    world.fill()
    log = world.owned.log(TP)
    log.increment_log_start_offset(7)
    log.flush()
    world.pass_ms(1000)
    assert world.checkpointed(names.RECOVERY_POINT_CHECKPOINT) == 60
    assert world.checkpointed(names.LOG_START_CHECKPOINT) == 7
    assert world.checkpointed(names.REPLICATION_CHECKPOINT) == 60
    append(log, [b"more"])
    world.pass_ms(4999)
    assert world.checkpointed(names.REPLICATION_CHECKPOINT) == 60
    world.pass_ms(1)
    assert world.checkpointed(names.REPLICATION_CHECKPOINT) == 61
    assert world.checkpointed(names.RECOVERY_POINT_CHECKPOINT) == 60
    assert world.task(CHECKPOINTS).runs == 2
    # One that cannot be written is tried again.
    append(log, [b"more"])
    world.fail(errno.ENOSPC, lambda _what, path: path.parent == Path() and path.suffix == ".tmp")
    world.pass_ms(5000)
    assert dict(world.task(CHECKPOINTS).errors).keys() == {""}
    world.fail()
    world.pass_ms(10_000)
    assert world.task(CHECKPOINTS).errors == ()
    assert world.checkpointed(names.REPLICATION_CHECKPOINT) == 62
    world.end()


def test_one_partition_fails_alone(tmp_path, caplog):
    world = World(tmp_path, retention_bytes="1000", flush_ms="100")
    values = world.fill(TP)
    world.fill(OTHER)
    world.fail(errno.EIO, lambda what, path: what.startswith("sync ") and path.parent.name == "t-0")
    with caplog.at_level(logging.WARNING):
        world.pass_ms(1000)
    assert set(world.owned.failures()) == {TP}
    assert dict(world.task(FLUSH).errors).keys() == {"t/0"}
    assert "t/0" in caplog.text
    assert world.owned.log(OTHER).recovery_point == 60
    assert world.owned.log(OTHER).log_start_offset > 0
    with pytest.raises(PartitionOffline):
        append(world.owned.log(TP), [b"no"])
    caplog.clear()
    world.pass_ms(30_000)
    assert caplog.text == ""  # said once
    append(world.owned.log(OTHER), [b"yes"])
    world.maintenance.stop()
    world.fail()
    assert not world.owned.close().clean
    owned = opened(tmp_path)
    assert read(owned, "t") == values
    close_clean(owned)


def test_a_bug_ends_no_work_and_costs_other_partitions_nothing(tmp_path, monkeypatch, caplog):
    world = World(tmp_path, retention_bytes="1000", flush_ms="100")
    for tp in (TP, OTHER):
        world.fill(tp)
    remove, flush = PartitionLog.remove_segments, PartitionLog.flush

    def no_removal(log, segments):
        if log.tp == TP:
            raise ValueError("a bug")
        return remove(log, segments)

    def no_flush(log, *, only_sealed=False):
        if log.tp == TP:
            raise ZeroDivisionError
        return flush(log, only_sealed=only_sealed)

    def no_checkpoint():
        raise TypeError

    monkeypatch.setattr(PartitionLog, "remove_segments", no_removal)
    monkeypatch.setattr(PartitionLog, "flush", no_flush)
    monkeypatch.setattr(world.owned, "checkpoint", no_checkpoint)
    world.pass_ms(1000, 1000, 30_000)
    assert dict(world.task(RETENTION).errors) == {"t/0": "ValueError('a bug')"}
    assert dict(world.task(FLUSH).errors) == {"t/0": "ZeroDivisionError()"}
    assert dict(world.task(CHECKPOINTS).errors) == {"": "TypeError()"}
    assert world.owned.log(OTHER).log_start_offset > 0
    assert world.owned.log(OTHER).recovery_point == 60
    assert world.owned.log(TP).log_start_offset == world.owned.log(TP).recovery_point == 0
    for bug in ("ValueError: a bug\n", "\nZeroDivisionError\n"):
        assert caplog.text.count(bug) == 1
    assert "\nTypeError\n" in caplog.text
    monkeypatch.undo()
    world.pass_ms(30_000)
    assert [world.task(name).errors for name in (RETENTION, FLUSH, CHECKPOINTS)] == [()] * 3
    world.end()


@pytest.mark.parametrize("method", ["flush", "remove_segments"])
def test_stopping_ends_a_pass_after_the_partition_at_hand(tmp_path, monkeypatch, method):
    world = World(tmp_path, retention_bytes="1000", flush_ms="100")
    for tp in (TP, OTHER):
        world.fill(tp)
    work, worked = getattr(PartitionLog, method), []

    def stopping(log, *arguments, **named):
        worked.append(log.tp)
        world.maintenance.stop()
        return work(log, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(PartitionLog, method, stopping)
        world.pass_ms(1000)
    assert set(worked) == {TP}
    world.end()


def test_the_thread_starts_waits_works_and_stops(tmp_path):
    """With a real thread: it sits in its waiter until it is woken, and ends at once."""
    waiting, go = Event(), Event()

    class Told:
        def wait(self, timeout_ms):
            waiting.set()
            go.wait(120)
            go.clear()

        def wake(self):
            go.set()

    world = World(tmp_path, retention_bytes="1000")
    world.fill()
    maintenance = Maintenance(world.owned, waiter=Told(), free_bytes=lambda: 10**15)
    assert maintenance.status().state == "not started"
    maintenance.start()
    assert waiting.wait(120)
    assert maintenance.status().state == "waiting"
    waiting.clear()
    world.clock.time_ms += 1000
    go.set()
    assert waiting.wait(120)
    assert world.owned.log(TP).log_start_offset > 0
    assert maintenance.status().awaiting_deletion_files > 0
    for _ in range(2):
        maintenance.stop()
    assert maintenance.status().state == "stopped"
    assert maintenance.status().awaiting_deletion_files == 0
    world.end()

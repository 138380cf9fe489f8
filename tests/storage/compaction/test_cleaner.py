"""Compaction in the background: which partition, how fast, what waits for it, what the status says."""

import threading

import pytest

from storage.append.partition_log import PartitionLog
from storage.compaction.cleaner import Cleaner, Throttle
from storage.files import names
from storage.types import TopicPartition
from storage.upkeep.maintenance import COMPACTION
from tests.storage.upkeep.test_maintenance import World
from tests.support.compacted_logs import SMALL, put, updates
from tests.support.damaged_bytes import flip
from tests.support.owned_dirs import NOW_MS, StandingClock, append

T, U, KEPT = (TopicPartition(topic, 0) for topic in ("t", "u", "kept"))


class CompactedWorld(World):
    """Two compacted topics and one that is not. Waiting moves the clock."""

    def __init__(self, path, **broker):
        broker = {key.replace("_", "."): value for key, value in broker.items()}
        super().__init__(path, broker, **SMALL | {"segment.bytes": "20000", "file.delete.delay.ms": "5000"})
        self.owned.create_topic("kept", 1)
        append(self.owned.log(KEPT), [b"x"])
        self.waits, self.on_wait = [], lambda: None

    def wait(self, timeout_ms):
        self.waits.append(timeout_ms)
        self.clock.time_ms += timeout_ms
        self.on_wait()

    def fill(self, tp, rounds, *, size=1000, segments=1):
        """So many updates of one key, then a new segment."""
        for _ in range(segments):
            for n in range(rounds):
                put(self.owned.log(tp), updates([(b"k", b"%d" % n * size)]))
            self.owned.log(tp).roll()

    def status(self):
        return self.task(COMPACTION)

    def offset(self, tp):
        return self.checkpointed(names.CLEANER_CHECKPOINT, tp)


def test_the_dirtiest_first_then_the_next_then_a_pause(tmp_path):
    world = CompactedWorld(tmp_path / "log")
    world.fill(T, 10)
    world.fill(U, 10)
    world.maintenance.run_due()
    assert world.status().runs == 0
    world.pass_ms(1000)
    first = world.status()
    assert first.result.startswith("t/0: 9 of 10 records removed, ")
    assert (world.offset(T), world.offset(U)) == (10, None)
    assert world.maintenance.status().dirty_ratios == {"t/0": 1.0, "u/0": 1.0}
    assert first.next_run_ms <= world.clock.time_ms + 1
    world.pass_ms(1)
    assert world.status().result.startswith("u/0: ")
    world.pass_ms(1)
    assert world.status().next_run_ms == world.clock.time_ms + 15_000
    assert world.status().result.startswith("u/0: ")  # of the last time that it did something
    assert world.maintenance.status().dirty_ratios == {"t/0": 0.0, "u/0": 0.0}
    # What it replaced goes later.
    assert world.maintenance.status().awaiting_deletion_files > 0
    world.pass_ms(5000)
    assert world.maintenance.status().awaiting_deletion_files == 0
    # Half of t is dirty now: not more than min.cleanable.dirty.ratio; then more.
    world.fill(T, 1)
    world.pass_ms(15_000)
    assert world.offset(T) == 10
    world.fill(T, 1, size=1500)
    world.pass_ms(15_000)
    assert world.offset(T) == 12
    world.end()


def test_not_faster_than_it_may_be_others_do_not_wait_and_stopping_ends_a_pass(tmp_path):
    world = CompactedWorld(tmp_path / "log", log_cleaner_io_max_bytes_per_second="10000")
    world.fill(T, 15, segments=5)
    size = world.owned.log(T).snapshot().size_bytes
    world.clock.time_ms += 1000
    began_ms = world.clock.time_ms
    flushed = []

    def on_wait():
        if len(world.waits) == 3:  # in the middle of the pass
            append(world.owned.log(KEPT), [b"y"])
        log = world.owned.log(KEPT)
        flushed.append(log.recovery_point)
        assert (world.maintenance.status().state, world.status().running) == ("running", True)

    world.owned.alter_config("kept", {"flush.ms": "100"})
    world.on_wait = on_wait
    world.maintenance.run_due()
    took_ms = world.clock.time_ms - began_ms
    assert world.offset(T) == 75
    # Everything is read twice, and what stays is written.
    assert 2 * size / 10 <= took_ms + 1000 < 2 * size / 10 + 3000
    assert flushed[-1] == 2  # the others' work was done meanwhile

    world.fill(U, 15, segments=5)
    before = world.owned.log(U).snapshot()
    world.waits.clear()
    world.on_wait = lambda: world.maintenance.stop() if len(world.waits) == 5 else None
    world.pass_ms(15_000)
    assert len(world.waits) == 5
    assert world.offset(U) is None
    assert not list((world.owned.path / "u-0").glob("*.cleaned"))
    assert world.owned.log(U).snapshot() is before
    world.end()


def test_a_bug_or_damage_in_one_partition_costs_the_others_nothing(tmp_path, monkeypatch, caplog):
    world = CompactedWorld(tmp_path / "log")
    world.fill(T, 40)
    world.fill(U, 10)
    swap = PartitionLog.replace_segments

    def broken(log, sources):
        if log.tp == T:
            raise ZeroDivisionError
        return swap(log, sources)

    monkeypatch.setattr(PartitionLog, "replace_segments", broken)
    world.pass_ms(*[15_000] * 4)
    assert dict(world.status().errors) == {"t/0": "ZeroDivisionError()"}
    assert (world.offset(T), world.offset(U)) == (None, 10)
    assert caplog.text.count("Traceback") == 1
    monkeypatch.undo()
    world.pass_ms(*[15_000] * 4)
    assert world.status().errors == ()
    assert world.offset(T) == 40
    world.fill(T, 80)
    world.fill(U, 30)
    path = world.owned.log(T).snapshot().segments[-2].log.path
    flip(path, 70)
    world.pass_ms(*[15_000] * 3)
    assert (world.offset(T), world.offset(U)) == (40, 40)
    ((where, error),) = world.status().errors
    assert where == "t/0"
    assert "checksum differs" in error
    flip(path, 70)
    world.end()


@pytest.mark.parametrize(
    ("broker", "dirty"),
    [
        ({"log_cleaner_enable": "false"}, {}),
        ({"log_cleaner_io_max_bytes_per_second": "0"}, {"t/0": 1.0, "u/0": 0.0}),
        ({"log_cleaner_io_max_bytes_per_second": "-1"}, {"t/0": 1.0, "u/0": 0.0}),
    ],
)
def test_a_cleaner_that_is_off_or_may_read_nothing_compacts_nothing(tmp_path, broker, dirty):
    world = CompactedWorld(tmp_path / "log", **broker)
    world.fill(T, 10)
    world.pass_ms(*[100_000] * 3)
    assert not any(task.errors for task in world.maintenance.status().tasks)
    assert world.offset(T) is None
    assert world.maintenance.status().dirty_ratios == dirty
    warnings = world.owned.log_dir.broker_config().warnings(tmp_path / "log")
    assert any("a mount compacts nothing" in warning for warning in warnings) is bool(dirty)
    world.end()


def test_who_is_looked_at(tmp_path):
    world = CompactedWorld(tmp_path / "log")
    cleaner = Cleaner(world.owned, lambda _: None, lambda _tp, _files: None)
    assert cleaner.clean_dirtiest() is None
    assert set(cleaner.dirty) == {T, U}
    world.owned.checkpoints.set_cleaner_offset(T, 7)
    assert cleaner.clean_dirtiest() is None
    assert world.offset(T) == 0  # it lay outside of the log
    world.end()


def test_the_throttle():
    clock = StandingClock(NOW_MS)
    for rate in (1000.0, 50_000.0):
        throttle, began_ms, total = Throttle(rate, clock), clock.time_ms, 0
        for size in (100, 5000, 20, 70_000, 0, 3000):
            clock.time_ms += throttle.wait_ms(size)
            total += size
        assert clock.time_ms - began_ms == pytest.approx(total * 1000 / rate, abs=8)
        clock.time_ms += 100_000  # a rest is not saved up
        assert 700 <= throttle.wait_ms(int(rate)) <= 1000
    for rate in (5e-324, 1e-300, 1e-9, 1.7976931348623157e308, float("inf")):  # every rate can be waited for
        throttle = Throttle(rate, clock)
        for size in (0, 1 << 20, 1 << 31):
            wait_ms = throttle.wait_ms(size)
            assert 0 <= wait_ms / 1000 < threading.TIMEOUT_MAX
            clock.time_ms += wait_ms

"""One seed: some processes one after the other on one directory, each ended in order, killed, or by a loss of power."""

from __future__ import annotations

import contextlib
import random
import secrets
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from kafkafs.tree import tree
from kafkafs.tree.generated import GeneratedTexts
from kafkafs.views.state import Clocks
from kafkafs.writing import line_writer
from storage.client import partitioner
from storage.directory.owned_dir import OwnedDir
from storage.errors import StorageError
from storage.files import dir_lock, file_mark
from storage.files.disk_protocol import DiskFile
from storage.verify.findings import FaultKind, Finding, Severity
from storage.verify.verify import verify_log_dir
from tests.simulation import actors
from tests.simulation.locks import simulated_locks
from tests.simulation.oracle import Anomaly, Oracle
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import World

_MEMORY = Path("/dev/shm")

_TOPICS = {
    "plain": {},
    "kept": {"retention.bytes": "900", "file.delete.delay.ms": "20"},
    "keyed": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1", "file.delete.delay.ms": "20"},
}


@dataclass
class Figures:
    """What one seed did."""

    seed: int
    steps: int = 0
    processes: int = 0
    kills: int = 0
    power_losses: int = 0
    lines: int = 0
    faults: dict[str, int] = field(default_factory=dict)


_worlds: list[World] = []  # the one that runs


class _Time(ModuleType):
    """The module `time` of those who compare with the times of files."""

    @staticmethod
    def time_ns() -> int:
        return _worlds[-1].clock.time_ns()


class _Random(ModuleType):
    """The module `random` of the partitioner."""

    @staticmethod
    def Random() -> random.Random:  # noqa: N802
        return random.Random(_worlds[-1].random.getrandbits(48))


def _monotonic() -> float:
    return _worlds[-1].clock.monotonic()


@contextlib.contextmanager
def simulation() -> Iterator[None]:
    """Around any number of runs: locks and times are simulated, and requests small."""
    with simulated_locks(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_writer, "_CUT_BYTES", actors.CUT_BYTES)
        patch.setattr(file_mark, "time", _Time("time"))
        patch.setattr(partitioner, "random", _Random("random"))
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=_worlds[-1].random.getrandbits(128), version=4))
        patch.setattr(secrets, "randbits", lambda bits: _worlds[-1].random.getrandbits(bits))
        take = dir_lock.DirLock._acquire

        def acquire(lock: dir_lock.DirLock) -> DiskFile:
            _worlds[-1].on_lock(lock)
            return take(lock)

        patch.setattr(dir_lock.DirLock, "_acquire", acquire)
        patch.setattr(tree, "Clocks", partial(Clocks, monotonic=_monotonic))
        patch.setattr(tree, "GeneratedTexts", partial(GeneratedTexts, _monotonic))
        yield


def run(seed: int, trace: Callable[[str], None] | None = None) -> Figures:
    """Runs a seed within `simulation`. AssertionError (an Anomaly, a Deadlock …) or a bug's own error."""
    # A place of the same name each time: what is ordered by hashes of paths comes in the same order.
    place = (_MEMORY if _MEMORY.is_dir() else Path(tempfile.gettempdir())) / f"kafkafs-simulation-{seed}"
    place.mkdir()
    try:
        world = World(seed, place / "log")
        _worlds.append(world)
        random.seed(seed)  # the engine's own: which partition is next, when a segment's time is over
        return _Run(world, trace).run()
    finally:
        _worlds.pop()
        shutil.rmtree(place, ignore_errors=True)


class _Run:
    def __init__(self, world: World, trace: Callable[[str], None] | None) -> None:
        self._world = world
        self._trace = trace
        self._oracle = Oracle(world)
        self._figures = Figures(world.seed)
        self._locks: list[dir_lock.DirLock] = []
        world.on_lock = self._locks.append

    def run(self) -> Figures:
        world, figures = self._world, self._figures
        for number in range(world.random.randrange(1, 4)):
            world.number = number
            scheduler = self._process(number)
            figures.steps += scheduler.steps
            figures.processes += 1
            lost_power = scheduler.killed and world.random.random() < 0.5
            figures.kills += scheduler.killed
            figures.power_losses += lost_power
            world.disk.stopped = False
            if lost_power:
                world.disk.power_loss()
                world.new_disk()
            self._recover(lost_power)
            self._oracle.check(lost_power=lost_power)
        figures.lines, figures.faults = len(world.lines), world.faults
        return figures

    def _process(self, number: int) -> Scheduler:
        """A mount from start to end. Killed at some step, or unmounted when everybody is through."""
        random_ = self._world.random
        scheduler = Scheduler(
            random.Random(random_.randrange(1 << 48)),
            kill_at=random_.choice((None, random_.randrange(1, 400), random_.randrange(1, 6000))),
            switching=random_.choice((0.02, 0.2, 0.5)),
            trace=self._trace,
        )
        opened: list[OwnedDir] = []
        locks: list[dir_lock.DirLock] = self._locks
        locks.clear()

        def stop() -> None:
            self._world.disk.stopped = True

        scheduler.on_kill = stop
        scheduler.spawn("mount", lambda: self._mount(scheduler, number, opened))
        if number and random_.random() < 0.7:
            scheduler.spawn("follower", lambda: self._follow(scheduler))
        try:
            scheduler.run()
        finally:
            for owned in opened:
                owned._logs.abandon()
            for lock in [lock for lock in locks if hasattr(lock, "_file") and lock._file.fileno() >= 0]:
                dir_lock._held.discard(lock._path)
                lock._file.close()
        return scheduler

    def _mount(self, scheduler: Scheduler, number: int, opened: list[OwnedDir]) -> None:
        world = self._world
        process = actors.mount(world, scheduler, opened)
        owned = process.owned
        assert owned is not None
        if number == 0:
            for topic, more in _TOPICS.items():
                size = str(world.random.choice((300, 700, 2000)))
                flush = {"flush.messages": "1"} if world.random.random() < 0.3 else {}
                common = {"segment.bytes": size, "max.message.bytes": str(actors.MAX_MESSAGE_BYTES)}
                with contextlib.suppress(StorageError, OSError):
                    owned.create_topic(topic, 2, {**common, **more, **flush})
                    if flush:
                        world.flushed_topics.add(topic)
        jobs: dict[str, Callable[[], None]] = {}
        for index in range(world.random.randrange(1, 4)):
            topic = world.random.choice(("plain", "plain", "kept"))
            path = world.random.choice((f"/{topic}/@append", f"/{topic}/0/@append", f"/{topic}/1/@append"))
            writer = actors.Writer(process, f"w{number}.{index}", topic, path)
            jobs[f"writer {index}"] = lambda writer=writer: writer.run(3)
        if world.random.random() < 0.5:
            keyed = actors.Writer(process, f"w{number}.k", "keyed", "/keyed/@append.jsonl", keyed=True)
            jobs["keyed"] = lambda: keyed.run(3)
        for index in range(world.random.randrange(3)):
            reader = actors.Reader(process, ["plain", "kept", "keyed"])
            jobs[f"reader {index}"] = lambda reader=reader: reader.run(4)
        if world.random.random() < 0.6:
            jobs["admin"] = lambda: actors.administer(process, 6)
        process.working = len(jobs)

        def ending(work: Callable[[], None]) -> Callable[[], None]:
            def body() -> None:
                work()
                process.working -= 1

            return body

        for name, work in jobs.items():
            scheduler.spawn(name, ending(work))
        if world.random.random() < 0.8:
            process.working += 1
            scheduler.spawn("upkeep", lambda: self._upkeep(process))
        scheduler.wait_until(lambda: process.working <= 0, "unmount")
        process.operations.destroy("/")
        assert process.maintenance is not None
        process.maintenance.stop()
        owned.close()

    def _upkeep(self, process: actors.Process) -> None:
        actors.upkeep(process, 40)
        process.working -= 1

    def _follow(self, scheduler: Scheduler) -> None:
        process = actors.follow(self._world, scheduler)
        try:
            actors.Reader(process, ["plain", "kept"]).run(4)
        finally:
            process.close()

    def _recover(self, lost_power: bool) -> None:
        """The next opening, which recovers, and a clean close; then nothing is wrong, and again changes nothing."""
        world = self._world
        world.is_full = False
        owned = OwnedDir.open(
            world.path, actors.Opening(create=True), config=actors.CONFIG, disk=world.disk, clock=world.clock
        )
        offline = owned.failures()
        closing = owned.close()
        if offline or not closing.clean:
            raise Anomaly(f"not recovered: {offline}, {closing}")
        findings = [
            one
            for one in verify_log_dir(world.path)
            if one.severity is not Severity.NOTE and not (lost_power and _is_lost_first_entry(one))
        ]
        if findings:
            raise Anomaly(f"verify finds: {findings}")


def _is_lost_first_entry(finding: Finding) -> bool:
    """An empty time index of a segment that was rolled right after a flush (storage.recovery.final_time_entry)."""
    return finding.kind is FaultKind.TIME_INDEX_INCOMPLETE and finding.path.stat().st_size == 0

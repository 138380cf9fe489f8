"""One plan: some processes one after the other on one directory, each ended in order, killed, or by a loss of power."""

import contextlib
import os
import random
import secrets
import shutil
import tempfile
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from kafkafs.reading.state import Clocks
from kafkafs.tree import tree
from storage.append import partitioner
from storage.coordinators.groups import GroupOffsets
from storage.directory import owned_dir
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import UnknownTopicOrPartition
from storage.files import descriptors, dir_identity, dir_lock, file_mark, log_file, names
from storage.files.dir_lock import DirLock
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Severity
from storage.verify.verify import verify_log_dir
from tests.simulation import mounts, remains, rotting
from tests.simulation.contents import Anomaly
from tests.simulation.copies import Copy
from tests.simulation.last_looks import last_look
from tests.simulation.locks import simulated_locks
from tests.simulation.oracle import RETAINED, Oracle
from tests.simulation.plan import Before
from tests.simulation.programs import Administrator, Consumer, Driver, Leader, Upkeep, check_configuration
from tests.simulation.readers import Reader
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import ANY_NUMBER, Fate, World
from tests.simulation.writers import Writer
from tests.support.faults import Crash

_MEMORY = Path("/dev/shm")
_PROGRAMS = (Writer, Reader, Upkeep, Administrator, Leader, Driver, Consumer)
_PROGRAM_OF = {program.__name__.lower(): program for program in _PROGRAMS}
_worlds = []  # the one that runs


class Figures(Counter):
    """How often plans did what. `choices`: of the scheduler, by process."""

    def __init__(self):
        super().__init__()
        self.choices = []


class _NotedLock(DirLock):
    """A lock that a killed process loses."""

    def __init__(self, disk, directory):
        _worlds[-1].lock = self
        super().__init__(disk, directory)


@contextlib.contextmanager
def simulation():
    """Around any number of runs: locks and times are simulated."""
    memory = _MEMORY if _MEMORY.is_dir() else None
    dir_of, is_it = dir_identity.DirIdentity.of, lambda file, status: _identity(status) == file.identity
    with (
        tempfile.TemporaryDirectory(prefix="kafkafs-simulation-", dir=memory) as place,
        simulated_locks(),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.chdir(place)
        # Of those who compare with the times of files, and of the partitioner.
        patch.setattr(file_mark, "time", SimpleNamespace(time_ns=lambda: _worlds[-1].clock.time_ns()))
        source = SimpleNamespace(Random=lambda: random.Random(_worlds[-1].random.getrandbits(48)))
        patch.setattr(partitioner, "random", source)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=_worlds[-1].random.getrandbits(128), version=4))
        patch.setattr(secrets, "randbits", lambda bits: _worlds[-1].random.getrandbits(bits))
        patch.setattr(os, "urandom", lambda size: _worlds[-1].random.randbytes(size))
        patch.setattr(dir_identity.DirIdentity, "of", lambda path: _numbered(dir_of(path)))
        patch.setattr(log_file.FileIdentity, "of", _identity)
        patch.setattr(log_file.LogFile, "is_it", is_it)
        patch.setattr(owned_dir, "DirLock", _NotedLock)
        patch.setattr(descriptors, "half_the_limit", lambda: _worlds[-1].descriptors)
        patch.setattr(tree, "Clocks", partial(Clocks, monotonic=lambda: _worlds[-1].clock.monotonic()))
        yield


def _identity(status):
    return log_file.FileIdentity(status.st_dev, _worlds[-1].inodes.of(status.st_ino))


def _numbered(identity):
    return identity._replace(inode=_worlds[-1].inodes.of(identity.inode))


def failure_of(figures, plan, choices=None, trace=None):
    """The error that a plan ends with, None if it does not fail; for the rest as `run`."""
    try:
        run(figures, plan, choices, trace)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return error
    return None


def run(figures, plan, choices=None, trace=None):
    """Runs a plan within `simulation`; with `choices`, those of the scheduler. AssertionError (an Anomaly, a Deadlock
    …) or a bug's own error. The figures are filled in as far as it comes."""
    # Relative, so of the same name each time: what is ordered by hashes of paths comes in the same order.
    place = Path(f"seed-{plan.seed}")
    place.mkdir()
    try:
        world = World(plan.seed, place / "log")
        _worlds.append(world)
        ops = [op for of in plan.processes for job in of.jobs for op in job.ops]
        world.deletes_records = any(isinstance(op, Before) for op in ops)
        random.seed(plan.seed)  # the engine's own: which partition is next, when a segment's time is over
        try:
            _Run(world, plan, figures, choices, trace).run()
        finally:
            figures.update(world.faults, lines=len(world.lines))
    finally:
        _worlds.pop()
        shutil.rmtree(place, ignore_errors=True)


def _is_loss(finding):
    """Whether a finding is a missing segment of a topic that is neither compacted nor copied."""
    return finding.kind is FaultKind.SEGMENT_GAP and finding.path.parent.name.rpartition("-")[0] in RETAINED


class _Run:
    def __init__(self, world, plan, figures, choices, trace):
        self._world = world
        self._plan = plan
        self._choices = choices
        self._trace = trace
        self._oracle = Oracle(world)
        self._figures = figures
        self._empty = set()  # time indexes whose only entry a loss of power has taken
        self._gaps = set()  # segments before which it has taken others
        self._is_clean = True  # what the next process finds was recovered and closed in order
        for topic in plan.topics:
            config = dict(topic.config)
            for key, by_topic in world.settings.items():
                if key in config:
                    by_topic[topic.name] = int(config[key])
            if topic.name == "copy":
                is_compacted = "compact" in config.get("cleanup.policy", "")
                world.copies[TopicPartition(topic.name, 0)] = Copy(is_compacted=is_compacted)
                world.intervals.add(int(config.get("index.interval.bytes", 4096)))

    def run(self):
        world, figures = self._world, self._figures
        has_lost_power = False
        for number, of in enumerate(self._plan.processes):
            world.number = number
            scheduler = self._scheduler(number, of)
            figures.choices.append(scheduler.choices)
            try:
                self._process(scheduler, of)
            finally:
                figures.update(steps=scheduler.steps, processes=1)
            lost_power = scheduler.killed and of.loses_power
            has_lost_power |= lost_power
            figures.update(kills=scheduler.killed, power_losses=lost_power)
            world.failing.clear()
            world.end_removals()
            world.disk.stopped = False
            world.disk.was_killed |= scheduler.killed
            if scheduler.killed and not lost_power:
                remains.check_killed(world, lost_power=False)
            if lost_power:
                world.lose_power()
                remains.check_killed(world, lost_power=True)
            world.disk.repair()
            self._is_clean = not of.unchecked
            if of.unchecked and number < len(self._plan.processes) - 1:
                continue
            # A process that was killed after it had closed the directory in order leaves nothing that is checked.
            is_checked = scheduler.killed and not (world.path / names.CLEAN_SHUTDOWN).exists()
            unclean = [rot for rot in of.rots if rot.unclean] if is_checked and not has_lost_power else []
            figures["rots"] += rotting.rot_unsynced(world, unclean)
            self._recover(has_lost_power)
            self._oracle.check(lost_power=has_lost_power)
            has_lost_power, self._is_clean = False, True
            figures["rots"] += rotting.rot_sealed(world, [rot for rot in of.rots if not rot.unclean])

    def _scheduler(self, number, of):
        given = self._choices
        if given is not None:
            given = given[number] if number < len(given) else {}
        order = random.Random(of.order)
        return Scheduler(order, kill_at=of.kill_at, switching=of.switching, given=given, trace=self._trace)

    def _process(self, scheduler, of):
        """A mount from start to end. Killed at some step, or unmounted when everybody is through."""
        opened, disk = [], self._world.disk
        self._world.descriptors = of.held or ANY_NUMBER

        def stop():
            disk.stopped = True

        scheduler.on_kill = stop
        disk.left = -1 if of.kill_operation is None else of.kill_operation
        disk.left_renames = -1 if of.kill_rename is None else of.kill_rename
        new_process = partial(mounts.Process, self._world, scheduler, of, opened, self._plan.request_bytes)
        mounted = scheduler.spawn("mount", lambda: self._mount(new_process(), of))
        followers = [job for job in of.jobs if job.follows]
        if followers:
            scheduler.spawn("follower", lambda: self._follow(new_process(), followers, mounted))
        try:
            scheduler.run()
        finally:
            for owned in opened:
                for log in owned.logs():
                    log.abandon()
            if dir_lock.holder(self._world.path) is not None:
                with contextlib.suppress(Crash):
                    self._world.lock.release()

    def _mount(self, process, of):
        world, scheduler = self._world, process.scheduler
        process.mount(of)
        owned = process.owned
        topics = set(owned.log_dir.topics())
        for topic in self._plan.topics:
            if topic.name not in topics and (world.number == 0 or topic.name != "again"):
                owned.create_topic(topic.name, topic.partitions, dict(topic.config))
                world.partitions[topic.name] = topic.partitions
        jobs = [job for job in of.jobs if not job.follows]
        process.working = len(jobs)
        for job in jobs:
            scheduler.spawn(job.name, partial(self._work, process, job))
        scheduler.wait_until(lambda: process.working <= 0, "unmount")
        if not world.failing and not world.had_errors:
            world.clock.rest(1)
            last_look(process, self._partitions())
        process.operations.destroy("/")
        process.maintenance.stop()
        # Also of logs that were being opened when it was changed.
        check_configuration(world, [(log.tp.topic, log.config) for log in owned.logs()])
        offline = owned.failures()
        closing = owned.close()
        remains.check_closed(world, owned, closing, offline)
        self._check_closing(closing)

    def _partitions(self):
        counts = {topic.name: self._world.partitions.get(topic.name, topic.partitions) for topic in self._plan.topics}
        return [TopicPartition(name, n) for name, count in counts.items() for n in range(count)]

    def _check_closing(self, closing):
        """What an orderly end has to be, after which faults."""
        world = self._world
        gone = [tp for tp in closing.errors if not (world.path / tp.dir_name).exists()]
        if gone:
            raise Anomaly(f"partitions did not close that do not exist: {closing}")
        if not closing.clean and self._is_clean and not world.faults:
            raise Anomaly(f"an orderly end is not clean: {closing}")
        passing = world.faults.keys() <= {"ENOSPC", "EMFILE", "slow"} and not world.had_unfinished
        passing = passing and world.settings["flush.messages"].get("plain") != 1
        offline = [tp for tp in closing.errors if tp.topic == "plain"]
        if offline and passing and self._is_clean and not world.failing and not world.rotten:
            raise Anomaly(f"an error that passes took a partition offline: {closing}")
        for line in list(world.lines.values()) if closing.clean else ():
            if line.fate is Fate.ACKNOWLEDGED:
                world.synced(line.path, {line.value})

    @staticmethod
    def _work(process, job):
        _PROGRAM_OF[job.kind](process, job).run()
        process.working -= 1

    def _follow(self, process, jobs, mounted):
        world, scheduler = self._world, process.scheduler
        topics = [f"{topic.name}-0" for topic in self._plan.topics]
        scheduler.wait_until(
            lambda: all((world.path / name).exists() for name in topics) or process.owner() is not None, "a mount"
        )
        log_dir = process.follow()
        try:
            for job in jobs:
                Reader(process, job).run()
            scheduler.wait_until(lambda: mounted.done, "the mount's end")
            if not world.had_errors and not world.failing:
                world.clock.rest(1)
                last_look(process, self._partitions())
        finally:
            log_dir.close()

    def _recover(self, lost_power):
        """The next opening, which recovers, and a clean close; then nothing is wrong, and again changes nothing."""
        world = self._world
        world.descriptors = ANY_NUMBER
        opening = Opening(create=True)
        owned = OwnedDir.open(world.path, opening, config=mounts.CONFIG, disk=world.disk, clock=world.clock)
        offline, unfinished = owned.failures(), owned.unfinished
        remains.check_opened(world, owned)
        if left := [path.name for path in world.path.glob("*-delete")]:
            raise Anomaly(f"removed topics stay: {left}")
        self._check_groups(owned)
        check_configuration(world, [(topic, owned.topic_info(topic).config) for topic, _ in world.altered])
        closing = owned.close()
        remains.check_closed(world, owned, closing, offline)
        if offline or unfinished or not closing.clean:
            raise Anomaly(f"not recovered: {offline}, {unfinished}, {closing}")
        damaged = {tp.dir_name for tp, _ in world.rotten}
        found = list(verify_log_dir(world.path))
        if lost_power or world.had_errors:  # messages that were never flushed can be missing in the middle
            self._gaps |= {finding.path for finding in found if _is_loss(finding)}
        findings = [
            finding
            for finding in found
            if (finding.severity is not Severity.NOTE or (_is_loss(finding) and finding.path not in self._gaps))
            and finding.path.parent.name not in damaged
            and not self._is_lost_first_entry(finding, lost_power=lost_power)
        ]
        if findings:
            raise Anomaly(f"verify finds: {findings}")

    def _is_lost_first_entry(self, finding, *, lost_power):
        """An empty time index of a segment that was rolled right after a flush (storage.recovery.recovery). It
        stays empty after the recovery that follows the loss of power."""
        if finding.kind is not FaultKind.TIME_INDEX_INCOMPLETE or finding.path.stat().st_size:
            return False
        if lost_power:
            self._empty.add(finding.path)
        return finding.path in self._empty

    def _check_groups(self, owned):
        for group, known in self._world.offsets.items():
            try:
                state = GroupOffsets(owned.log_dir).group(group)
            except UnknownTopicOrPartition:  # a loss of power has left some of its topic's directories
                state = None
            committed = None if state is None else state.offsets.get("plain", {}).get(0)
            offset = None if committed is None else committed.offset
            if offset not in known:
                raise Anomaly(f"lost write: group {group} has committed {offset}, expected one of {known}")
            known[:] = [offset]

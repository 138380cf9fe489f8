"""The programs of a simulated machine: the mount itself, writers, readers, an administrator, a follower.

Each is called as the kernel calls FUSE: a write(2) comes in requests, and of an error in a later request the writer
sees a short count alone. Sizes are small: a request has `REQUEST_BYTES`, and the code under test is told so.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kafkafs.mounting.operations import Operations, Serving, Traffic
from kafkafs.tree.paths import NoSuchPath
from kafkafs.tree.tree import Tree, TreeOptions
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import StorageError
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.upkeep.maintenance import Maintenance
from tests.simulation.scheduler import Scheduler
from tests.simulation.world import Fate, Line, Sight, World

REQUEST_BYTES = 96
CUT_BYTES = 64  # what the first request of a cut write(2) has at least
MAX_MESSAGE_BYTES = 250
LONGEST_VALUE = 120

CONFIG = BrokerConfig.from_values(
    {
        "num.recovery.threads.per.data.dir": "1",
        "log.initial.task.delay.ms": "0",
        "log.retention.check.interval.ms": "40",
        "log.flush.scheduler.interval.ms": "20",
        "log.flush.offset.checkpoint.interval.ms": "30",
        "log.cleaner.backoff.ms": "30",
        "log.cleaner.dedupe.buffer.size": "2097152",
    }
)

Problem = (StorageError, OSError, NoSuchPath)


@dataclass
class Opened:
    """fuse_file_info."""

    flags: int = 0
    fh: int = 0
    direct_io: bool = False
    keep_cache: bool = False


class Waiter:
    """Maintenance waits in simulated time: not at all."""

    def wait(self, timeout_ms: int) -> None:
        pass

    def wake(self) -> None:
        pass


@dataclass
class Process:
    """A mount: what the kernel knows of it. `owned` is None for a follower, which mounts read-only."""

    world: World
    scheduler: Scheduler
    operations: Any
    owned: OwnedDir | None = None
    maintenance: Maintenance | None = None
    working: int = 0  # actors that are not through yet
    close: Callable[[], None] = field(default=lambda: None)


def mount(world: World, scheduler: Scheduler, opened: list[OwnedDir]) -> Process:
    """Opens the directory for writing and makes the tree. `opened` gets the directory before anything can end it."""
    opening = Opening(create=True, gentle=world.random.random() < 0.3, trust_clean=world.random.random() < 0.8)
    owned = OwnedDir.open(world.path, opening, config=CONFIG, disk=world.disk, clock=world.clock)
    opened.append(owned)
    tree = Tree(owned.log_dir, TreeOptions(index_bytes=0), clock=world.clock, owned=owned)
    serving = Serving(world.path, disk=world.path, uid=0, gid=0)
    operations = Operations(tree, serving, Traffic(), lambda: None, lambda: None, tree)
    maintenance = Maintenance(owned, waiter=Waiter(), free_bytes=lambda: 1 << 30)
    return Process(world, scheduler, operations, owned, maintenance)


def follow(world: World, scheduler: Scheduler) -> Process:
    """A read-only mount of the same directory, by somebody else."""
    log_dir = LogDir.open_read_only(world.path, config=CONFIG, clock=world.clock)
    tree = Tree(log_dir, TreeOptions(index_bytes=0), clock=world.clock)
    serving = Serving(world.path, disk=world.path, uid=0, gid=0)
    operations = Operations(tree, serving, Traffic(), lambda: None, lambda: None)
    return Process(world, scheduler, operations, close=log_dir.close)


class Writer:
    """A program that appends lines to one file, and goes on with the next line after an error."""

    def __init__(self, process: Process, name: str, topic: str, path: str, *, keyed: bool = False) -> None:
        self._process = process
        self._world = process.world
        self._random = process.world.random
        self._name = name
        self._topic = topic
        self._path = path
        self._keyed = keyed
        self._number = 0

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            info = Opened(os.O_WRONLY | os.O_APPEND)
            try:
                self._process.operations.open(self._path, info)
            except Problem:
                continue
            try:
                for _ in range(self._random.randrange(1, 5)):
                    self._act(info)
            finally:
                if not self._process.scheduler.killed:
                    self._process.operations.release(None, info)

    def _act(self, info: Opened) -> None:
        kind = self._random.random()
        if kind < 0.2:
            self._sync(info)
        elif kind < 0.5:
            self._write(info, [self._line()])
        else:
            lines = [self._line() for _ in range(self._random.randrange(2, 7))]
            if self._random.random() < 0.25:
                lines.insert(self._random.randrange(len(lines) + 1), self._bad_line())
            self._write(info, lines)

    def _line(self) -> Line:
        self._number += 1
        size = self._random.choice((0, 0, 20, 60, LONGEST_VALUE))
        key = b"%s-k%d" % (self._name.encode(), self._random.randrange(4)) if self._keyed else None
        return self._world.line(self._topic, self._path, self._name, self._number, size, key)

    def _bad_line(self) -> Line:
        self._number += 1
        line = self._world.line(self._topic, self._path, self._name, self._number, 2 * MAX_MESSAGE_BYTES)
        line.fate = Fate.REFUSED
        return line

    def _bytes(self, line: Line) -> bytes:
        if not self._keyed:
            return line.value + b"\n"
        return b'{"key":"%s","value":"%s"}\n' % (line.key or b"", line.value)

    def _write(self, info: Opened, lines: list[Line]) -> None:
        """write(2), and what is left of it again, until all is taken; after an error on with the next line."""
        while lines:
            data = b"".join(map(self._bytes, lines))
            taken, error = self._write_once(info, data)
            while lines and taken >= len(self._bytes(lines[0])):
                taken -= len(self._bytes(lines[0]))
                line = lines.pop(0)
                if line.fate is not Fate.REFUSED:
                    self._world.acknowledge(line)
                elif error is None:
                    raise AssertionError(f"a line that cannot be a message was taken: {line.value[:40]!r}")
            if error is None and taken and lines:
                # A part of the first line is taken: the rest of it comes next, as with every program that goes on.
                self._finish(info, lines, taken)
            elif error is not None and lines:
                self._give_up(lines, error)

    def _finish(self, info: Opened, lines: list[Line], taken: int) -> None:
        """The first line is taken in part."""
        rest = b"".join(map(self._bytes, lines))[taken:]
        while rest:
            count, error = self._write_once(info, rest)
            rest = rest[count:]
            taken += count
            while lines and taken >= len(self._bytes(lines[0])):
                taken -= len(self._bytes(lines[0]))
                line = lines.pop(0)
                if line.fate is not Fate.REFUSED:
                    self._world.acknowledge(line)
            if error is not None and lines:
                return self._give_up(lines, error)
            if error is not None:
                return None
        return None

    def _give_up(self, lines: list[Line], error: Exception) -> None:
        """This program leaves the rest of its buffer after an error. What became of the first line of it is open (a
        sync may have failed after the append); none of the others was taken."""
        for place, line in enumerate(lines):
            if line.fate is Fate.SENT:
                line.fate = Fate.REFUSED if place else Fate.UNKNOWN
        lines.clear()

    def _write_once(self, info: Opened, data: bytes) -> tuple[int, Exception | None]:
        """write(2) as the kernel makes it of requests: how much was taken, or the error of the first request."""
        done, size = 0, self._random.randrange(CUT_BYTES, REQUEST_BYTES + 1)
        while done < len(data):
            part = data[done : done + size]
            try:
                count = self._process.operations.write_from(info.fh, memoryview(part), None)
            except Problem as error:
                return done, None if done else error
            done += count
            if count < len(part):
                break
            size = REQUEST_BYTES
        return done, None

    def _sync(self, info: Opened) -> None:
        lines = self._world.acknowledged(self._path)
        try:
            self._process.operations.fsync(None, 0, info)
        except Problem:
            return
        self._world.synced(self._path, lines)


class Reader:
    """A program that opens files and reads them, in order and out of order."""

    def __init__(self, process: Process, topics: list[str]) -> None:
        self._process = process
        self._world = process.world
        self._random = process.world.random
        self._topics = topics

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            tp = TopicPartition(self._random.choice(self._topics), self._random.randrange(2))
            path = f"/{tp.topic}/{tp.partition}/{self._name()}"
            info = Opened(os.O_RDONLY)
            try:
                self._process.operations.open(path, info)
            except Problem:
                continue
            try:
                self._read(info, tp, path)
            finally:
                if not self._process.scheduler.killed:
                    self._process.operations.release(None, info)

    def _name(self) -> str:
        first = self._random.randrange(30)
        last = first + self._random.randrange(20)
        names = ("messages.txt", "messages.txt", f"offsets/{first}-.txt", f"offsets/{first}-{last}.txt")
        return self._random.choice(names)

    def _read(self, info: Opened, tp: TopicPartition, path: str) -> None:
        read: dict[int, int] = {}
        front = 0
        for _ in range(self._random.randrange(1, 12)):
            position = front if self._random.random() < 0.8 else self._random.randrange(front + 1)
            size = self._random.choice((1, 50, 400, 4000))
            buffer = ctypes.create_string_buffer(size)
            try:
                count = self._process.operations.read_into(info.fh, ctypes.addressof(buffer), position, size)
            except Problem:
                return
            for index, byte in enumerate(buffer.raw[:count]):
                assert read.setdefault(position + index, byte) == byte, f"{path}: byte {position + index} has changed"
            front = max(front, position + count)
        content = bytes(read[position] for position in range(len(read))) if len(read) == front else b""
        values = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
        name = path.rpartition("/")[2].partition(".")[0]
        first = int(name.partition("-")[0]) if name[0].isdigit() else None
        self._world.sights.append(Sight(tp, path, first, values))


def upkeep(process: Process, rounds: int) -> None:
    """The maintenance thread."""
    assert process.maintenance is not None
    while process.working > 0 and rounds > 0:
        rounds -= 1
        wait_ms = process.maintenance.run_due()
        process.world.clock.time_ms += min(wait_ms, process.world.random.randrange(1, 60))


def administer(process: Process, rounds: int) -> None:
    """Makes and removes topics, changes their configuration, looks at the status; fills the disk and frees it."""
    world, owned = process.world, process.owned
    assert owned is not None
    for number in range(rounds):
        kind = world.random.random()
        try:
            if kind < 0.2:
                owned.create_topic(f"x{world.number}.{number}", 1, {"segment.bytes": "400"})
            elif kind < 0.35:
                made = [name for name in owned.log_dir.topics() if name.startswith("x")]
                if made:
                    world.deleted_topics.add(made[0])
                    owned.delete_topic(made[0])
            elif kind < 0.6:
                topic = world.random.choice(("plain", "kept", "keyed"))
                owned.alter_config(topic, {"segment.bytes": str(world.random.choice((300, 700, 5000)))})
            elif kind < 0.75:
                world.clock.time_ms += world.random.choice((-500, 10, 1000, 100_000))
            elif kind < 0.85 and not world.is_full:
                world.is_full = True
            else:
                world.is_full = False
                process.operations._tree.status()
        except Problem:
            continue
    world.is_full = False


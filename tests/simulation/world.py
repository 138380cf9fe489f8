"""What the simulated process runs on, a disk and a clock, and what it was told: every line that was ever written."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from storage.errors import StorageError
from storage.files.dir_lock import DirLock
from storage.format.batches import BatchTable, scan
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.simulation.scheduler import current
from tests.support.faults import FaultyDisk, FaultyFile
from tests.support.owned_dirs import NOW_MS


class Fate(Enum):
    """What the writer of a line knows of it."""

    SENT = "sent"  # a write has begun and has not returned: it may be there
    REFUSED = "refused"  # it must not be there
    UNKNOWN = "unknown"  # an error that leaves it open
    ACKNOWLEDGED = "acknowledged"  # write(2) has returned behind it
    SYNCED = "synced"  # and fsync(2) after that


@dataclass(eq=False)
class Line:
    """A line that a program writes; no two have the same value. `path`: the file that it is written to."""

    topic: str
    path: str
    writer: str
    number: int
    value: bytes
    key: bytes | None = None
    fate: Fate = Fate.SENT


Place = tuple[TopicPartition, int]  # and an offset


@dataclass
class Sight:
    """What a program read from the beginning of a file: whole lines, without keys and offsets."""

    tp: TopicPartition
    path: str
    first_offset: int | None
    values: list[bytes]


class SimulatedClock:
    """It goes on a little at each look, and jumps when it is told to.

    Three clocks in one: what the engine calls the time, which may be set back; what never goes back; and what the file
    system stamps files with, of which no two stamps are the same.
    """

    def __init__(self, seed: random.Random) -> None:
        self.time_ms = NOW_MS
        self._random = seed
        self._stamp_ns = NOW_MS * 1_000_000

    def monotonic(self) -> float:
        """Seconds, as time.monotonic."""
        return self._stamp_ns / 1e9

    def time_ns(self) -> int:
        """The file system's time, as time.time_ns: now and then it is long after the last stamp."""
        self._stamp_ns += self._random.choice((0, 1000, 100_000_000))
        return self._stamp_ns

    def stamp(self, path: Path) -> None:
        """Marks a file or directory as changed now."""
        self._stamp_ns += 10_007
        with contextlib.suppress(FileNotFoundError):
            os.utime(path, ns=(self._stamp_ns, self._stamp_ns))

    def now_ms(self) -> int:
        scheduler = current()
        if scheduler is not None and not scheduler.killed:
            scheduler.switch("clock")
        self.time_ms += self._random.choice((0, 0, 1, 3))
        return self.time_ms


class SimulatedDisk(FaultyDisk):
    """A FaultyDisk whose operations are switch points, and which notes what was in the segments that are removed."""

    def __init__(self, root: Path, world: World) -> None:
        super().__init__(root, seed=world.random.randrange(1 << 32))
        self._world = world
        self.fail = self._failure

    def operation(self, what: str, path: Path) -> None:
        scheduler = current()
        if scheduler is not None:
            scheduler.switch(what)
        super().operation(what, path)

    def open(self, path: Path, *, create: bool = False) -> FaultyFile:
        existed = path.exists()
        file = super().open(path, create=create)
        if not existed:
            self._stamp(path, path.parent)
        return file

    def changed(self, path: Path) -> None:
        self._stamp(path)

    def mkdir(self, path: Path) -> None:
        super().mkdir(path)
        self._stamp(path, path.parent)

    def rmdir(self, path: Path) -> None:
        super().rmdir(path)
        self._stamp(path.parent)

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        self._stamp(source.parent, target.parent)
        if target.name.endswith(".log.deleted"):
            self._note_removed(target)

    def _stamp(self, *paths: Path) -> None:
        for path in paths:
            self._world.clock.stamp(path)

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._stamp(path.parent)

    def durable_bytes(self, topic: str) -> bytes:
        """What a power loss now would surely leave of a topic's segments."""
        found = []
        for directory, names in self._durable.items():
            if directory.name.rpartition("-")[0] == topic:
                inodes = [inode for name, inode in names.items() if ".log" in name]
                found += [inode.durable for inode in inodes if inode is not None]
        return b"".join(found)

    def _note_removed(self, path: Path) -> None:
        """A segment is removed in order once it has its `.deleted` name: it need not be on disk for that."""
        topic, _, partition = path.parent.name.rpartition("-")
        if partition.isdecimal():  # otherwise the directory of a topic that is being deleted
            for offset, value in values_in(path.read_bytes()):
                self._world.removed[TopicPartition(topic, int(partition)), offset] = value

    def _failure(self, what: str, _path: Path) -> int | None:
        world = self._world
        kind = what.split(" ")[0]
        if world.is_full and kind in ("write", "create", "mkdir"):
            world.faults["ENOSPC"] = world.faults.get("ENOSPC", 0) + 1
            return errno.ENOSPC
        if world.failing and kind in ("write", "sync", "rename", "sync_dir") and world.random.random() < world.failing:
            world.faults["EIO"] = world.faults.get("EIO", 0) + 1
            return errno.EIO
        return None


@dataclass
class World:
    """One seed's world, over all the processes that live in it one after the other."""

    seed: int
    path: Path
    random: random.Random = field(init=False)
    clock: SimulatedClock = field(init=False)
    disk: SimulatedDisk = field(init=False)
    lines: dict[bytes, Line] = field(default_factory=dict)
    removed: dict[Place, bytes | None] = field(default_factory=dict)
    sights: list[Sight] = field(default_factory=list)
    deleted_topics: set[str] = field(default_factory=set)
    flushed_topics: set[str] = field(default_factory=set)  # flush.messages=1: what is acknowledged is on disk
    faults: dict[str, int] = field(default_factory=dict)
    had_errors: bool = False  # a disk that failed: partitions may be offline
    is_full: bool = False
    failing: float = 0.0  # how probable EIO is
    number: int = 0  # of the process
    on_lock: Callable[[DirLock], None] = lambda _lock: None

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.clock = SimulatedClock(self.random)
        self.path.mkdir(parents=True, exist_ok=True)
        self.new_disk()

    def new_disk(self) -> None:
        """At the beginning, and after a power loss: what is there now is what was durable."""
        self.disk = SimulatedDisk(self.path, self)
        for path in sorted(self.path.rglob("*"), reverse=True):
            self.clock.stamp(path)
        self.clock.stamp(self.path)

    def line(self, topic: str, path: str, writer: str, number: int, size: int, key: bytes | None = None) -> Line:
        value = b"%s.%d." % (writer.encode(), number)
        line = Line(topic, path, writer, number, value + b"x" * max(0, size - len(value)), key)
        self.lines[line.value] = line
        return line

    def acknowledge(self, line: Line) -> None:
        line.fate = Fate.ACKNOWLEDGED
        if line.topic in self.flushed_topics:
            self.synced(line.path, {line.value})

    def synced(self, path: str, lines: set[bytes]) -> None:
        """fsync of a file has returned: those of its lines that were acknowledged when it began."""
        for value in lines:
            self.lines[value].fate = Fate.SYNCED
        topics = {self.lines[value].topic for value in lines}
        durable = {topic: self.disk.durable_bytes(topic) for topic in topics}
        removed = set(self.removed.values())
        for value in lines:
            if value not in removed and value not in durable[self.lines[value].topic]:
                raise AssertionError(f"not on disk though it was said to be: {value[:60]!r} to {path}")

    def acknowledged(self, path: str) -> set[bytes]:
        return {v for v, line in self.lines.items() if line.path == path and line.fate is Fate.ACKNOWLEDGED}


def values_in(data: bytes) -> Iterator[tuple[int, bytes | None]]:
    """The offsets and values of a segment's bytes, as far as they are whole batches."""
    table = BatchTable.empty(4096)
    scan(memoryview(data), 0, table, 0, len(data))
    decoder, row = Decoder(), 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0)
        if block.damage is not None:
            return
        for index in range(len(block)):
            yield int(block.offset[index]), block.value(index)
        row = block.next_row


def messages_in(path: Path) -> dict[TopicPartition, list[tuple[int, bytes | None, bytes | None]]]:
    """Offset, key and value of every message that a reader finds in a log directory. Raises what is damaged."""
    log_dir = LogDir.open_read_only(path)
    found: dict[TopicPartition, list[tuple[int, bytes | None, bytes | None]]] = {}
    try:
        for topic in log_dir.topics():
            for partition in log_dir.partitions(topic):
                tp = TopicPartition(topic, partition)
                messages = found[tp] = []
                snapshot = log_dir.log(tp).snapshot()
                for block in read_range(snapshot, snapshot.log_start_offset):
                    if block.damage is not None:
                        raise AssertionError(f"{tp} is damaged: {block.damage.error}")
                    messages += [(int(block.offset[n]), block.key(n), block.value(n)) for n in range(len(block))]
    except StorageError as error:
        raise AssertionError(f"cannot be read: {error}") from error
    finally:
        log_dir.close()
    return found

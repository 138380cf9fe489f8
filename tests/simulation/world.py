"""What the simulated processes run on, a disk and a clock, and what they were told: every line that was ever
written."""

from __future__ import annotations

import errno
import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from storage.errors import StorageError
from storage.files import checkpoints, names
from storage.files.commit_ledger import WriteId
from storage.files.dir_lock import DirLock
from storage.format.batches import BatchTable, scan
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.simulation.clocks import Inodes, SimulatedClock
from tests.simulation.copies import Copy
from tests.simulation.scheduler import Killed, current
from tests.support.faults import FaultyDisk, FaultyFile


class Anomaly(AssertionError):
    """What was promised does not hold."""


class Fate(Enum):
    """What the writer of a line knows of it."""

    SENT = "sent"  # a write has begun and has not returned: it may be there
    REFUSED = "refused"  # it must not be there
    UNKNOWN = "unknown"  # an error that leaves it open
    ACKNOWLEDGED = "acknowledged"  # write(2) has returned behind it
    SYNCED = "synced"  # and fsync(2) after that


@dataclass(eq=False)
class Line:
    """A message that a program writes; no two have the same value. `path`: the file that it is written to. `began`,
    `told`: when (World.tick) its first byte was written, and when its writer learnt that it is there."""

    topic: str
    path: str
    writer: str
    number: int
    value: bytes
    key: bytes | None = None
    timestamp: int | None = None
    fate: Fate = Fate.SENT
    began: int = 0
    told: int | None = None


Place = tuple[TopicPartition, int]  # and an offset


class Message(NamedTuple):
    """A message as a reader finds it."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


Messages = dict[TopicPartition, list[Message]]
Shares = dict[TopicPartition, list[Line]]  # of a write
Writes = list[tuple[int, bytes | None]]  # of a file, as in _Inode


@dataclass
class Removal:
    """A topic was removed between these ticks; `end` None while that goes on, `failed`: it may be there in part."""

    begin: int
    end: int | None = None
    failed: bool = False


class SimulatedFile(FaultyFile):
    """A FaultyFile whose failed sync loses what it should have written, as Linux does: the process's next sync does not
    bring it back, although everybody still reads it."""

    def sync(self):
        assert isinstance(self._disk, SimulatedDisk)
        writes = list(self._inode.pending)
        try:
            super().sync()
        except OSError:
            self._disk.lost.append((self._inode, writes))
            self._inode.pending.clear()
            raise
        for inode, lost in self._disk.lost:
            if inode is self._inode:
                lost[:] = _left_of(lost, writes)


def _left_of(lost, writes):
    """What later writes, which did reach the disk, leave of earlier ones that did not."""
    for position, data in writes:
        end = sys.maxsize if data is None else position + len(data)
        left = []
        for at, earlier in lost:
            if earlier is None:
                left += [(at, None)] if end <= at else []
                continue
            before, behind = earlier[: max(0, position - at)], earlier[max(0, end - at) :]
            left += [(at, before)] if before else []
            left += [(at + len(earlier) - len(behind), behind)] if behind else []
        lost = left
    return lost


class SimulatedDisk(FaultyDisk):
    """A FaultyDisk whose operations are switch points, and which notes what was in the segments that are removed."""

    file_type = SimulatedFile
    any_order = True

    def __init__(self, root, world):
        super().__init__(root, seed=world.stream("disk").randrange(1 << 32))
        self._world = world
        self.fail = self._failure
        self.left = -1  # operations until the process is killed in one of them; negative: it is not
        self.left_renames = -1  # the same of renames of segments' files
        self.was_killed = world.lost_power  # the process, at least once
        self.lost = []  # what failed syncs did not write

    @property
    def latest_ms(self):
        return self._world.clock.latest_ms

    def repair(self):
        """Before a mount is started again the disk is repaired, and what its cache held is written."""
        for inode, writes in reversed(self.lost):
            inode.pending[:0] = writes
        self.lost.clear()

    def operation(self, what, path):
        scheduler = current()
        if scheduler is not None:
            scheduler.switch(what)
            self.left -= 1
            self.left_renames -= what.startswith("rename 0")
            if not self.left or not self.left_renames:
                scheduler.kill()
                raise Killed
        super().operation(what, path)

    def open(self, path, *, create=False):
        path = self._relative(path)
        number = self._failure("open", path)
        if number is not None:
            raise OSError(number, os.strerror(number), str(path))
        existed = path.exists()
        file = super().open(path, create=create)
        if not existed:
            self._world.inodes.of(os.fstat(file.fileno()).st_ino)
            self._stamp(path, path.parent)
        return file

    def changed(self, path):
        self._stamp(path)

    def mkdir(self, path):
        super().mkdir(path)
        self._world.inodes.of(path.stat().st_ino)
        self._stamp(path, path.parent)

    def rmdir(self, path):
        number = path.stat().st_ino
        super().rmdir(path)
        self._world.inodes.freed(number)
        self._stamp(path.parent)

    def rename(self, source, target):
        number = target.stat().st_ino if target.is_file() else None
        super().rename(source, target)
        if number is not None:
            self._world.inodes.freed(number)
        self._stamp(source.parent, target.parent)
        if target.is_dir() and not self._world.lost_power:  # a loss of power keeps any of the names
            check_partitions(target.parent)  # it may be killed now
        if target.name.endswith(".log.deleted"):
            self._note_removed(target)

    def _stamp(self, *paths):
        for path in paths:
            self._world.clock.stamp(path)

    @staticmethod
    def _relative(path):
        """The lock of a directory is opened by its absolute path."""
        return path.relative_to(Path.cwd()) if path.is_absolute() else path

    def unlink(self, path):
        path = self._relative(path)
        number = path.stat().st_ino
        is_source = path.name.endswith(".log") and any(path.parent.glob("*.log.swap"))
        removed = list(messages_of(path.read_bytes())) if is_source else []
        super().unlink(path)
        # Recovery finishes a replacement of the cleaner: its sources are removed at once, under their own names.
        self._note(path, removed)
        self._world.inodes.freed(number)
        self._stamp(path.parent)

    def durable_bytes(self, topic):
        """What a power loss now would surely leave of a topic's segments."""
        found = []
        for directory, inodes_by_name in self._durable.items():
            if directory.name.rpartition("-")[0] == topic:
                inodes = [inode for name, inode in inodes_by_name.items() if ".log" in name]
                found += [inode.durable for inode in inodes if inode is not None]
        return b"".join(found)

    def durable_file(self, path):
        """What a power loss now would surely leave of a file; None: perhaps nothing."""
        inode = self._durable.get(path.parent, {}).get(path.name)
        return None if inode is None else inode.durable

    def has_unsynced_names(self, directory, ending):
        """Whether files of a directory with this ending were renamed, and it was not synced since."""
        paths = [path for change in self._pending if change.directory == directory for path in change.paths()]
        return any(path.name.endswith(ending) for path in paths)

    def _note_removed(self, path):
        """A segment is removed in order once it has its `.deleted` name: it need not be on disk for that."""
        messages = list(messages_of(path.read_bytes()))
        tp = self._note(path, messages)
        if tp is None or not messages or messages[-1].offset < self._world.deleted.get(tp, 0):
            return
        age_ms = self._world.clock.latest_ms - max(message.timestamp for message in messages)
        if age_ms <= self._world.retained_ms.get(tp.topic, -1 << 62):
            raise Anomaly(f"lost write: retention takes {tp} {messages[-1].offset}, which is {age_ms} ms old")
        limit = self._world.retained_bytes.get(tp.topic)
        left = sum(other.stat().st_size for other in path.parent.glob("*.log"))
        if limit is not None and left < limit:
            raise Anomaly(f"lost write: retention leaves {left} bytes of {tp}, {limit} were to be kept")

    def _note(self, path, messages):
        """Notes messages that a segment held; None in the directory of a topic that is being deleted."""
        topic, _, partition = path.parent.name.rpartition("-")
        if not partition.isdecimal():
            return None
        tp = TopicPartition(topic, int(partition))
        for message in messages:
            self._world.removed[tp, message.offset] = message
        return tp

    def _failure(self, what, _path):
        world = self._world
        kind = what.split(" ")[0]
        for name, (number, kinds) in _FAILURES.items():
            rate = world.failing.get(name, 0.0)
            if rate and kind in kinds and (rate >= 1 or world.trouble.random() < rate):
                world.faults[name] = world.faults.get(name, 0) + 1
                if name == "slow":
                    world.clock.time_ms += world.trouble.randrange(1, 60)
                    continue
                world.had_errors |= name == "EIO"
                return number
        return None


_FAILURES = {
    "ENOSPC": (errno.ENOSPC, ("write", "create", "mkdir")),
    "EIO": (errno.EIO, ("write", "sync", "rename", "sync_dir", "truncate", "unlink")),
    "EMFILE": (errno.EMFILE, ("open",)),
    "slow": (0, ("write", "sync", "sync_dir", "rename")),
}


def check_partitions(log_dir):
    """A topic that was made or removed in part has its first partitions."""
    there = {}
    for directory in log_dir.iterdir():
        topic, _, number = directory.name.rpartition("-")
        if directory.is_dir() and number.isdecimal():
            there.setdefault(topic, set()).add(int(number))
    for topic, numbers in there.items():
        if numbers != set(range(len(numbers))):
            raise Anomaly(f"partitions of {topic} in part: {sorted(numbers)}")


@dataclass
class World:
    """One plan's world, over all the processes that live in it one after the other."""

    seed: int
    path: Path
    clock: SimulatedClock = field(init=False)
    disk: SimulatedDisk = field(init=False)
    inodes: Inodes = field(default_factory=Inodes)
    random: random.Random = field(init=False)
    trouble: random.Random = field(init=False)
    lines: dict[bytes, Line] = field(default_factory=dict)
    removed: dict[Place, Message] = field(default_factory=dict)
    rotten: dict[Place, Message] = field(default_factory=dict)  # what a flipped bit may have destroyed
    untimed: set[Place] = field(default_factory=set)  # of these: earlier than the first of their batch
    copies: dict[TopicPartition, Copy] = field(default_factory=dict)
    sights: list[Sight] = field(default_factory=list)
    removals: dict[str, list[Removal]] = field(default_factory=dict)
    lost_power: bool = False  # at least once
    commits: list[list[Line]] = field(default_factory=list)  # writes that are there as a whole, or not at all
    query: tuple[WriteId, Shares] | None = None  # the last attempt of one that goes on in the next process
    offsets: dict[str, list[int | None]] = field(default_factory=dict)  # of groups: the last commit, and tried ones
    retained_bytes: dict[str, int] = field(default_factory=dict)  # retention.bytes of topics
    retained_ms: dict[str, int] = field(default_factory=dict)  # retention.ms
    segment_bytes: dict[str, int] = field(default_factory=dict)  # the largest segment.bytes that was in force
    segment_ms: dict[str, int] = field(default_factory=dict)  # segment.ms
    flush_ms: dict[str, int] = field(default_factory=dict)  # flush.ms
    delete_retention_ms: dict[str, int] = field(default_factory=dict)  # delete.retention.ms
    horizons: dict[tuple[TopicPartition, int], int] = field(default_factory=dict)  # of deleted keys, after a pass
    partitions: dict[str, int] = field(default_factory=dict)  # how many a topic has at least
    deletes_records: bool = False  # a program asks for the deletion of records
    deleted: dict[TopicPartition, int] = field(default_factory=dict)  # up to where: limits do not bound that
    altered: dict[tuple[str, str], str] = field(default_factory=dict)  # configuration: the last change that succeeded
    flushed_topics: set[str] = field(default_factory=set)  # flush.messages=1: what is acknowledged is on disk
    faults: dict[str, int] = field(default_factory=dict)
    failing: dict[str, float] = field(default_factory=dict)
    had_errors: bool = False  # a disk that failed: partitions may be offline
    had_unfinished: bool = False  # a commit that was left to the next opening: so may be its partitions
    number: int = 0  # of the process
    on_lock: Callable[[DirLock], None] = lambda _lock: None
    _ticks: int = 0
    _disks: int = 0

    def __post_init__(self):
        self.random, self.trouble = self.stream("engine"), self.stream("trouble")
        self.clock = SimulatedClock(self.stream("clock"))
        self.path.mkdir(parents=True, exist_ok=True)
        self.new_disk()

    def stream(self, name):
        """Random numbers of their own: what one part of the world draws does not change what others draw."""
        self._disks += 1
        return random.Random(f"{self.seed} {name} {self._disks}")

    def new_disk(self):
        """At the beginning, and after a power loss: what is there now is what was durable."""
        self.disk = SimulatedDisk(self.path, self)
        for path in sorted(self.path.rglob("*"), reverse=True):
            self.clock.stamp(path)
        self.clock.stamp(self.path)

    def lose_power(self):
        """What was only acknowledged may be gone, and what was read with it."""
        self.sights.clear()
        self.horizons.clear()
        for line in self.lines.values():
            if line.fate is Fate.ACKNOWLEDGED:
                line.fate = Fate.UNKNOWN
        self.disk.power_loss()
        self.lost_power = True
        self.new_disk()

    def tick(self):
        """A number for this moment: later ones are greater."""
        self._ticks += 1
        return self._ticks

    def line(self, topic, path, writer, number, size, key=None, timestamp=None):
        text = b"%s.%d." % (writer.encode(), number)
        # No part of it looks like another one: only its writer knows where a line begins that is written in parts.
        value = text + b"".join(b"%d," % n for n in range((size - len(text)) // 2))
        line = Line(topic, path, writer, number, value[: max(size, len(text))], key, timestamp)
        line.began = self.tick()
        self.lines[line.value] = line
        return line

    def acknowledge(self, line):
        line.fate, line.told = Fate.ACKNOWLEDGED, self.tick()
        if line.topic in self.flushed_topics:
            self.synced(line.path, {line.value})

    def synced(self, path, lines):
        """fsync of a file has returned: those of its lines that were acknowledged when it began."""
        lines = {value for value in lines if not self.may_be_gone(self.lines[value])}
        for value in lines:
            self.lines[value].fate = Fate.SYNCED
        topics = {self.lines[value].topic for value in lines}
        durable = {topic: self.disk.durable_bytes(topic) for topic in topics}
        removed = {message.value for known in (self.removed, self.rotten) for message in known.values()}
        latest = self.latest_by_key()
        lines = {value for value in lines if (key := self.lines[value].key) is None or latest[key] is self.lines[value]}
        for value in lines:
            if value not in removed and value not in durable[self.lines[value].topic]:
                raise Anomaly(f"lost write: not on disk though it was said to be: {value[:60]!r} to {path}")

    def acknowledged(self, path):
        """The lines that fsync of this file covers."""
        return {
            value
            for value, line in self.lines.items()
            if line.fate is Fate.ACKNOWLEDGED and (line.path == path or line.path.startswith(_under(path)))
        }

    def latest_by_key(self):
        """The last line of each key that may be there: compaction may take all earlier ones."""
        latest = {}
        for line in self.lines.values():
            if line.key is not None and line.fate is not Fate.REFUSED:
                latest[line.key] = line
        return latest

    def may_be_gone(self, line):
        """Whether its topic was, or may have been, removed with it."""
        return any(removal.end is None or removal.end > line.began for removal in self.removals.get(line.topic, ()))

    def must_be_gone(self, line):
        """Whether its topic was removed after it was acknowledged."""
        if line.told is None:
            return False
        return any(
            removal.end is not None and not removal.failed and removal.begin > line.told
            for removal in self.removals.get(line.topic, ())
        )

    def end_removals(self):
        """The process has ended: a removal that had not returned may have been done in part."""
        for removals in self.removals.values():
            for removal in removals:
                if removal.end is None:
                    removal.end, removal.failed = self.tick(), True


@dataclass
class Sight:
    """What a program read of a file from its beginning, in order: whole messages.

    `offsets`, `timestamps`: of each message, where the format shows them. `begins`: what the range's first offset may
    have been; `tick` and `opened`: when opening it began and ended; `start`: the log start after the last read;
    `ended`: the log end before the end of file was read, None where reading ended before it.
    """

    tp: TopicPartition
    path: str
    values: list[bytes]
    offsets: list[int] | None
    begins: tuple[int, int]
    last: int | None = None
    most: int | None = None
    times: tuple[int | None, int | None] | None = None
    ended: int | None = None
    tick: int = 0
    opened: int = 0
    start: int = 0


def _under(path):
    """A topic's file covers its partitions' files."""
    topic, _, name = path.rpartition("/")
    return f"{topic}/" if name.startswith("@append") and topic.count("/") == 1 else "\0"


def messages_of(data):
    """The messages in a segment's bytes, as far as they are whole batches."""
    table = BatchTable.empty(4096)
    scan(memoryview(data), 0, table, 0, len(data))
    decoder, row = Decoder(), 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0)
        if block.damage is not None:
            return
        for n in range(len(block)):
            yield Message(int(block.offset[n]), block.key(n), block.value(n), int(block.timestamp[n]))
        row = block.next_row


def messages_in(path, damaged):
    """Every message that a reader finds in a log directory. Raises what is damaged, except in these partitions."""
    log_dir = LogDir.open_read_only(path)
    found = {}
    try:
        for tp in log_dir.all_partitions():
            messages = found[tp] = []
            snapshot = log_dir.log(tp).snapshot()
            for block in read_range(snapshot, snapshot.log_start_offset):
                if block.damage is not None and tp not in damaged:
                    raise Anomaly(f"{tp} is damaged: {block.damage.error}")
                for n in range(len(block)):
                    messages.append(
                        Message(int(block.offset[n]), block.key(n), block.value(n), int(block.timestamp[n]))
                    )
    except StorageError as error:
        raise Anomaly(f"cannot be read: {error}") from error
    finally:
        log_dir.close()
    return found


def log_start(path, tp):
    """Where a log of a closed directory begins."""
    bases = [int(log.stem) for log in (path / tp.dir_name).glob("*.log")]
    return max(checkpoints.read(path / names.LOG_START_CHECKPOINT).get(tp, 0), min(bases, default=0))


def batches_in(directory):
    """Base offset and checksum of each batch in a partition's segments."""
    found = []
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        table = BatchTable.empty(4096)
        scan(memoryview(data), 0, table, 0, len(data))
        rows = zip(table.base_offset.tolist(), table.crc.tolist(), strict=True)
        found += [(int(base), int(crc)) for base, crc in rows]
    return found

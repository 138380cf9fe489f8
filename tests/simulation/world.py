"""A plan's world: a disk and a clock, and what programs were told of every line that was ever written."""

import random
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from storage.types import TopicPartition
from tests.simulation.clocks import Inodes, SimulatedClock
from tests.simulation.contents import Anomaly
from tests.simulation.disk import SimulatedDisk

LIMITS = ("retention.bytes", "retention.ms", "segment.bytes", "segment.ms", "flush.ms", "flush.messages",
          "delete.retention.ms")  # fmt: skip
ANY_NUMBER = 1 << 30


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


@dataclass
class Removal:
    """A topic was removed between these ticks; `end` None while that goes on, `failed`: it may be there in part."""

    begin: int
    end: int | None = None
    failed: bool = False


@dataclass
class Sight:
    """What a program read of a file from its beginning, in order: whole messages.

    `offsets`, of each message, where the format shows them. `begins`: what the range's first offset may have been;
    `tick` and `opened`: when opening it began and ended; `start`: the log start after the last read; `ended`: the log
    end before the end of file was read, None where reading ended before it.
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


class World:
    """One plan's world, over all the processes that live in it one after the other."""

    def __init__(self, seed, path):
        self.seed = seed
        self.path = path
        self.inodes = Inodes()
        self.number = 0  # of the process
        self.lock = None  # of the directory, the last one
        self.descriptors = ANY_NUMBER  # that logs may have
        # What was done
        self.lines = {}  # by value
        self.sights = []
        self.copies = {}  # Copy, by partition
        self.commits = []  # lines of a write, which are there as a whole or not at all
        self.query = None  # the last attempt of one that goes on in the next process: WriteId, lines by partition
        self.offsets = {}  # of groups: the last commit, and tried ones
        self.removals = {}  # of topics
        self.partitions = {}  # how many a topic has at least
        self.deletes_records = False  # a program asks for the deletion of records
        self.deleted = {}  # by partition, up to where: limits do not bound that
        self.altered = {}  # configuration, by topic and key: the last change that succeeded
        self.settings = {key: {} for key in LIMITS}  # by topic; of segment.bytes the largest that was in force
        self.intervals = set()  # each index.interval.bytes that a follower's topic had
        # What became of messages, by partition and offset
        self.removed = {}
        self.rotten = {}  # what a flipped bit may have destroyed
        self.untimed = set()  # of these: earlier than the first of their batch
        self.horizons = {}  # of deleted keys, after a pass
        # Faults
        self.failing = {}
        self.faults = Counter()
        self.had_errors = False  # a disk that failed: partitions may be offline
        self.had_unfinished = False  # a commit that was left to the next opening: so may be its partitions
        self.lost_power = False  # at least once
        self._ticks = self._streams = 0
        self.random, self.trouble = self.stream("engine"), self.stream("trouble")
        self.clock = SimulatedClock(self.stream("clock"))
        self.path.mkdir(parents=True, exist_ok=True)
        self.new_disk()

    def stream(self, name):
        """Random numbers of their own: what one part of the world draws does not change what others draw."""
        self._streams += 1
        return random.Random(f"{self.seed} {name} {self._streams}")

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
        if self.settings["flush.messages"].get(line.topic) == 1:  # what is acknowledged is on disk
            self.synced(line.path, {line.value})

    def synced(self, path, lines):
        """fsync of a file has returned: those of its lines that were acknowledged when it began."""
        lines = [self.lines[value] for value in lines if not self.may_be_gone(self.lines[value])]
        for line in lines:
            line.fate = Fate.SYNCED
        durable = {topic: self.disk.durable_bytes(topic) for topic in {line.topic for line in lines}}
        removed = {message.value for known in (self.removed, self.rotten) for message in known.values()}
        latest = self.latest_by_key()
        for line in lines:
            is_replaced = line.value in removed or (line.key is not None and latest[line.key] is not line)
            if not is_replaced and line.value not in durable[line.topic]:
                raise Anomaly(f"lost write: not on disk though it was said to be: {line.value[:60]!r} to {path}")

    def acknowledged(self, path):
        """The lines that fsync of this file covers."""
        return {
            value
            for value, line in self.lines.items()
            if line.fate is Fate.ACKNOWLEDGED and (line.path == path or line.path.startswith(_under(path)))
        }

    def latest_by_key(self):
        """The last line of each key that may be there: compaction may take all earlier ones."""
        lines = self.lines.values()
        return {line.key: line for line in lines if line.key is not None and line.fate is not Fate.REFUSED}

    def may_be_gone(self, line):
        """Whether its topic was, or may have been, removed with it."""
        return any(removal.end is None or removal.end > line.began for removal in self.removals.get(line.topic, ()))

    def must_be_gone(self, line):
        """Whether its topic was removed after it was acknowledged."""
        return line.told is not None and any(
            removal.end is not None and not removal.failed and removal.begin > line.told
            for removal in self.removals.get(line.topic, ())
        )

    def end_removals(self):
        """The process has ended: a removal that had not returned may have been done in part."""
        for removals in self.removals.values():
            for removal in removals:
                if removal.end is None:
                    removal.end, removal.failed = self.tick(), True


def _under(path):
    """A topic's file covers its partitions' files."""
    topic, _, name = path.rpartition("/")
    return f"{topic}/" if name.startswith("@append") and topic.count("/") == 1 else "\0"

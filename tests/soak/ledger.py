"""What was written and what has been seen of it: each message is to be seen once, in the order of its writer.

A message is a line `w03 000000123 1b2c3d4e payload`: writer, number, CRC of the payload. It is flying while its write
is under way, then acknowledged, or possible if the write failed: then it may be there or not.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from threading import Lock
from typing import NamedTuple

_MOST_UNSEEN = 1000


class BadLine(Exception):
    """A line that nobody can have written."""


class Message(NamedTuple):
    """Who wrote a line, and which of the writer's lines it is."""

    writer: int
    number: int


def line_of(message, dice):
    """The message, without a newline."""
    payload = (b"%x" % dice.getrandbits(64)) * dice.choice((1, 1, 4, 20))
    return b"w%02d %09d %08x %s" % (*message, zlib.crc32(payload), payload)


def message_of(line):
    """The message of a line. BadLine."""
    try:
        writer, number, crc, payload = line.split(b" ", 3)
        if writer[:1] == b"w" and int(crc, 16) == zlib.crc32(payload):
            return Message(int(writer[1:]), int(number))
    except ValueError:
        pass
    raise BadLine(line[:200])


class _State(Enum):
    FLYING = "flying"
    SEEN_EARLY = "seen before its write had returned"
    ACKNOWLEDGED = "acknowledged"
    POSSIBLE = "possible"


@dataclass(frozen=True, slots=True)
class Account:
    """The state of the ledger; each number counts messages. The last four must be 0 at the end."""

    written: int
    seen: int
    possible: int
    lost: int
    doubled: int
    invented: int
    reordered: int

    @property
    def is_sound(self):
        return not (self.lost or self.doubled or self.invented or self.reordered)

    def __str__(self):
        return (
            f"{self.written} messages acknowledged, {self.seen} seen, {self.possible} of unknown outcome; "
            f"lost {self.lost}, doubled {self.doubled}, invented {self.invented}, reordered {self.reordered}"
        )


class Ledger:
    """Thread-safe. Messages that were acknowledged and seen are forgotten, so it stays small."""

    def __init__(self):
        # Guarded by the lock.
        self._lock = Lock()
        self._states = {}
        self._next = Counter()
        self._last = {}  # by writer and place
        self._counts = Counter()

    def begin(self, writer, count):
        """The next messages of a writer, which are about to be written."""
        with self._lock:
            first = self._next[writer]
            self._next[writer] += count
            found = [Message(writer, number) for number in range(first, first + count)]
            self._states.update(dict.fromkeys(found, _State.FLYING))
            return found

    def acknowledge(self, messages):
        """The write of these has returned."""
        with self._lock:
            self._counts["written"] += len(messages)
            for message in messages:
                if self._states[message] is _State.SEEN_EARLY:
                    del self._states[message]
                else:
                    self._states[message] = _State.ACKNOWLEDGED

    def doubt(self, messages):
        """The write of these has failed."""
        with self._lock:
            for message in messages:
                if self._states[message] is _State.SEEN_EARLY:
                    del self._states[message]
                else:
                    self._states[message] = _State.POSSIBLE
                    self._counts["possible"] += 1

    def see(self, message, place):
        """The message is in the log, at a place (a partition) where the writer's earlier ones have been seen. Returns
        what is wrong about that, if anything."""
        with self._lock:
            state = self._states.get(message)
            wrong = None
            if state is None or state is _State.SEEN_EARLY:
                wrong = "doubled" if message.number < self._next[message.writer] else "invented"
            elif state is _State.FLYING:
                self._states[message] = _State.SEEN_EARLY
            else:
                self._counts["possible"] -= state is _State.POSSIBLE
                del self._states[message]
            if wrong is None:
                self._counts["seen"] += 1
                if message.number < self._last.get((message.writer, place), -1):
                    wrong = "reordered"
                self._last[message.writer, place] = message.number
            if wrong is not None:
                self._counts[wrong] += 1
            return wrong

    def is_behind(self):
        """Whether so much is waiting to be seen that retention might remove it unseen."""
        with self._lock:
            return len(self._states) > self._counts["possible"] + _MOST_UNSEEN

    def account(self):
        """The numbers so far. What has not been seen yet counts as lost."""
        with self._lock:
            states, counts = Counter(self._states.values()), self._counts
            return Account(
                counts["written"], counts["seen"], counts["possible"], states[_State.ACKNOWLEDGED],
                counts["doubled"], counts["invented"], counts["reordered"],
            )  # fmt: skip


class LatestOfKeys:
    """The last acknowledged message of each key of a compacted topic, and those that may have come after it.

    Thread-safe.
    """

    def __init__(self):
        # Guarded by the lock.
        self._lock = Lock()
        self._acknowledged = {}
        self._possible = {}
        self.count = 0

    def write(self, key, message, *, acknowledged):
        """Keys belong to one writer each, so their messages come in order."""
        with self._lock:
            if acknowledged:
                self._acknowledged[key] = message
                self._possible.pop(key, None)
                self.count += 1
            else:
                self._possible.setdefault(key, set()).add(message)

    def wrong(self, found):
        """What is wrong about the latest messages that a reader found."""
        with self._lock:
            problems = []
            for key, message in self._acknowledged.items():
                if found.get(key) != message and found.get(key) not in self._possible.get(key, ()):
                    problems.append(f"{key!r}: {message} was acknowledged last, {found.get(key)} is there")
            return problems

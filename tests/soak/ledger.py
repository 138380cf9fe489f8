"""What was written and what has been seen of it: each message is to be seen once, in the order of its writer.

A message is a line `w03 000000123 1b2c3d4e payload`: writer, number, CRC of the payload.
"""

import zlib
from collections import Counter, defaultdict
from threading import Lock
from typing import NamedTuple

ACKNOWLEDGED, POSSIBLE, SEEN = 1, 2, 4
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


class Ledger:
    """Thread-safe. One byte a message: ACKNOWLEDGED once its write has returned, POSSIBLE if that failed, SEEN."""

    def __init__(self):
        # Guarded by the lock.
        self._lock = Lock()
        self._marks = defaultdict(bytearray)  # by writer
        self._last = {}  # by writer and place
        self._wrong = Counter()

    def begin(self, writer, count):
        """The next messages of a writer, which are about to be written."""
        with self._lock:
            first = len(self._marks[writer])
            self._marks[writer] += bytes(count)
            return [Message(writer, number) for number in range(first, first + count)]

    def end(self, messages, done):
        """The write of these messages has returned; only the first `done` are known to be in the log."""
        with self._lock:
            for place, (writer, number) in enumerate(messages):
                self._marks[writer][number] |= ACKNOWLEDGED if place < done else POSSIBLE

    def see(self, message, place):
        """The message is in the log, at a place (a partition) where the writer's earlier ones have been seen. Returns
        what is wrong about that, if anything."""
        writer, number = message
        with self._lock:
            marks, wrong = self._marks[writer], None
            if number >= len(marks):
                wrong = "invented"
            elif marks[number] & SEEN:
                wrong = "doubled"
            else:
                wrong = "reordered" if number < self._last.get((writer, place), -1) else None
                marks[number] |= SEEN
                self._last[writer, place] = number
            self._wrong[wrong] += 1
            return wrong

    def is_behind(self):
        """Whether so much is waiting to be seen that retention might remove it unseen."""
        with self._lock:
            return sum(marks.count(ACKNOWLEDGED) for marks in self._marks.values()) > _MOST_UNSEEN

    def account(self):
        """How many messages there are of each kind. What has not been seen yet counts as lost."""
        with self._lock:
            marks = self._marks.values()
            count = {mark: sum(each.count(mark) for each in marks) for mark in range(8)}
            return {
                "acknowledged": count[ACKNOWLEDGED] + count[ACKNOWLEDGED | SEEN],
                "seen": sum(count[mark] for mark in count if mark & SEEN),
                "of unknown outcome": count[POSSIBLE],
                "lost": count[ACKNOWLEDGED],
                **{wrong: self._wrong[wrong] for wrong in ("doubled", "invented", "reordered")},
            }

    def wrong_latest(self, latest, keys):
        """What is wrong about the last messages of each key that a reader found. A writer's messages have `keys` keys,
        in turn. The last one that was acknowledged must be there, or a possible one after it."""
        allowed = defaultdict(lambda: {None})
        for writer, marks in self._marks.items():
            for number, mark in enumerate(marks):
                key = key_of(Message(writer, number), keys)
                allowed[key] = {number} if mark & ACKNOWLEDGED else allowed[key] | {number}
        numbers_read = {key: message.number for key, message in latest.items()}
        return [
            f"{key!r}: {numbers_read.get(key)} is there, expected one of {numbers}"
            for key, numbers in allowed.items()
            if numbers_read.get(key) not in numbers
        ]


def key_of(message, keys):
    """The key of a message whose writer has so many."""
    return b"w%d-k%d" % (message.writer, message.number % keys)

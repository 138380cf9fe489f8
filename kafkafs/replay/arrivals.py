"""Which messages of the source have arrived at the target, and at which offsets there: in memory and in the map file.

The file has JSON lines. The first line says what is replayed, and where. Each partition begins with a line that has
`messages` 0: its `target_offset` is the target's end before anything was produced. Every other line is a contiguous
stretch of old and new offsets; `target_offset` null: the messages were too large. Lines are written after the broker's
acknowledgement, so the file may lack the last messages that arrived. Stretches that a long run has written in parts are
joined at its end.
"""

from __future__ import annotations

import fcntl
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from storage.errors import CorruptData, InvalidConfig, LogLocked
from storage.types import TopicPartition


class Arrivals:
    """The messages of one partition that have arrived, in the order of their offsets. `first`: the target's end before
    the first of them; `skipped`: how many the target has refused."""

    def __init__(self, tp: TopicPartition, topic: str, first: int) -> None:
        self.tp, self.topic, self.first = tp, topic, first
        self.skipped = 0
        # Of each stretch: its first old and new offset (-1: skipped), and its length.
        self._old, self._new, self._count = array("q"), array("q"), array("q")
        self._written = 0  # how many messages of the stretch `_next_line` are in the file
        self._next_line = 0  # the last stretch that is in the file, which may grow
        self.next_old = 0  # after the last old offset
        self.next_new = first

    def add(self, old: int, new: int, count: int = 1) -> None:
        """Messages from `old` on have arrived at `new`, or are skipped (-1). Old offsets ascend."""
        if old < self.next_old or 0 <= new < self.next_new:
            raise CorruptData(f"{self.tp}: arrived out of order", offset=old, expected=self.next_new, found=new)
        last = len(self._old) - 1
        if last >= 0 and old == self.next_old and (new == self.next_new if self._new[last] >= 0 else new < 0):
            self._count[last] += count
        else:
            self._old.append(old)
            self._new.append(new)
            self._count.append(count)
        self.next_old = old + count
        if new < 0:
            self.skipped += count
        else:
            self.next_new = new + count

    def new_offset(self, old: int) -> int:
        """The new offset of the first message at or after an old offset; if no message follows, the offset after the
        last."""
        at = max(bisect_right(self._old, old) - 1, 0)
        for row in range(at, len(self._old)):
            behind = self._old[row] + self._count[row]
            if self._new[row] >= 0 and old < behind:
                return self._new[row] + max(old - self._old[row], 0)
        return self.next_new

    @property
    def messages(self) -> int:
        """How many have arrived."""
        return sum(self._count) - self.skipped

    def lines(self, *, all_of_them: bool = False) -> Iterator[dict[str, Any]]:
        """The lines that are not in the file yet, or all. From now on they count as written."""
        start, written = (0, 0) if all_of_them else (self._next_line, self._written)
        for row in range(start, len(self._old)):
            done = written if row == start else 0
            if self._count[row] > done:
                new = self._new[row]
                yield self._line(self._old[row] + done, new if new < 0 else new + done, self._count[row] - done)
        if len(self._old):
            self._next_line, self._written = len(self._old) - 1, self._count[-1]

    def begin_line(self) -> dict[str, Any]:
        return self._line(0, self.first, 0)

    def _line(self, old: int, new: int, count: int) -> dict[str, Any]:
        target = {"target_topic": self.topic, "target_offset": None if new < 0 else new}
        return {"topic": self.tp.topic, "partition": self.tp.partition, "offset": old, "messages": count, **target}


class ArrivalMap:
    """The arrivals of a run, by partition. With a path, they are also in a file, which another run continues."""

    def __init__(self, path: Path | None, head: dict[str, str], *, change: bool = True) -> None:
        """`head`: what is replayed and where; InvalidConfig if the file has another. `change` False only reads it.
        LogLocked while another run has it; CorruptData; OSError."""
        self._path, self._head = path, head
        self._known: dict[TopicPartition, Arrivals] = {}
        self._fd: int | None = None
        if path is not None and change:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                self._begin(path, self._fd)
            except BaseException:
                self.close()
                raise
        elif path is not None and path.exists():
            self._load(path)

    def _begin(self, path: Path, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogLocked("another replay writes this map", path=path, advice="Wait until it has ended") from None
        size = self._load(path)
        os.ftruncate(fd, size)  # a line that a kill has torn
        if not size:
            self._write([self._head])

    def _load(self, path: Path) -> int:
        """Loads the file; returns how many bytes its complete lines have."""
        size = 0
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    self._take(json.loads(line), number, path)
                except (ValueError, KeyError, TypeError) as error:
                    raise CorruptData(f"line {number} is not a line of a map: {error!r}"[:300], path=path) from None
                size += len(line)
        for arrivals in self._known.values():
            list(arrivals.lines())  # they are in the file
        return size

    def _take(self, line: dict[str, Any], number: int, path: Path) -> None:
        if number == 1:
            if line != self._head:
                what = "is the map of another replay"
                advice = "Repeat the command that began it, or name a new map"
                raise InvalidConfig(what, path=path, expected=self._head, found=line, advice=advice)
            return
        tp, new = TopicPartition(str(line["topic"]), int(line["partition"])), line["target_offset"]
        if tp not in self._known:
            self._known[tp] = Arrivals(tp, str(line["target_topic"]), int(new))
        arrivals = self._known[tp]
        if line["target_topic"] != arrivals.topic:
            raise ValueError(f"{tp} goes to {arrivals.topic} and {line['target_topic']}")
        if line["messages"]:
            arrivals.add(int(line["offset"]), -1 if new is None else int(new), int(line["messages"]))

    def get(self, tp: TopicPartition) -> Arrivals | None:
        """The arrivals of a partition; None if nothing of it was produced."""
        return self._known.get(tp)

    def begin(self, tp: TopicPartition, topic: str, first: int) -> Arrivals:
        """Begins a partition of which nothing was produced yet. `first`: the end of the target's log. It is on disk
        when this returns, because messages after it may be ours."""
        arrivals = self._known[tp] = Arrivals(tp, topic, first)
        self._write([arrivals.begin_line()])
        return arrivals

    def flush(self) -> None:
        """Writes what has arrived."""
        if self._fd is not None:
            self._write([line for arrivals in self._known.values() for line in arrivals.lines()])

    def _write(self, lines: list[dict[str, Any]]) -> None:
        if self._fd is None or not lines:
            return
        rest = memoryview(b"".join(map(_encoded, lines)))
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        os.fsync(self._fd)

    def all_lines(self) -> Iterator[bytes]:
        """All lines of a new file, with stretches joined."""
        yield _encoded(self._head)
        for _, arrivals in sorted(self._known.items()):
            yield _encoded(arrivals.begin_line())
            yield from map(_encoded, arrivals.lines(all_of_them=True))

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _encoded(line: dict[str, Any]) -> bytes:
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"

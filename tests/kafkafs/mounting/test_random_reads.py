"""Reads at random places of every kind of view, after the manner of fsx, while the log grows, rolls, is retained,
compacted and truncated: the bytes are those of a sequential read, and those that the log's messages make."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
from dataclasses import dataclass

import pytest

from storage.format.compression import Codec
from tests.support.live_log import START_MS, LiveLog
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched

pytestmark = requires_fuse

STEPS = 60  # changes of the log
MOVED_ON = (errno.ERANGE, errno.ENOENT)


@dataclass(frozen=True)
class View:
    """A file, and what it must hold now; None: only that it holds the same whatever the way of reading."""

    path: str
    content: bytes | None
    grows: bool = False


def jsonl(messages):
    lines = []
    for offset, stamp, value in messages:
        fields = {
            "topic": "t", "partition": 0, "offset": offset, "timestamp": stamp, "timestampType": "CreateTime",
            "key": None, "value": value.decode(), "headers": [],
        }  # fmt: skip
        lines.append(json.dumps(fields, separators=(",", ":")).encode() + b"\n")
    return b"".join(lines)


def txt(messages):
    return b"".join(value + b"\n" for _, _, value in messages)


class World:
    """A log that a test changes, its mount, and files that stay open across the changes."""

    def __init__(self, log, mount, seed):
        self.log = log
        self.root = mount.path / "t" / "0"
        self.dice = random.Random(seed)
        self.held = []

    # What happens to the log

    def change(self):
        dice, log = self.dice, self.log
        what = dice.choice(("write", "write", "write", "roll", "retain", "compact", "truncate"))
        sealed = len(log.segments) - 1
        if what == "write":
            log.write(dice.choice((1, 30, 400)), size=dice.choice((5, 300)), batch=dice.choice((1, 10, 100)))
        elif what == "roll" and log.next_offset > log.segments[-1]:
            log.roll()
        elif what == "retain" and sealed > 2:
            log.retain(dice.randrange(1, sealed))
        elif what == "compact" and sealed > 2:
            kept = dice.choice((2, 3, 7))
            log.compact(lambda offset: offset % kept == 0)
        elif what == "truncate" and log.next_offset - log.segments[0] > 50:
            log.truncate(dice.randrange(max(log.next_offset - 500, log.segments[0] + 1), log.next_offset))
            there = {offset for offset, _, _ in log.messages}
            for held in self.held:
                held.cut(log.next_offset, there)
        else:
            return "nothing"
        return what

    # What is there

    def views(self):
        dice, log = self.dice, self.log
        messages, start, end = log.messages, log.segments[0], log.next_offset
        for ext, content in (("txt", txt), ("jsonl", jsonl)):
            yield View(f"messages.{ext}", content(messages), grows=True)
            if start == end:
                continue
            first = dice.randrange(start, end)
            last = dice.randrange(first, end + 3)
            inside = [m for m in messages if first <= m[0] <= last]
            yield View(f"offsets/{first}-{last}.{ext}", content(inside))
            after = [m for m in messages if m[0] >= first]
            yield View(f"offsets/{first}-.{ext}", content(after), grows=True)
            count = dice.choice((1, 5, 300))
            yield View(f"offsets/{first}+{count}.{ext}", content(after[:count]))
            yield View(f"offsets/last-{count}.{ext}", content(messages[-count:]))
            yield View(f"offsets/{first}.{ext}", content([m for m in messages if m[0] == first]))
            from_ms, to_ms = sorted(START_MS + 1000 * dice.randrange(start, end + 1) for _ in range(2))
            if from_ms < to_ms:
                timely = [m for m in messages if from_ms <= m[1] < to_ms]
                yield View(f"time/{from_ms}--{to_ms}.{ext}", content(timely))
            yield View(f"time/{from_ms}--.{ext}", content([m for m in messages if m[1] >= from_ms]))
        files = {base: log.log(base).read_bytes() for base in log.segments}
        for base, data in files.items():
            yield View(f"segments/{log.log(base).name}", data)
        yield View("messages.log", b"".join(files.values()), grows=True)

    def look(self):
        """Opens every kind of view anew; keeps some of them open."""
        for view in self.views():
            fd = self.open(view)
            kept = False
            try:
                whole = sequential(fd)
                if view.content is not None:
                    assert whole == view.content, view.path
                self.read_at_random(fd, whole, view.path)
                if self.dice.random() < 0.08 and not view.path.endswith(".log") and whole:
                    self.held.append(Held(fd, view, whole))
                    kept = True
            finally:
                if not kept:
                    os.close(fd)
        while len(self.held) > 12:
            self.held.pop(self.dice.randrange(len(self.held))).close()

    def open(self, view):
        """Opens a view. While a file of the same path is open with more bytes, which the kernel may have in its page
        cache, the open may fail; it must not once such files are closed."""
        path = self.root / view.path
        try:
            return os.open(path, os.O_RDONLY)
        except OSError as error:
            if error.errno != errno.ERANGE or view.content is None:
                raise
            longer = [held for held in self.held if held.is_longer_than(view)]
            if not longer:
                raise
        for held in longer:
            self.held.remove(held)
            held.close()
        return os.open(path, os.O_RDONLY)

    def read_at_random(self, fd, whole, what):
        """pread, readv, lseek and, where there is something to map, a private mapping."""
        dice = self.dice
        assert os.lseek(fd, 0, os.SEEK_END) == len(whole), what
        assert os.fstat(fd).st_size == len(whole), what
        for _ in range(6):
            at, count = dice.randrange(len(whole) + 2), dice.choice((1, 7, 4096, 5000, 200_000))
            assert os.pread(fd, count, at) == whole[at : at + count], (what, at, count)
        at = dice.randrange(len(whole) + 1)
        os.lseek(fd, at, os.SEEK_SET)
        buffers = [bytearray(dice.choice((1, 100, 9000))) for _ in range(3)]
        got = os.readv(fd, buffers)
        assert b"".join(buffers)[:got] == whole[at : at + got], what
        assert got == min(sum(map(len, buffers)), len(whole) - at), what
        if whole and dice.random() < 0.3:
            with mmap.mmap(fd, len(whole), mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
                for _ in range(4):
                    at = dice.randrange(len(whole))
                    assert mapped[at : at + 5000] == whole[at : at + 5000], what

    def look_at_held(self):
        """Files that were opened before: what was there is there, or the read is an error; what is new follows it."""
        for held in list(self.held):
            if not held.look(self.dice, self.log):
                self.held.remove(held)
                held.close()


class Held:
    """An open file, and what is known of its content: bytes at positions that do not move."""

    def __init__(self, fd, view, whole):
        self.fd = fd
        self.view = view
        self.known = whole
        self.opened_size = len(whole)
        self.was_cut = False

    def close(self):
        os.close(self.fd)

    def is_longer_than(self, view):
        """Whether it was opened on the same path, when that had more bytes."""
        return self.view.path == view.path and view.content is not None and self.opened_size > len(view.content)

    def offset_of(self, line):
        return int(json.loads(line)["offset"]) if self.view.path.endswith("jsonl") else int(line.split(b" ")[0])

    def cut(self, end, there):
        """The log was truncated: from this offset on other messages may be there. What was made from a segment that was
        cut is made again, so what compaction had removed from it before has no place any more."""
        kept = [line for line in self.known.splitlines(keepends=True) if self.offset_of(line) < end]
        if not all(self.offset_of(line) in there for line in kept):
            kept = []
        self.was_cut = self.was_cut or len(b"".join(kept)) < len(self.known)
        self.known = b"".join(kept)

    def look(self, dice, log):
        """False when the file can be read no more."""
        for _ in range(5):
            at, count = dice.randrange(len(self.known) + 1), dice.choice((1, 300, 50_000))
            end = min(at + count, len(self.known))
            while at < end:
                try:
                    found = os.pread(self.fd, end - at, at)
                except OSError as error:
                    if error.errno not in MOVED_ON:
                        raise
                    return not self.was_cut  # retention took it; or there are others than those that were read before
                state = (self.view.path, at, end, len(self.known), log.segments, log.next_offset, log.messages[:1])
                assert found, state  # no silent end of the file
                assert found == self.known[at : at + len(found)], state
                at += len(found)
        if not self.view.grows or self.was_cut:
            return True
        try:
            more = sequential(self.fd, len(self.known))
        except OSError as error:
            if error.errno not in MOVED_ON:
                raise
            return True
        content = jsonl if self.view.path.endswith("jsonl") else txt
        if more:
            first = self.offset_of(more.splitlines()[0])
            assert more == content([m for m in log.messages if m[0] >= first]), self.view.path
            self.known += more
        return True


def sequential(fd, start=0):
    parts = []
    while part := os.pread(fd, 100_000, start):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


@pytest.mark.parametrize(("seed", "codec"), [(1, Codec.NONE), (2, Codec.ZSTD)])
def test_as_a_sequential_read(tmp_path, seed, codec):
    log = LiveLog(tmp_path / "logs", codec)
    log.write(200)
    with watched(tmp_path / "logs", tmp_path / "mnt") as mount:
        world = World(log, mount, seed)
        done = []
        try:
            for _ in range(STEPS):
                done.append(world.change())
                world.look()
                world.look_at_held()
        except BaseException as error:
            error.add_note(f"after {' '.join(done)}")
            raise
        finally:
            for held in world.held:
                held.close()

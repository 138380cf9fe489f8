"""Programs that read files of records, in order and out of order, and what they must have been shown."""

from __future__ import annotations

import ctypes
import json
import os

from kafkafs.reading.range_names import (
    LastMessages,
    MalformedRange,
    TimeBetween,
    parse_offset_spec,
    parse_time_spec,
)
from storage.errors import StorageError
from storage.types import Isolation, TopicPartition
from tests.simulation.copies import shown
from tests.simulation.mounts import Opened, Problem
from tests.simulation.plan import Look, Pause
from tests.simulation.world import Anomaly, Sight, messages_of

_PAGE = 64  # how much the page cache asks for


class Reader:
    """A program that opens files of records."""

    def __init__(self, process, job):
        self._process = process
        self._world = process.world
        self._job = job

    def run(self):
        for op in self._job.ops:
            if isinstance(op, Pause):
                for _ in range(op.times):
                    self._process.scheduler.pause("a while")
            elif isinstance(op, Look):
                self._look(op)

    def _look(self, op):
        tp = TopicPartition(op.topic, op.partition)
        path = f"/{op.topic}/{op.partition}/{op.name}"
        spec = _spec(op.name)
        # A follower knows of a log start once it is checkpointed.
        tick, starts = self._world.tick(), 0 if self._job.follows else self._log_start(tp, 0)
        copy = self._world.copies.get(tp)
        is_cleaned = copy is not None and copy.compacted
        info = Opened(os.O_RDONLY)
        try:
            self._process.operations.open(path, info)
        except Problem:
            return
        try:
            tick_opened, opened = self._world.tick(), self._log_start(tp, 1 << 61)
            reading = _Reading(self._process, info, path, tp, self._log_end)
            is_whole = all(reading.read(read) for read in op.reads) and (not op.to_end or reading.to_end())
        finally:
            if not self._process.scheduler.killed:
                self._process.operations.release(None, info)
        begins = starts, opened
        if isinstance(spec, LastMessages):
            begins = 0, 1 << 62
        elif not isinstance(spec, TimeBetween) and spec is not None:
            begins = max(spec.first, starts), max(spec.first, opened)
        content = reading.content()
        if content is None:
            return
        found = _parsed(op.name, content)
        if found is None:
            return
        values, offsets = found
        sight = Sight(
            tp, path, values, offsets, begins, tick=tick, opened=tick_opened, start=self._log_start(tp, 1 << 61)
        )
        sight.ended = reading.ended if is_whole and op.to_end else None
        if isinstance(spec, TimeBetween):
            sight.times = spec.start_ms, spec.end_ms
        elif spec is not None:
            sight.last, sight.most = spec.last if not isinstance(spec, LastMessages) else None, spec.most
        if isinstance(spec, LastMessages):
            sight.last, sight.ended = None, None
        if is_cleaned:
            return  # the last look has what is left in the end
        self._check_name(sight)
        if copy is None:
            self._world.sights.append(sight)
        else:
            self._check_copy(sight, copy, reading)

    def _log_start(self, tp, unknown):
        log = self._log(tp)
        return unknown if log is None else log.log_start_offset

    def _log_end(self, tp):
        log = self._log(tp)
        return None if log is None else log.log_end_offset

    def _log(self, tp):
        owner = self._process.owner()
        return None if owner is None else owner._logs._logs.get(tp)

    def _check_name(self, sight):
        """What the name of a file says of its messages."""
        if sight.most is not None and len(sight.values) > sight.most and not sight.path.endswith(".log"):
            raise Anomaly(f"{sight.path} shows {len(sight.values)} messages")
        if sight.offsets is None or sight.path.endswith(".log"):
            return
        for offset in sight.offsets:
            first = 0 if sight.begins[1] == 1 << 62 else sight.begins[0]
            if offset < first or (sight.last is not None and offset > sight.last):
                raise Anomaly(f"inconsistent offsets: {sight.path} shows offset {offset}")

    def _check_copy(self, sight, copy, reading):
        """What a follower's log shows."""
        values = sight.values
        for value in values:
            if value not in copy.values:
                raise Anomaly(f"aborted read: {sight.path} showed {value!r}, which never was there")
        if sight.path.endswith(".log"):
            return
        committed = self._process.isolation is Isolation.READ_COMMITTED
        all_now = [one for one in shown([*copy.batches, *copy.appending], committed=committed) if _is_in(sight, one)]
        most = [value for _, value, _ in all_now]
        if sight.most is not None:
            most = most[: sight.most]
        if values != most[: len(values)] and sight.begins[1] != 1 << 62:
            raise Anomaly(f"{sight.path} shows {values}, expected {most}")
        if sight.ended is not None:
            least = [one for one in shown(reading.seen, committed=committed) if _is_in(sight, one)]
            if len(values) < len(least if sight.most is None else least[: sight.most]):
                raise Anomaly(f"{sight.path} ends after {values}, expected {[value for _, value, _ in least]}")


def _is_in(sight, one):
    offset, _, timestamp = one
    if sight.times is not None:
        start, end = sight.times
        return (start is None or timestamp >= start) and (end is None or timestamp < end)
    return offset >= sight.begins[0] and (sight.last is None or offset <= sight.last)


class _Reading:
    """The reads of one open file."""

    def __init__(self, process, info, path, tp, log_end):
        self._process = process
        self._info = info
        self._path = path
        self._tp = tp
        self._log_end = log_end
        self._copy = process.world.copies.get(tp)
        self._bytes = {}
        self._front = 0
        self.ended = None
        self.seen = []

    def read(self, read):
        """False when reading cannot go on."""
        for _ in range(read.wait):
            self._process.scheduler.pause("a while")
        position = self._front if read.back is None else int(read.back * self._front)
        return self._read_at(position, read.size) is not None

    def to_end(self):
        """Reads up to the end of file; False when an error came first."""
        for _ in range(200):
            ended = self._log_end(self._tp)
            seen = [] if self._copy is None else list(self._copy.batches)
            count = self._read_at(self._front, 700)
            if count is None:
                return False
            if not count:
                self.ended, self.seen = ended, seen
                return True
        return False

    def _read_at(self, position, size):
        buffer = ctypes.create_string_buffer(size)
        operations = self._process.operations
        try:
            if self._info.direct_io:
                count = operations.read_into(self._info.fh, ctypes.addressof(buffer), position, size)
            else:
                count = self._through_pages(buffer, position, size)
        except Problem:
            return None
        for index, byte in enumerate(buffer.raw[:count]):
            if self._bytes.setdefault(position + index, byte) != byte:
                raise Anomaly(f"{self._path}: byte {position + index} has changed")
        self._front = max(self._front, position + count)
        return int(count)

    def _through_pages(self, buffer, position, size):
        """The kernel fills whole pages up to the file's size. A short answer is the end of the file to it."""
        operations = self._process.operations
        handle = operations.handles[self._info.fh]
        end = min(position + size, handle.size)
        start = position - position % _PAGE
        stop = min(end + -end % _PAGE, handle.size)
        if start >= stop or position >= end:
            return 0
        pages = ctypes.create_string_buffer(stop - start)
        count = operations.read_into(self._info.fh, ctypes.addressof(pages), start, stop - start)
        if start + count < stop:
            raise Anomaly(f"{self._path}: a read through the page cache is short, {count} of {stop - start} bytes")
        ctypes.memmove(buffer, ctypes.addressof(pages) + position - start, end - position)
        return end - position

    def content(self):
        """What was read from the beginning; None where that is not known in one piece."""
        if len(self._bytes) != self._front:
            return None
        return bytes(self._bytes[position] for position in range(self._front))


def _spec(name):
    folder, _, file = name.rpartition("/")
    if not folder:
        return None
    text = file.rpartition(".")[0]
    try:
        return parse_offset_spec(text) if folder == "offsets" else parse_time_spec(text)
    except MalformedRange:
        return None


def _parsed(name, content):
    """The values in a file's bytes, as far as they are whole, and their offsets where the format has them."""
    if name.endswith(".log"):
        try:
            messages = list(messages_of(content))
        except StorageError:
            return None
        return [message.value or b"" for message in messages], [message.offset for message in messages]
    lines = content[: content.rfind(b"\n") + 1].split(b"\n")[:-1]
    if name.endswith(".txt"):
        return lines, None
    found = [json.loads(line) for line in lines]
    return [str(one["value"]).encode() for one in found], [int(one["offset"]) for one in found]

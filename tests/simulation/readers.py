"""Programs that read files of records, in order and out of order, and what they must have been shown."""

import ctypes
import json
import os

from kafkafs.reading.range_names import LastMessages, MalformedRange, TimeBetween, parse_offset_spec, parse_time_spec
from storage.errors import StorageError
from storage.types import Isolation, TopicPartition
from tests.simulation.contents import Anomaly, messages_of
from tests.simulation.copies import shown
from tests.simulation.mounts import Problem, file_info
from tests.simulation.oracle import UNKNOWN_START
from tests.simulation.programs import Program
from tests.simulation.world import Sight

_PAGE = 64  # how much the page cache asks for
_NO_LOG = 1 << 61  # the start of a log that nobody has opened


class Reader(Program):
    """A program that opens files of records."""

    def run(self):
        for op in self._job.ops:
            self.carry_out(op)

    def look(self, op):
        tp = TopicPartition(op.topic, op.partition)
        path = f"/{op.topic}/{op.partition}/{op.name}"
        # A follower knows of a log start once it is checkpointed.
        tick, least = self._world.tick(), 0 if self._job.follows else self._log_start(tp, 0)
        copy = self._world.copies.get(tp)
        info = file_info(os.O_RDONLY)
        try:
            self._process.operations.open(path, info)
        except Problem:
            return
        try:
            sight = Sight(tp, path, [], None, (least, UNKNOWN_START), tick=tick, opened=self._world.tick())
            most = self._log_start(tp, _NO_LOG)
            reading = _Reading(self._process, info, path, tp)
            is_whole = all(reading.read(read) for read in op.reads) and (not op.to_end or reading.to_end())
        finally:
            if not self._process.scheduler.killed:
                self._process.operations.release(None, info)
        sight.ended = reading.ended if is_whole and op.to_end else None
        self._note_range(sight, _spec(op.name), least, most)
        content = reading.content()
        messages = None if content is None else _parsed(op.name, content)
        if messages is None:
            return
        sight.values, sight.offsets = messages
        sight.start = self._log_start(tp, _NO_LOG)
        if copy is not None and copy.is_compacted:
            return  # the last look has what is left in the end
        self._check_name(sight)
        if copy is None:
            self._world.sights.append(sight)
        else:
            self._check_copy(sight, copy, reading)

    @staticmethod
    def _note_range(sight, spec, least, most):
        """What the name of a file says of its range. `least`, `most`: where the log began when it was opened."""
        if isinstance(spec, LastMessages):
            sight.begins, sight.most, sight.ended = (0, UNKNOWN_START), spec.most, None
        elif isinstance(spec, TimeBetween) or spec is None:
            sight.begins = least, most
            sight.times = None if spec is None else (spec.start_ms, spec.end_ms)
        else:
            sight.begins = max(spec.first, least), max(spec.first, most)
            sight.last, sight.most = spec.last, spec.most

    def _log_start(self, tp, unknown):
        log = self._process.opened_log(tp)
        return unknown if log is None else log.log_start_offset

    def _check_name(self, sight):
        """What the name of a file says of its messages."""
        if sight.path.endswith(".log"):
            return
        if sight.most is not None and len(sight.values) > sight.most:
            raise Anomaly(f"{sight.path} shows {len(sight.values)} messages")
        for offset in sight.offsets or ():
            if offset < sight.begins[0] or (sight.last is not None and offset > sight.last):
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
        now = shown([*copy.batches, *copy.appending], committed=committed)
        most = [message[1] for message in now if _is_in(sight, message)][: sight.most]
        if values != most[: len(values)] and sight.begins[1] != UNKNOWN_START:
            raise Anomaly(f"{sight.path} shows {values}, expected {most}")
        seen = shown(reading.seen, committed=committed)
        least = [message[1] for message in seen if _is_in(sight, message)][: sight.most]
        if sight.ended is not None and len(values) < len(least):
            raise Anomaly(f"{sight.path} ends after {values}, expected {least}")


def _is_in(sight, message):
    offset, _, timestamp = message
    if sight.times is not None:
        start, end = sight.times
        return (start is None or timestamp >= start) and (end is None or timestamp < end)
    return offset >= sight.begins[0] and (sight.last is None or offset <= sight.last)


class _Reading:
    """The reads of one open file."""

    def __init__(self, process, info, path, tp):
        self._process = process
        self._info = info
        self._path = path
        self._tp = tp
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
            log = self._process.opened_log(self._tp)
            ended = None if log is None else log.log_end_offset
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
        try:
            if self._info.direct_io:
                count = self._process.operations.read_into(self._info.fh, ctypes.addressof(buffer), position, size)
            else:
                count = self._through_pages(buffer, position, size)
        except Problem:
            return None
        for index, byte in enumerate(buffer.raw[:count]):
            if self._bytes.setdefault(position + index, byte) != byte:
                raise Anomaly(f"{self._path}: byte {position + index} has changed")
        self._front = max(self._front, position + count)
        return count

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
    text = file.rpartition(".")[0]
    try:
        return {"offsets": parse_offset_spec, "time": parse_time_spec}[folder](text) if folder else None
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
    records = [json.loads(line) for line in lines]
    return [str(record["value"]).encode() for record in records], [record["offset"] for record in records]

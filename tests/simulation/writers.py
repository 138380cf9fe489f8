"""Programs that append lines: what the kernel makes of their write(2), and what they learn of it.

A write(2) comes in requests. Of an error in a later request than the first the program sees a short count alone, and a
program may not even look at the count.
"""

import os

from kafkafs.mounting.errnos import errno_of
from storage.errors import InvalidConfig, InvalidRecord, RecordTooLarge
from tests.simulation import plan
from tests.simulation.contents import Anomaly
from tests.simulation.mounts import MAX_MESSAGE_BYTES, Problem, file_info
from tests.simulation.plan import Close, Pause, Sync
from tests.simulation.programs import Program
from tests.simulation.world import Fate

_OF_A_LINE = (InvalidRecord, RecordTooLarge, InvalidConfig)


class _Sent:
    """A line on its way. `left`: its bytes that were not taken yet."""

    def __init__(self, line, data, *, is_bad):
        self.line = line
        self.data = data
        self.left = len(data)
        self.is_bad = is_bad


class Writer(Program):
    """A program that appends lines to one file."""

    def __init__(self, process, job):
        super().__init__(process, job)
        self._topic = job.path.split("/")[1]
        self._json = job.path.endswith(".jsonl")
        self._number = 0
        self._new_file()

    def _new_file(self):
        self._info = None
        self._over = []  # lines of which a part is still to be written
        self._unended = []  # taken, without a newline

    def run(self):
        for op in self._job.ops:
            if not isinstance(op, Pause):
                if self._info is None and not self._open():
                    continue
                if self._unended and not isinstance(op, Close):
                    self.sync()  # otherwise the next line would be the rest of it
                    if isinstance(op, Sync) or self._info is None:
                        continue
            self.carry_out(op)
        if self._info is not None:
            self.close()

    def _open(self):
        path, shared = self._job.path, self._process.shared
        while self._job.shares and path in shared:
            info, programs = shared[path]
            if programs:
                shared[path] = info, programs + 1
                self._info = info
                return True
            self._process.scheduler.pause("another program opens it")
        info = file_info(os.O_WRONLY | os.O_APPEND)
        info.refuses, info.errno = False, None  # what its programs have seen of it
        if self._job.shares:
            shared[path] = info, 0
        try:
            self._process.operations.open(path, info)
        except Problem:
            shared.pop(path, None)
            return False
        if self._job.shares:
            shared[path] = info, 1
        self._info = info
        return True

    def close(self, _op=None):
        if not self._write_rest():
            return
        info, unended, shared, path = self._info, self._unended, self._process.shared, self._job.path
        self._new_file()
        if self._job.shares:
            programs = shared.pop(path)[1] - 1
            if programs:
                shared[path] = info, programs
                return
        refused = self._process.release(info)
        for sent in unended:
            if sent.line.fate is Fate.SENT and refused is None:
                self._acknowledge(sent.line)
            elif sent.line.fate is Fate.SENT:
                sent.line.fate = Fate.UNKNOWN

    def sync(self, _op=None):
        if not self._write_rest():
            return
        lines, refuses = self._world.acknowledged(self._job.path), self._info.refuses
        try:
            self._process.operations.fsync(None, 0, self._info)
        except Problem:
            if refuses and not self._world.faults:
                self._world.synced(self._job.path, lines)  # what was accepted, all the same
            for sent in self._unended:
                sent.line.fate = Fate.REFUSED if sent.is_bad else Fate.UNKNOWN
            if self._unended or self._job.after_error == plan.GIVES_UP:
                self._unended = []
                self.close()
            return
        if refuses or any(sent.is_bad for sent in self._unended):
            raise Anomaly(f"a refused line vanished: fsync of {self._job.path} says nothing of an error that it met")
        for sent in self._unended:
            self._world.acknowledge(sent.line)
            lines.add(sent.line.value)
        self._unended.clear()
        self._world.synced(self._job.path, lines)

    # Lines

    def _line(self, of):
        self._number += 1
        world = self._world
        too_large = 2 * MAX_MESSAGE_BYTES
        sizes = {plan.TOO_LARGE: too_large, plan.HUGE: 5 * self._process.request_bytes + too_large}
        has_key = of.key is not None and of.kind != plan.NO_KEY
        key = b"%s-k%d" % (self._job.name.encode(), of.key) if has_key else None
        timestamp = None if of.age_ms is None or not self._json else world.clock.time_ms - of.age_ms
        name, size = f"{self._job.name}.{world.number}", sizes.get(of.kind, of.size)
        line = world.line(self._topic, self._job.path, name, self._number, size, key, timestamp)
        data = line.value
        if self._json:
            fields = [b'"value":"%s"' % line.value]
            fields += [] if key is None else [b'"key":"%s"' % key]
            fields += [] if timestamp is None else [b'"timestamp":%d' % timestamp]
            data = b"{%s}" % b",".join(fields)
            data = data[:-1] if of.kind == plan.NOT_JSON else data
        is_bad = of.kind in (plan.TOO_LARGE, plan.HUGE) or (self._json and of.kind in (plan.NOT_JSON, plan.NO_KEY))
        if is_bad:
            line.fate = Fate.REFUSED
        return _Sent(line, data + b"\n", is_bad=is_bad)

    # write(2)

    def _write_rest(self):
        """The rest of a line that an earlier buffer ended within. Whether the file is still open after that."""
        if self._over:
            over, self._over = self._over, []
            self._write_all(over, 0, 1.0)
        return self._info is not None

    def write(self, op):
        sent = [self._line(of) for of in op.lines]
        lines, self._over = [*self._over, *sent], []
        if sent and not op.ended:
            last = sent[-1]
            last.data, last.left = last.data[:-1], last.left - 1
        back = 0
        if sent and op.cut < 1 and op.ended:
            back = len(sent[-1].data) - int(op.cut * len(sent[-1].data))
            self._over = sent[-1:] if back else []
        self._write_all(lines, back, op.first)
        if sent and not op.ended and not sent[-1].left:
            self._unended.append(sent[-1])

    def _write_all(self, lines, back, first):
        """write(2) of these lines but for the last `back` bytes, again and again as the program does."""
        refused = self._info.refuses
        while True:
            lines = [sent for sent in lines if sent.left]
            data = b"".join(sent.data[len(sent.data) - sent.left :] for sent in lines)
            data = data[: len(data) - back]
            if not data:
                return
            refuses = self._info.refuses
            taken, error = self._write_once(data, first)
            if refuses and error is None:
                raise Anomaly(f"{self._job.path} took bytes after it had refused some")
            self._took(lines, taken)
            if error is None and taken == len(data):
                return
            self._info.refuses = True
            if error is not None:
                self._check_errno(error)
            elif self._job.persists:
                continue
            self._mark(lines, error, refused=refused)
            self._over = []
            if self._job.after_error == plan.GIVES_UP:
                self.close()
            return

    def _took(self, lines, taken):
        for sent in lines:
            count = min(taken, sent.left)
            sent.left -= count
            taken -= count
            if sent.left or not count or not sent.data.endswith(b"\n"):
                continue
            if sent.is_bad:
                raise Anomaly(f"a refused line vanished: {sent.line.value[:40]!r} was taken without an error")
            self._acknowledge(sent.line)

    def _acknowledge(self, line):
        self._world.acknowledge(line)
        if self._job.durable:
            self._world.synced(self._job.path, {line.value})

    def _check_errno(self, error):
        number = errno_of(error)
        if self._info.errno not in (None, number):
            raise Anomaly(f"{self._job.path} refuses with errno {number} after {self._info.errno}")
        self._info.errno = number

    def _mark(self, lines, error, *, refused):
        """What is known of lines that were not taken as a whole, after an error or (None) a short count. `refused`: the
        file did so before they were written.

        A disk's error may come after the append (where flush.messages requires a flush), and some of several partitions
        may have got their lines.
        """
        passes = not self._world.faults and self._topic not in self._world.removals
        certain = refused or (isinstance(error, _OF_A_LINE) if error is not None else passes)
        for sent in lines:
            if sent.left and not sent.is_bad and sent.line.fate is not Fate.UNKNOWN:
                sent.line.fate = Fate.REFUSED if certain else Fate.UNKNOWN

    def _first_bytes(self, first):
        """The size of a write(2)'s first request."""
        whole = self._process.request_bytes
        least = whole * 2 // 3
        return least + int((whole - least) * first)

    def _write_once(self, data, first):
        """write(2) as the kernel makes it of requests: how much was taken, or the error of the first request."""
        whole, write_from = self._process.request_bytes, self._process.operations.write_from
        done, size = 0, self._first_bytes(first)
        while done < len(data):
            part = data[done : done + size]
            try:
                count = write_from(self._info.fh, memoryview(part), None, durable=self._job.durable)
            except Problem as error:
                return done, None if done else error
            done += count
            if count < len(part):
                break
            size = whole
        return done, None

"""Programs that append lines: what the kernel makes of their write(2), and what they learn of it.

A write(2) comes in requests. Of an error in a later request than the first the program sees a short count alone, and a
program may not even look at the count.
"""

import os

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
        self.told = False  # an error came after its first byte was written
        self.given_up = False  # the program has gone on without the rest of it


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
        self._pending = False  # a short count has shown an error that nobody has told yet
        self._left = b""  # what that write(2) did not take
        self._lacking = False  # the disk's error keeps taken bytes from becoming a message
        self._sent = []
        self._refused = 0  # the size of the last request of which something was refused

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
        lines = self._world.acknowledged(self._job.path)
        try:
            self._process.operations.fsync(None, 0, self._info)
        except Problem:
            self._was_told()
            if self._unended:  # it may still be the beginning of a line
                for sent in self._unended:
                    sent.line.fate = Fate.REFUSED if sent.is_bad else Fate.UNKNOWN
                self.close()
            return
        if self._pending or any(sent.is_bad and not sent.told and not sent.left for sent in self._sent):
            raise Anomaly(f"a refused line vanished: fsync of {self._job.path} says nothing of an error that it met")
        if self._lacking:
            raise Anomaly(f"lost write: fsync of {self._job.path} answers 0, and taken bytes are no message")
        for sent in self._unended:
            if not sent.is_bad:
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
            # By the bytes that all lines begin with nobody could tell which of them is begun (see LineWriter).
            known = len(sent[-1].line.writer) + 12 * self._json + len(str(self._number)) + 2
            back = max(0, len(sent[-1].data) - max(known, int(op.cut * len(sent[-1].data))))
            self._over = sent[-1:] if back else []
        self._write_all(lines, back, op.first)
        if sent and not op.ended and not sent[-1].left and not sent[-1].given_up:
            self._unended.append(sent[-1])

    def _write_all(self, lines, back, first):
        """write(2) of these lines but for the last `back` bytes, again and again as the program does."""
        for sent in lines:
            if sent not in self._sent:
                self._sent.append(sent)
        was_pending, tries = self._pending, 0
        while True:
            lines = [sent for sent in lines if sent.left]
            data = b"".join(sent.data[len(sent.data) - sent.left :] for sent in lines)
            data = data[: len(data) - back]
            if not data:
                return
            taken, error = self._write_once(data, first)
            self._took(lines, taken)
            self._lacking = False
            if error is None:
                # A first request that is the beginning of what was refused may be the rest written again (LineWriter).
                if was_pending and not self._left.startswith(data[: self._first_bytes(first)]):
                    raise Anomaly(f"{self._job.path} took bytes before it told the error of earlier ones")
                if taken == len(data):
                    self._pending = False
                    return
                self._pending, self._left = True, data[taken:]
                if not self._job.persists:
                    self._forget(lines, None, back)
                    if not lines[-1].data.endswith(b"\n"):
                        self.sync()
                    return
                continue
            was_pending = False
            self._was_told()
            self._mark(lines, error)
            if self._job.after_error == plan.AGAIN and tries < 2:
                tries += 1
                _sent_again(lines)
                continue
            if self._job.after_error == plan.NEXT and len(lines) > 1 and isinstance(error, _OF_A_LINE):
                lines = [sent for sent in lines if sent.left]
                lines[0].given_up = True
                lines = lines[1:]
                _sent_again(lines)
                continue
            self._forget(lines, error, back)
            if self._job.after_error == plan.GIVES_UP:
                self._over = []
                self.close()
            elif not lines[-1].data.endswith(b"\n"):
                self.sync()  # otherwise the next line would be taken for the rest of the last one
            return

    def _took(self, lines, taken):
        for sent in lines:
            count = min(taken, sent.left)
            sent.left -= count
            taken -= count
            if sent.left or not count or not sent.data.endswith(b"\n"):
                continue
            if sent.is_bad:
                if not sent.told:
                    raise Anomaly(f"a refused line vanished: {sent.line.value[:40]!r} was taken without an error")
            elif not sent.given_up:  # otherwise the rest of a line that was refused: it is passed over
                self._acknowledge(sent.line)

    def _acknowledge(self, line):
        self._world.acknowledge(line)
        if self._job.durable:
            self._world.synced(self._job.path, {line.value})

    def _was_told(self):
        self._pending = False
        for sent in self._sent:
            sent.told = True

    def _mark(self, lines, error):
        """What is known of lines that were not taken as a whole, after an error or (None) a short count.

        A disk's error may come after the append (where flush.messages requires a flush), and some of several partitions
        may have got their lines.
        """
        lines = [sent for sent in lines if sent.left]
        passes = not self._world.faults and self._topic not in self._world.removals
        certain = isinstance(error, _OF_A_LINE) if error is not None else passes
        for sent in lines:
            if not sent.is_bad and not sent.given_up and sent.line.fate is not Fate.UNKNOWN:
                sent.line.fate = Fate.REFUSED if certain else Fate.UNKNOWN
        if not certain and lines and 0 < lines[0].left < len(lines[0].data):
            # The beginning of a line that the program goes on with after an error was not taken.
            self._lacking = not lines[0].is_bad and not lines[0].given_up

    def _forget(self, lines, error, back):
        """The program goes on without the rest of its buffer.

        If that ended within a line, it goes on with the rest of this line, unless the request that was refused was a
        full one: then nobody can know that it is the rest of a line (kafkafs.writing.line_writer).
        """
        self._mark(lines, error)
        for sent in lines:
            sent.given_up = sent.given_up or sent.left > 0
        if back and lines and lines[-1].given_up and self._refused < cut_bytes(self._process.request_bytes):
            lines[-1].left = back
        else:
            self._over = []

    def _first_bytes(self, first):
        """The size of a write(2)'s first request."""
        whole = self._process.request_bytes
        least = cut_bytes(whole)
        return least + int((whole - least) * first)

    def _write_once(self, data, first):
        """write(2) as the kernel makes it of requests: how much was taken, or the error of the first request."""
        whole, write_from = self._process.request_bytes, self._process.operations.write_from
        done, size = 0, self._first_bytes(first)
        while done < len(data):
            part = data[done : done + size]
            self._refused = len(part)
            try:
                count = write_from(self._info.fh, memoryview(part), None, durable=self._job.durable)
            except Problem as error:
                return done, None if done else error
            done += count
            if count < len(part):
                break
            size = whole
        return done, None


def _sent_again(lines):
    for sent in lines:
        if not sent.is_bad and not sent.given_up and sent.line.fate is Fate.REFUSED:
            sent.line.fate = Fate.SENT


def cut_bytes(request_bytes):
    """What a request has at least that is not the last one of its write(2)."""
    return request_bytes * 2 // 3

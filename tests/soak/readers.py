"""Threads that read: everything that is new (for the ledger), and anything in any way (for its own consistency)."""

import errno
import json
import os
import random
import subprocess
import time
from collections import Counter
from datetime import UTC, datetime
from threading import Thread

from tests.soak.ledger import BadLine, message_of

# What a reader may be told while the mount is killed, or when retention was faster.
_OF_A_KILL = frozenset({errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT, errno.EIO, errno.ENODEV, errno.EPERM})
_OF_RETENTION = frozenset({errno.ERANGE, errno.ENOENT})


class Inconsistent(Exception):
    """A view showed what cannot be."""


class Reader(Thread):
    """Does something, waits, and again. Errors count unless the mount was killed meanwhile."""

    def __init__(self, number, stop, lives, pause_s=0.3):
        super().__init__(name=f"reader {number}")
        self.problems = []
        self.counts = Counter()
        self._stop_now = stop
        self._lives = lives
        self._dice = random.Random(1000 + number)
        self._pause_s = pause_s

    def run(self):
        while not self._stop_now.is_set():
            self.once()
            self._stop_now.wait(self._pause_s * self._dice.uniform(0.5, 1.5))

    def once(self):
        """One look, with its errors."""
        if not self._lives.serving.wait(1):
            return
        kills = self._lives.kills
        try:
            self.look()
        except (OSError, Inconsistent, BadLine, subprocess.SubprocessError, ValueError, KeyError) as error:
            number = getattr(error, "errno", None)
            if number in _OF_RETENTION:
                self.counts["ERANGE or ENOENT"] += 1
                return
            if number is not None and kills == self._lives.kills:
                self._stop_now.wait(2)  # the kill may be noted after the reader has met it
            if kills != self._lives.kills or not self._lives.serving.is_set():
                self.counts["killed"] += 1
            else:
                self.problems.append(f"{self.name}: {type(error).__name__}: {error}")


class Follower(Reader):
    """Reads each partition from where it has come to, and tells the ledger every message once."""

    def __init__(self, stop, lives, ledger, partitions):
        super().__init__(99, stop, lives, pause_s=0.05)
        self._ledger = ledger
        self._next = dict.fromkeys(partitions, 0)

    def look(self):
        for (topic, partition), offset in list(self._next.items()):
            path = self._lives.path / topic / str(partition) / "offsets" / f"{offset}-.jsonl"
            with path.open("rb") as file:
                for line in file:
                    record = json.loads(line)
                    if not line.endswith(b"\n") or record["offset"] < self._next[topic, partition]:
                        raise Inconsistent(f"{path}: {line!r}")
                    self._next[topic, partition] = record["offset"] + 1
                    message = message_of(record["value"].encode())
                    wrong = self._ledger.see(message, f"{topic}/{partition}")
                    if wrong is not None:
                        self.problems.append(f"{topic}/{partition}, offset {record['offset']}: {message} {wrong}")


class Browser(Reader):
    """Reads views at random: whole ones, ranges, times, the end, as tools do and as programs do."""

    def __init__(self, number, stop, lives, partitions):
        super().__init__(number, stop, lives)
        self._partitions = partitions

    def look(self):
        topic, partition = self._dice.choice(self._partitions)
        way = self._dice.choice((self.tools, self.follow, self.offsets, self.time, self.random_reads, self.status))
        self.counts[way.__name__] += 1
        way(self._lives.path / topic / str(partition))

    def check(self, data, what):
        """The messages of whole lines, which must be in the order of their writers."""
        messages, last = [message_of(line) for line in data.splitlines()], {}
        for message in messages:
            if message.number <= last.get(message.writer, -1):
                raise Inconsistent(f"{what}: {message} after number {last[message.writer]}")
            last[message.writer] = message.number
        self.counts["messages"] += len(messages)
        return messages

    def _tool(self, *command):
        done = subprocess.run(list(map(str, command)), capture_output=True, timeout=120, check=False)
        if done.stderr:
            text = done.stderr.decode()
            number = next((n for n in _OF_A_KILL | _OF_RETENTION if os.strerror(n) in text), errno.EREMOTEIO)
            raise OSError(number, text.strip())
        return done.stdout

    def tools(self, where):
        commands = [("tail", "-n", "200", where / "messages.txt"), ("cat", where / "offsets" / "last-100.txt")]
        if (where / "messages.txt").stat().st_size < 1 << 20:
            commands.append(("cat", where / "messages.txt"))
        self.check(self._tool(*self._dice.choice(commands)), where)

    def follow(self, where):
        """tail -f for two seconds: complete lines only, each once."""
        data = self._tool("timeout", "2", "tail", "-n", "5", "-f", where / "messages.txt")
        self.check(data[: data.rfind(b"\n") + 1], where)

    def _ends(self, where):
        info = json.loads((where / "@info.json").read_bytes())
        return info["log_start_offset"], info["log_end_offset"]

    def offsets(self, where):
        start, end = self._ends(where)
        if start == end:
            return
        first = self._dice.randrange(start, end)
        last = min(first + self._dice.choice((0, 10, 500)), end - 1)
        name = self._dice.choice((f"{first}-{last}", f"{first}+{last - first + 1}"))
        messages = self.check((where / "offsets" / f"{name}.txt").read_bytes(), name)
        if where.parent.name != "compacted" and len(messages) != last - first + 1:
            raise Inconsistent(f"{where}/offsets/{name}.txt: {len(messages)} messages")

    def time(self, where):
        now_ms = int(time.time() * 1000)
        from_ms = now_ms - self._dice.choice((5_000, 60_000))
        second = datetime.fromtimestamp(from_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        name = self._dice.choice((f"{from_ms}--{now_ms}", second, "last-5s"))
        for line in (where / "time" / f"{name}.jsonl").read_bytes().splitlines():
            record = json.loads(line)
            message_of(record["value"].encode())
            if name.startswith(str(from_ms)) and not from_ms <= record["timestamp"] < now_ms:
                raise Inconsistent(f"{name}: {record['timestamp']}")
            self.counts["messages"] += 1

    def random_reads(self, where):
        """Bytes at random places are those of a read from the beginning to the end."""
        start, end = self._ends(where)
        fd = os.open(where / "offsets" / f"{max(start, end - 2000)}-.jsonl", os.O_RDONLY)
        try:
            size, whole = os.lseek(fd, 0, os.SEEK_END), b""
            while part := os.pread(fd, 1 << 20, len(whole)):
                whole += part
            if len(whole) < size:
                raise Inconsistent(f"{where}: {len(whole)} bytes of {size}")
            for _ in range(20):
                at, count = self._dice.randrange(len(whole) + 1), self._dice.choice((1, 100, 5000, 200_000))
                if os.pread(fd, count, at)[: len(whole) - at] != whole[at : at + count]:
                    raise Inconsistent(f"{where}: other bytes at {at}")
        finally:
            os.close(fd)

    def status(self, where):
        status = json.loads((self._lives.path / "@status.json").read_bytes())
        failed = {tp: part for tp, part in status["partitions"].items() if part["state"] != "online"}
        if failed or status["errors"]["bugs"]:
            raise Inconsistent(f"offline: {failed}, bugs: {status['errors']}")
        self._tool("ls", "-lR", where)

"""A mount and a broker own one log directory in turn, each stopped in order or killed at a random moment.

In its turn each writes to every partition, and is ended: by a clean stop, or by SIGKILL while it is written to.
Then the other one must find, partition by partition, every message that was acknowledged, once and in order, and of
the last ones, whose outcome is unknown, some or none. Every message names its partition and its number.
"""

import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker
from tests.support.mount_lives import Lives
from tests.support.readers import read_all

PARTITIONS = [TopicPartition(topic, number) for topic in ("small", "large") for number in (0, 1)]
TOPICS = {
    "small": (2, {"internal.segment.bytes": 30_000, "index.interval.bytes": 200, "retention.ms": -1}),
    "large": (2, {"compression.type": "lz4", "retention.ms": -1}),
}


@dataclass
class Written:
    """One partition: the values that are there for certain, and those behind them that may be there too."""

    certain: list = field(default_factory=list)
    possible: list = field(default_factory=list)
    count: int = 0

    def some(self, tp, dice, choices=(1, 5, 40)):
        """New values to be written."""
        count = dice.choice(choices)
        self.count += count
        numbers = range(self.count - count, self.count)
        return [b"%s %07d %s" % (str(tp).encode(), n, b"x" * dice.choice((0, 10, 400))) for n in numbers]

    def check(self, tp, found, by):
        """All that is certain, then some of the rest in order; after that it is known what is there."""
        pairs = zip(found, self.certain, strict=False)
        wrong = [(number, *pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]
        known = len(self.certain)
        assert not wrong, f"{by}: {tp}: number, found, written: {wrong[0]}"
        assert len(found) >= known, f"{by}: {tp}: {len(found)} messages, {known} acknowledged"
        rest = iter(self.possible)
        assert all(value in rest for value in found[known:]), f"{by}: {tp}: {found[known:][:5]}, {self.possible[:5]}"
        self.certain, self.possible = list(found), []


class Turns:
    """A directory and its two owners. `kills`: how many there were."""

    def __init__(self, directory, seed):
        self.kills = 0
        self._dice = random.Random(seed)
        self._broker = Broker(directory / "broker")
        self.written = {tp: Written() for tp in PARTITIONS}
        self._lives = Lives(self._broker.log_dir, directory / "mnt", directory / "mount.log", ["--write"])

    def close(self):
        self._lives.abandon()
        self._broker.kill()

    def begin(self):
        Client(self._broker.start().address).create_topics(TOPICS)
        self._broker.stop()

    def round(self):
        """A turn of each; says how they ended."""
        return f"{self._turn_of_the_mount()}, {self._turn_of_the_broker()}"

    def _check(self, by, values_of):
        for tp, written in self.written.items():
            written.check(tp, values_of(tp), by)

    def _turn_of_the_mount(self):
        self._lives.start()
        views = {tp: self._lives.path / tp.topic / str(tp.partition) for tp in PARTITIONS}
        self._check("the mount", lambda tp: (views[tp] / "messages.txt").read_bytes().splitlines())

        def append(tp, lines):
            with (views[tp] / "@append").open("ab", buffering=0) as file:
                left = memoryview(lines)
                while left:
                    left = left[file.write(left) or 0 :]

        if self._killed_while(append, (0.05, 1.0), self._lives.kill):
            return "mount killed"
        self._lives.end()
        assert not [found for found in verify_log_dir(self._broker.log_dir) if found.severity is not Severity.NOTE]
        return "mount stopped"

    def _turn_of_the_broker(self):
        client = Client(self._broker.start().address)
        self._check("the broker", lambda tp: [record.value for record in client.consume(tp.topic, tp.partition)])
        self._transact(client)

        def produce(tp, lines):
            subprocess.run(
                ["kcat", "-P", "-b", self._broker.address, "-t", tp.topic, "-p", str(tp.partition),
                 "-X", "enable.idempotence=true", "-X", "message.timeout.ms=4000"],
                input=lines, capture_output=True, timeout=60, check=True,
            )  # fmt: skip

        killed = self._killed_while(produce, (0.3, 2.0), self._broker.kill)
        if not killed:
            self._broker.stop()
        # What we read of it before anything is recovered.
        own = LogDir.open_read_only(self._broker.log_dir)
        self._check("reading", lambda tp: [record.value for record in read_all(own.log(tp).snapshot())])
        return "broker killed" if killed else "broker stopped"

    def _transact(self, client):
        """Two transactions, of which one is aborted: a reader of uncommitted messages sees both."""
        tp = self._dice.choice(PARTITIONS)
        for commit in (True, False):
            values = self.written[tp].some(tp, self._dice, (1, 5, 10))
            client.transactions(tp.topic, [(commit, [Message(value) for value in values])], tp.partition)
            self.written[tp].certain += values

    def _killed_while(self, write, moments, kill):
        """Everything is written to, by a thread for each partition; whether a kill came between, at some moment."""
        killed = self._dice.random() < 0.6
        end = Event()
        with ThreadPoolExecutor(len(PARTITIONS)) as pool:
            writing = [
                pool.submit(self._write, tp, write, end if killed else None, random.Random(self._dice.random()))
                for tp in PARTITIONS
            ]
            try:
                if killed:
                    time.sleep(self._dice.uniform(*moments))
                    kill()
            finally:
                end.set()
        failed = [error for future in writing if (error := future.result()) is not None]
        assert killed or not failed, failed
        self.kills += killed
        return killed

    def _write(self, tp, write, end, dice):
        """Writes a few batches, or until the end, or until one fails, and returns why."""
        written, left, failed = self.written[tp], 3, None
        while failed is None and (left > 0 or not (end is None or end.is_set())):
            left -= 1
            values = written.some(tp, dice)
            try:
                write(tp, b"".join(value + b"\n" for value in values))
                written.certain += values
            except (OSError, subprocess.SubprocessError) as error:
                written.possible += values
                failed = error
        return failed


def run(directory, *, rounds, seed, **_):
    turns = Turns(directory, seed)
    try:
        turns.begin()
        for number in range(rounds):
            ends = turns.round()
            messages = sum(len(written.certain) for written in turns.written.values())
            yield f"round {number}: {ends}; {messages} messages"
    finally:
        turns.close()
    yield f"{messages} messages, {turns.kills} kills, nothing lost or doubled"

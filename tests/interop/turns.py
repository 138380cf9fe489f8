"""A mount and a broker own one log directory in turn, each stopped in order or killed at a random moment.

    python -m tests.interop.turns --rounds 20 --seed 5

In its turn each writes to every partition, and is ended: by a clean stop, or by SIGKILL while it is written to.
Then the other one must find, partition by partition, every message that was acknowledged, once and in order, and of
the last ones, whose outcome is unknown, some or none. Every message names its partition and its number.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker
from tests.support.mount_lives import Lives
from tests.support.readers import read_all

PARTITIONS = [TopicPartition(topic, number) for topic in ("small", "large") for number in (0, 1)]
_SECONDS = 60


@dataclass
class Written:
    """One partition: the values that are there for certain, and those behind them that may be there too."""

    certain: list[bytes] = field(default_factory=list)
    possible: list[bytes] = field(default_factory=list)
    count: int = 0

    def some(self, tp, dice):
        """New values to be written."""
        count = dice.choice((1, 5, 40))
        self.count += count
        numbers = range(self.count - count, self.count)
        return [b"%s %07d %s" % (str(tp).encode(), n, b"x" * dice.choice((0, 10, 400))) for n in numbers]

    def check(self, tp, found, by):
        """All that is certain, then some of the rest in order; after that it is known what is there."""
        assert list(found[: len(self.certain)]) == self.certain, f"{by}: {tp}: {_difference(found, self.certain)}"
        rest = iter(self.possible)
        behind = found[len(self.certain) :]
        assert all(value in rest for value in behind), f"{by}: {tp}: {behind[:5]} among {self.possible[:5]}"
        self.certain, self.possible = [value for value in found if value is not None], []


def _difference(found, certain):
    at = next(
        (n for n, (a, b) in enumerate(zip(found, certain, strict=False)) if a != b), min(len(found), len(certain))
    )
    return (
        f"{len(found)} messages, {len(certain)} acknowledged; number {at}: {found[at : at + 1]}, {certain[at : at + 1]}"
    )


class Turns:
    """A directory and its two owners. `kills` and `messages` count what has happened."""

    def __init__(self, directory, seed):
        self.kills = 0
        self._dice = random.Random(seed)
        self._broker = Broker(directory / "broker")
        self._written = {tp: Written() for tp in PARTITIONS}
        self._lives = Lives(self._broker.log_dir, directory / "mnt", directory / "mount.log", ["--write"])

    @property
    def messages(self):
        return sum(len(written.certain) for written in self._written.values())

    def close(self):
        self._lives.abandon()
        self._broker.kill()

    def begin(self):
        """Creates the topics."""
        client = Client(self._broker.start().address)
        client.create_topics(
            {
                "small": (2, {"internal.segment.bytes": 30_000, "index.interval.bytes": 200, "retention.ms": -1}),
                "large": (2, {"compression.type": "lz4", "retention.ms": -1}),
            }
        )
        self._broker.stop()

    def round(self):
        """A turn of each; says how they ended."""
        return f"{self._turn_of_the_mount()}, {self._turn_of_the_broker()}"

    def _turn_of_the_mount(self):
        self._lives.start()
        for tp, written in self._written.items():
            view = self._lives.path / tp.topic / str(tp.partition) / "messages.txt"
            written.check(tp, view.read_bytes().splitlines(), "the mount")
        killed = self._dice.random() < 0.6
        with self._writers(self._append, keep_on=killed):
            if killed:
                time.sleep(self._dice.uniform(0.05, 1.0))
                self._lives.kill()
        if killed:
            self.kills += 1
            return "mount killed"
        self._lives.end()
        findings = [found for found in verify_log_dir(self._broker.log_dir) if found.severity is not Severity.NOTE]
        assert not findings
        return "mount stopped"

    def _turn_of_the_broker(self):
        client = Client(self._broker.start().address)
        for tp, written in self._written.items():
            found = [record.value for record in client.consume(tp.topic, tp.partition)]
            written.check(tp, found, "the broker")
        self._transact(client)
        killed = self._dice.random() < 0.6
        with self._writers(self._produce, keep_on=killed):
            if killed:
                time.sleep(self._dice.uniform(0.3, 2.0))
                self._broker.kill()
        if killed:
            self.kills += 1
        else:
            self._broker.stop()
        # What we read of it before anything is recovered.
        own = LogDir.open_read_only(self._broker.log_dir)
        for tp, written in self._written.items():
            written.check(tp, [record.value for record in read_all(own.log(tp).snapshot())], "reading")
        return "broker killed" if killed else "broker stopped"

    def _transact(self, client):
        """Two transactions, of which one is aborted: a reader of uncommitted messages sees both."""
        tp = self._dice.choice(PARTITIONS)
        written = self._written[tp]
        rounds = [(commit, written.some(tp, self._dice)[:10]) for commit in (True, False)]
        client.transactions(
            tp.topic, [(commit, [Message(value) for value in values]) for commit, values in rounds], tp.partition
        )
        for _, values in rounds:
            written.certain += values

    @contextmanager
    def _writers(self, write, *, keep_on):
        """A thread for each partition: it writes a few batches, with `keep_on` until one fails."""
        stop = Event()
        threads = [
            Thread(target=self._write, args=(tp, write, stop, keep_on, random.Random(self._dice.random())))
            for tp in PARTITIONS
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _write(
        self, tp, write, stop, keep_on,
        dice):  # fmt: skip
        written = self._written[tp]
        left = 3
        while left or (keep_on and not stop.is_set()):
            left = max(left - 1, 0)
            values = written.some(tp, dice)
            try:
                write(tp, b"".join(value + b"\n" for value in values))
            except (OSError, subprocess.SubprocessError):
                written.possible += values
                return
            written.certain += values

    def _append(self, tp, lines):
        with (self._lives.path / tp.topic / str(tp.partition) / "@append").open("ab", buffering=0) as file:
            view = memoryview(lines)
            while view:
                view = view[file.write(view) or 0 :]

    def _produce(self, tp, lines):
        subprocess.run(
            ["kcat", "-P", "-b", self._broker.address, "-t", tp.topic, "-p", str(tp.partition),
             "-X", "enable.idempotence=true", "-X", "message.timeout.ms=4000"],
            input=lines, capture_output=True, timeout=_SECONDS, check=True,
        )  # fmt: skip


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.turns")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        turns = Turns(Path(temporary), chosen.seed)
        try:
            turns.begin()
            for number in range(chosen.rounds):
                print(f"round {number}: {turns.round()}; {turns.messages} messages", flush=True)  # noqa: T201
        finally:
            turns.close()
    print(f"{turns.messages} messages, {turns.kills} kills, nothing lost or doubled")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""One soak: a directory, a mount, eight writers, eight readers, kills, and the account at the end."""

import random
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event

from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.client import Client
from tests.interop.kafka import Broker
from tests.soak.ledger import Ledger, message_of
from tests.soak.readers import Browser, Follower
from tests.soak.writers import KEYS, MountWriter, Producer, ToolWriter
from tests.support.mount_lives import Lives
from tests.support.mounts import run_kafkafs
from tests.support.readers import read_all

READERS = 8
PARTITIONS = [("kept", 0), ("kept", 1), ("retained", 0), ("retained", 1)]
COMPACTED = ("compacted", 0)
# Of the writers, from number 0 on: those of the ledger, and those with keys.
FILES = ("kept/0/@append", "kept/1/@append.jsonl", "kept/@append", "retained/0/@append", "retained/1/@append",
         "retained/@append.jsonl", "compacted/@append.jsonl", "compacted/@append.jsonl")  # fmt: skip
_BACKGROUND = {
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.flush.start.offset.checkpoint.interval.ms": "5000",
}


@dataclass(frozen=True)
class Plan:
    """How a soak is done. `kills`: spread over the first two thirds, so that the last life is long enough to be
    measured. `per_second`: lines of each writer. `segment_bytes`: of the topics that are retained and compacted."""

    seconds: float
    kills: int
    broker: bool = False
    per_second: float = 40
    segment_bytes: int = 256 << 10
    sample_every_s: float = 180


@dataclass
class Report:
    """What came of it."""

    account: dict
    updates: int  # of a compacted topic
    kills: int
    reads: Counter
    problems: list = field(default_factory=list)
    samples: list = field(default_factory=list)

    @property
    def is_sound(self):
        return not (self.problems or any(self.account[kind] for kind in ("lost", "doubled", "invented", "reordered")))

    def __str__(self):
        lines = [f"{self.account}", f"{self.updates} updates of a compacted topic, {self.kills} kills", f"{self.reads}"]
        lines += [*map(str, self.samples), *(f"PROBLEM {problem}" for problem in self.problems[:50])]
        return "\n".join([*lines, f"{len(self.problems)} problems"])


def soak(directory, plan, tell=lambda _: None):
    """Runs it in an empty directory. `tell` gets a line at each sample and kill."""
    segments = str(plan.segment_bytes)
    topics = {
        "kept": {"segment.bytes": str(4 * plan.segment_bytes)},
        "retained": {"segment.bytes": segments, "retention.bytes": str(8 * plan.segment_bytes)},
        "compacted": {"segment.bytes": segments, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
    }
    with (_broker if plan.broker else _directory)(directory, topics) as (log_dir, address, options):
        lives = Lives(log_dir, directory / "mnt", directory / "mount.log", options)
        try:
            lives.start()
            return _Run(plan, lives, address).run(log_dir, tell)
        finally:
            lives.abandon()


@contextmanager
def _broker(directory, topics):
    """The log directory of a live broker, which a read-only mount follows, and its address."""
    broker = Broker(directory / "broker", _BACKGROUND)
    try:
        client = Client(broker.start().address)
        for topic, config in topics.items():
            config = {key.replace("segment.bytes", "internal.segment.bytes"): value for key, value in config.items()}
            client.create_topic(topic, 1 if topic == "compacted" else 2, {"retention.ms": "-1", **config})
        yield broker.log_dir, broker.address, []
        broker.stop()
    finally:
        broker.kill()


@contextmanager
def _directory(directory, topics):
    """A log directory for a mount that writes to it."""
    log_dir, file = directory / "log", directory / "server.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in _BACKGROUND.items()))
    for topic, config in topics.items():
        settings = [f"--config={key}={value}" for key, value in {**config, "file.delete.delay.ms": "1000"}.items()]
        count = "1" if topic == "compacted" else "2"
        run_kafkafs("topics", "create", log_dir, topic, "--partitions", count, *settings)
    yield log_dir, None, ["--write", "--config", str(file)]


class _Run:
    """The threads of one soak."""

    def __init__(self, plan, lives, address):
        self._plan = plan
        self._lives = lives
        self._ledger, self._updates = Ledger(), Ledger()
        self._no_more_writes, self._no_more_reads = Event(), Event()
        self._follower = Follower(self._no_more_reads, lives, self._ledger, PARTITIONS)
        everything = [*PARTITIONS, COMPACTED]
        self._readers = [Browser(number, self._no_more_reads, lives, everything) for number in range(READERS)]
        self._readers.append(self._follower)
        self._writers = [self._writer(number, file, address) for number, file in enumerate(FILES)]

    def _writer(self, number, file, address):
        keyed = file.startswith("compacted")
        ledger = self._updates if keyed else self._ledger
        pace = number, ledger, self._no_more_writes, self._plan.per_second
        if address is None:
            kind = ToolWriter if file == "retained/1/@append" else MountWriter
            return kind(*pace, lives=self._lives, file=file, keyed=keyed)
        topic, partition = COMPACTED if keyed else PARTITIONS[number % len(PARTITIONS)]
        return Producer(*pace, address=address, topic=topic, partition=partition, keyed=keyed)

    def run(self, log_dir, tell):
        """Until the time is over; then everything is read, the mount ends, and the directory is verified."""
        samples = []
        for thread in [*self._writers, *self._readers]:
            thread.start()
        try:
            self._wait(samples, tell)
        finally:
            for event, threads in ((self._no_more_writes, self._writers), (self._no_more_reads, self._readers)):
                event.set()
                for thread in threads:
                    thread.join()
        problems = [f"{writer.name}: {writer.bug!r}" for writer in self._writers if writer.bug is not None]
        self._follower.once()  # nobody writes any more
        samples.append(self._lives.sample())
        self._lives.end()
        problems += self._at_rest(log_dir)
        problems += [problem for reader in self._readers for problem in reader.problems]
        reads = sum((reader.counts for reader in self._readers), Counter())
        updates = self._updates.account()["acknowledged"]
        return Report(self._ledger.account(), updates, self._lives.kills, reads, problems, samples)

    def _wait(self, samples, tell):
        """Kills and samples at their times."""
        plan, began = self._plan, time.monotonic()
        dice = random.Random(plan.kills)
        kills = sorted(dice.uniform(0.05, 0.66) * plan.seconds for _ in range(plan.kills))
        sample_at = min(10.0, plan.seconds / 4)
        while (now := time.monotonic() - began) < plan.seconds:
            if kills and now >= kills[0]:
                kills.pop(0)
                self._lives.kill()
                self._lives.start()
                tell(f"{now:.0f} s: killed and started again; {self._ledger.account()}")
            if now >= sample_at:
                sample_at = now + plan.sample_every_s
                samples.append(self._lives.sample())
                tell(f"{now:.0f} s: {samples[-1]}; {self._ledger.account()}")
            time.sleep(min(1.0, plan.seconds / 50))

    def _at_rest(self, log_dir):
        """What the directory holds, by the engine: the last messages of keys, and no damage."""
        snapshot = LogDir.open_read_only(log_dir).log(TopicPartition(*COMPACTED)).snapshot()
        latest = {record.key: message_of(record.value) for record in read_all(snapshot)}
        findings = [] if self._plan.broker else verify_log_dir(log_dir)
        damages = [str(finding) for finding in findings if finding.severity is not Severity.NOTE]
        return self._updates.wrong_latest(latest, KEYS) + damages

"""One soak: a directory, a mount, eight writers, eight readers, kills, and the account at the end."""

from __future__ import annotations

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
from tests.soak.ledger import Account, LatestOfKeys, Ledger, message_of
from tests.soak.readers import Browser, Follower
from tests.soak.writers import KeyProducer, KeyWriter, MountWriter, Producer, ToolWriter, file_of
from tests.support.mount_lives import Lives, Sample
from tests.support.mounts import run_kafkafs
from tests.support.readers import read_all

READERS = 8
PARTITIONS = [("kept", 0), ("kept", 1), ("retained", 0), ("retained", 1)]
COMPACTED = ("compacted", 0)
_BACKGROUND = {
    "log.retention.check.interval.ms": "2000",
    "log.cleaner.backoff.ms": "1000",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.flush.start.offset.checkpoint.interval.ms": "5000",
}


@dataclass(frozen=True, slots=True)
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

    account: Account
    compacted: int
    kills: int
    problems: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    reads: Counter[str] = field(default_factory=Counter)

    @property
    def is_sound(self):
        return self.account.is_sound and not self.problems

    def __str__(self):
        lines = [str(self.account), f"{self.compacted} updates of a compacted topic, {self.kills} kills"]
        lines.append(", ".join(f"{what} {count}" for what, count in sorted(self.reads.items())))
        lines += map(str, self.samples)
        lines += [f"PROBLEM {problem}" for problem in self.problems[:50]]
        return "\n".join([*lines, f"{len(self.problems)} problems"])


def soak(directory, plan, tell=lambda _: None):
    """Runs it in an empty directory. `tell` gets a line at each sample and kill."""
    with _serving(directory, plan) as (lives, log_dir, address):
        run = _Run(plan, lives, address)
        return run.run(log_dir, tell)


@contextmanager
def _serving(directory, plan):
    """The mount, its log directory and, with a broker, its address."""
    broker = None
    segments = str(plan.segment_bytes)
    topics = {
        "kept": {"segment.bytes": str(4 * plan.segment_bytes)},
        "retained": {"segment.bytes": segments, "retention.bytes": str(8 * plan.segment_bytes)},
        "compacted": {"segment.bytes": segments, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1"},
    }
    log_dir, options, address = directory / "log", [], None
    if plan.broker:
        broker = Broker(directory / "broker", _BACKGROUND)
        log_dir = broker.log_dir
    else:
        config = directory / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in _BACKGROUND.items()))
        options = ["--write", "--config", str(config)]
    try:
        if broker is not None:
            address = broker.start().address
            client = Client(address)
            for topic, overrides in topics.items():
                renamed = {
                    key.replace("segment.bytes", "internal.segment.bytes"): value for key, value in overrides.items()
                }
                client.create_topic(topic, 1 if topic == "compacted" else 2, {"retention.ms": "-1", **renamed})
        else:
            for topic, overrides in topics.items():
                settings = [
                    f"--config={key}={value}" for key, value in {**overrides, "file.delete.delay.ms": "1000"}.items()
                ]
                number = "1" if topic == "compacted" else "2"
                run_kafkafs("topics", "create", log_dir, topic, "--partitions", number, *settings)
        lives = Lives(log_dir, directory / "mnt", directory / "mount.log", options)
        try:
            lives.start()
            yield lives, log_dir, address
        finally:
            lives.abandon()
        if broker is not None:
            broker.stop()
    finally:
        if broker is not None:
            broker.kill()


class _Run:
    """The threads of one soak."""

    def __init__(self, plan, lives, address):
        self._plan = plan
        self._lives = lives
        self._ledger = Ledger()
        self._latest = LatestOfKeys()
        self._no_more_writes = Event()
        self._no_more_reads = Event()
        self._follower = Follower(self._no_more_reads, lives, self._ledger, PARTITIONS)
        everything = [*PARTITIONS, COMPACTED]
        self._readers = [Browser(number, self._no_more_reads, lives, everything) for number in range(READERS)]
        self._writers = self._through_the_mount() if address is None else self._through(address)

    def _through_the_mount(self):
        common = (self._ledger, self._no_more_writes, self._plan.per_second, self._lives)
        writers = [
            MountWriter(0, *common, file_of("kept", 0)),
            MountWriter(1, *common, file_of("kept", 1, jsonl=True)),
            MountWriter(2, *common, file_of("kept", None)),
            MountWriter(3, *common, file_of("retained", 0)),
            ToolWriter(4, *common, file_of("retained", 1)),
            MountWriter(5, *common, file_of("retained", None, jsonl=True)),
        ]
        for number in (6, 7):
            file = file_of("compacted", None, jsonl=True)
            pace = (self._no_more_writes, self._plan.per_second, self._lives)
            writers.append(KeyWriter(number, *pace, file, self._latest))
        return writers

    def _through(self, address):
        pace = (self._no_more_writes, self._plan.per_second, address)
        writers = [Producer(number, self._ledger, *pace, *PARTITIONS[number % len(PARTITIONS)]) for number in range(6)]
        return [*writers, *(KeyProducer(number, *pace, *COMPACTED, self._latest) for number in (6, 7))]

    def run(self, log_dir, tell):
        """Until the time is over; then everything is read, the mount ends, and the directory is verified."""
        samples = []
        threads = [*self._writers, self._follower, *self._readers]
        for thread in threads:
            thread.start()
        try:
            self._wait(samples, tell)
        finally:
            self._no_more_writes.set()
            for writer in self._writers:
                writer.join()
            self._no_more_reads.set()
            for reader in (self._follower, *self._readers):
                reader.join()
        problems = [f"{writer.name}: {writer.bug!r}" for writer in self._writers if writer.bug is not None]
        self._follower.once()  # nobody writes any more
        samples.append(self._lives.sample())
        self._lives.end()
        problems += self._at_rest(log_dir)
        for reader in (self._follower, *self._readers):
            problems += reader.problems
        reads = sum((reader.counts for reader in self._readers), Counter())
        return Report(self._ledger.account(), self._latest.count, self._lives.kills, problems, samples, reads)

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
        """What the directory holds, by the engine: the last messages of keys; what was kept, in full; no damage."""
        own = LogDir.open_read_only(log_dir)
        latest = {}
        for record in read_all(own.log(TopicPartition(*COMPACTED)).snapshot()):
            assert record.key is not None
            assert record.value is not None
            latest[record.key] = message_of(record.value)
        problems = self._latest.wrong(latest)
        if self._plan.broker:
            return problems
        findings = verify_log_dir(log_dir)
        return problems + [str(finding) for finding in findings if finding.severity is not Severity.NOTE]

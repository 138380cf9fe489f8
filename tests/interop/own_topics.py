"""Kafka's own topics after random work on a broker: each record beside what kafka-dump-log makes of it.

`python -m tests.interop.own_topics --minutes 5 --seed 1`: topics, configurations, ACLs, quotas and SCRAM users are made
and removed, classic, consumer (KIP-848) and share groups read and are deleted, offsets are committed in transactions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as ClientPartition

from storage.format.messages import messages
from tests.interop.client import Client
from tests.interop.kafka import Broker, run_tool
from tests.support.commands import output_of
from tests.support.own_topics import without_name

DECODERS = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
    "__share_group_state": "--share-group-state-decoder",
    "__cluster_metadata": "--cluster-metadata-decoder",
}
SETTINGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "2",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "metadata.log.max.snapshot.interval.ms": "60000",
}
TOOLS = "org.apache.kafka.tools"


class Work:
    """Random requests to a broker. What fails because of what came before is passed over."""

    def __init__(self, broker: Broker, dice: random.Random) -> None:
        self.done: Counter[str] = Counter()
        self._address, self._client, self._dice = broker.address, Client(broker.address), dice
        self._topics: list[str] = []
        self.make_topic()

    def run(self, deadline: float) -> None:
        kinds = (
            self.make_topic, self.remove_topic, self.configure, self.classic, self.transaction, self.consumer,
            self.share, self.access, self.user, self.remove_group,
        )  # fmt: skip
        weights = (3, 1, 3, 6, 6, 2, 2, 1, 1, 1)
        first = list(kinds)
        while time.monotonic() < deadline or first:
            one: Callable[[], None] = first.pop(0) if first else self._dice.choices(kinds, weights)[0]
            with suppress(AssertionError, RuntimeError, subprocess.SubprocessError, OSError):
                one()
                self.done[one.__name__] += 1

    def make_topic(self) -> None:
        name = f"t-{self._dice.randrange(10**6)}"
        self._client.create_topic(name, self._dice.randrange(1, 4))
        self._topics.append(name)
        asyncio.run(self._send(name, 30))

    def remove_topic(self) -> None:
        if len(self._topics) > 2:
            self._client.delete_topic(self._topics.pop(self._dice.randrange(len(self._topics))))

    def configure(self) -> None:
        self._client.alter_topic(self._topic(), {"retention.ms": self._dice.randrange(10**9)})

    def classic(self) -> None:
        asyncio.run(self._read(f"classic-{self._dice.randrange(5)}"))

    def transaction(self) -> None:
        asyncio.run(self._transaction(f"id-{self._dice.randrange(5)}", self._dice.random() < 0.6))

    def consumer(self) -> None:
        self._tool(
            f"{TOOLS}.consumer.ConsoleConsumer", "--topic", self._topic(), "--group", self._name("k848"),
            "--from-beginning", "--max-messages", "5", "--timeout-ms", "8000",
            "--command-property", "group.protocol=consumer",
        )  # fmt: skip

    def share(self) -> None:
        self._tool(
            f"{TOOLS}.consumer.ConsoleShareConsumer", "--topic", self._topic(), "--group", self._name("share"),
            "--max-messages", "5", "--timeout-ms", "8000",
        )  # fmt: skip

    def access(self) -> None:
        change = self._dice.choice(("--add", "--add", "--remove"))
        force = () if change == "--add" else ("--force",)
        self._tool(
            f"{TOOLS}.AclCommand", change, *force, "--allow-principal", f"User:{self._name('u')}",
            "--operation", "Read", "--topic", self._topic(),
        )  # fmt: skip

    def user(self) -> None:
        name, scram = self._name("user"), self._dice.random() < 0.5
        config = "SCRAM-SHA-256=[iterations=4096,password=x]" if scram else "consumer_byte_rate=1024.5"
        self._tool("kafka.admin.ConfigCommand", "--alter", "--add-config", config,
                   "--entity-type", "users", "--entity-name", name)  # fmt: skip

    def remove_group(self) -> None:
        self._tool(f"{TOOLS}.consumer.group.ConsumerGroupCommand", "--delete", "--group", self._name("k848"))

    def _name(self, kind: str) -> str:
        return f"{kind}-{self._dice.randrange(3)}"

    def _topic(self) -> str:
        return self._dice.choice(self._topics)

    def _tool(self, name: str, *arguments: str) -> None:
        run_tool(name, "--bootstrap-server", self._address, *arguments, timeout=60)

    async def _send(self, topic: str, count: int) -> None:
        async with AIOKafkaProducer(bootstrap_servers=self._address) as producer:
            for number in range(count):
                await producer.send(topic, b"%d" % number)

    async def _read(self, group: str) -> None:
        consumer = AIOKafkaConsumer(
            self._topic(), bootstrap_servers=self._address, group_id=group, auto_offset_reset="earliest"
        )
        async with consumer:
            await asyncio.wait_for(consumer.getmany(timeout_ms=2000), 20)
            await consumer.commit()

    async def _transaction(self, name: str, commits: bool) -> None:
        topic = self._topic()
        async with AIOKafkaProducer(bootstrap_servers=self._address, transactional_id=name) as producer:
            await producer.begin_transaction()
            await producer.send_and_wait(topic, b"v", partition=0)
            offsets = {ClientPartition(topic, 0): self._dice.randrange(10**6)}
            await producer.send_offsets_to_transaction(offsets, f"group-of-{name}")
            await (producer.commit_transaction() if commits else producer.abort_transaction())


def told(line: str) -> dict[str, Any] | None:
    """What a line of kafka-dump-log says of a record, in our form; None for a control record."""
    _, found, rest = line.partition("headerKeys: [")
    rest = rest.partition("] ")[2]
    key = None
    if rest.startswith("key: "):
        key, end = json.JSONDecoder().raw_decode(rest[5:])
        key = {"type": int(key["type"]), "data": key["data"]}
        rest = rest[5 + end :].lstrip()
    if not found or not rest.startswith("payload: "):
        return None
    text = rest.removeprefix("payload: ")
    value = None if text == "<DELETE>" else json.loads(text)
    if key is not None and value is not None:
        value["version"] = int(value["version"])
    return {"key": key, "value": value}


def opened(value: Any) -> Any:
    """With what members of a classic group sent decoded, as kafka-dump-log does it for the protocol of consumers."""
    data = value["data"] if isinstance(value, dict) else {}
    if data.get("protocolType") != "consumer" or "members" not in data:
        return value

    def read(name: str, text: str) -> Any:
        import base64

        sent = base64.b64decode(text)
        return messages(name).one(None, sent)[1]["data"] if sent else text

    members = [
        {**one, **{name: read(name, one[name]) for name in ("subscription", "assignment")}} for one in data["members"]
    ]
    return {**value, "data": {**data, "members": members}}


def compare(log_dir: Path) -> tuple[Counter[str], list[str]]:
    """Records that are equal, by topic and type; and those that are not."""
    equal: Counter[str] = Counter()
    differing: list[str] = []
    for topic, option in DECODERS.items():
        for file in sorted(log_dir.glob(f"{topic}-*/*.log")):
            text = run_tool("org.apache.kafka.tools.DumpLogSegments", option, "--files", file, timeout=600)
            theirs = [one for line in text.splitlines() if line.startswith("| ") and (one := told(line)) is not None]
            ours = [
                {"key": without_name(line["key"]), "value": opened(line["value"])}
                for line in map(json.loads, output_of("dump", file).splitlines())
                if line["kind"] == "record"
            ]
            if len(ours) != len(theirs):
                differing.append(f"{file}: {len(ours)} records, kafka-dump-log has {len(theirs)}")
            for our, their in zip(ours, theirs, strict=False):
                kind = (our["key"] or our["value"])["type"]
                equal[f"{topic} {kind}"] += our == their
                if our != their:
                    differing.append(f"{file.parent.name}:\n  ours   {our}\n  theirs {their}")
    return equal, differing


def run(directory: Path, minutes: float, seed: int) -> tuple[Counter[str], Counter[str], list[str]]:
    """(what was done, records that are equal, records that are not)."""
    broker = Broker(directory / "broker", SETTINGS)
    try:
        work = Work(broker.start(), random.Random(seed))
        work.run(time.monotonic() + 60 * minutes)
        broker.stop()
    finally:
        broker.kill()
    return work.done, *compare(broker.log_dir)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        done, equal, differing = run(Path(name), chosen.minutes, chosen.seed)
    sys.stdout.write("done: " + ", ".join(f"{what} {count}" for what, count in done.items()) + "\n")
    sys.stdout.write("".join(f"{count:8} equal  {what}\n" for what, count in sorted(equal.items())))
    sys.stdout.write("".join(f"{text}\n" for text in differing[:20]) + f"{len(differing)} differing\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())

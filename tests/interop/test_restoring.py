"""A backup that `kafkafs revive` restores is the cluster that was.

Topic ids, features, transactional ids, groups of the newer protocols, ACLs, SCRAM credentials, quotas and dynamic
configuration: Kafka's own tools say so before and after.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka, run_tool
from tests.interop.reviving import RevivedBroker, revived, second_start_is_clean
from tests.support.commands import output_of, run

pytestmark = requires_kafka

AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
TOOLS = "org.apache.kafka.tools"
GROUP, SHARE_GROUP, TRANSACTIONAL_ID = "g-848", "g-share", "java-tx"


@dataclass
class Old:
    """The directory of the cluster, stopped, and what Kafka's tools said of it before. `said`: by question."""

    directory: Path
    topic_id: str
    said: dict[str, list[str]]


def asked(address: str) -> dict[str, list[str]]:
    """What Kafka's tools say of everything in the metadata besides topics."""
    where = ("--bootstrap-server", address)
    configs = ("kafka.admin.ConfigCommand", *where, "--describe")
    answers = {
        "acls": run_tool(f"{TOOLS}.AclCommand", *where, "--list"),
        "users": run_tool(*configs, "--entity-type", "users"),
        "clients": run_tool(*configs, "--entity-type", "clients", "--entity-default"),
        "brokers": run_tool(*configs, "--entity-type", "brokers", "--entity-default"),
        "groups": run_tool(*configs, "--entity-type", "groups", "--entity-name", GROUP),
        "metrics": run_tool(*configs, "--entity-type", "client-metrics", "--entity-name", "m"),
        "features": run_tool(f"{TOOLS}.FeatureCommand", *where, "describe"),
    }
    # Of a feature its level; the epoch is that of the metadata log. The quorum is a new one, with a version of its own.
    return {
        name: sorted(
            re.sub(r"\s*Epoch: \d+", "", line.strip())
            for line in said.splitlines()
            if line.strip() and "kraft.version" not in line
        )
        for name, said in answers.items()
    }


def topic_id_of(address: str, topic: str) -> str:
    said = run_tool(f"{TOOLS}.TopicCommand", "--bootstrap-server", address, "--describe", "--topic", topic)
    found = re.search(r"TopicId: (\S+)", said)
    assert found is not None
    return found[1]


def transacted(address: str, count: int) -> None:
    """A Java producer, whose records in `__transaction_state` name the transaction version, writes `count` messages."""
    run_tool(
        f"{TOOLS}.ProducerPerformance", "--bootstrap-server", address, "--topic", "t", "--num-records", str(count),
        "--record-size", "10", "--throughput", "-1", "--transactional-id", TRANSACTIONAL_ID,
        "--transaction-duration-ms", "1000",
    )  # fmt: skip


def consumed(address: str, count: int) -> list[int]:
    """The offsets of the next `count` messages that a member of a group of KIP-848 is given."""
    said = run_tool(
        f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", address, "--topic", "t", "--group", GROUP,
        "--max-messages", str(count), "--timeout-ms", "100000", "--command-property", "auto.offset.reset=earliest",
        "--command-property", "group.protocol=consumer",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    )  # fmt: skip
    return [int(offset) for offset in re.findall(r"^Offset:(\d+)$", said, re.MULTILINE)]


def shared(address: str, count: int) -> list[int]:
    """The offsets of the next `count` messages that a member of a share group is given."""
    said = run_tool(
        f"{TOOLS}.consumer.ConsoleShareConsumer", "--bootstrap-server", address, "--topic", "t", "--group", SHARE_GROUP,
        "--max-messages", str(count), "--timeout-ms", "100000",
        "--formatter-property", "print.offset=true", "--formatter-property", "print.value=false",
    )  # fmt: skip
    return [int(offset) for offset in re.findall(r"^Offset:(\d+)$", said, re.MULTILINE)]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Old]:
    config = {
        "offsets.topic.num.partitions": "3",
        "transaction.state.log.num.partitions": "3",
        "share.coordinator.state.topic.num.partitions": "3",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        **AUTHORIZER,
    }
    broker = Broker(tmp_path_factory.mktemp("old"), config)
    try:
        address = broker.start().address
        client = Client(address)
        client.create_topic("t", 1, {"retention.ms": -1})
        client.produce("t", [Message(b"%d" % number) for number in range(40)])
        where = ("--bootstrap-server", address)
        alter = ("kafka.admin.ConfigCommand", *where, "--alter")
        run_tool(
            f"{TOOLS}.AclCommand", *where, "--add", "--allow-principal", "User:alice", "--operation", "Read",
            "--topic", "t",
        )  # fmt: skip
        for config_given, *entity in (
            ("SCRAM-SHA-256=[password=secret]", "--entity-type", "users", "--entity-name", "alice"),
            ("consumer_byte_rate=12345", "--entity-type", "users", "--entity-name", "alice"),
            ("producer_byte_rate=777", "--entity-type", "clients", "--entity-default"),
            ("log.cleaner.threads=2", "--entity-type", "brokers", "--entity-default"),
            ("consumer.session.timeout.ms=50000", "--entity-type", "groups", "--entity-name", GROUP),
            ("share.auto.offset.reset=earliest", "--entity-type", "groups", "--entity-name", SHARE_GROUP),
            ("interval.ms=60000", "--entity-type", "client-metrics", "--entity-name", "m"),
        ):
            run_tool(*alter, "--add-config", config_given, *entity)
        transacted(address, 5)
        assert consumed(address, 10) == list(range(10))
        assert shared(address, 7) == list(range(7))
        said, topic_id = asked(address), topic_id_of(address, "t")
        broker.stop()
        yield Old(broker.log_dir, topic_id, said)
    finally:
        broker.kill()


def goes_on(broker: RevivedBroker, old: Old) -> None:
    """Clients of all kinds go on where they stopped, and the tools say what they said before."""
    try:
        address = broker.start().address
        assert topic_id_of(address, "t") == old.topic_id
        assert asked(address) == old.said
        assert consumed(address, 3) == [10, 11, 12]
        assert shared(address, 3) == [7, 8, 9]
        transacted(address, 5)
        second_start_is_clean(broker)
    finally:
        broker.kill()


def test_from_a_backup(old: Old, tmp_path: Path) -> None:
    output_of("mirror", old.directory, tmp_path / "copy", "--manifest", tmp_path / "manifest.json")
    assert (tmp_path / "copy" / "bootstrap.checkpoint").stat().st_mode & 0o777 == 0o600
    broker, told = revived(tmp_path, [tmp_path / "copy"], config=AUTHORIZER)
    assert not [note for note in told["notes"] if "no source tells" in note]
    goes_on(broker, old)


def test_from_the_directory_itself(old: Old, tmp_path: Path) -> None:
    broker, _ = revived(tmp_path, [old.directory], config=AUTHORIZER)
    goes_on(broker, old)


def test_without_metadata_the_data_decide_the_features(old: Old, tmp_path: Path) -> None:
    rest = tmp_path / "rest"
    shutil.copytree(old.directory, rest, ignore=shutil.ignore_patterns("__cluster_metadata-0", "bootstrap.checkpoint"))
    failed = run("revive", rest, "--to", tmp_path / "never", "--release", "4.1")
    assert failed.exit_code == 4
    assert "share.version" in failed.stderr
    broker, told = revived(tmp_path, [rest], config=AUTHORIZER)
    levels = {"metadata.version": 29, "transaction.version": 2, "group.version": 1, "share.version": 1}
    assert told["features"] == levels
    assert [note for note in told["notes"] if "no source tells" in note]
    try:
        address = broker.start().address
        assert consumed(address, 3) == [10, 11, 12]
        assert shared(address, 3) == [7, 8, 9]
        transacted(address, 5)
        second_start_is_clean(broker)
    finally:
        broker.kill()


def test_without_security(old: Old, tmp_path: Path) -> None:
    told = json.loads(output_of("revive", old.directory, "--to", tmp_path / "new", "--without-security", "--json"))
    assert [note for note in told["notes"] if note.startswith("ACLs: 0 of 1 carried over")]
    assert b"alice" not in (tmp_path / "new" / "bootstrap.checkpoint").read_bytes().replace(b"user\x06alice", b"")

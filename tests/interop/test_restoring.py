"""A backup that `kafkafs revive` restores is the cluster that was.

Topic ids, features, transactional ids, groups of the newer protocols, ACLs, SCRAM credentials, quotas and dynamic
configuration: Kafka's own tools say so before and after.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.interop.reviving import (
    AUTHORIZER,
    RevivedBroker,
    asked,
    configured,
    read_by_java,
    read_by_share_group,
    revived,
    second_start_is_clean,
    topic_ids,
    transacted,
)
from tests.support.commands import output_of, run

pytestmark = requires_kafka

GROUP, SHARE_GROUP, TRANSACTIONAL_ID = "g-848", "g-share", "java-tx"


@dataclass
class Old:
    """The directory of the cluster, stopped, and what Kafka's tools said of it before. `said`: by question."""

    directory: Path
    topic_id: str
    said: dict[str, list[str]]


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
        configured(address, GROUP, SHARE_GROUP, "t")
        transacted(address, 5, "t", TRANSACTIONAL_ID)
        assert read_by_java(Client(address), GROUP, "t", 10, protocol="consumer") == list(range(10))
        assert read_by_share_group(address, SHARE_GROUP, "t", 7) == list(range(7))
        said, topic_id = asked(address), topic_ids(address)["t"]
        broker.stop()
        yield Old(broker.log_dir, topic_id, said)
    finally:
        broker.kill()


def goes_on(broker: RevivedBroker, old: Old) -> None:
    """Clients of all kinds go on where they stopped, and the tools say what they said before."""
    try:
        address = broker.start().address
        assert topic_ids(address)["t"] == old.topic_id
        assert asked(address) == old.said
        assert read_by_java(Client(address), GROUP, "t", 3, protocol="consumer") == [10, 11, 12]
        assert read_by_share_group(address, SHARE_GROUP, "t", 3) == [7, 8, 9]
        transacted(address, 5, "t", TRANSACTIONAL_ID)
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
        assert read_by_java(Client(address), GROUP, "t", 3, protocol="consumer") == [10, 11, 12]
        assert read_by_share_group(address, SHARE_GROUP, "t", 3) == [7, 8, 9]
        transacted(address, 5, "t", TRANSACTIONAL_ID)
        second_start_is_clean(broker)
    finally:
        broker.kill()


def test_without_security(old: Old, tmp_path: Path) -> None:
    told = json.loads(output_of("revive", old.directory, "--to", tmp_path / "new", "--without-security", "--json"))
    assert [note for note in told["notes"] if note.startswith("ACLs: 0 of 1 carried over")]
    assert b"alice" not in (tmp_path / "new" / "bootstrap.checkpoint").read_bytes().replace(b"user\x06alice", b"")

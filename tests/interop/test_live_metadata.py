"""The content of __cluster_metadata-0, as kafkafs reads it, equals what the broker's admin interface reports."""

from __future__ import annotations

import json
import re

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka, run_tool
from tests.support.mounts import Mounted, requires_fuse, run_kafkafs

pytestmark = [requires_kafka, requires_fuse]


def test_topics_ids_partitions_configs(broker: Broker, client: Client) -> None:
    client.create_topic("one")
    client.create_topic("three", 3, {"retention.ms": 86_400_000, "compression.type": "zstd", "segment.ms": 1_000_000})
    client.create_topic("altered", 2, {"cleanup.policy": "compact"})
    client.alter_topic("altered", {"cleanup.policy": "compact,delete", "max.message.bytes": 123_456})
    client.produce("three", [Message(b"x")], 1)
    described = json.loads(run_kafkafs("topics", "describe", broker.log_dir, "--json").stdout)
    ours = {topic["topic"]: topic for topic in described["topics"]}
    told = run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.address, "--describe")
    ids = dict(re.findall(r"^Topic: (\S+)\s+TopicId: (\S+)", told, flags=re.MULTILINE))
    partitions = client.topics()
    for topic in ("one", "three", "altered"):
        assert ours[topic]["topic_id"] == ids[topic]
        assert ours[topic]["partition_count"] == partitions[topic]
        assert ours[topic]["config"] == client.topic_config(topic)
    assert ours["__transaction_state" if "__transaction_state" in ids else "one"]["topic_id"] in ids.values()


def test_the_tree_shows_them(client: Client, live: Mounted) -> None:
    client.create_topic("shown", 4, {"retention.bytes": 1_000_000, "segment.bytes": 2_000_000})
    topic = live.path / "shown"
    assert {path.name for path in topic.iterdir() if path.name.isdigit()} == {"0", "1", "2", "3"}
    config = dict(line.split("=", 1) for line in (topic / "@config").read_text().splitlines() if line[:1] != "#")
    assert client.topic_config("shown").items() <= config.items()

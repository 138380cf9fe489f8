"""The same batch queries through Spark's own Kafka source, from a running broker, and through ours, from its files."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.interop.spark_kafka import ask_both, assert_same, requires_spark_kafka

pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`")
pytestmark = [requires_kafka, requires_spark_kafka]

START = 1_795_000_000_000
DELETED = 60
TOPICS = "sp-a,sp-tx,sp-empty,sp-log"

QUERIES: dict[str, dict[str, str]] = {
    "everything": {"subscribe": TOPICS},
    "headers": {"subscribe": TOPICS, "includeHeaders": "true"},
    "pattern": {"subscribePattern": "sp-(a|log|nothing)"},
    "assigned": {"assign": '{"sp-a":[1,2],"sp-tx":[0]}'},
    "committed": {"subscribe": "sp-a,sp-tx", "kafka.isolation.level": "read_committed"},
    "committed partly": {
        "subscribe": "sp-tx",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": '{"sp-tx":{"0":5}}',
        "endingOffsets": '{"sp-tx":{"0":25}}',
    },
    "offsets": {
        "subscribe": "sp-a",
        "startingOffsets": '{"sp-a":{"0":17,"1":-2,"2":500}}',
        "endingOffsets": '{"sp-a":{"0":251,"1":333,"2":-1}}',
    },
    "nothing": {"subscribe": "sp-empty"},
    "one time": {
        "subscribe": "sp-a",
        "startingTimestamp": str(START + 100_000),
        "endingTimestamp": str(START + 300_000),
    },
    "times": {
        "subscribe": "sp-a",
        "startingOffsetsByTimestamp": json.dumps({"sp-a": {str(p): START + 70_500 * (p + 1) for p in range(3)}}),
        "endingOffsetsByTimestamp": json.dumps({"sp-a": {str(p): START + 250_250 * (p + 1) for p in range(3)}}),
    },
    "end after all times": {"subscribe": "sp-a", "endingTimestamp": str(START * 2)},
    "start after all times": {"subscribe": "sp-a", "startingTimestamp": str(START * 2)},
    "start after all times, latest": {
        "subscribe": "sp-a",
        "startingTimestamp": str(START * 2),
        "startingOffsetsByTimestampStrategy": "latest",
    },
    "many tasks": {"subscribe": "sp-a,sp-tx", "minPartitions": "13"},
    "short tasks": {"subscribe": "sp-a", "maxRecordsPerPartition": "77"},
    "lost": {
        "subscribe": "sp-a",
        "startingOffsets": '{"sp-a":{"0":0,"1":0,"2":3}}',
        "failOnDataLoss": "false",
    },
    "a partition is missing": {"subscribe": "sp-a", "startingOffsets": '{"sp-a":{"0":0,"1":0}}'},
    "a partition too many": {"subscribe": "sp-log", "startingOffsets": '{"sp-log":{"0":0,"1":0}}'},
    "no JSON": {"subscribe": "sp-log", "startingOffsets": "{sp-log:0}"},
    "from the latest": {"subscribe": "sp-log", "startingOffsets": "latest"},
    "to the earliest": {"subscribe": "sp-log", "endingOffsets": "earliest"},
    "backwards": {
        "subscribe": "sp-log",
        "startingOffsets": '{"sp-log":{"0":2}}',
        "endingOffsets": '{"sp-log":{"0":1}}',
    },
    "twice": {"subscribe": "sp-log", "subscribePattern": "sp-log"},
    "no such topic": {"subscribe": "sp-nowhere", "fetchOffset.numRetries": "1"},
}
ERRORS = {
    "start after all times", "a partition is missing", "a partition too many", "no JSON", "from the latest",
    "to the earliest", "backwards", "twice", "no such topic",
}  # fmt: skip


@pytest.fixture(scope="module")
def topics(client: Client, broker: Broker) -> None:
    """`sp-a`: three partitions in several segments, disordered times, headers, the first messages of one deleted;
    `sp-tx`: committed and aborted transactions, plain messages; `sp-log`: append times."""
    rng = random.Random(6)
    client.create_topic("sp-a", 3, {"internal.segment.bytes": 12_000, "index.interval.bytes": 300, "retention.ms": -1})
    for partition in range(3):
        messages = [
            Message(
                None if number % 33 == 0 else b"value-%d" % number,
                None if number % 3 else b"key-%d" % number,
                (("h", b"1"), ("none", None), ("", b"")) if number % 5 == 0 else (),
                START + number * 1000 + rng.randrange(-20_000, 20_000),
            )
            for number in range(400 * (partition + 1))
        ]
        client.produce("sp-a", messages, partition=partition, batch=17)
    client.delete_records("sp-a", 2, DELETED)
    client.create_topic("sp-tx", 1)
    for commit in (True, False, True, False):
        client.transactions("sp-tx", [(commit, [Message(b"%d" % number) for number in range(9)])], id="spark")
    client.produce("sp-tx", [Message(b"plain")] * 4)
    client.create_topic("sp-empty", 2)
    client.create_topic("sp-log", 1, {"message.timestamp.type": "LogAppendTime"})
    client.produce("sp-log", [Message(b"x", timestamp=5)] * 3)
    log = LogDir.open_read_only(broker.log_dir).log(TopicPartition("sp-a", 2))
    deadline = time.monotonic() + 120
    while log.snapshot().log_start_offset != DELETED:  # the broker writes its checkpoint periodically
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("topics")
def test_the_same_queries_give_the_same_rows(broker: Broker, tmp_path: Path) -> None:
    theirs, ours = ask_both(broker, QUERIES, tmp_path)
    failed = {name for name, answer in theirs.items() if "error" in answer}
    assert failed == ERRORS
    for name in QUERIES:
        assert_same(theirs[name], ours[name], name)
    assert not theirs["nothing"]["rows"]
    assert len(theirs["everything"]["rows"]) == 400 + 800 + 1200 - DELETED + 4 * 9 + 4 + 3
    assert len(theirs["committed"]["rows"]) == len(theirs["everything"]["rows"]) - 2 * 9 - 3
    mine = [TopicPartition("sp-a", number) for number in range(3)]
    found = verify_log_dir(broker.log_dir, mine)
    assert [one for one in found if one.severity is not Severity.NOTE] == []  # notes: the broker is running

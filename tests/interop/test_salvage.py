"""A real broker serves what was salvaged from a damaged log."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.interop.adoption import adopted_as_it_is, dumps_without_a_finding, told_since
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.commands import output_of
from tests.support.fixtures import FIXTURES, read_golden, requires_fixtures
from tests.support.random_damages import batch_of, hurt, last_offset
from tests.support.record_headers import batches

pytestmark = [requires_kafka, requires_fixtures]

TP = TopicPartition("c-lz4", 0)


def test_a_broker_serves_what_was_salvaged(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(FIXTURES / "codecs" / "log" / TP.dir_name, damaged / TP.dir_name)
    for path in (damaged / TP.dir_name).iterdir():
        path.chmod(0o644)
    files = sorted((damaged / TP.dir_name).glob("*.log"))
    lasts = [last_offset(part) for log in files for part in batches(log.read_bytes())]
    (golden,) = (FIXTURES / "codecs" / "golden").glob("c-lz4-0*.jsonl.gz")
    gone = hurt(files, random.Random(7))
    expected = [one for one in read_golden(golden) if batch_of(lasts, one.offset) not in gone]
    broker = Broker(tmp_path / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topic(TP.topic, 1, {"retention.ms": -1, "max.message.bytes": 5_000_000})
        broker.stop()
        told = json.loads(output_of("salvage", damaged, str(TP), "--to", broker.log_dir, "--json"))
        assert told["failed"] == []
        assert told["partitions"][0]["lost"]
        assert not verify_log_dir(broker.log_dir, [TP])
        dumps_without_a_finding([broker.log_dir / TP.dir_name])
        said = len(broker.log_text())
        client = Client(broker.start().address)
        consumed = {one.offset: one for one in client.consume(TP.topic)}
        assert expected
        assert {one.offset: one for one in expected}.items() <= consumed.items()
        adopted_as_it_is(told_since(broker, said))
        client.produce(TP.topic, [Message(b"after")], 0)
        assert client.consume(TP.topic)[-1].value == b"after"
        broker.stop()
        assert broker.complaints() == []
    finally:
        broker.kill()

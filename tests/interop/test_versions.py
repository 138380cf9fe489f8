"""Brokers of each version that is named as tested: their logs are read and appended to, and they go on with them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import (
    LATER_VERSION,
    OLDER_VERSION,
    VERSION,
    Broker,
    requires_kafka,
    requires_later_kafka,
    requires_older_kafka,
)
from tests.support.commands import output_of, process, run

CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def loses_nothing(log_dir: Path) -> bool:
    """What doctor says of a broker that starts on it."""
    return bool(json.loads(run("doctor", log_dir, "--json").stdout)["loses_nothing"])


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(OLDER_VERSION, marks=requires_older_kafka),
        pytest.param(VERSION, marks=requires_kafka),
        pytest.param(LATER_VERSION, marks=requires_later_kafka),
    ],
)
def test_a_broker_and_kafkafs_take_turns(version: str, tmp_path: Path) -> None:
    broker = Broker(tmp_path, version=version)
    try:
        client = Client(broker.start().address)
        client.create_topic("t", len(CODECS) + 1, {"retention.ms": -1})
        for partition, codec in enumerate(CODECS):
            messages = [Message(b"%d of %d" % (number, partition), b"k") for number in range(200)]
            client.produce("t", messages, partition, compression_type=codec)
        client.transactions("t", [(True, [Message(b"committed")]), (False, [Message(b"aborted")])], len(CODECS))
        broker.stop()
        assert run("verify", broker.log_dir).exit_code == 0
        assert loses_nothing(broker.log_dir)
        for partition in range(len(CODECS)):
            expected = b"".join(b"%d of %d\n" % (number, partition) for number in range(200))
            assert output_of("cat", broker.log_dir, f"t/{partition}") == expected
        assert output_of("cat", broker.log_dir, f"t/{len(CODECS)}", "--isolation", "read_committed") == b"committed\n"
        with process("append", broker.log_dir, "t/0", stdin=subprocess.PIPE) as appending:
            assert appending.communicate(b"by kafkafs\n")[1] == b""
        assert appending.returncode == 0
        broker.start()
        client.produce("t", [Message(b"after it")], 0)
        values = [record.value for record in client.consume("t", 0)]
        assert values[-2:] == [b"by kafkafs", b"after it"]
        assert len(values) == 202
        broker.stop()
        assert broker.complaints() == []
        assert output_of("cat", broker.log_dir, "t/0").splitlines()[-2:] == [b"by kafkafs", b"after it"]
    finally:
        broker.kill()

"""`kafkafs revive --tier`: a broker without tiered storage serves all that the tiered one did."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.interop.client import Client
from tests.interop.kafka import requires_kafka
from tests.interop.reviving import revived
from tests.support.tiers import TIERS, golden_of, partitions, tier_options

pytestmark = requires_kafka


@pytest.mark.timeout(600)
def test_a_broker_without_tiering_serves_all(tmp_path: Path) -> None:
    broker, told = revived(tmp_path, [TIERS / "log"], *tier_options("tier-aiven-enc"))
    ends = {(one["topic"], one["partition"]): one["log_end_offset"] for one in told["partitions"]}
    broker.start()
    try:
        client = Client(broker.address)
        for tp in partitions():
            start, end = client.offsets(tp.topic, tp.partition)
            assert (start, end) == (517 if tp.topic == "cut" else 0, ends[tp.topic, tp.partition])
            for isolation in ("read_uncommitted", "read_committed"):
                got = client.consume(tp.topic, tp.partition, committed=isolation == "read_committed")
                assert got == golden_of(tp, isolation), (tp, isolation)
        assert "remote.storage.enable" not in client.topic_config("gone")
        assert broker.complaints() == []
    finally:
        broker.stop()

"""Three nodes that are killed under load, in short: what revives of the backups of two of them."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.interop import three_nodes
from tests.interop.kafka import requires_kafka

pytestmark = requires_kafka


def test_a_cluster_revives_from_backups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "aiokafka")  # of nodes that were killed
    with three_nodes.worst_day(tmp_path, 2) as cluster:
        room = tmp_path / "room"
        room.mkdir()
        row = three_nodes.restore(cluster, three_nodes.WAYS["backups of two"], room)
    assert row["second start"] == "clean"
    assert row["g-share"] == "7 to 44"

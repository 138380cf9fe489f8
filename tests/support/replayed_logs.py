"""Partitions of the fixtures that must come out byte for byte when their batches are appended again."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fixtures import log_dir_of, topics_of

# What lies beside the segments: another topic id, ours, and a broker's epochs after it was restarted.
BESIDE = ("partition.metadata", "topic.properties", "leader-epoch-checkpoint")

# What no replay can reach: cmp-tomb had its retention and segments from elsewhere (the fixtures' README), these logs
# have lost their first messages, and the time of their deletion decides which producer snapshots are left.
_NOT_WHOLE = {"cmp-tomb", "t-deleted", "t-retention-ms", "t-retention-bytes"}


def replayed(*, restarts: bool = True) -> list[Any]:
    """Fixture and directory of every such partition, as parameters of a test. `restarts`: those too that come out so
    only if the log is closed and opened again where the broker was."""
    found = []
    for fixture in ("roll", "codecs", "times", "transactions", "compaction-before"):
        topics = topics_of(fixture)
        for directory in sorted(log_dir_of(fixture).iterdir()):
            topic = directory.name.rpartition("-")[0]
            if not directory.is_dir() or topic not in topics or topic in _NOT_WHOLE:
                continue
            if restarts or not topics[topic].get("restart_at_offsets"):
                found.append(pytest.param(fixture, directory.name, id=f"{fixture}:{directory.name}"))
    return found

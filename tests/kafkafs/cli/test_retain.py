"""`kafkafs retain` and `compact` where a write was stopped. See also transcripts/retain.txt and compact.txt."""

from __future__ import annotations

import json

import pytest

from storage.log.log_dir import LogDir
from tests.storage.staged_writes.test_pending_writes import FIRST, SECOND, SHARE, World
from tests.support.commands import output_of
from tests.support.owned_dirs import values_of


@pytest.mark.parametrize("command", ["retain", "compact"])
def test_a_write_that_was_stopped_is_finished_first(tmp_path, command):
    """Then its messages are like others, and none is there twice."""
    world = World(tmp_path / "dir", retention_ms="1000", cleanup_policy="compact,delete")
    world.stop_between_shares()
    (report,) = json.loads(output_of(command, world.path, "t/0", "--json"))["partitions"]
    assert report["removed_bytes"] > 0
    log_dir = LogDir.open_read_only(world.path)
    assert not set(values_of(log_dir.log(FIRST).snapshot())) & set(SHARE)
    assert values_of(log_dir.log(SECOND).snapshot()) == SHARE
    end_offset = world.base + len(SHARE) + 10
    assert log_dir.log(FIRST).snapshot().log_end_offset == end_offset
    world.check_finished(end_offset)

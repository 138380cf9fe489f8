"""`@append` without a mount: what fsync(2) of one program makes durable of what another one wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafs.schemas.registry import Registry
from kafkafs.tree.append_files import AppendFile
from kafkafs.tree.paths import Append
from storage.directory.owned_dir import OwnedDir
from storage.types import TopicPartition
from tests.support.owned_dirs import close_clean, opened

TP = TopicPartition("t", 0)


def synced(owned: OwnedDir) -> bool:
    log = owned.log(TP)
    return log.recovery_point == log.log_end_offset


@pytest.mark.parametrize("place", ["t", TP], ids=["topic", "partition"])
@pytest.mark.parametrize("writes_itself", [False, True])
def test_fsync_is_for_the_whole_file(tmp_path: Path, place: str | TopicPartition, writes_itself: bool) -> None:
    """Whoever wrote to it: another program, or the same one before it opened the file again."""
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    other = AppendFile(owned, Append(TP, jsonl=False), Registry()).open_to_write()
    syncing = AppendFile(owned, Append(place, jsonl=False), Registry()).open_to_write()
    if writes_itself:
        syncing.write(b"mine\n")
    other.write(b"theirs\n")
    assert not synced(owned)
    syncing.sync()
    assert synced(owned)
    syncing.sync()
    other.close()
    syncing.close()
    close_clean(owned)

"""`@append` and `@config` without a mount: what is durable, by fsync(2) of one program or of another, and at once."""

import pytest

from kafkafs.tree.append_files import AppendFile
from kafkafs.tree.paths import Append
from kafkafs.tree.tree import Tree
from storage.types import TopicPartition
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import close_clean, killed, opened
from tests.support.readers import read_all

TP = TopicPartition("t", 0)


def synced(owned):
    log = owned.log(TP)
    return log.recovery_point == log.log_end_offset


@pytest.mark.parametrize("place", ["t", TP], ids=["topic", "partition"])
@pytest.mark.parametrize("writes_itself", [False, True])
def test_fsync_is_for_the_whole_file(tmp_path, place, writes_itself):
    """Whoever wrote to it: another program, or the same one before it opened the file again."""
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    other = AppendFile(owned, Append(TP, jsonl=False)).open_to_write()
    syncing = AppendFile(owned, Append(place, jsonl=False)).open_to_write()
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


def test_a_position_that_skips_forward_means_zeros(tmp_path):
    """`cp` writes nothing for the hole of a sparse file, and `truncate` sets the size of one that ends with a hole."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    handle = AppendFile(owned, Append(TP, jsonl=False)).open_to_write()
    handle.write(b"one\n", 0)
    handle.write(b"two\n", 6)
    handle.write(b"end", 10)
    handle.extend(15)
    handle.close()
    assert [message.value for message in read_all(owned.log(TP).snapshot())] == [b"one", b"\0\0two", b"end\0\0"]
    close_clean(owned)


@pytest.mark.parametrize("seed", range(4))
def test_a_line_of_config_survives_a_power_loss_at_once(tmp_path, seed):
    """@config is always durable: no fsync, and the file is still open."""
    opened(tmp_path / "log").close()
    disk = FaultyDisk(tmp_path / "log", seed=seed)
    owned = opened(tmp_path / "log", disk=disk)
    owned.create_topic("t", 2)
    handle = Tree(owned.log_dir, owned=owned).lookup("/t/@config").open_to_write()
    assert handle.write(b"retention.ms=5000\n") == len(b"retention.ms=5000\n")
    killed(owned)
    disk.power_loss()
    owned = opened(tmp_path / "log")
    assert owned.topic_info("t").overrides["retention.ms"] == "5000"
    close_clean(owned)

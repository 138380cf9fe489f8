"""Owning a log directory, and being a guest in a broker's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kafkafs.mounting.errnos import errno_of
from storage.config import BrokerConfig, LogConfig
from storage.directory import guest_rules, owned_dir
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import (
    InvalidConfig,
    InvalidTopic,
    NotALogDir,
    NotPermitted,
    PartitionOffline,
    PartitionUnavailable,
    UnknownTopicOrPartition,
)
from storage.files import checkpoints, names, partition_metadata
from storage.files.dir_lock import holder
from storage.log.log_dir import LogDir
from storage.log.topic_info import DEFAULTS, TopicInfo
from storage.progress import NoProgress
from storage.recovery.recovery import Recovery
from storage.types import TopicPartition
from storage.upkeep.retention import retain_partition
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.faults import Crash, FaultyDisk
from tests.support.owned_dirs import ONE_THREAD, StandingClock, append, close_clean, killed, opened, read, tree_of

# Owning a log directory, and being a guest in a broker's.
#
# The rules: storage/DESIGN.md, "Sharing a directory with a broker".

TP = TopicPartition("t", 0)
METADATA = Path(__file__).parent.parent / "files" / "data" / "cluster-metadata" / "snapshot-and-log"
CONFIGURED = TopicPartition("configured", 0)
PLAIN = TopicPartition("plain", 0)


def topic(overrides=None, *, replicas=1, name="t"):
    """A topic as described by its overrides alone."""
    config = LogConfig.from_overrides(BrokerConfig().topic_defaults, overrides or {})
    return TopicInfo(name, None, 1, config, overrides or {}, DEFAULTS, replicas)


@pytest.fixture
def broker(tmp_path):
    """A stopped broker's directory with two topics that its metadata knows, one that it does not, and groups."""
    path = tmp_path / "broker"
    spec = [Partition([Batch(many(10))])]
    built = build_log_dir(
        path, {"configured": spec, "plain": [*spec, *spec], "unknown": spec, "__consumer_offsets": spec}
    )
    shutil.copytree(METADATA / "__cluster_metadata-0", path / "__cluster_metadata-0")
    known = json.loads((METADATA / "expected.json").read_text())["topics"]
    for directory in path.glob("*-[0-9]"):
        name = directory.name.rpartition("-")[0]
        if name in known:
            (directory / names.PARTITION_METADATA).write_bytes(partition_metadata.encode(known[name]["topic_id"]))
    return built


# The lock


def test_another_process_is_refused_before_anything_changes(broker):
    code = "import sys; from storage.directory.owned_dir import OwnedDir; OwnedDir.open(sys.argv[1])"
    owned = opened(broker.path, Opening())
    before = tree_of(broker.path)
    result = subprocess.run([sys.executable, "-c", code, str(broker.path)], capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert f"process {os.getpid()}" in result.stderr
    assert tree_of(broker.path) == before
    owned.close()


def test_a_failed_opening_lets_go_of_the_lock(tmp_path):
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    disk.fail = lambda what, _path: errno.EIO if what == f"unlink {names.CLEAN_SHUTDOWN}" else None
    with pytest.raises(OSError, match="Input/output"):
        opened(path, disk=disk)
    assert holder(path) is None
    assert opened(path).close().clean


@pytest.mark.parametrize("create", [False, True])
def test_a_directory_is_made_only_when_asked(tmp_path, create):
    path = tmp_path / "a" / "b"
    if create:
        assert opened(path, Opening(create=True)).close().clean
        assert path.is_dir()
    else:
        with pytest.raises(FileNotFoundError):
            opened(path, Opening())
        assert not path.parent.exists()


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "file").write_text("")
    for opening in (Opening(), Opening(create=True)):
        with pytest.raises(NotALogDir):
            opened(tmp_path / "file", opening)


# The clean-shutdown file


def test_clean_shutdown_file_goes_first_and_comes_back_with_its_epoch(broker):
    marker = broker.path / names.CLEAN_SHUTDOWN
    assert json.loads(marker.read_bytes()) == {"version": 0, "brokerEpoch": 12}
    owned = opened(broker.path)
    assert not marker.exists()
    append(owned.appendable(PLAIN), [b"x"])
    close_clean(owned)
    assert json.loads(marker.read_bytes()) == {"version": 0, "brokerEpoch": 12}


def test_without_one_the_epoch_is_minus_one(broker):
    (broker.path / names.CLEAN_SHUTDOWN).unlink()
    assert opened(broker.path).close().clean
    assert (broker.path / names.CLEAN_SHUTDOWN).read_bytes() == b'{"version":0,"brokerEpoch":-1}'


@pytest.mark.leaves_damage("batch-crc")
def test_no_clean_shutdown_file_while_a_partition_is_offline(broker):
    (broker.path / names.CLEAN_SHUTDOWN).unlink()
    (broker.path / names.RECOVERY_POINT_CHECKPOINT).unlink()
    log = broker["plain", 0].log()
    data = bytearray(log.read_bytes() * 2)
    data[70] ^= 1
    log.write_bytes(data[: len(data) // 2] + broker["plain", 1].log().read_bytes())
    owned = opened(broker.path, Opening(gentle=True))
    assert list(owned.failures()) == [PLAIN]
    assert PLAIN.partition in owned.log_dir.partitions("plain")
    with pytest.raises(PartitionOffline):
        owned.log_dir.log(PLAIN)
    append(owned.appendable(TopicPartition("plain", 1)), [b"others go on"])
    closing = owned.close()
    assert not closing.clean
    assert list(closing.errors) == [PLAIN]
    assert not (broker.path / names.CLEAN_SHUTDOWN).exists()


def test_recovering_only_some_never_marks_it(broker):
    (broker.path / names.CLEAN_SHUTDOWN).unlink()
    owned = opened(broker.path, Opening(trust_clean=False, only=[PLAIN]))
    assert list(owned.reports()) == [PLAIN]
    assert not owned.close().clean
    assert not (broker.path / names.CLEAN_SHUTDOWN).exists()


def test_after_a_clean_shutdown_logs_are_opened_when_asked_for(broker):
    owned = opened(broker.path)
    assert owned.logs() == []
    assert len(read(owned, "plain")) == 10
    assert [log.tp for log in owned.logs()] == [PLAIN]
    close_clean(owned)


def test_an_unclean_directory_is_recovered_whole(broker):
    (broker.path / names.CLEAN_SHUTDOWN).unlink()
    owned = opened(broker.path)
    assert [log.tp for log in owned.logs()] == owned.partitions()
    close_clean(owned)


# Checkpoints


def test_lines_of_unopened_partitions_are_carried_over(broker):
    gone = TopicPartition("elsewhere", 3)
    for name, offset in ((names.RECOVERY_POINT_CHECKPOINT, 77), (names.LOG_START_CHECKPOINT, 7)):
        lines = checkpoints.read(broker.path / name)
        (broker.path / name).write_bytes(checkpoints.encode({**lines, gone: offset, CONFIGURED: 4}))
    owned = opened(broker.path)
    append(owned.appendable(PLAIN), [b"x"] * 5)
    owned.log(PLAIN).increment_log_start_offset(2)
    close_clean(owned)
    found = checkpoints.read(broker.path / names.RECOVERY_POINT_CHECKPOINT)
    assert (found[gone], found[CONFIGURED], found[PLAIN]) == (77, 4, 15)
    assert checkpoints.read(broker.path / names.LOG_START_CHECKPOINT) == {gone: 7, CONFIGURED: 4, PLAIN: 2}
    assert checkpoints.read(broker.path / names.REPLICATION_CHECKPOINT)[PLAIN] == 15


def test_log_start_has_a_line_only_beyond_the_first_segment(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    append(owned.log(TP), [b"a", b"b"])
    owned.checkpoint()
    assert not (tmp_path / names.LOG_START_CHECKPOINT).exists()
    owned.log(TP).increment_log_start_offset(1)
    owned.checkpoint()
    assert checkpoints.read(tmp_path / names.LOG_START_CHECKPOINT) == {TP: 1}
    owned.close()
    owned = opened(tmp_path)
    assert read(owned, "t") == [b"b"]
    owned.close()


def test_a_corrupt_checkpoint_counts_as_empty(broker):
    (broker.path / names.RECOVERY_POINT_CHECKPOINT).write_text("nonsense")
    (broker.path / names.CLEAN_SHUTDOWN).unlink()
    owned = opened(broker.path)
    assert len(owned.checkpoints.problems) == 1
    assert owned.reports()[PLAIN].recovered_segments == [0]
    close_clean(owned)
    assert checkpoints.read(broker.path / names.RECOVERY_POINT_CHECKPOINT)[PLAIN] == 10


# Guests


def test_no_topic_is_made_or_removed_in_a_brokers_directory(broker):
    owned = opened(broker.path)
    with pytest.raises(NotPermitted):
        owned.create_topic("mine")
    with pytest.raises(NotPermitted):
        owned.add_partitions("plain", 5)
    with pytest.raises(NotPermitted):
        owned.delete_topic("plain")
    with pytest.raises(NotPermitted):
        owned.delete_topic("unknown", only_empty=True)
    close_clean(owned)
    assert sorted(path.name for path in broker.path.glob("*-*") if path.is_dir()) == [
        "__cluster_metadata-0",
        "__consumer_offsets-0",
        "configured-0",
        "plain-0",
        "plain-1",
        "unknown-0",
    ]


def test_set_aside_directories_in_a_brokers_directory_stay(broker):
    aside = broker.path / f"plain-2.{'0' * 32}-delete"
    shutil.copytree(broker["plain", 1].path, aside)
    assert opened(broker.path).close().clean
    assert aside.is_dir()


def test_ids_and_configs_come_from_the_metadata(broker):
    before = tree_of(broker.path / "__cluster_metadata-0")
    owned = opened(broker.path)
    info = owned.topic_info("configured")
    assert info.overrides == {
        "cleanup.policy": "compact,delete",
        "retention.ms": "86400000",
        "segment.bytes": "1048576",
    }
    assert owned.log(CONFIGURED).config.segment_bytes == 1_048_576
    close_clean(owned)
    assert tree_of(broker.path / "__cluster_metadata-0") == before


def test_partition_metadata_and_checkpoint_names_are_kept(broker):
    before = (broker["plain", 0].path / names.PARTITION_METADATA).read_bytes()
    owned = opened(broker.path)
    append(owned.appendable(PLAIN), [b"x"])
    close_clean(owned)
    assert (broker["plain", 0].path / names.PARTITION_METADATA).read_bytes() == before
    assert not (broker["plain", 0].path / names.TOPIC_PROPERTIES).exists()


def test_retention_and_compaction_need_somebodys_word(broker):
    owned = opened(broker.path)
    assert owned.may_retain("configured")
    assert owned.may_compact("configured")
    assert not owned.may_retain("plain")  # the broker's own defaults are not ours to guess
    assert not owned.may_compact("plain")
    assert not owned.may_retain("unknown")
    assert not owned.may_compact("__consumer_offsets")
    owned.alter_config("plain", {"retention.ms": "1000"})
    assert owned.may_retain("plain")
    owned.close()
    given = BrokerConfig.from_values({"log.retention.hours": "1", "log.cleanup.policy": "compact"})
    owned = opened(broker.path, config=given)
    assert owned.may_retain("unknown")
    assert owned.may_compact("unknown")
    assert not owned.may_compact("__consumer_offsets")
    assert not owned.may_retain("__consumer_offsets")
    assert not owned.may_retain("__cluster_metadata")
    owned.close()


def test_limits_that_are_only_defaults_are_lifted():
    assert guest_rules.retention_config(LogConfig()).retention_ms == -1
    assert guest_rules.retention_config(topic({"retention.ms": "5"}).config).retention_ms == 5


def test_appends_to_replicated_partitions_take_force():
    with pytest.raises(NotPermitted, match=r"3 replicas.*--force"):
        guest_rules.check_append(topic(replicas=3))
    guest_rules.check_append(topic(replicas=3), force=True)
    guest_rules.check_append(topic())


def test_internal_topics_are_written_by_groups_alone(broker):
    owned = opened(broker.path)
    offsets = TopicPartition("__consumer_offsets", 0)
    with pytest.raises(NotPermitted, match="internal"):
        owned.appendable(offsets)
    with pytest.raises(NotPermitted):
        owned.appendable(offsets, force=True)
    assert owned.appendable(offsets, as_group_coordinator=True).log_end_offset == 10
    metadata = TopicPartition("__cluster_metadata", 0)
    for force in (False, True):
        with pytest.raises(NotPermitted):
            owned.appendable(metadata, force=force, as_group_coordinator=True)
    with pytest.raises(NotPermitted):
        owned.log(metadata)
    with pytest.raises(NotPermitted):
        owned.alter_config("__cluster_metadata", {"retention.ms": "1"})
    with pytest.raises(NotPermitted):
        guest_rules.check_append(topic(name="__transaction_state"), as_group_coordinator=True)
    assert owned.log_dir.log(metadata).snapshot().log_end_offset > 0
    close_clean(owned)


def test_appends_carry_the_last_leader_epoch(broker):
    path = broker["plain", 0].path
    (path / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n2\n0 0\n6 4\n")
    owned = opened(broker.path)
    append(owned.appendable(PLAIN), [b"x"])
    close_clean(owned)
    newest = sorted(path.glob("*.log"))[-1]  # old messages, a new one: it rolled
    assert int.from_bytes(newest.read_bytes()[12:16], "big") == 6
    assert (path / names.LEADER_EPOCH_CHECKPOINT).read_bytes() == b"0\n2\n0 0\n6 4\n"


# Topics of ours


def test_a_new_topic_keeps_everything_and_describes_itself(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 2, {"segment.bytes": "1000"})
    with pytest.raises(FileExistsError):
        owned.create_topic("t")
    owned.create_topic("short", overrides={"retention.ms": "5"})
    close_clean(owned)
    looked = LogDir.open_read_only(tmp_path)
    info = looked.topic_info("t")
    assert info.overrides == {"retention.ms": "-1", "segment.bytes": "1000"}
    assert looked.topic_info("short").config.retention_ms == 5
    ids = {(tmp_path / f"t-{p}" / names.PARTITION_METADATA).read_bytes() for p in (0, 1)}
    assert ids == {f"version: 0\ntopic_id: {info.topic_id}".encode()}
    assert sorted(tree_of(tmp_path / "t-1")) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
        "topic.properties",
    ]
    assert (tmp_path / "t-1" / names.LEADER_EPOCH_CHECKPOINT).read_bytes() == b"0\n1\n0 0\n"


def test_partitions_by_num_partitions(tmp_path):
    owned = opened(tmp_path, config=BrokerConfig.from_values({"num.partitions": "4"}))
    owned.create_topic("t")
    assert owned.log_dir.partitions("t") == [0, 1, 2, 3]
    owned.add_partitions("t", 6)
    assert owned.log_dir.partitions("t") == [0, 1, 2, 3, 4, 5]
    assert len({owned.topic_info("t").topic_id}) == 1
    with pytest.raises(NotPermitted, match="cannot be removed"):
        owned.add_partitions("t", 2)
    owned.close()


def test_a_name_that_collides_with_another_is_refused(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("a.b")
    with pytest.raises(InvalidTopic):
        owned.create_topic("a_b")
    owned.close()


def test_a_topic_that_is_made_again_does_not_begin_where_the_removed_one_began(tmp_path):
    """Not even after a crash, when the log start that was checkpointed last was that of a segment removed since."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    for value in (b"a", b"b", b"c"):
        append(owned.log(TP), [value])
    owned.log(TP).increment_log_start_offset(2)
    owned.checkpoint()
    assert checkpoints.read(tmp_path / names.LOG_START_CHECKPOINT) == {TP: 2}
    owned.log(TP).roll()
    retain_partition(owned, TP, free_bytes=lambda: 1 << 30, before=3)
    owned.delete_topic("t")
    assert checkpoints.read(tmp_path / names.LOG_START_CHECKPOINT) == {}
    owned.create_topic("t", 1)
    for value in (b"x", b"y", b"z"):
        append(owned.log(TP), [value])
    killed(owned)
    owned = opened(tmp_path)
    assert read(owned, "t") == [b"x", b"y", b"z"]
    close_clean(owned)


def test_checkpoint_lines_that_a_full_disk_kept_do_not_apply_to_the_next_topic(tmp_path):
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    owned.create_topic("t", 1)
    for value in (b"a", b"b", b"c"):
        append(owned.log(TP), [value])
    owned.log(TP).increment_log_start_offset(2)
    owned.checkpoint()
    disk.fail = lambda what, _path: errno.ENOSPC if f"write {names.LOG_START_CHECKPOINT}" in what else None
    with pytest.raises(OSError, match="No space"):
        owned.delete_topic("t")
    disk.fail = lambda _what, _path: None
    owned.create_topic("t", 1)
    for value in (b"x", b"y", b"z"):
        append(owned.log(TP), [value])
    killed(owned)
    owned = opened(path)
    assert read(owned, "t") == [b"x", b"y", b"z"]
    close_clean(owned)


def test_the_longest_name_works(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("x" * 249)
    owned.delete_topic("x" * 249)
    close_clean(owned)


def test_altering_sets_unsets_and_reaches_open_logs(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 2, {"segment.bytes": "1000"})
    log = owned.log(TP)
    owned.alter_config("t", {"retention.ms": "5", "max.message.bytes": "900"}, ["segment.bytes"])
    assert (log.config.retention_ms, log.config.max_message_bytes, log.config.segment_bytes) == (5, 900, 2**30)
    owned.alter_config("t", {}, ["retention.ms", "max.message.bytes"])
    assert owned.topic_info("t").overrides == {"retention.ms": "-1"}  # what no longer is said otherwise
    with pytest.raises(InvalidConfig, match="Did you mean"):
        owned.alter_config("t", {}, ["retention.msec"])
    with pytest.raises(InvalidConfig):
        owned.alter_config("t", {"segment.bytes": "many"})
    with pytest.raises(UnknownTopicOrPartition):
        owned.alter_config("u", {"segment.bytes": "1000"})
    close_clean(owned)


@pytest.mark.parametrize("lasts", [False, True])
def test_a_change_that_failed_halfway_is_completed(tmp_path, lasts):
    """By the close if the disk works again, otherwise by the next opening."""
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    owned.create_topic("t", 3)
    disk.fail = lambda what, place: errno.EIO if place.parts[0] == "t-1" and "topic.properties" in what else None
    with pytest.raises(OSError, match="Input/output error"):
        owned.alter_config("t", {"segment.bytes": "1000"})
    assert owned.topic_info("t").config.segment_bytes == 1000
    if not lasts:
        disk.fail = lambda _what, _path: None
        close_clean(owned)
    else:
        closing = owned.close()
        assert not closing.clean
        assert errno_of(closing.failure) == errno.EIO
        close_clean(opened(path))
    assert len({(path / f"t-{number}" / names.TOPIC_PROPERTIES).read_bytes() for number in range(3)}) == 1
    assert not list(path.glob("*/*.tmp"))


def test_a_change_that_failed_is_over_once_it_was_made_again_or_its_topic_is_gone(tmp_path):
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    for name in ("again", "gone"):
        owned.create_topic(name, 2)
        disk.fail = lambda what, place: errno.EIO if "topic.properties" in what and "-1" in place.parts[0] else None
        with pytest.raises(OSError, match="Input/output error"):
            owned.alter_config(name, {"segment.bytes": "1000"})
        disk.fail = lambda _what, _path: None
    owned.alter_config("again", {"segment.bytes": "1000"})
    owned.delete_topic("gone")
    disk.fail = lambda what, _path: errno.EIO if "topic.properties" in what else None
    close_clean(owned)
    assert len({(path / f"again-{number}" / names.TOPIC_PROPERTIES).read_bytes() for number in range(2)}) == 1


def test_a_first_change_that_was_killed_is_completed_where_there_was_no_file(broker):
    """A broker's partitions have no topic.properties before kafkafs changes their topic."""
    disk = FaultyDisk(broker.path)
    disk.fail = lambda what, place: errno.EIO if "topic.properties" in what and place.parts[0] == "plain-1" else None
    owned = opened(broker.path, disk=disk)
    with pytest.raises(OSError, match="Input/output error"):
        owned.alter_config("plain", {"segment.bytes": "1000"})
    killed(owned)
    files = [broker["plain", number].path / names.TOPIC_PROPERTIES for number in range(2)]
    assert not files[1].exists()
    close_clean(opened(broker.path))
    assert files[1].read_bytes() == files[0].read_bytes()


def test_only_an_empty_topic_goes_when_asked_so(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 3)
    append(owned.log(TopicPartition("t", 1)), [b"x"])
    assert not owned.is_empty("t")
    with pytest.raises(OSError, match="holds messages") as caught:
        owned.delete_topic("t", only_empty=True)
    assert caught.value.errno == errno.ENOTEMPTY
    for p in range(3):
        append(owned.log(TopicPartition("t", p)), [b"goes on"])
    owned.log(TP).increment_log_start_offset(1)
    owned.delete_topic("t")
    assert owned.log_dir.topics() == []
    owned.create_topic("t", 1)
    assert owned.is_empty("t")
    owned.delete_topic("t", only_empty=True)
    close_clean(owned)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == []


def test_unfinished_directories_of_ours_are_removed(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    owned.close()
    shutil.copytree(tmp_path / "t-0", tmp_path / f"u-0.{'a' * 32}-delete")
    owned = opened(tmp_path)
    assert owned.log_dir.hidden() == []
    owned.close()
    assert not list(tmp_path.glob("*-delete"))


def test_a_failed_creation_leaves_nothing(tmp_path):
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    disk.fail = lambda what, place: (
        errno.ENOSPC if what.startswith("write topic.properties") and place.parent.name.startswith("t-1.") else None
    )
    with pytest.raises(OSError, match="No space"):
        owned.create_topic("t", 2)
    disk.fail = lambda _what, _path: None
    assert owned.log_dir.topics() == []
    assert owned.log_dir.hidden() == []
    owned.create_topic("t", 2)
    close_clean(owned)


def test_after_closing_nothing_is_taken(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    log = owned.log(TP)
    close_clean(owned)
    assert not owned.close().clean
    with pytest.raises(PartitionOffline):
        append(log, [b"x"])
    with pytest.raises(PartitionOffline):
        owned.log(TopicPartition("t", 1))
    with pytest.raises(PartitionOffline):
        owned.create_topic("u")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_what_may_pass_is_tried_again(tmp_path, number):
    """A partition that could not be opened on a full disk is tried by whoever uses it next; but a try that took long
    not before as long again has passed."""
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 2)
    append(owned.log(TP), [b"kept"])
    killed(owned)
    disk = FaultyDisk(path)
    clock = StandingClock()
    tries = took_ms = 0

    def fail(what, place):
        nonlocal tries
        failing = place.parts[:1] == ("t-0",) and what.startswith(("write", "create", "truncate"))
        tries += failing
        clock.time_ms += took_ms * failing
        return number if failing else None

    disk.fail = fail
    owned = OwnedDir.open(path, config=ONE_THREAD, disk=disk, clock=clock)
    assert list(owned.failures()) == [TP]
    assert tries == 1
    for _ in range(3):
        with pytest.raises(PartitionUnavailable, match="tried again when it is next used") as caught:
            owned.log(TP)
        assert errno_of(caught.value) == number
    assert tries == 4
    took_ms = 1000
    for _ in range(3):
        with pytest.raises(PartitionUnavailable) as caught:
            owned.log(TP)
        assert errno_of(caught.value) == number
    assert tries == 5
    clock.time_ms += 1000
    with pytest.raises(PartitionUnavailable):
        owned.log(TP)
    assert tries == 6
    append(owned.log(TopicPartition("t", 1)), [b"fine"])
    disk.fail = lambda _what, _path: None
    clock.time_ms += 1000
    assert read(owned, "t") == [b"kept"]
    assert not owned.failures()
    append(owned.log(TP), [b"more"])
    close_clean(owned)


def test_what_has_passed_by_the_end_is_recovered_then(tmp_path):
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("t", 1)
    append(owned.log(TP), [b"kept"])
    killed(owned)
    disk = FaultyDisk(path)
    disk.fail = lambda what, place: errno.ENOSPC if place.parts[:1] == ("t-0",) else None
    owned = opened(path, disk=disk)
    assert list(owned.failures()) == [TP]
    disk.fail = lambda _what, _path: None
    close_clean(owned)
    owned = opened(path)
    assert read(owned, "t") == [b"kept"]
    close_clean(owned)


# The rehearsal of a directory's recovery is told what the recovery itself is told.


def test_the_rehearsal_has_the_plan_of_the_recovery(tmp_path, monkeypatch):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(3))], recovery_point=2)]})
    config = replace(ONE_THREAD, producer_id_expiration_ms=7_000)
    told = []
    monkeypatch.setattr(owned_dir, "rehearse", lambda plan, **_: told.append(plan))
    owned_dir.rehearse_recovery(LogDir.open_read_only(tmp_path, config=config), [TopicPartition("t", 0)], NoProgress())
    done = []

    def recovery(plan, **others):
        done.append(plan)
        return Recovery(plan, **others)

    monkeypatch.setattr(owned_dir, "Recovery", recovery)
    OwnedDir.open(tmp_path, Opening(trust_clean=False), config=config).close()
    assert told == done
    assert told[0].producer_expiration_ms == 7_000


def test_a_crash_while_opening_lets_go_of_the_lock_in_this_process(tmp_path):
    path = tmp_path / "dir"
    opened(path).close()
    with pytest.raises(Crash):
        OwnedDir.open(path, disk=FaultyDisk(path, stop_at=1))
    opened(path).close()

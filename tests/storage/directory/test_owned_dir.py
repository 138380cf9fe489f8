"""Owning a log directory, and being a guest in a broker's (storage/DESIGN.md, "Sharing a directory with a broker")."""

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
from storage.directory import guest_rules, owned_logs, recovery_plans
from storage.directory.directory_checkpoints import DirectoryCheckpoints, PartitionOffsets
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
from storage.upkeep.partition_retention import retain_partition
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.faults import Crash, FaultyDisk
from tests.support.owned_dirs import ONE_THREAD, StandingClock, append, close_clean, killed, opened, read, tree_of

TP, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)
METADATA = Path(__file__).parent.parent / "files" / "data" / "cluster-metadata" / "snapshot-and-log"
CONFIGURED = TopicPartition("configured", 0)
PLAIN = TopicPartition("plain", 0)
CLUSTER_METADATA = TopicPartition("__cluster_metadata", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)


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


def failing(path, number, words, directory=None):
    """A disk on which operations with these words fail, in one directory or in all."""
    disk = FaultyDisk(path)
    disk.fail = lambda what, place: number if words in what and directory in (None, place.parts[0]) else None
    return disk


def works(disk):
    disk.fail = lambda _what, _place: None


def test_lines_are_removed_from_a_file_that_was_written_in_spite_of_an_error(tmp_path):
    """Syncing the directory fails when the new file has its name already."""
    disk, tp = FaultyDisk(tmp_path), TopicPartition("t", 0)
    disk.fail = lambda what, _place: errno.EIO if what.startswith("sync_dir") else None
    known = DirectoryCheckpoints(disk, tmp_path)
    known.set(tp, PartitionOffsets(7, None, None))
    with pytest.raises(OSError, match="error"):
        known.write()
    works(disk)
    known.remove([tp])
    assert checkpoints.read(tmp_path / names.RECOVERY_POINT_CHECKPOINT) == {}


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
    with pytest.raises(OSError, match="Input/output"):
        opened(path, disk=failing(path, errno.EIO, f"unlink {names.CLEAN_SHUTDOWN}"))
    assert holder(path) is None
    with pytest.raises(Crash):
        opened(path, disk=FaultyDisk(path, stop_at=1))
    assert opened(path).close().clean


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_recovery_that_fails_as_no_partition_should_ends_the_opening(tmp_path, monkeypatch, threads):
    """An error that does not say that a partition is damaged: in whichever thread it is raised, it is not lost."""
    build_log_dir(tmp_path, {"t": [[b"a"], [b"b"]]}, clean=False, broker=False)

    def fails(_recovery):
        raise MemoryError

    monkeypatch.setattr(Recovery, "run", fails)
    config = BrokerConfig.from_values({"num.recovery.threads.per.data.dir": threads})
    with pytest.raises(MemoryError):
        opened(tmp_path, config=config)
    monkeypatch.undo()
    assert holder(tmp_path) is None
    owned = opened(tmp_path, config=config)
    assert (read(owned, "t"), read(owned, "t", 1)) == ([b"a"], [b"b"])
    owned.close()


def test_a_directory_is_made_only_when_asked(tmp_path):
    path = tmp_path / "a" / "b"
    with pytest.raises(FileNotFoundError):
        opened(path, Opening())
    assert not path.parent.exists()
    assert opened(path, Opening(create=True)).close().clean
    assert path.is_dir()
    (tmp_path / "file").write_text("")
    for opening in (Opening(), Opening(create=True)):
        with pytest.raises(NotALogDir):
            opened(tmp_path / "file", opening)


@pytest.mark.parametrize("epoch", [12, -1])
def test_clean_shutdown_file_goes_first_and_comes_back_with_its_epoch(broker, epoch):
    marker = broker.path / names.CLEAN_SHUTDOWN
    assert json.loads(marker.read_bytes()) == {"version": 0, "brokerEpoch": 12}
    if epoch == -1:
        marker.unlink()
    owned = opened(broker.path)
    assert not marker.exists()
    # After a clean shutdown logs are opened when they are asked for.
    assert [log.tp for log in owned.logs()] == ([] if epoch == 12 else owned.partitions())
    append(owned.appendable(PLAIN), [b"x"])
    assert [log.tp for log in owned.logs()] == ([PLAIN] if epoch == 12 else owned.partitions())
    close_clean(owned)
    assert marker.read_bytes() == b'{"version":0,"brokerEpoch":%d}' % epoch


@pytest.mark.leaves_damage("batch-crc")
def test_no_clean_shutdown_file_while_a_partition_is_offline_or_not_recovered(broker):
    marker = broker.path / names.CLEAN_SHUTDOWN
    marker.unlink()
    owned = opened(broker.path, Opening(trust_clean=False, only=[PLAIN]))
    assert list(owned.reports()) == [PLAIN]
    assert not owned.close().clean
    assert not marker.exists()
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
    assert (closing.clean, list(closing.errors)) == (False, [PLAIN])
    assert not marker.exists()


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


def test_what_checkpoints_say_of_a_log(tmp_path):
    """The log start has a line only beyond the first segment; a corrupt checkpoint counts as empty."""
    owned = opened(tmp_path)
    owned.create_topic("t", 1)
    append(owned.log(TP), [b"a", b"b"])
    owned.checkpoint()
    assert not (tmp_path / names.LOG_START_CHECKPOINT).exists()
    owned.log(TP).increment_log_start_offset(1)
    owned.checkpoint()
    assert checkpoints.read(tmp_path / names.LOG_START_CHECKPOINT) == {TP: 1}
    killed(owned)
    (tmp_path / names.RECOVERY_POINT_CHECKPOINT).write_text("nonsense")
    unfinished = tmp_path / (names.LOG_START_CHECKPOINT + names.TEMPORARY_SUFFIX)
    unfinished.write_text("0\n")
    owned = opened(tmp_path)
    assert not unfinished.exists()
    assert len(owned.checkpoints.problems) == 1
    assert owned.reports()[TP].recovered_segments == [0]
    assert read(owned, "t") == [b"b"]
    close_clean(owned)
    assert checkpoints.read(tmp_path / names.RECOVERY_POINT_CHECKPOINT) == {TP: 2}


def test_nothing_is_made_or_removed_in_a_brokers_directory(broker):
    shutil.copytree(broker["plain", 1].path, broker.path / f"plain-2.{'0' * 32}-delete")
    before = sorted(path.name for path in broker.path.iterdir() if path.is_dir())
    owned = opened(broker.path)
    for attempt in (
        lambda: owned.create_topic("mine"),
        lambda: owned.add_partitions("plain", 5),
        lambda: owned.delete_topic("plain"),
        lambda: owned.delete_topic("unknown", only_empty=True),
    ):
        with pytest.raises(NotPermitted):
            attempt()
    assert owned.close().clean
    assert sorted(path.name for path in broker.path.iterdir() if path.is_dir()) == before


def test_ids_configs_and_epochs_come_from_the_broker_and_stay(broker):
    path = broker["plain", 0].path
    (path / names.LEADER_EPOCH_CHECKPOINT).write_bytes(b"0\n2\n0 0\n6 4\n")
    kept = [path / names.LEADER_EPOCH_CHECKPOINT, path / names.PARTITION_METADATA]

    def content():
        return tree_of(broker.path / "__cluster_metadata-0"), [file.read_bytes() for file in kept]

    before, owned = content(), opened(broker.path)
    assert owned.topic_info("configured").overrides == {
        "cleanup.policy": "compact,delete", "retention.ms": "86400000", "segment.bytes": "1048576",
    }  # fmt: skip
    assert owned.log(CONFIGURED).config.segment_bytes == 1_048_576
    append(owned.appendable(PLAIN), [b"x"])
    close_clean(owned)
    assert content() == before
    assert not (path / names.TOPIC_PROPERTIES).exists()
    newest = sorted(path.glob("*.log"))[-1]  # old messages, a new one: it rolled
    assert int.from_bytes(newest.read_bytes()[12:16], "big") == 6


def test_retention_and_compaction_need_somebodys_word(broker):
    def allowed():
        topics = ("configured", "plain", "unknown", "__consumer_offsets", "__cluster_metadata")
        return {name for name in topics if owned.may_retain(name)}, {name for name in topics if owned.may_compact(name)}

    owned = opened(broker.path)
    assert allowed() == ({"configured"}, {"configured"})  # the broker's own defaults are not ours to guess
    owned.alter_config("plain", {"retention.ms": "1000"})
    assert allowed() == ({"configured", "plain"}, {"configured"})
    owned.close()
    given = BrokerConfig.from_values({"log.retention.hours": "1", "log.cleanup.policy": "compact"})
    owned = opened(broker.path, config=given)
    assert allowed() == ({"configured", "plain", "unknown"}, {"configured", "plain", "unknown"})
    owned.close()
    # Limits that are only defaults are lifted.
    assert guest_rules.retention_config(LogConfig()).retention_ms == -1
    assert guest_rules.retention_config(topic({"retention.ms": "5"}).config).retention_ms == 5


def test_who_may_append(broker):
    """Appends to replicated partitions take force; internal topics are written by groups alone."""
    with pytest.raises(NotPermitted, match=r"3 replicas.*--force"):
        guest_rules.check_append(topic(replicas=3))
    guest_rules.check_append(topic(replicas=3), force=True)
    guest_rules.check_append(topic())
    owned = opened(broker.path)
    assert owned.appendable(OFFSETS, as_group_coordinator=True).log_end_offset == 10
    for attempt in (
        lambda: owned.appendable(OFFSETS),
        lambda: owned.appendable(OFFSETS, force=True),
        lambda: owned.appendable(CLUSTER_METADATA, as_group_coordinator=True),
        lambda: owned.appendable(CLUSTER_METADATA, force=True, as_group_coordinator=True),
        lambda: owned.log(CLUSTER_METADATA),
        lambda: owned.alter_config("__cluster_metadata", {"retention.ms": "1"}),
        lambda: guest_rules.check_append(topic(name="__transaction_state"), as_group_coordinator=True),
    ):
        with pytest.raises(NotPermitted):
            attempt()
    assert owned.log_dir.log(CLUSTER_METADATA).snapshot().log_end_offset > 0
    close_clean(owned)


def test_a_new_topic_keeps_everything_and_describes_itself(tmp_path):
    owned = opened(tmp_path)
    owned.create_topic("t", 2, {"segment.bytes": "1000"})
    owned.create_topic("short", overrides={"retention.ms": "5"})
    owned.create_topic("a.b" + "x" * 246)  # the longest name
    for name, error in (("t", FileExistsError), ("a_b" + "x" * 246, InvalidTopic)):
        with pytest.raises(error):
            owned.create_topic(name)
    owned.delete_topic("a.b" + "x" * 246)
    close_clean(owned)
    looked = LogDir.open_read_only(tmp_path)
    info = looked.topic_info("t")
    assert info.overrides == {"retention.ms": "-1", "segment.bytes": "1000"}
    assert looked.topic_info("short").config.retention_ms == 5
    ids = {(tmp_path / f"t-{p}" / names.PARTITION_METADATA).read_bytes() for p in (0, 1)}
    assert ids == {f"version: 0\ntopic_id: {info.topic_id}".encode()}
    assert sorted(tree_of(tmp_path / "t-1")) == [
        *(f"{0:020}{suffix}" for suffix in (".index", ".log", ".timeindex")),
        "leader-epoch-checkpoint", "partition.metadata", "topic.properties",
    ]  # fmt: skip
    assert (tmp_path / "t-1" / names.LEADER_EPOCH_CHECKPOINT).read_bytes() == b"0\n1\n0 0\n"


def test_more_partitions_and_only_an_empty_topic_goes_when_asked_so(tmp_path):
    owned = opened(tmp_path, config=BrokerConfig.from_values({"num.partitions": "2"}))
    owned.create_topic("t")
    assert owned.log_dir.partitions("t") == [0, 1]
    owned.add_partitions("t", 3)
    assert owned.log_dir.partitions("t") == [0, 1, 2]
    assert len({path.read_bytes() for path in tmp_path.glob(f"t-*/{names.PARTITION_METADATA}")}) == 1
    with pytest.raises(NotPermitted, match="cannot be removed"):
        owned.add_partitions("t", 2)
    append(owned.log(SECOND), [b"x"])
    assert not owned.is_empty("t")
    with pytest.raises(OSError, match="holds messages") as caught:
        owned.delete_topic("t", only_empty=True)
    assert caught.value.errno == errno.ENOTEMPTY
    for p in range(3):
        append(owned.log(TopicPartition("t", p)), [b"goes on"])
    owned.log(TP).increment_log_start_offset(1)
    owned.delete_topic("t")
    assert owned.log_dir.topics() == []
    owned.create_topic("t", 2)
    assert owned.is_empty("t")
    owned.delete_topic("t", only_empty=True)
    owned.create_topic("u", 2)
    log, other = owned.log(TopicPartition("u", 0)), TopicPartition("u", 1)
    close_clean(owned)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {"u-0", "u-1"}
    assert owned.close().clean
    for attempt in (lambda: append(log, [b"x"]), lambda: owned.log(other), lambda: owned.create_topic("v")):
        with pytest.raises(PartitionOffline):
            attempt()


@pytest.mark.parametrize("full_disk", [False, True])
def test_a_topic_that_is_made_again_does_not_begin_where_the_removed_one_began(tmp_path, full_disk):
    """Not even after a crash, when the log start that was checkpointed last was that of a segment removed since; nor
    where a full disk has kept the line."""
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    owned.create_topic("t", 1)
    for value in (b"a", b"b", b"c"):
        append(owned.log(TP), [value])
    owned.log(TP).increment_log_start_offset(2)
    owned.checkpoint()
    assert checkpoints.read(path / names.LOG_START_CHECKPOINT) == {TP: 2}
    if full_disk:
        disk.fail = lambda what, _path: errno.ENOSPC if f"write {names.LOG_START_CHECKPOINT}" in what else None
        with pytest.raises(OSError, match="No space"):
            owned.delete_topic("t")
        works(disk)
    else:
        owned.log(TP).roll()
        retain_partition(owned, TP, free_bytes=lambda: 1 << 30, before=3)
        owned.delete_topic("t")
        assert checkpoints.read(path / names.LOG_START_CHECKPOINT) == {}
    owned.create_topic("t", 1)
    for value in (b"x", b"y", b"z"):
        append(owned.log(TP), [value])
    killed(owned)
    owned = opened(path)
    assert read(owned, "t") == [b"x", b"y", b"z"]
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
    """By the close if the disk works again, otherwise by the next opening. The first partition's file counts: logs go
    by it although the second's could not be written."""
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    owned.create_topic("t", 3)
    log = owned.log(TP)
    disk.fail = failing(path, errno.EIO, "topic.properties", "t-1").fail
    with pytest.raises(OSError, match="Input/output error"):
        owned.alter_config("t", {"segment.bytes": "1000"})
    assert [one.config.segment_bytes for one in (owned.topic_info("t"), log)] == [1000] * 2
    if not lasts:
        works(disk)
        close_clean(owned)
    else:
        closing = owned.close()
        assert not closing.clean
        assert errno_of(closing.failure) == errno.EIO
        owned = opened(path)
        assert owned.log(SECOND).config.segment_bytes == 1000
        close_clean(owned)
    assert len({file.read_bytes() for file in path.glob(f"t-*/{names.TOPIC_PROPERTIES}")}) == 1
    assert len(list(path.glob(f"t-*/{names.TOPIC_PROPERTIES}*"))) == 3


def test_a_change_that_failed_is_over_once_it_was_made_again_or_its_topic_is_gone(tmp_path):
    path = tmp_path / "dir"
    opened(path).close()
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    for name in ("again", "gone"):
        owned.create_topic(name, 2)
        disk.fail = failing(path, errno.EIO, "topic.properties", f"{name}-1").fail
        with pytest.raises(OSError, match="Input/output error"):
            owned.alter_config(name, {"segment.bytes": "1000"})
        works(disk)
    owned.alter_config("again", {"segment.bytes": "1000"})
    owned.delete_topic("gone")
    disk.fail = failing(path, errno.EIO, "topic.properties").fail
    close_clean(owned)
    assert len({file.read_bytes() for file in path.glob(f"again-*/{names.TOPIC_PROPERTIES}")}) == 1


def test_a_first_change_that_was_killed_is_completed_where_there_was_no_file(broker):
    """A broker's partitions have no topic.properties before kafkafs changes their topic."""
    owned = opened(broker.path, disk=failing(broker.path, errno.EIO, "topic.properties", "plain-1"))
    with pytest.raises(OSError, match="Input/output error"):
        owned.alter_config("plain", {"segment.bytes": "1000"})
    killed(owned)
    files = [broker["plain", number].path / names.TOPIC_PROPERTIES for number in range(2)]
    assert not files[1].exists()
    close_clean(opened(broker.path))
    assert files[1].read_bytes() == files[0].read_bytes()


def test_a_failed_creation_leaves_nothing(tmp_path):
    path = tmp_path / "dir"
    owned = opened(path)
    owned.create_topic("u", 1)
    owned.close()
    shutil.copytree(path / "u-0", path / f"u-1.{'a' * 32}-delete")  # of ours: removed when it is opened
    disk = FaultyDisk(path)
    owned = opened(path, disk=disk)
    disk.fail = lambda what, place: (
        errno.ENOSPC if what.startswith("write topic.properties") and place.parent.name.startswith("t-1.") else None
    )
    with pytest.raises(OSError, match="No space"):
        owned.create_topic("t", 2)
    works(disk)
    assert owned.log_dir.topics() == ["u"]
    assert owned.log_dir.hidden() == []
    assert not list(path.glob("*-delete"))
    owned.create_topic("t", 2)
    close_clean(owned)


def killed_with_messages(path):
    owned = opened(path)
    owned.create_topic("t", 2)
    append(owned.log(TP), [b"kept"])
    killed(owned)
    return FaultyDisk(path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_what_may_pass_is_tried_again(tmp_path, number):
    """A partition that could not be opened on a full disk is tried by whoever uses it next; but a try that took long
    not before as long again has passed."""
    disk, clock = killed_with_messages(tmp_path / "dir"), StandingClock()
    tries = took_ms = 0

    def fail(what, place):
        nonlocal tries
        fails = place.parts[:1] == ("t-0",) and what.startswith(("write", "create", "truncate"))
        tries += fails
        clock.time_ms += took_ms * fails
        return number if fails else None

    def look(times):
        for _ in range(times):
            with pytest.raises(PartitionUnavailable, match="tried again when it is next used") as caught:
                owned.log(TP)
            assert errno_of(caught.value) == number
            assert ("Free some space" in str(caught.value)) == (number == errno.ENOSPC)
        return tries

    disk.fail = fail
    owned = OwnedDir.open(tmp_path / "dir", config=ONE_THREAD, disk=disk, clock=clock)
    assert list(owned.failures()) == [TP]
    assert tries == 1
    assert look(3) == 4
    took_ms = 1000
    assert look(3) == 5
    clock.time_ms += 1000
    assert look(1) == 6
    append(owned.log(SECOND), [b"fine"])
    works(disk)
    clock.time_ms += 1000
    assert read(owned, "t") == [b"kept"]
    assert not owned.failures()
    append(owned.log(TP), [b"more"])
    close_clean(owned)


def test_what_has_passed_by_the_end_is_recovered_then(tmp_path):
    disk = killed_with_messages(tmp_path / "dir")
    disk.fail = failing(tmp_path / "dir", errno.ENOSPC, "", "t-0").fail
    owned = opened(tmp_path / "dir", disk=disk)
    assert list(owned.failures()) == [TP]
    works(disk)
    close_clean(owned)
    owned = opened(tmp_path / "dir")
    assert read(owned, "t") == [b"kept"]
    close_clean(owned)


def test_the_rehearsal_has_the_plan_of_the_recovery(tmp_path, monkeypatch):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(3))], recovery_point=2)]})
    config = replace(ONE_THREAD, producer_id_expiration_ms=7_000)
    rehearsed, done = [], []
    monkeypatch.setattr(recovery_plans, "rehearse", lambda plan, **_: rehearsed.append(plan))
    recovery_plans.rehearse_recovery(LogDir.open_read_only(tmp_path, config=config), [TP], NoProgress())

    def recovery(plan, **others):
        done.append(plan)
        return Recovery(plan, **others)

    monkeypatch.setattr(owned_logs, "Recovery", recovery)
    OwnedDir.open(tmp_path, Opening(trust_clean=False), config=config).close()
    assert rehearsed == done
    assert rehearsed[0].producer_expiration_ms == 7_000

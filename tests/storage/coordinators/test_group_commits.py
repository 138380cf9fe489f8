"""Offsets committed by us: what is in `__consumer_offsets` then, in a directory of kafkafs's own and in a broker's."""

import shutil
import struct
from dataclasses import dataclass, field, replace

import pytest

from storage.append.appender import Appender
from storage.compaction.partition_compaction import compact_partition
from storage.config import BrokerConfig
from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import GroupOffsets
from storage.coordinators.offset_records import CommittedOffset, OffsetKey, encode_offset_key
from storage.directory import guest_rules
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import InvalidConfig, InvalidRecord, NotPermitted, UnknownTopicOrPartition
from storage.files.names import CONSUMER_OFFSETS_TOPIC
from storage.format.block import Record
from storage.format.hashing import group_partition
from storage.log.log_dir import LogDir
from storage.types import MAX_OFFSET, TopicPartition
from tests.storage.coordinators.test_group_offsets import OFFSETS_TP, committed, offsets_in, plain
from tests.support.builders import Batch, build_log_dir, metadata_records
from tests.support.crash_points import every_crash
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.owned_dirs import NOW_MS, close_clean, opened

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def committer_of(owned, partitions=None):
    offsets = GroupOffsets(owned.log_dir)
    return GroupCommitter(owned, offsets, partitions=partitions), offsets


@pytest.fixture
def owned(tmp_path):
    """A directory of our own with a topic of two partitions, closed at the end."""
    owned = opened(tmp_path)
    owned.create_topic("t", 2)
    yield owned
    close_clean(owned)


def test_the_first_commit_makes_the_topic_as_kafka_does(tmp_path):
    owned = opened(tmp_path)
    committer, offsets = committer_of(owned)
    assert offsets.groups() == {}
    committer.check("g")
    for group, asked in (("g", {T0: 3, T1: -1}), ("g", {T1: MAX_OFFSET + 1}), ("g" * 40_000, {T0: 3})):
        with pytest.raises(InvalidRecord):
            committer.commit(group, asked)
    committer.commit("g", {})
    assert offsets.partitions() == []
    committer.sync("g")  # nothing was written yet
    committer.commit("g", {T0: 5, T1: 0})
    committer.commit("größe-групп", {T0: MAX_OFFSET})
    assert offsets.partitions() == list(range(50))
    config = owned.topic_info(CONSUMER_OFFSETS_TOPIC).config
    assert (config.compact, config.delete, config.segment_bytes) == (True, False, 104857600)
    assert config.compression_type == "producer"
    for group in ("g", "größe-групп"):
        place = group_partition(group, 50)
        assert offsets.place(group) == place
        assert owned.log(TopicPartition(CONSUMER_OFFSETS_TOPIC, place)).log_end_offset > 0
    assert offsets.group("g").offsets == {
        "t": {0: CommittedOffset(5, commit_timestamp=NOW_MS), 1: CommittedOffset(0, commit_timestamp=NOW_MS)}
    }
    committer.sync("g")
    close_clean(owned)
    assert offsets_in(LogDir.open_read_only(tmp_path)) == {
        "g": {"t": {0: 5, 1: 0}}, "größe-групп": {"t": {0: MAX_OFFSET}}
    }  # fmt: skip


def test_the_topic_has_as_many_partitions_as_the_broker_is_configured_to_make(tmp_path):
    """Whatever is configured later: groups stay where they are."""
    for configured, offset in (({"offsets.topic.num.partitions": "3"}, 5), ({}, 6)):
        owned = opened(tmp_path, config=BrokerConfig.from_values(configured))
        committer, offsets = committer_of(owned)
        committer.commit("g", {T0: offset})
        assert offsets.partitions() == [0, 1, 2]
        assert offsets.place("g") == group_partition("g", 3)
        assert plain(offsets.groups()) == {"g": {"t": {0: offset}}}
        close_clean(owned)


def test_what_does_not_exist_gets_no_offset(owned):
    committer, _ = committer_of(owned, 1)
    committer.check("g", [T0, T1])
    for missing in (TopicPartition("t", 2), TopicPartition("typo", 0), TopicPartition("t", -1)):
        with pytest.raises(UnknownTopicOrPartition, match="no partition"):
            committer.check("g", [T0, missing])
    committer.commit("g", {T0: 1})
    owned.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartition):  # an offset of the time when it existed changes nothing
        committer.check("g", [T0])


def test_a_partition_that_the_clusters_metadata_know_may_get_an_offset(tmp_path):
    """It may be on another broker."""
    metadata = [*metadata_records("t", 2, [2]), *metadata_records(CONSUMER_OFFSETS_TOPIC, 1, [1])]
    build_log_dir(tmp_path, {CONSUMER_OFFSETS_TOPIC: [[]], "__cluster_metadata": [metadata]})
    owned = OwnedDir.open(tmp_path, Opening(gentle=True))
    committer, _ = committer_of(owned)
    committer.check("g", [TopicPartition("t", 1)])
    for unknown in (TopicPartition("t", 2), TopicPartition("u", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            committer.check("g", [unknown])
    owned.close()


@requires_fixtures
def test_a_partition_elsewhere_in_the_cluster_may_get_an_offset(tmp_path):
    """Without the cluster's metadata, what a group has committed tells of partitions that are not here."""
    copy_log_dir(FIXTURES / "groups" / "log", tmp_path / "log")
    log_dir = LogDir.open_read_only(tmp_path / "log")
    assert log_dir.cluster_metadata() is None
    known = GroupOffsets(log_dir).group("billing").offsets
    topic, numbers = next(item for item in known.items() if item[0] not in log_dir.topics())
    owned = OwnedDir.open(tmp_path / "log", Opening(gentle=True))
    committer, _ = committer_of(owned)
    committer.check("billing", [TopicPartition(topic, number) for number in numbers])
    with pytest.raises(UnknownTopicOrPartition):
        committer.check("billing", [TopicPartition(topic, max(numbers) + 1)])
    owned.close()


def coordinator_key(version, group, *more):
    """A key that a coordinator writes for a group of a newer protocol: all its fields are texts."""
    texts = (text.encode() for text in (group, *more))
    return struct.pack(">h", version) + b"".join(struct.pack(">h", len(text)) + text for text in texts)


def with_records(owned, *keys, value=b"\0\0\1"):
    log = owned.appendable(OFFSETS_TP, as_group_coordinator=True)
    assert Appender(log, clock=owned.clock).append([Record(key, value) for key in keys]).error is None


def test_share_and_streams_groups_are_known_and_take_no_offset(owned):
    committer, offsets = committer_of(owned, 1)
    committer.commit("g", {T0: 5})
    committer.check("s", [T0])
    keys = [coordinator_key(version, "shared", *rest) for version, *rest in [(11,), (12,), (10, "m"), (14, "m"), (15,)]]
    with_records(owned, *keys, coordinator_key(17, "s"), coordinator_key(3, "consumer"))
    assert {name: group.type for name, group in offsets.groups().items()} == {
        "g": "classic", "shared": "share", "s": "streams", "consumer": "consumer",
    }  # fmt: skip
    for group, word in (("shared", "share group"), ("s", "streams group")):
        with pytest.raises(NotPermitted, match=word):
            committer.check(group, [T0])
    committer.check("consumer", [T0])
    assert plain(offsets.groups()) == {"g": {"t": {0: 5}}, "shared": {}, "s": {}, "consumer": {}}
    with_records(owned, *keys, value=None)
    assert plain(offsets.groups()) == {"g": {"t": {0: 5}}, "s": {}, "consumer": {}}
    committer.check("shared", [T0])


def test_the_first_commit_crashes(tmp_path):
    """Whatever is left: the commit is there whole or not at all, and the next one finds all partitions made."""

    @dataclass
    class Notes:
        returned: list[str] = field(default_factory=list)

    before = tmp_path / "before"
    close_clean(opened(before))
    groups = [f"g{n}" for n in range(3)]

    def work(sessions, notes):
        owned = sessions.open()
        committer, _ = committer_of(owned, 3)
        for group in groups:
            committer.commit(group, {T0: 1, T1: 2})
            committer.sync(group)
            notes.returned.append(group)
        owned.close()

    stopped = None
    for stopped, notes in every_crash(tmp_path, before, work, Notes):
        owned = opened(stopped.path, Opening(gentle=not stopped.lost_power))
        committer, offsets = committer_of(owned, 3)
        found = plain(offsets.groups())
        assert set(notes.returned) <= set(found) <= set(groups), str(stopped)
        assert all(group == {"t": {0: 1, 1: 2}} for group in found.values()), str(stopped)
        committer.commit("after", {T0: 9})
        assert offsets.partitions() == [0, 1, 2], str(stopped)
        for group in (*found, "after"):
            assert offsets.place(group) == group_partition(group, 3)
            assert offsets.group(group) is not None, str(stopped)
        close_clean(owned, stopped)
    assert stopped.stop_at > 40


def test_a_brokers_directory_that_does_not_tell_how_many_partitions(tmp_path):
    """Groups that are there have shown where they are; others could be anywhere."""
    build_log_dir(tmp_path, {CONSUMER_OFFSETS_TOPIC: [[], [Batch([committed("g", 1)])]]})
    owned = opened(tmp_path, Opening())
    committer, offsets = committer_of(owned)
    committer.commit("g", {T0: 2})
    assert plain(offsets.groups()) == {"g": {"t": {0: 2}}}
    assert offsets.group("g").log == 1
    for attempt in (lambda: committer.check("new"), lambda: committer.commit("new", {T0: 2})):
        with pytest.raises(InvalidConfig, match="the number of partitions"):
            attempt()
    close_clean(owned)


def test_replicated_offsets_are_refused_unless_forced(owned, monkeypatch):
    committer, offsets = committer_of(owned, 1)
    committer.commit("g", {T0: 1})
    check = guest_rules.check_append

    def replicated(info, *, force=False, as_group_coordinator=False):
        check(replace(info, replicas=3), force=force, as_group_coordinator=as_group_coordinator)

    monkeypatch.setattr(guest_rules, "check_append", replicated)
    for attempt in (lambda: committer.check("g"), lambda: committer.commit("g", {T0: 2})):
        with pytest.raises(NotPermitted, match="3 replicas"):
            attempt()
    GroupCommitter(owned, offsets, force=True).commit("g", {T0: 3})
    assert plain(offsets.groups()) == {"g": {"t": {0: 3}}}


def test_the_groups_partition_is_elsewhere(tmp_path):
    """Of several partitions not all need be here: of a broker's, say."""
    owned = opened(tmp_path)
    owned.create_topic(CONSUMER_OFFSETS_TOPIC, 50)
    close_clean(owned)
    assert group_partition("g1", 50) == 42  # the topic's last partition tells how many there are
    shutil.rmtree(tmp_path / f"{CONSUMER_OFFSETS_TOPIC}-42")
    owned = opened(tmp_path, Opening())
    committer, offsets = committer_of(owned, 1)  # and so none is made
    assert offsets.place("g1") == 42
    for attempt in (
        lambda: offsets.group("g1"), lambda: committer.check("g1"), lambda: committer.commit("g1", {T0: 1})
    ):  # fmt: skip
        with pytest.raises(UnknownTopicOrPartition):
            attempt()
    assert (offsets.group("g2"), offsets.groups()) == (None, {})
    assert owned.close().clean


def test_compaction_keeps_what_is_committed(tmp_path):
    """Seen by the owner, and by somebody who only looks, and has looked before: the segments he read go."""
    owned = opened(tmp_path)
    committer, offsets = committer_of(owned, 1)
    looked = LogDir.open_read_only(tmp_path)
    watching = GroupOffsets(looked)
    expected = {}
    for turn in range(6):
        for number in range(10):
            committer.commit(f"g{number}", {T0: 10 * turn + number, T1: turn})
            expected[f"g{number}"] = {"t": {0: 10 * turn + number, 1: turn}}
        keys = (encode_offset_key(OffsetKey(f"g{turn}", tp.topic, tp.partition)) for tp in (T0, T1))
        with_records(owned, *keys, value=None)
        del expected[f"g{turn}"]
        looked.refresh()
        assert plain(watching.groups()) == plain(offsets.groups()) == expected
        log = owned.log(OFFSETS_TP)
        log.roll()
        size = log.snapshot().size_bytes
        result = compact_partition(owned, OFFSETS_TP)
        assert log.snapshot().size_bytes < size
        for path in result.files:
            owned.disk.unlink(path)
        assert plain(watching.groups()) == plain(offsets.groups()) == expected
        assert offsets_in(LogDir.open_read_only(tmp_path)) == expected
    close_clean(owned)

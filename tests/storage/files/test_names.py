"""File and directory names, built and parsed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidTopic
from storage.files import names
from storage.files.names import DirKind, FileKind, FileState, MetadataSnapshotName, SegmentFileName
from storage.types import MAX_OFFSET, TopicPartition
from tests.support.fixtures import FIXTURES, requires_fixtures


@given(st.integers(0, MAX_OFFSET), st.sampled_from(FileKind), st.sampled_from(FileState))
def test_segment_file_round_trip(offset, kind, state):
    name = names.segment_file(offset, kind, state)
    assert name.index(".") == 20
    assert names.parse_segment_file(name) == SegmentFileName(offset, kind, state)
    assert not names.is_misnamed(name)


def test_no_segment_file():
    for name, misnamed in (
        ("5.log", True),
        ("00000000000000000005.log ", False),
        ("00000000000000000005.logs", False),
        ("0000000000000000000\uff15.log", True),
        ("-0000000000000000005.log", True),
        ("99999999999999999999.index", True),  # above 2^63 - 1
        ("abc.timeindex.deleted", True),
        ("00000000000000000005.log.swap.swap", False),
        ("leader-epoch-checkpoint", False),
        ("partition.metadata", False),
        ("00000000000000000000-0000000000.checkpoint", False),
        (".log", True),
        ("", False),
    ):
        assert names.parse_segment_file(name) is None, name
        assert names.is_misnamed(name) == misnamed, name


def test_metadata_snapshots():
    name = "00000000000000000120-0000000003.checkpoint"
    assert names.parse_metadata_snapshot(name) == MetadataSnapshotName(120, 3)
    assert names.parse_metadata_snapshot(name + ".part") is None
    assert names.parse_metadata_snapshot("bootstrap.checkpoint") is None
    assert MetadataSnapshotName(99, 9) < MetadataSnapshotName(100, 1)


HEX = "0123456789abcdef0123456789abcdef"


@pytest.mark.parametrize(
    ("name", "kind", "partition"),
    [
        ("t-0", DirKind.PARTITION, TopicPartition("t", 0)),
        ("a-b.c_d-12", DirKind.PARTITION, TopicPartition("a-b.c_d", 12)),
        ("t--1", DirKind.PARTITION, TopicPartition("t-", 1)),
        ("my-delete-0", DirKind.PARTITION, TopicPartition("my-delete", 0)),
        ("t-2147483647", DirKind.PARTITION, TopicPartition("t", 2**31 - 1)),
        ("__consumer_offsets-49", DirKind.PARTITION, TopicPartition("__consumer_offsets", 49)),
        (f"t-3.{HEX}-delete", DirKind.DELETED, TopicPartition("t", 3)),
        (f"a.b-3.{HEX}-stray", DirKind.STRAY, TopicPartition("a.b", 3)),
        (f"t-3.{HEX}-future", DirKind.FUTURE, TopicPartition("t", 3)),
        ("__cluster_metadata-0", DirKind.CLUSTER_METADATA, TopicPartition("__cluster_metadata", 0)),
        ("remote-log-index-cache", DirKind.REMOTE_INDEX_CACHE, None),
    ],
)
def test_directories(name, kind, partition):
    parsed = names.parse_dir(name)
    assert (parsed.name, parsed.kind, parsed.partition, parsed.reason or "") == (name, kind, partition, "")


def test_other_directories_are_unparsable_for_a_reason():
    for name in (
        *("lost+found", ".snapshot", "t", "t-", "-0", "t-x", "t-1_0", "t-2147483648", "t-+7", "t-3-delete"),
        *("t-3.-delete", "a b-0", "@help-0", f"{'t' * 250}-0", ""),
        "t-007",  # to a broker the same as t-7
    ):
        parsed = names.parse_dir(name)
        assert (parsed.name, parsed.kind, parsed.partition) == (name, DirKind.UNPARSABLE, None)
        assert parsed.reason


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 2**31 - 1))
def test_partition_directory_round_trip(topic, partition):
    if topic in (".", "..", names.CLUSTER_METADATA_TOPIC):
        return
    parsed = names.parse_dir(TopicPartition(topic, partition).dir_name)
    assert (parsed.kind, parsed.partition) == (DirKind.PARTITION, TopicPartition(topic, partition))


def test_deleted_directory_names_fit():
    assert names.deleted_dir(TopicPartition("t", 3), HEX) == f"t-3.{HEX}-delete"
    long = names.deleted_dir(TopicPartition("x" * 249, 2**31 - 1))
    assert len(long) == 255
    parsed = names.parse_dir(long)
    assert parsed.kind is DirKind.DELETED
    assert parsed.partition.partition == 2**31 - 1
    assert names.deleted_dir(TopicPartition("t", 3)) != names.deleted_dir(TopicPartition("t", 3))


@pytest.mark.parametrize(
    ("why", "topics"),
    [
        ("empty", [""]),
        ("not allowed", [".", ".."]),
        ("at most 249", ["x" * 250]),
        ("ASCII letters", ["a b", "a/b", "é", "@a", "a\n"]),
    ],
)
def test_invalid_topics(why, topics):
    for topic in topics:
        with pytest.raises(InvalidTopic, match=why):
            names.check_topic_name(topic)


def test_colliding_topics():
    names.check_topic_is_new("a.c", ["a.b", "a_bc"])
    for topic, others, why in (
        ("a_b", ["x", "a.b"], r"collides with topic 'a\.b'"),
        ("a.b", ["a.b"], "exists already"),
        ("a b", [], "invalid"),
    ):
        with pytest.raises(InvalidTopic, match=why):
            names.check_topic_is_new(topic, others)


@requires_fixtures
def test_every_name_that_a_broker_wrote():
    files = 0
    for log_dir in (*FIXTURES.glob("*/log"), FIXTURES / "recovery" / "before", FIXTURES / "recovery" / "after"):
        for path in log_dir.iterdir():
            if path.is_dir() and path.name != names.REMOTE_INDEX_CACHE:
                kinds = (DirKind.PARTITION, DirKind.DELETED, DirKind.CLUSTER_METADATA)
                assert names.parse_dir(path.name).kind in kinds, path
        for path in log_dir.rglob("*.*"):
            parsed = names.parse_segment_file(path.name)
            snapshot = names.parse_metadata_snapshot(path.name)
            assert not names.is_misnamed(path.name) or path.parent.name == names.REMOTE_INDEX_CACHE, path
            if parsed is not None:
                assert snapshot is None
                assert names.segment_file(parsed.offset, parsed.kind, parsed.state) == path.name
            files += parsed is not None or snapshot is not None
    assert files > 1000

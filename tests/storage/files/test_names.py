"""File and directory names, built and parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InvalidTopic
from storage.files import names
from storage.files.names import DirKind, FileKind, FileState, MetadataSnapshotName, SegmentFileName
from storage.types import MAX_OFFSET, TopicPartition
from tests.support.fixtures import FIXTURES, requires_fixtures


@given(st.integers(0, MAX_OFFSET), st.sampled_from(FileKind), st.sampled_from(FileState))
def test_segment_file_round_trip(offset: int, kind: FileKind, state: FileState) -> None:
    name = names.segment_file(offset, kind, state)
    assert name.index(".") == 20
    assert names.parse_segment_file(name) == SegmentFileName(offset, kind, state)
    assert not names.is_misnamed(name)


def test_segment_file() -> None:
    assert names.segment_file(5, FileKind.LOG) == "00000000000000000005.log"
    assert names.segment_file(5, FileKind.TIME_INDEX, FileState.SWAP) == "00000000000000000005.timeindex.swap"


@pytest.mark.parametrize(
    ("name", "misnamed"),
    [
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
    ],
)
def test_no_segment_file(name: str, misnamed: bool) -> None:
    assert names.parse_segment_file(name) is None
    assert names.is_misnamed(name) == misnamed


def test_metadata_snapshots() -> None:
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
        ("lost+found", DirKind.UNPARSABLE, None),
        (".snapshot", DirKind.UNPARSABLE, None),
        ("t", DirKind.UNPARSABLE, None),
        ("t-", DirKind.UNPARSABLE, None),
        ("-0", DirKind.UNPARSABLE, None),
        ("t-x", DirKind.UNPARSABLE, None),
        ("t-1_0", DirKind.UNPARSABLE, None),
        ("t-2147483648", DirKind.UNPARSABLE, None),
        ("t-007", DirKind.UNPARSABLE, None),  # to a broker the same as t-7
        ("t-+7", DirKind.UNPARSABLE, None),
        ("t-3-delete", DirKind.UNPARSABLE, None),
        ("t-3.-delete", DirKind.UNPARSABLE, None),
        ("a b-0", DirKind.UNPARSABLE, None),
        ("@help-0", DirKind.UNPARSABLE, None),
        (f"{'t' * 250}-0", DirKind.UNPARSABLE, None),
        ("", DirKind.UNPARSABLE, None),
    ],
)
def test_directories(name: str, kind: DirKind, partition: TopicPartition | None) -> None:
    parsed = names.parse_dir(name)
    assert (parsed.name, parsed.kind, parsed.partition) == (name, kind, partition)
    assert bool(parsed.reason) == (kind is DirKind.UNPARSABLE)


@given(st.from_regex(r"[a-zA-Z0-9._-]{1,249}", fullmatch=True), st.integers(0, 2**31 - 1))
def test_partition_directory_round_trip(topic: str, partition: int) -> None:
    if topic in (".", "..", names.CLUSTER_METADATA_TOPIC):
        return
    parsed = names.parse_dir(TopicPartition(topic, partition).dir_name)
    assert (parsed.kind, parsed.partition) == (DirKind.PARTITION, TopicPartition(topic, partition))


def test_deleted_directory_names_fit() -> None:
    short = names.deleted_dir(TopicPartition("t", 3), HEX)
    assert short == f"t-3.{HEX}-delete"
    long = names.deleted_dir(TopicPartition("x" * 249, 2**31 - 1))
    assert len(long) == 255
    parsed = names.parse_dir(long)
    assert parsed.kind is DirKind.DELETED
    assert parsed.partition is not None
    assert parsed.partition.partition == 2**31 - 1
    assert names.deleted_dir(TopicPartition("t", 3)) != names.deleted_dir(TopicPartition("t", 3))


@pytest.mark.parametrize("topic", ["a", "A.b_c-9", "...", "x" * 249, "__consumer_offsets"])
def test_valid_topics(topic: str) -> None:
    names.check_topic_name(topic)


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("", "empty"),
        (".", "not allowed"),
        ("..", "not allowed"),
        ("x" * 250, "at most 249"),
        ("a b", "ASCII letters"),
        ("a/b", "ASCII letters"),
        ("é", "ASCII letters"),
        ("@a", "ASCII letters"),
        ("a\n", "ASCII letters"),
    ],
)
def test_invalid_topics(topic: str, why: str) -> None:
    with pytest.raises(InvalidTopic, match=why):
        names.check_topic_name(topic)


def test_colliding_topics() -> None:
    names.check_topic_is_new("a.c", ["a.b", "a_bc"])
    with pytest.raises(InvalidTopic, match=r"collides with topic 'a\.b'"):
        names.check_topic_is_new("a_b", ["x", "a.b"])
    with pytest.raises(InvalidTopic, match="exists already"):
        names.check_topic_is_new("a.b", ["a.b"])
    with pytest.raises(InvalidTopic, match="invalid"):
        names.check_topic_is_new("a b", [])


@requires_fixtures
def test_every_name_that_a_broker_wrote() -> None:
    ours = {
        names.LEADER_EPOCH_CHECKPOINT,
        names.PARTITION_METADATA,
        names.META_PROPERTIES,
        names.CLEAN_SHUTDOWN,
        names.RECOVERY_POINT_CHECKPOINT,
        names.LOG_START_CHECKPOINT,
        names.REPLICATION_CHECKPOINT,
        names.CLEANER_CHECKPOINT,
        "bootstrap.checkpoint",
        "quorum-state",
    }
    files = 0
    for log_dir in (*FIXTURES.glob("*/log"), FIXTURES / "recovery" / "before", FIXTURES / "recovery" / "after"):
        for path in log_dir.iterdir():
            if path.is_dir() and path.name != names.REMOTE_INDEX_CACHE:
                kinds = (DirKind.PARTITION, DirKind.DELETED, DirKind.CLUSTER_METADATA)
                assert names.parse_dir(path.name).kind in kinds, path
        for path in log_dir.rglob("*"):
            if path.is_file() and path.parent.name != names.REMOTE_INDEX_CACHE:
                parsed = names.parse_segment_file(path.name)
                snapshot = names.parse_metadata_snapshot(path.name)
                assert path.name in ours or parsed is not None or snapshot is not None, path
                if parsed is not None:
                    assert names.segment_file(parsed.offset, parsed.kind, parsed.state) == path.name
                files += 1
    assert files > 1000

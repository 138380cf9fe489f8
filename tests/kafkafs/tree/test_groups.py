"""`@groups`: what is listed, what a file says of a commit, what is made and removed. Without a mount."""

import errno
import json

import pytest

from kafkafs.tree.node import NodeKind
from kafkafs.tree.paths import NoSuchPath
from kafkafs.tree.tree import Tree, TreeOptions
from storage.append.appender import Appender
from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import GroupOffsets
from storage.coordinators.offset_records import CommittedOffset, OffsetKey, encode_commit, encode_offset_key
from storage.errors import NotPermitted, ReadOnlyLogDir
from storage.format.block import Record
from storage.types import TopicPartition
from tests.support.builders import START_MS, build_log_dir
from tests.support.owned_dirs import NOW_MS, close_clean, opened
from tests.support.reference_views import content, tree_of

OFFSETS = "__consumer_offsets"


def names(tree, path):
    return [entry.name for entry in tree.lookup(path).list()]


def test_a_directory_that_others_write(tmp_path):
    commits = {
        OffsetKey("billing", "orders", 10): CommittedOffset(7, 3, "mé", START_MS + 5),
        OffsetKey("billing", "orders", 9): CommittedOffset(8, commit_timestamp=START_MS),
        OffsetKey("billing", "orders", -1): CommittedOffset(8),
        OffsetKey("billing", "..", 0): CommittedOffset(8),
        OffsetKey("a/b%.", "t", 0): CommittedOffset(2**63 - 1),
        OffsetKey(".hidden", "t", 0): CommittedOffset(0),
        OffsetKey("", "t", 0): CommittedOffset(1, expire_timestamp=START_MS + 9),
        OffsetKey("long" * 64, "t", 0): CommittedOffset(1),
    }
    records = [Record(encode_offset_key(key), encode_commit(value)) for key, value in commits.items()]
    tree = tree_of(build_log_dir(tmp_path, {OFFSETS: [records]}).path)
    assert names(tree, "/@groups") == ["%", "%2Ehidden", "a%2Fb%25.", "billing"]
    assert names(tree, "/@groups/billing") == ["@state.json", "orders"]
    assert names(tree, "/@groups/billing/orders") == ["9", "10"]
    files = {"billing/orders/10": b"7\n", "a%2Fb%25./t/0": b"9223372036854775807\n", "%2Ehidden/t/0": b"0\n"}
    files["%/t/0"] = b"1\n"
    assert {path: content(tree, f"/@groups/{path}") for path in files} == files
    for path, mode in (("/orders/10", 0o444), ("", 0o555)):
        attributes = tree.lookup(f"/@groups/billing{path}").attributes()
        assert (attributes.mode, attributes.mtime_ns) == (mode, (START_MS + 5) * 1_000_000)
    assert tree.lookup("/@groups/a%2Fb%25./t/0").attributes().mtime_ns == tmp_path.stat().st_mtime_ns
    for path in ("/@groups/x", "/@groups/billing/x", "/@groups/billing/orders/8", "/@groups/.hidden", "/@groups/a%b"):
        with pytest.raises(NoSuchPath):
            tree.lookup(path)
    for attempt in (tree.make_directory, tree.remove_directory, tree.refuse_file):
        with pytest.raises(ReadOnlyLogDir):
            attempt("/@groups/billing/orders/10")


def test_what_cannot_be_read_is_in_the_status(tmp_path):
    key = encode_offset_key(OffsetKey("g", "t", 0))
    tree = tree_of(build_log_dir(tmp_path, {OFFSETS: [[Record(key, b"\0\3broken")]]}).path)
    assert names(tree, "/@groups") == []
    (problem,) = tree.status()["groups"]["problems"]
    assert "record's value cannot be read: cut off in field offset, at byte 2 at offset 0" in problem


@pytest.fixture
def owned(tmp_path):
    directory = opened(tmp_path / "logs")
    directory.create_topic(OFFSETS, 2, {"cleanup.policy": "compact"})
    directory.create_topic("t", 2)
    GroupCommitter(directory, GroupOffsets(directory.log_dir)).commit("g", {TopicPartition("t", 0): 5})
    yield directory
    close_clean(directory)


@pytest.fixture
def tree(owned):
    return Tree(owned.log_dir, TreeOptions(index_bytes=0), owned=owned)


def test_an_owner_does_not_write_in_it_either(tree):
    path = "/@groups/g/t/0"
    assert [tree.lookup(where).attributes().mode for where in ("/@groups", "/@groups/g", path)] == [0o555, 0o555, 0o444]
    for change, places in (
        (tree.make_directory, ("new", "g/t/1", "a%b")),
        (tree.remove_directory, ("", "g", "g/t")),
        (tree.refuse_file, ("g/t/1", "g/@state.json", "g/t/0")),
    ):
        for place in places:
            with pytest.raises(NotPermitted, match=r"@groups is read-only.*kafkafs groups LOGDIR GROUP --reset-to"):
                change(f"/@groups/{place}")
    for where in ("/somewhere", f"/{OFFSETS}/0/x", f"/{OFFSETS}/@config"):
        with pytest.raises(NotPermitted, match=r"neither made nor removed|only topics"):
            tree.refuse_file(where)
    with pytest.raises(OSError, match=r"Read-only") as caught:
        tree.lookup(path).open_to_write()
    assert caught.value.errno == errno.EROFS
    refused = tree.status()["refused_lines"][-1]
    assert refused["path"] == "@groups/g/t/0"
    assert "kafkafs groups LOGDIR GROUP --reset-to" in refused["reason"]
    assert content(tree, path) == b"5\n"


def test_a_commit_is_seen(owned, tree):
    assert content(tree, "/@groups/g/t/0") == b"5\n"
    GroupCommitter(owned, GroupOffsets(owned.log_dir)).commit("g", {TopicPartition("t", 1): 7})
    assert names(tree, "/@groups/g/t") == ["0", "1"]
    assert tree.lookup("/@groups/g/t/1").attributes().mtime_ns == NOW_MS * 1_000_000
    state = content(tree, "/@groups/g/@state.json")
    assert json.loads(state)["state"] == "Empty"
    assert tree.lookup("/@groups/g/@state.json").attributes().size == len(state)


def test_a_share_group_is_listed(owned, tree):
    place = GroupOffsets(owned.log_dir).place("shared")
    log = owned.appendable(TopicPartition(OFFSETS, place or 0), as_group_coordinator=True)
    key = b"\0\x0b\0\6shared"  # ShareGroupMetadataKey
    assert Appender(log, clock=owned.clock).append([Record(key, b"\0\0\0\0\0\1")]).error is None
    assert names(tree, "/@groups") == ["g", "shared"]
    assert names(tree, "/@groups/shared") == ["@state.json"]
    assert tree.lookup("/@groups/shared").attributes().kind is NodeKind.DIRECTORY

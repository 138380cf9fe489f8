"""`@groups`: what is listed, what a file says of a commit, what is made and removed. Without a mount."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafkafs.tree.node import NodeKind
from kafkafs.tree.paths import NoSuchPath
from kafkafs.tree.tree import Tree, TreeOptions
from storage.append.appender import Appender
from storage.coordinators.groups import CommittedOffset, OffsetKey, encode_commit, encode_offset_key
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import InvalidRecord, NotPermitted, ReadOnlyLogDir
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import START_MS, Batch, build_log_dir
from tests.support.owned_dirs import NOW_MS, close_clean, opened
from tests.support.reference_views import content

OFFSETS = "__consumer_offsets"
NO_CACHE = TreeOptions(index_bytes=0)


def names(tree: Tree, path: str) -> list[str]:
    return [entry.name for entry in tree.lookup(path).list()]


def read(tree: Tree, path: str) -> bytes:
    handle = tree.lookup(path).open()
    return handle.read(0, 100)


def write(tree: Tree, path: str, *pieces: bytes) -> None:
    handle = tree.lookup(path).open_to_write()
    try:
        for piece in pieces:
            assert handle.write(piece) == len(piece)
    finally:
        handle.close()


@pytest.fixture
def owned(tmp_path: Path) -> Iterator[OwnedDir]:
    made = opened(tmp_path / "logs")
    made.create_topic(OFFSETS, 2, {"cleanup.policy": "compact"})
    made.create_topic("t", 2)
    yield made
    close_clean(made)


@pytest.fixture
def tree(owned: OwnedDir) -> Tree:
    return Tree(owned.log_dir, NO_CACHE, owned=owned)


def made(tree: Tree, group: str = "g", topic: str = "t", partition: int = 0) -> str:
    """An empty file, and what is above it."""
    path = f"/@groups/{group}/{topic}/{partition}"
    for above in (f"/@groups/{group}", f"/@groups/{group}/{topic}"):
        try:
            tree.make_directory(above)
        except FileExistsError:
            continue
    tree.make_file(path)
    return path


def test_a_directory_that_others_write(tmp_path: Path) -> None:
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
    build_log_dir(tmp_path, {OFFSETS: [[Batch(records)]]})
    tree = Tree(LogDir.open_read_only(tmp_path), NO_CACHE)
    assert names(tree, "/@groups") == ["%", "%2Ehidden", "a%2Fb%25.", "billing"]
    assert names(tree, "/@groups/billing") == ["@state.json", "orders"]
    assert names(tree, "/@groups/billing/orders") == ["9", "10"]
    assert read(tree, "/@groups/billing/orders/10") == b"7\n"
    assert read(tree, "/@groups/a%2Fb%25./t/0") == b"9223372036854775807\n"
    assert read(tree, "/@groups/%2Ehidden/t/0") == b"0\n"
    assert read(tree, "/@groups/%/t/0") == b"1\n"
    file = tree.lookup("/@groups/billing/orders/10")
    assert file.attributes().size == 2
    assert file.attributes().mode == 0o444
    assert file.attributes().mtime_ns == (START_MS + 5) * 1_000_000
    assert tree.lookup("/@groups/billing").attributes().mtime_ns == (START_MS + 5) * 1_000_000
    assert tree.lookup("/@groups/billing").attributes().mode == 0o555
    assert tree.lookup("/@groups/a%2Fb%25./t/0").attributes().mtime_ns == tmp_path.stat().st_mtime_ns
    for path in ("/@groups/x", "/@groups/billing/x", "/@groups/billing/orders/8", "/@groups/.hidden", "/@groups/a%b"):
        with pytest.raises(NoSuchPath):
            tree.lookup(path)
    for attempt in (tree.make_directory, tree.remove_directory, tree.make_file, tree.remove_file):
        with pytest.raises(ReadOnlyLogDir):
            attempt("/@groups/billing/orders/10")
    with pytest.raises(OSError, match=r"Read-only") as caught:
        file.open_to_write()
    assert caught.value.errno == errno.EROFS


def test_what_cannot_be_read_is_in_the_status(tmp_path: Path) -> None:
    key = encode_offset_key(OffsetKey("g", "t", 0))
    build_log_dir(tmp_path, {OFFSETS: [[Batch([Record(key, b"\0\3broken")])]]})
    tree = Tree(LogDir.open_read_only(tmp_path), NO_CACHE)
    assert names(tree, "/@groups") == []
    (problem,) = tree.status()["groups"]["problems"]
    assert "record's value cannot be read: cut off in field offset, at byte 2 at offset 0" in problem


def test_committing(tree: Tree) -> None:
    path = made(tree)
    assert read(tree, path) == b""
    write(tree, path, b"42\n")
    assert read(tree, path) == b"42\n"
    assert tree.lookup(path).attributes().mtime_ns == NOW_MS * 1_000_000
    write(tree, path, b" 7 ")
    assert read(tree, path) == b"7\n"
    write(tree, path, b"1", b"2\n", b"\n")  # a number in two pieces
    assert read(tree, path) == b"12\n"
    write(tree, path, b"3\n4\n5\n")
    assert read(tree, path) == b"5\n"
    write(tree, path, b"\n \n")
    assert read(tree, path) == b"5\n"
    tree.lookup(path).open_to_write().sync()


def test_a_commit_to_a_file_opened_with_o_sync_is_durable(tree: Tree, owned: OwnedDir) -> None:
    handle = tree.lookup(made(tree)).open_to_write()
    handle.write(b"1\n")
    logs = [owned.log(TopicPartition(OFFSETS, number)) for number in owned.log_dir.partitions(OFFSETS)]
    assert [log for log in logs if log.recovery_point < log.log_end_offset]
    handle.write(b"2\n", durable=True)
    assert not [log for log in logs if log.recovery_point < log.log_end_offset]


@pytest.mark.parametrize(
    "text", [b"x\n", b"-1\n", b"1.5\n", b"9223372036854775808\n", b"1\nx\n", b" " * 65, b"1" * 65, b"\xb2"]
)
def test_what_is_no_offset(tree: Tree, text: bytes) -> None:
    path = made(tree)
    handle = tree.lookup(path).open_to_write()
    with pytest.raises(InvalidRecord):
        handle.write(text)
    assert read(tree, path) == b""
    handle.write(b"8")  # what was bad is forgotten
    assert read(tree, path) == b"8\n"


def test_what_is_not_made_or_removed(tree: Tree) -> None:
    path = made(tree)
    for attempt, where in (
        (tree.make_directory, "/@groups/g/t/1"),
        (tree.make_file, "/@groups/file"),
        (tree.make_file, "/@groups/g/file"),
        (tree.make_file, "/somewhere"),
        (tree.make_file, f"/{OFFSETS}/0/x"),
        (tree.remove_file, f"/{OFFSETS}/@config"),
        (tree.remove_directory, "/@groups"),
    ):
        with pytest.raises(NotPermitted):
            attempt(where)
    with pytest.raises(IsADirectoryError):
        tree.remove_file("/@groups/g")
    with pytest.raises(NotADirectoryError):
        tree.remove_directory(path)
    for attempt, where in ((tree.make_directory, "/@groups/a%b"), (tree.make_file, "/@groups/g/t/01")):
        with pytest.raises(OSError, match=r"Invalid") as caught:
            attempt(where)
        assert caught.value.errno == errno.EINVAL


def test_a_brokers_directory_without_the_topic_says_no_at_once(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [[b"one"]]})
    owned = opened(tmp_path, Opening())
    tree = Tree(owned.log_dir, NO_CACHE, owned=owned)
    tree.make_directory("/@groups/g")
    tree.make_directory("/@groups/g/t")
    with pytest.raises(NotPermitted, match="only the broker"):
        tree.make_file("/@groups/g/t/0")
    assert names(tree, "/@groups/g/t") == []
    close_clean(owned)


def test_a_share_group_is_listed(tree: Tree, owned: OwnedDir) -> None:
    write(tree, made(tree), b"5")
    log = owned.appendable(
        TopicPartition(OFFSETS, tree._groups.offsets.place("shared") or 0), as_group_coordinator=True
    )
    key = b"\0\x0b\0\6shared"  # ShareGroupMetadataKey
    assert Appender(log, clock=owned.clock).append([Record(key, b"\0\0\0\0\0\1")]).error is None
    assert names(tree, "/@groups") == ["g", "shared"]
    assert names(tree, "/@groups/shared") == ["@state.json"]
    assert tree.lookup("/@groups/shared").attributes().kind is NodeKind.DIRECTORY
    with pytest.raises(NotPermitted, match="share group"):
        made(tree, "shared")
    with pytest.raises(NotPermitted, match="share group"):
        tree.remove_directory("/@groups/shared")
    assert names(tree, "/@groups") == ["g", "shared"]


def test_the_state_is_there_as_long_as_the_group(tree: Tree) -> None:
    path, state = made(tree), "/@groups/g/@state.json"
    assert json.loads(content(tree, state))["state"] == "Empty"
    write(tree, path, b"5")
    assert json.loads(content(tree, state))["group"] == "g"
    assert tree.lookup(state).attributes().size == len(content(tree, state))
    for attempt in (tree.make_file, tree.make_directory):
        with pytest.raises(NotPermitted):
            attempt(state)
    tree.remove_file(state)
    assert names(tree, "/@groups/g") == ["@state.json", "t"]
    tree.remove_file(path)
    tree.remove_directory("/@groups/g/t")
    tree.remove_file(state)
    tree.remove_directory("/@groups/g")
    for attempt in (tree.lookup, tree.remove_file):
        with pytest.raises(NoSuchPath):
            attempt(state)

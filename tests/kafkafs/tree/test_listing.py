"""Walks over the tree, as `ls -lR`, `du` and `find` make them: cheap where nothing has changed, right where it has."""

import os
import time

import pytest

from kafkafs.tree.node import NodeKind
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import content, tree_of

TOPIC_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"
OTHER_ID = "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAg"


@pytest.fixture
def live(tmp_path):
    log = LiveLog(tmp_path / "log")
    log.write_segments(30, 30, 5)
    (log.path / "partition.metadata").write_text(TOPIC_ID)
    (log.path / "topic.properties").write_text("retention.ms=1234\n")
    checkpoint(log, "recovery-point-offset-checkpoint", 30)
    checkpoint(log, "log-start-offset-checkpoint", 0)
    return log


def checkpoint(live, name, offset):
    (live.path.parent / name).write_text(f"0\n1\nt 0 {offset}\n")


def settle(log_dir):
    """All that is there was last changed a while ago: only then its times tell that nothing has happened since."""
    then = time.time_ns() - 10_000_000_000
    for path in (*log_dir.rglob("*"), log_dir):
        os.utime(path, ns=(then, then))


def walk(tree, path="/"):
    """All that is listed, as `find` meets it, but the files of the root: their time is now."""
    view = tree.lookup(path)
    attributes = view.attributes()
    yield path, attributes
    if attributes.kind is NodeKind.DIRECTORY:
        for entry in view.list():
            if path == "/" and entry.kind is NodeKind.FILE:
                continue
            yield from walk(tree, f"{path.rstrip('/')}/{entry.name}")


def test_stats_of_what_has_not_changed_open_nothing(live, monkeypatch):
    settle(live.path.parent)
    tree = tree_of(live.path.parent)
    seen = dict(walk(tree))
    assert {"/t", "/t/@config", "/t/0/@info.json", "/t/0/messages.log", "/t/0/segments/topic.properties"} <= set(seen)
    opened = []
    before = os.open

    def noting(path, *arguments, **more):
        opened.append(path)
        return before(path, *arguments, **more)

    monkeypatch.setattr(os, "open", noting)
    for path, attributes in seen.items():
        assert tree.lookup(path).attributes() == attributes, path
    assert opened == []


def replaced(live):
    """A sealed segment gives way to another file, as compaction has it."""
    log = live.log(30)
    data = log.read_bytes()
    swap = log.with_suffix(".log.swap")
    swap.write_bytes(data[: len(data) // 3 * 2])
    swap.replace(log)


def truncated(live):
    live.truncate(60)
    live.append(b"another", timestamps=[START_MS + 999_000_000])


CHANGES = {
    "nothing": lambda live: None,
    "append": lambda live: live.write(1),
    "append of a later day": lambda live: live.append(b"x", timestamps=[START_MS + 86_400_000]),
    "torn tail": lambda live: live.log(60).write_bytes(live.log(60).read_bytes() + bytes(7)),
    "roll": lambda live: (live.roll(), live.write(1)),
    "retention": lambda live: live.log(0).unlink(),
    "compaction": replaced,
    "truncation": truncated,
    "log start": lambda live: checkpoint(live, "log-start-offset-checkpoint", 33),
    "recovery point": lambda live: checkpoint(live, "recovery-point-offset-checkpoint", 61),
    "configuration": lambda live: (live.path / "topic.properties").write_text("retention.ms=999\n"),
    "configuration taken back": lambda live: (live.path / "topic.properties").unlink(),
    "topic id": lambda live: (live.path / "partition.metadata").write_text(OTHER_ID),
    "another partition": lambda live: (live.path.parent / "t-1").mkdir(),
    "another topic": lambda live: (live.path.parent / "u-0").mkdir(),
    "touched": lambda live: os.utime(live.log(60)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_is_remembered_is_never_stale(live, change):
    """What a walk finds behind a change is what somebody finds who has seen nothing before."""
    settle(live.path.parent)
    tree = tree_of(live.path.parent)
    before = dict(walk(tree))
    assert dict(walk(tree)) == before
    CHANGES[change](live)
    fresh = tree_of(live.path.parent)
    assert dict(walk(tree)) == dict(walk(fresh))
    for path in ("/t/0/@info.json", "/t/@config", "/t/0/@info.json"):
        assert content(tree, path) == content(fresh, path)


def test_the_size_of_a_partition_s_facts_is_exact_once_they_were_opened(tmp_path):
    """Before, it is what it would be without an open transaction: to know, all would have to be read."""
    live = LiveLog(tmp_path / "log")
    live.write(95)
    live.begin(7, *(b"pending" for _ in range(10)))
    tree = tree_of(live.path.parent)
    supposed = tree.lookup("/t/0/@info.json").attributes().size
    exact = len(content(tree, "/t/0/@info.json"))
    assert exact == supposed - 1  # a last stable offset of 95 and not 105
    live.end(7, commit=True)
    live.write(5)
    size = tree.lookup("/t/0/@info.json").attributes().size
    assert size == len(content(tree_of(live.path.parent), "/t/0/@info.json")) == len(content(tree, "/t/0/@info.json"))

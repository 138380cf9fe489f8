"""read_committed views: they end at the last stable offset, go on with it, and leave out what was aborted."""

from __future__ import annotations

from pathlib import Path

import pytest

from kafkafs.tree.tree import Tree
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, read_all, tree_of

PATH = "/t/0/messages.txt"


@pytest.fixture
def live(tmp_path: Path) -> LiveLog:
    return LiveLog(tmp_path / "log")


def committed(live: LiveLog) -> Tree:
    return tree_of(live.path.parent, "read_committed")


def test_an_open_transaction_holds_back_all_that_comes_behind(live: LiveLog) -> None:
    tree = committed(live)
    live.write(20)
    handle = tree.lookup(PATH).open()
    stable = live.text()
    live.begin(7, b"one", b"two")
    live.write(10)
    assert read_all(handle) == stable
    live.begin(8, b"never")
    live.end(8, commit=False)
    assert read_all(handle) == stable
    live.end(7, commit=True)
    assert read_all(handle) == live.text()
    assert b"one\ntwo\n" in live.text()
    assert b"never" not in live.text()
    everything = content(tree_of(live.path.parent), PATH)
    assert b"never\n" in everything


def test_transactions_that_reach_over_segments(live: LiveLog) -> None:
    tree = committed(live)
    live.write(5)
    live.begin(7, b"first")
    live.begin(8, b"lost")
    handle = tree.lookup(PATH).open()
    raw = tree.lookup("/t/0/messages.log").open()
    before = read_all(handle)
    for _ in range(3):
        live.roll()
        live.write(5)
        live.begin(7, b"more")
        live.begin(8, b"lost too")
        assert read_all(handle) == before
    assert len(read_all(raw)) < live.log(0).stat().st_size
    live.end(7, commit=True)
    live.roll()
    live.end(8, commit=False)
    live.write(1)
    assert read_all(handle) == live.text()
    assert read_all(raw) == b"".join(live.log(base).read_bytes() for base in live.segments)
    assert content(committed(live), PATH) == live.text()
    for first in (0, 6, 9, 20):
        wanted = live.text(lambda offset, _, first=first: offset >= first)
        assert content(tree, f"/t/0/offsets/{first}-.txt") == wanted


def test_the_view_index_of_committed_messages_is_another(live: LiveLog, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    live.write(1500, size=1000, batch=100)
    live.begin(7, b"aborted")
    live.end(7, commit=False)
    live.roll()
    live.write(5)
    for _ in range(2):
        for isolation, text in (("read_committed", b""), ("read_uncommitted", b"aborted\n")):
            tree = tree_of(live.path.parent, isolation, index_dir=cache, index_bytes=1 << 20)
            data = content(tree, PATH)
            assert data.count(b"aborted\n") == len(text) // 8
            assert len(data) == len(live.text()) + len(text)
    # The index of keys is the same for both.
    assert len([path for path in cache.iterdir() if path.suffix != ".keys"]) == 2

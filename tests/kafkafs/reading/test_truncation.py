"""Views of a log that loses its end, and gets another: a follower's, after a change of the leader.

Every open view of the partition ends. A view that is opened then shows what a reader of the log as it is now would see,
nothing of what was cut, and nothing outside of its name.
"""

import random
import shutil

import pytest

from kafkafs.reading import handle as open_view
from storage.errors import LogTruncated
from storage.types import TopicPartition
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import PATH, content, opened, read_all, scanned_bytes, tree_of

FILES = ("0/messages.txt", "0/messages.jsonl", "0/messages.log", "0/offsets/2-.txt", "0/offsets/2-5.txt",
         "0/offsets/2-5.log", "0/offsets/3+200.txt", "0/offsets/last-5.txt", "0/time/2020--.txt",
         "0/time/2020--2030.jsonl", "0/keys/k.txt", "0/latest.txt", "keys/k.jsonl", "latest.jsonl")  # fmt: skip


@pytest.fixture
def live(tmp_path):
    return LiveLog(tmp_path / "log")


@pytest.fixture
def tree(live):
    return tree_of(live.path.parent)


def committed_again(live):
    return tree_of(live.path.parent, "read_committed")


@pytest.fixture
def committed(live):
    return committed_again(live)


@pytest.fixture(autouse=True)
def _each_read_looks(monkeypatch):
    """And not only a tenth of a second after the last look."""
    monkeypatch.setattr(open_view, "LOOK_S", -1.0)


def is_over(handle):
    """Whether nothing of a handle can be read any longer."""
    for position in (0, 5, 1 << 20):
        with pytest.raises(LogTruncated):
            handle.read(position, 10)
    if handle.direct_io:
        with pytest.raises(LogTruncated):
            handle.size  # noqa: B018 - to look is what fails
    return True


GROWN = {
    "not at all": lambda _live: None,
    "to less than before": lambda live: live.write(5, size=50),
    "to more than before": lambda live: live.write(80, size=50),
    "over segments": lambda live: (live.write(20, size=50), live.roll(), live.write(70), live.roll()),
}


@pytest.mark.parametrize("grown", GROWN)
@pytest.mark.parametrize("name", FILES)
def test_every_open_view_ends_and_opening_it_again_shows_the_new_log(tmp_path, name, grown):
    """Also one that shows nothing of what was cut."""
    live = LiveLog(tmp_path / "log", key_of=lambda _offset: b"k")
    other = LiveLog(tmp_path / "log", key_of=lambda _offset: b"k", partition=1)
    for log in (live, other):
        log.write_segments(20, 30)
    tree, path = tree_of(tmp_path / "log"), f"/t/{name}"
    handle, beside = opened(tree, path), opened(tree, "/t/1/messages.txt")
    assert handle.read(0, 10)
    live.truncate(30)
    GROWN[grown](live)
    assert is_over(handle)
    fresh = content(tree_of(tmp_path / "log"), path)
    assert tree.lookup(path).attributes().size == len(fresh) or "latest" in name
    assert content(tree, path) == fresh
    assert is_over(handle)
    handle.close()
    assert read_all(beside) == other.text()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("again", [False, True], ids=["removed", "made again"])
def test_views_of_a_topic_that_is_removed_end_too(tmp_path, name, again):
    live = LiveLog(tmp_path / "log", key_of=lambda _offset: b"k")
    live.write_segments(30, 30)
    tree = tree_of(tmp_path / "log")
    handle = opened(tree, f"/t/{name}")
    assert handle.read(0, 10)
    live.path.rename(tmp_path / "gone")
    (tmp_path / "log" / "u-0").mkdir()
    if again:
        LiveLog(tmp_path / "log", key_of=lambda _offset: b"k").write(90)
    tree.log_dir.refresh()
    assert is_over(handle)
    handle.close()
    shutil.rmtree(tmp_path / "gone")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "unseen"])
@pytest.mark.parametrize("was", [True, False], ids=["committed", "aborted"])
@pytest.mark.parametrize("rolled", [True, False], ids=["rolled", "one-segment"])
def test_a_transaction_that_ends_otherwise_after_a_truncation(live, committed, was, rolled, seen):
    """Its messages lie before the cut, perhaps in a segment that was not touched: they were measured already."""
    live.write(10)
    live.begin(7, *[b"%d of the transaction" % number for number in range(40)])
    live.write(10)
    if rolled:
        live.roll()
        live.write(5)
    cut = live.next_offset
    live.end(7, commit=was)
    live.write(5)
    names = ("messages.txt", "messages.jsonl", "messages.log", "offsets/5-.txt", "offsets/0+40.txt",
             "offsets/12-60.txt", "offsets/20.txt", "time/2020--.txt", "time/2020--2030.txt")  # fmt: skip
    paths = [f"/t/0/{name}" for name in names]
    handles = {path: opened(committed, path) for path in paths}
    for path, handle in handles.items():
        assert read_all(handle) == content(committed_again(live), path)
    live.truncate(cut)
    if seen:
        for path, handle in handles.items():
            assert is_over(handle), path
    live.begin(7, b"it went on")
    live.end(7, commit=not was)
    live.write(5, size=80)
    fresh = committed_again(live)
    for path, handle in handles.items():
        assert is_over(handle), path
        handle.close()
        assert content(committed, path) == content(fresh, path), path
    assert (b"39 of the transaction" in content(committed, PATH)) is not was


@pytest.mark.parametrize("was", [True, False], ids=["committed", "aborted"])
def test_what_another_view_has_measured_is_not_decided_by_a_marker_that_was_cut(live, committed, was):
    """One view shows the messages before a transaction, and the other one those in it, of the same segment."""
    path = "/t/0/offsets/0-.txt"

    def agrees():
        return content(committed, path) == content(committed_again(live), path)

    live.write(10)
    assert agrees()
    live.begin(7, *[b"%d of the transaction" % number for number in range(40)])
    live.roll()
    live.write(5)
    cut = live.next_offset
    live.end(7, commit=was)
    assert content(committed, PATH) == content(committed_again(live), PATH)
    live.truncate(cut)
    assert agrees()
    live.begin(7, b"it went on")
    live.end(7, commit=not was)
    end = live.next_offset
    live.write(5)
    assert agrees()
    live.truncate(end)
    assert agrees()


def test_an_index_kept_on_disk_does_not_outlive_the_marker(live, tmp_path):
    """The segment's own file says nothing of a marker behind it."""
    options = {"index_dir": tmp_path / "cache", "index_bytes": 1 << 20}
    live.write(10)
    live.begin(7, *[b"of the transaction" for _ in range(40)])
    live.write(1200, size=1000, batch=100)
    live.roll()
    cut = live.next_offset
    live.end(7, commit=True)
    live.write(5)
    scanned = []
    for _ in range(2):
        tree = tree_of(live.path.parent, "read_committed", **options)
        assert content(tree, PATH).count(b"of the transaction\n") == 40
        scanned.append(scanned_bytes(tree))
        tree.stop()
    assert scanned[1] < 1000 < scanned[0]  # the first segment was not measured again
    live.truncate(cut)
    live.open_messages[7] = []
    live.end(7, commit=False)
    live.write(5)
    tree = tree_of(live.path.parent, "read_committed", **options)
    assert content(tree, PATH) == content(committed_again(live), PATH)
    assert b"of the transaction\n" not in content(tree, PATH)


def test_committed_messages_are_read_when_retention_took_where_the_log_began(live, committed):
    """How far a reader may see was settled when a piece was measured, and is not looked for again to read it."""
    live.write_segments(10, 5)
    live.begin(7, b"never", b"seen")
    live.end(7, commit=False)
    live.write_segments(10, 10)
    handle = opened(committed)
    gone = len(live.text(lambda offset, _: offset < 10))
    live.retain()
    for _ in range(100):  # more ends of the log than are remembered
        live.write(1)
        assert committed.lookup(PATH).attributes().size == handle.size
    assert handle.read(gone, 1 << 20) == live.text()


@pytest.mark.parametrize("seed", range(12))
def test_any_history(tmp_path, seed):
    """Appends, transactions, rolls and truncations at random; what is held open shows what a tree made anew shows, or
    has ended."""
    rng = random.Random(seed)
    live = LiveLog(tmp_path / "log")
    live.write(20)
    trees = {isolation: tree_of(live.path.parent, isolation) for isolation in ("read_uncommitted", "read_committed")}
    handles, ended = {}, set()
    first = {"messages": 0}
    for _ in range(60):
        match rng.choice("wwwtteerco"):
            case "w":
                live.write(rng.randrange(1, 20), size=rng.randrange(10, 90), batch=rng.choice((1, 4, 50)))
            case "t":
                live.begin(rng.choice((5, 6)), *[b"t%d" % number for number in range(rng.randrange(1, 9))])
            case "e" if live.open_messages:
                live.end(rng.choice(list(live.open_messages)), commit=rng.random() < 0.5)
            case "r":
                live.roll()
            case "c":
                end = live.next_offset
                live.truncate(max(live.segments[-1], end - rng.randrange(1, 40)))
                ended = set(handles) if live.next_offset < end else set()
                live.open_messages = {producer: [] for producer in (5, 6)}  # any may have a transaction open
            case "o":
                start = rng.randrange(live.next_offset + 1)
                name = rng.choice((f"offsets/{start}-", f"offsets/{start}+{rng.randrange(1, 40)}", "messages",
                                   f"offsets/{start}-{start + rng.randrange(40)}", f"time/{START_MS}--"))  # fmt: skip
                first[name] = start if name.startswith("offsets") else 0
                isolation = rng.choice(list(trees))
                if (isolation, name) not in handles:
                    handles[isolation, name] = opened(trees[isolation], f"/t/0/{name}.txt")
                    ended.discard((isolation, name))
        for tree in trees.values():
            tree.log_dir.log(TopicPartition("t", 0)).snapshot()  # a look that no view takes part in
        for (isolation, name), handle in list(handles.items()):
            if (isolation, name) in ended:
                assert is_over(handle), (isolation, name)
                handles.pop((isolation, name)).close()
            elif first[name] <= live.next_offset and rng.random() < 0.5:
                fresh = content(tree_of(live.path.parent, isolation), f"/t/0/{name}.txt")
                assert read_all(handle) == fresh, (isolation, name)
        ended = set()


# read_committed views: they end at the last stable offset, go on with it, and leave out what was aborted.


def test_transactions_that_reach_over_segments(live):
    tree = committed_again(live)
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
    assert content(committed_again(live), PATH) == live.text()
    for first in (0, 6, 9, 20):
        wanted = live.text(lambda offset, _, first=first: offset >= first)
        assert content(tree, f"/t/0/offsets/{first}-.txt") == wanted


def test_the_view_index_of_committed_messages_is_another(live, tmp_path):
    live.write(1500, size=1000, batch=100)
    live.begin(7, b"aborted")
    live.end(7, commit=False)
    live.roll()
    live.write(5)
    for _ in range(2):
        for isolation, more in (("read_committed", b""), ("read_uncommitted", b"aborted\n")):
            tree = tree_of(live.path.parent, isolation, index_dir=tmp_path / "cache", index_bytes=1 << 20)
            data = content(tree, PATH)
            assert data.count(b"aborted\n") == bool(more)
            assert len(data) == len(live.text()) + len(more)
    assert len(list((tmp_path / "cache").glob("*.npz"))) == 1  # of both renditions

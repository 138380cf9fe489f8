"""What can be looked up, listed and asked of the tree, and what it says of itself."""

import ctypes
import errno
import json
from datetime import date, timedelta

import pytest

from kafkafs.tree.node import NodeKind
from kafkafs.tree.paths import NoSuchPath
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.format.block import Record
from tests.support.builders import ROLL, Batch, Partition, build_log_dir
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import content, read_all, tree_of

DAY_MS = 86_400_000


@pytest.fixture
def live(tmp_path):
    """Offsets 0-29, 30-59, 60-64 in three segments; the second one reaches into the next day."""
    log = LiveLog(tmp_path / "log")
    log.write_segments(30, 29)
    log.append(b"next day", timestamps=[START_MS + DAY_MS])
    log.roll()
    log.write(5)
    return log


@pytest.fixture
def tree(live):
    return tree_of(live.path.parent)


def names(tree, path):
    return [entry.name for entry in tree.lookup(path).list()]


def test_the_root_lists_our_files_and_all_topics(tree):
    assert names(tree, "/") == ["@help", "@status.json", "@metrics", "@groups", "t"]
    root = tree.lookup("/").attributes()
    assert (root.kind, root.mode, root.nlink) == (NodeKind.DIRECTORY, 0o555, 4)
    assert names(tree, "/@groups") == []
    assert tree.lookup("/@groups").attributes().kind is NodeKind.DIRECTORY


def test_what_is_answered_without_the_log_directory(tree, live):
    """From memory, so that a person sees what is wrong; messages are not."""
    shown = names(tree, "/")
    live.path.parent.rename(live.path.parent.with_name("gone"))
    assert names(tree, "/") == shown
    for path in ("/", "/@help", "/@status.json", "/@metrics", "/@groups", "/t"):
        assert tree.lookup(path).attributes().mode & 0o444, path
    assert json.loads(read_all(tree.lookup("/@status.json").open()))
    assert names(tree, "/@groups") == []
    assert "0" in names(tree, "/t")
    for path in ("/t/0", "/t/0/messages.txt", "/t/@config", "/t/0/@info.json"):
        with pytest.raises(FileNotFoundError):
            tree.lookup(path)


def test_offset_ranges_are_listed_in_order(live, tree):
    """Sorted by their names, as a shell sorts them; without leading zeros they are the same files."""
    for _ in range(4):
        live.write(40)
        live.roll()
    listed = names(tree, "/t/0/offsets")
    ranges = ["000-029", "030-059", "060-104", "105-144", "145-184", "185-224", "225-"]
    assert listed == sorted(listed) == [f"{name}.txt" for name in ranges]
    assert b"".join(content(tree, f"/t/0/offsets/{name}") for name in sorted(listed)) == live.text()
    handles = [tree.lookup(f"/t/0/offsets/{name}.txt").open() for name in ("000-029", "0-29", "0000-29", "0-0029")]
    assert tree.status()["views"]["open"] == 1
    assert tree.status()["views"]["handles"] == 4
    for handle in handles:
        handle.close()


@pytest.mark.parametrize("sealed", [False, True], ids=["active", "sealed"])
@pytest.mark.parametrize("stray", [START_MS * 1000, START_MS * 1_000_000, START_MS // 1000], ids=["us", "ns", "s"])
@pytest.mark.parametrize("place", [0, 5, 11])
def test_a_stray_timestamp_hides_no_day(tmp_path, place, stray, sealed):
    """A producer has sent micro- or nanoseconds, or seconds, once: the time index may have no later entry."""
    times = [START_MS + day * 86_400_000 for day in range(12)]
    times[place] = stray
    batches = [Batch([Record(None, b"v", (), time)]) for time in times]
    built = build_log_dir(tmp_path, {"t": [[*batches, *([ROLL] if sealed else [])]]})
    first = date(2023, 11, 14)
    days = {f"{first + timedelta(day)}.txt" for day in range(12) if day != place}
    listed = names(tree_of(built.path), "/t/0/time")
    assert days <= set(listed)
    assert len(listed) <= 13
    assert listed == sorted(listed)


def test_listings_begin_at_the_log_start(tmp_path):
    times = [START_MS + day * 86_400_000 for day in range(12)]
    items = [Batch([Record(None, b"v", (), time)]) for time in times]
    partition = Partition([*items[:6], ROLL, *items[6:]], log_start_offset=4)
    tree = tree_of(build_log_dir(tmp_path, {"t": [partition]}).path)
    assert names(tree, "/t/0/time") == [f"{date(2023, 11, 14) + timedelta(day)}.txt" for day in range(4, 12)]
    assert names(tree, "/t/0/offsets") == ["04-05.txt", "06-.txt"]
    assert content(tree, "/t/0/messages.txt") == b"v\n" * 8
    (tmp_path / "log-start-offset-checkpoint").write_text("0\n1\nt 0 12\n")
    assert names(tree, "/t/0/offsets") == ["12-.txt"]
    assert content(tree, "/t/0/messages.txt") == b""


@pytest.mark.parametrize("magic", [0, 1])
def test_times_of_old_formats(tmp_path, magic):
    """v0 messages have no timestamp; nothing reads v1 messages for the first one."""
    records = [Record(None, b"v", (), START_MS + day * DAY_MS) for day in range(3)]
    tree = tree_of(build_log_dir(tmp_path, {"t": [[Batch([record], magic=magic) for record in records]]}).path)
    facts = json.loads(content(tree, "/t/0/@info.json"))
    first, last = (START_MS, START_MS + 2 * DAY_MS) if magic else (None, None)
    assert (facts["first_timestamp"], facts["last_timestamp"]) == (first, last)
    days = [date(2023, 11, 14) + timedelta(day) for day in range(3 if magic else 0)]
    assert names(tree, "/t/0/time") == [f"{day}.txt" for day in days]


def test_segments_are_the_real_files(live, tree):
    (live.path / "partition.metadata").write_bytes(b"version: 0\n")
    (live.path / "subdirectory").mkdir()
    listed = names(tree, "/t/0/segments")
    assert listed == sorted(path.name for path in live.path.iterdir() if path.is_file())
    for name in listed:
        status = (live.path / name).stat()
        attributes = tree.lookup(f"/t/0/segments/{name}").attributes()
        assert (attributes.size, attributes.mtime_ns, attributes.mode) == (status.st_size, status.st_mtime_ns, 0o444)
        assert content(tree, f"/t/0/segments/{name}", step=100) == (live.path / name).read_bytes()
    active = tree.lookup(f"/t/0/segments/{live.log(60).name}").open()
    assert (active.direct_io, active.keep_cache) == (True, False)
    tree = tree_of(live.path.parent)
    sealed = [tree.lookup(f"/t/0/segments/{live.log(0).name}").open() for _ in range(2)]
    assert [(handle.direct_io, handle.keep_cache) for handle in sealed] == [(False, False), (False, True)]


def test_what_is_not_there(live, tree):
    (live.path / "subdirectory").mkdir()
    missing = ["/nosuch", "/t/1", "/t/0/nosuch", "/t/0/offsets/5-4.txt", "/t/0/messages.txt/x", "/t/@append"]
    missing += ["/t/0/segments/nosuch", "/t/0/segments/subdirectory", "/t/0/@append", "/@groups/g"]
    for path in missing:
        with pytest.raises((NoSuchPath, UnknownTopicOrPartition)):
            tree.lookup(path).attributes()


def test_files_are_no_directories_and_the_reverse(tree):
    for path in ("/t/0/messages.txt", "/t/0/@info.json", "/t/0/segments/00000000000000000000.log"):
        with pytest.raises(NotADirectoryError) as listed:
            list(tree.lookup(path).list())
        assert listed.value.errno == errno.ENOTDIR
    for path in ("/", "/t", "/t/0", "/t/0/offsets", "/t/0/time", "/t/0/segments", "/@groups"):
        with pytest.raises(IsADirectoryError) as opened:
            tree.lookup(path).open()
        assert opened.value.errno == errno.EISDIR


@pytest.mark.parametrize("exact_below", [1, 1 << 30])
def test_sizes_before_the_first_open(live, exact_below):
    """Estimates, but exact where a little is to be measured."""
    tree = tree_of(live.path.parent, exact_below=exact_below)
    names = ("messages.txt", "offsets/0-29.txt", "offsets/7.jsonl", "offsets/3+4.txt", "offsets/last-2.txt")
    for name in (*names, "time/2023-11-14.txt", "time/1999.txt", "time/last-1h.txt"):
        size = tree.lookup(f"/t/0/{name}").attributes().size
        assert size >= 1 if exact_below == 1 else size == len(content(tree, f"/t/0/{name}"))
    assert tree.lookup("/t/0/offsets/65-.txt").attributes().size == 0
    assert tree.lookup("/t/0/messages.log").attributes().size == sum(
        live.log(base).stat().st_size for base in live.segments
    )
    assert tree.lookup("/t/0/offsets/0-29.log").attributes().size == live.log(0).stat().st_size


def test_modification_times_are_message_times(live, tree):
    second, third = (START_MS + DAY_MS) * 1_000_000, (START_MS + 64_000) * 1_000_000
    for _ in range(2):
        assert tree.lookup("/t/0/offsets/0-29.txt").attributes().mtime_ns == (START_MS + 29_000) * 1_000_000
        assert tree.lookup("/t/0/offsets/30-59.txt").attributes().mtime_ns == second
        assert tree.lookup("/t/0/offsets/60-.log").attributes().mtime_ns == third
        assert tree.lookup("/t/0/time/2023-11-15.txt").attributes().mtime_ns == second
        for name in ("offsets/0-29.txt", "offsets/30-59.txt", "offsets/60-.log", "time/2023-11-15.txt"):
            tree.lookup(f"/t/0/{name}").open().close()
    for path in ("/t/0", "/t", "/t/0/offsets", "/t/0/time"):
        assert tree.lookup(path).attributes().mtime_ns == third
    tree.lookup("/t/0/messages.txt").open().close()
    assert tree.lookup("/t/0/messages.txt").attributes().mtime_ns == second


def test_messages_without_timestamps_show_the_file_s_time(tmp_path):
    live = LiveLog(tmp_path / "log")
    live.append(b"a", b"b", timestamps=[-1, -1])
    tree = tree_of(live.path.parent)
    for _ in range(2):
        assert tree.lookup("/t/0/messages.txt").attributes().mtime_ns == live.log(0).stat().st_mtime_ns
        tree.lookup("/t/0/messages.txt").open().close()
    assert content(tree, "/t/0/time/1970--.txt") == b""


def test_info_json(live, tree):
    (live.path.parent / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 60\n")
    facts = json.loads(content(tree, "/t/0/@info.json"))
    expected = {"topic": "t", "partition": 0, "log_start_offset": 0, "log_end_offset": 65, "last_stable_offset": 65}
    expected |= {"recovery_point": 60, "segments": 3, "offsets": 65, "messages": 65}
    expected |= {"first_timestamp": START_MS, "last_timestamp": START_MS + DAY_MS}
    assert {name: facts[name] for name in expected} == expected
    assert facts["bytes"] == sum(live.log(base).stat().st_size for base in live.segments)


def test_info_begins_at_the_log_start(live, tree):
    """The first message is the first that can be read, wherever its segment and its batch begin."""
    path = live.path.parent / "log-start-offset-checkpoint"
    for start in (0, 29, 30, 44, 61, 65):
        path.write_text(f"0\n1\nt 0 {start}\n")
        facts = json.loads(content(tree, "/t/0/@info.json"))
        first = next((timestamp for offset, timestamp, _ in live.messages if offset >= start), None)
        last = max((timestamp for offset, timestamp, _ in live.messages if offset >= min(start, 60)), default=None)
        expected = (first, None if first is None else last)
        assert (facts["first_timestamp"], facts["last_timestamp"]) == expected, start
    assert facts["last_time"] is None
    assert names(tree, "/t/0/time") == []


def test_config_lines(live, tree):
    (live.path / "topic.properties").write_text("retention.ms=1234\ncleanup.policy=compact\n")
    lines = content(tree, "/t/@config").decode().splitlines()
    own = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert own == {"retention.ms": "1234", "cleanup.policy": "compact"}
    in_force = dict(line.removeprefix("# ").split("=", 1) for line in lines)
    assert in_force["segment.bytes"] == "1073741824"


def test_small_files_are_frozen_when_they_are_opened(live, tree):
    handle = tree.lookup("/t/0/@info.json").open()
    before = read_all(handle, 7)
    live.write(5)
    assert handle.size == len(before)
    assert handle.read(0, 10_000) == before
    buffer = ctypes.create_string_buffer(len(before))
    assert handle.read_into(ctypes.addressof(buffer), 3, 10) == 10
    assert buffer.raw[:10] == before[3:13]
    assert (handle.direct_io, handle.keep_cache) == (True, False)
    assert json.loads(content(tree, "/t/0/@info.json"))["log_end_offset"] == 70


def test_start_and_stop(live, tree):
    tree.start()
    assert content(tree, "/t/0/messages.txt") == live.text()
    tree.stop()
    assert content(tree, "/t/0/messages.txt") == live.text()
    with pytest.raises(OSError, match="shutdown") as stopped:
        tree.lookup("/t/0/messages.jsonl").open()
    assert stopped.value.errno == errno.ESHUTDOWN
    tree.start()
    assert content(tree, "/t/0/messages.jsonl").count(b"\n") == len(live.messages)
    tree.stop()


def test_empty_topics_and_directories(tmp_path):
    (tmp_path / "log" / "empty-0").mkdir(parents=True)
    (tmp_path / "log" / ".kafka_cleanshutdown").touch()
    tree = tree_of(tmp_path / "log")
    assert content(tree, "/empty/0/messages.txt") == b""
    assert tree.lookup("/empty/0/messages.txt").attributes().size == 0
    assert content(tree, "/empty/0/messages.log") == b""
    assert names(tree, "/empty/0/offsets") == []
    now = (tmp_path / "log" / "empty-0").stat().st_mtime_ns
    for path in ("", "/0", "/0/messages.txt", "/0/messages.jsonl", "/0/messages.log", "/0/time/9999--.txt"):
        assert tree.lookup(f"/empty{path}").attributes().mtime_ns == now, path
    assert names(tree, "/empty/0/time") == []
    assert json.loads(content(tree, "/empty/0/@info.json"))["messages"] == 0


@requires_fixtures
def test_every_name_in_every_fixture_answers():
    """Nothing but what the contract names comes out of any node."""
    for fixture in ("codecs", "times", "transactions", "v0", "compaction-after"):
        tree = tree_of(FIXTURES / fixture / "log")
        waiting = ["/"]
        while waiting:
            path = waiting.pop()
            view = tree.lookup(path)
            attributes = view.attributes()
            if attributes.kind is NodeKind.FILE:
                view.open().close()
                continue
            entries = list(view.list())
            if path.endswith("/keys"):
                entries = entries[::25]  # test_keys.py opens all of them
            for entry in entries:
                below = f"{path.rstrip('/')}/{entry.name}"
                try:
                    assert tree.lookup(below).attributes().kind is entry.kind, below
                except StorageError as error:
                    raise AssertionError(below) from error
                waiting.append(below)

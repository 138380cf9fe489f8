"""LogDir: what is listed, hidden and known of topics; which directory is one; and that looking changes nothing."""

import os
import threading
from pathlib import Path

import pytest

from storage.config.broker_config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import BadDestination, NotALogDir, UnknownTopicOrPartition
from storage.files import names
from storage.files.names import DirKind
from storage.log import read_only_log
from storage.log.log_dir import LogDir
from storage.log.places import check_destination, check_log_dir, is_log_dir
from storage.log.read_only_log import ReadOnlyLog
from storage.types import TopicPartition
from tests.support.builders import Batch, Partition, build_log_dir, many, topic_id
from tests.support.fixtures import ROOT, copy_log_dir
from tests.support.readers import built, read_all

HEX = "0123456789abcdef0123456789abcdef"
TP, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


def test_topics_partitions_and_what_is_hidden(tmp_path):
    one = [Batch(many(2))]
    hidden = {
        f"gone-0.{HEX}-delete": DirKind.DELETED,
        f"b-7.{HEX}-stray": DirKind.STRAY,
        f"b-1.{HEX}-future": DirKind.FUTURE,
        "remote-log-index-cache": DirKind.REMOTE_INDEX_CACHE,
        "lost+found": DirKind.UNPARSABLE,
        "no number-x": DirKind.UNPARSABLE,
        "b-100000": DirKind.PARTITION,
        "b-2147483647": DirKind.PARTITION,
    }
    extra = {**{f"{name}/": b"" for name in hidden}, "file-0": b"a plain file"}
    partition = build_log_dir(tmp_path, {"b": [one, one], "a.x": [one], "t": [one]}, extra=extra)["t", 0]
    os.mkfifo(tmp_path / "fifo-0")
    partition.path.rename(tmp_path / f"t-0.{HEX}-stray")
    log_dir = LogDir.open_read_only(tmp_path)
    assert log_dir.topics() == ["a.x", "b"]
    assert log_dir.partitions("b") == [0, 1]
    entries = {entry.name: entry for entry in log_dir.hidden()}
    strays = {"fifo-0": DirKind.PARTITION, f"t-0.{HEX}-stray": DirKind.STRAY}
    assert {name: entry.kind for name, entry in entries.items()} == {**hidden, **strays}
    assert entries[f"b-7.{HEX}-stray"].partition == TopicPartition("b", 7)
    assert all(entry.reason for entry in entries.values())
    assert (log_dir.absent(), log_dir.is_broker, log_dir.read_only, log_dir.problems()) == ([], True, True, [])
    for missing in (TopicPartition("b", 2), TopicPartition("c", 0)):
        with pytest.raises(UnknownTopicOrPartition):
            log_dir.log(missing)
    with pytest.raises(UnknownTopicOrPartition):
        log_dir.partitions("c")
    stray_log = ReadOnlyLog(TP, tmp_path / f"t-0.{HEX}-stray")
    assert built(read_all(stray_log.snapshot())) == partition.records


def test_refresh_sees_partitions_come_and_go(tmp_path):
    built_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(many(1))], [Batch(many(1))]]})
    other = build_log_dir(tmp_path / "other", {"u": [[Batch(many(1))]]})
    log_dir = LogDir.open_read_only(built_dir.path)
    log = log_dir.log(SECOND)
    assert log_dir.log(SECOND) is log
    built_dir["t", 1].path.rename(built_dir.path / f"t-1.{HEX}-delete")
    other["u", 0].path.rename(built_dir.path / "u-0")
    log_dir.refresh()
    assert (log_dir.topics(), log_dir.partitions("t")) == (["t", "u"], [0])
    for attempt in (lambda: log_dir.log(SECOND), log.snapshot):
        with pytest.raises(UnknownTopicOrPartition):
            attempt()
    assert log_dir.log(TopicPartition("u", 0)).snapshot().log_end_offset == 1


def test_a_log_is_one_object_while_the_directory_is_listed_again(tmp_path, monkeypatch):
    """A directory that has just changed is listed at each look. What is known of a log must not be lost by that."""
    build_log_dir(tmp_path, {"t": [[Batch(many(1))]]})
    log_dir = LogDir.open_read_only(tmp_path)
    threads = []

    class Disturbed(ReadOnlyLog):
        def __init__(self, *arguments):
            os.utime(tmp_path)
            thread = threading.Thread(target=log_dir.refresh)
            threads.append(thread)
            thread.start()
            thread.join(0.1)  # it ends, or waits
            super().__init__(*arguments)

    monkeypatch.setattr(read_only_log, "ReadOnlyLog", Disturbed)
    assert log_dir.log(TP) is log_dir.log(TP)
    for thread in threads:
        thread.join(60)


def test_log_start_offsets_follow_the_checkpoint(tmp_path):
    spec = Partition([Batch(many(10))], log_start_offset=4)
    log_dir = LogDir.open_read_only(build_log_dir(tmp_path, {"t": [spec, [Batch(many(3))]]}).path)
    logs = [log_dir.log(tp) for tp in (TP, SECOND)]
    checkpoint = tmp_path / "log-start-offset-checkpoint"

    def starts(content=None):
        if content is not None:
            new = checkpoint.with_suffix(".tmp")
            new.write_bytes(content)
            new.rename(checkpoint)
        return [log.snapshot().log_start_offset for log in logs]

    assert [record.offset for record in read_all(logs[0].snapshot())] == list(range(4, 10))
    assert starts() == [4, 0]
    assert starts(b"0\n2\nt 0 7\nt 1 1\n") == [7, 1]
    # Nonsense changes nothing; what was known still holds, and nothing is shown that was deleted.
    assert starts(b"0\n9\nt 0 8\n") == [7, 1]
    assert [type(problem).__name__ for problem in log_dir.problems()] == ["CorruptCheckpoint"]
    # Without the file every log begins with its first segment, as a broker would start on it.
    checkpoint.unlink()
    assert starts() == [0, 0]
    assert [record.offset for record in read_all(logs[0].snapshot())] == list(range(10))
    assert log_dir.problems() == []
    assert starts(b"0\n1\nt 0 5\n") == [5, 0]


def test_topic_info_without_metadata(tmp_path):
    one = [Batch(many(1))]
    ours = Partition(one, extra={"topic.properties": b"retention.ms=5\nno.such.key=1\n"})
    build_log_dir(tmp_path / "ours", {"t": [ours, ours, ours], "plain": [one]}, broker=False)
    config = BrokerConfig.from_values({"log.segment.bytes": "2000000"})
    log_dir = LogDir.open_read_only(tmp_path / "ours", config=config)
    assert not log_dir.is_broker
    info = log_dir.topic_info("t")
    assert (info.topic_id, info.partition_count, info.source) == (topic_id("t"), 3, "topic.properties")
    assert (info.config.retention_ms, info.config.segment_bytes) == (5, 2_000_000)
    assert [type(problem).__name__ for problem in info.problems] == ["InvalidConfig"]
    plain = log_dir.topic_info("plain")
    assert (plain.partition_count, plain.source, dict(plain.overrides)) == (1, "defaults", {})
    with pytest.raises(UnknownTopicOrPartition):
        log_dir.topic_info("missing")
    # Of a broker that keeps its metadata elsewhere.
    build_log_dir(tmp_path / "brokers", {"t": [one]})
    info = LogDir.open_read_only(tmp_path / "brokers").topic_info("t")
    assert (info.topic_id, info.partition_count, info.source) == (topic_id("t"), None, "defaults")


def test_topic_info_from_the_clusters_metadata(tmp_path):
    path = copy_log_dir(ROOT / "examples" / "sample-log", tmp_path / "log")
    log_dir = LogDir.open_read_only(path)
    info = log_dir.topic_info("orders")
    assert (info.partition_count, info.replicas, info.source) == (2, 1, "cluster metadata")
    assert (info.overrides["index.interval.bytes"], info.config.index_interval_bytes) == ("2048", 2048)
    assert info.topic_id is not None
    assert log_dir.topic_info("__cluster_metadata").partition_count == 1
    # What a person set beside the data goes on top.
    (path / "orders-0" / "topic.properties").write_text("retention.ms=77\n")
    changed = log_dir.topic_info("orders")
    assert (changed.config.retention_ms, changed.config.index_interval_bytes) == (77, 2048)
    assert changed.source == "topic.properties"
    # The data of a topic that was deleted, before another got its name, have nothing to do with the cluster's.
    (path / "orders-0" / "topic.properties").unlink()
    (path / "orders-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id('other')}")
    stale = log_dir.topic_info("orders")
    assert (stale.topic_id, stale.partition_count, stale.source) == (topic_id("other"), None, "defaults")


def test_ten_thousand_partitions_open_at_once(tmp_path, monkeypatch):
    """One directory is listed; none of the partitions is looked at."""
    for number in range(10_000):
        (tmp_path / f"topic-{number % 500}-{number // 500}").mkdir()
    (tmp_path / "meta.properties").write_text("version=1\n")
    looked_at = {name: [] for name in ("scandir", "listdir", "open", "stat")}

    def noting(call, places):
        def noted(place, *arguments, **more):
            places.append(Path(f"/proc/self/fd/{place}") if isinstance(place, int) else Path(place))
            return call(place, *arguments, **more)

        return noted

    for name, places in looked_at.items():
        monkeypatch.setattr(os, name, noting(getattr(os, name), places))
    log_dir = LogDir.open_read_only(tmp_path)
    monkeypatch.undo()
    assert len(log_dir.topics()) == 500
    assert len(log_dir.all_partitions()) == 10_000
    assert len(looked_at["scandir"]) == 1  # by a descriptor
    assert looked_at["open"] == [tmp_path]
    assert set(looked_at["stat"]) <= {tmp_path.parent, tmp_path, tmp_path / "meta.properties"}
    assert looked_at["listdir"] == []
    assert log_dir.opened() == []


LOG = f"{0:020d}.log"


def made(path, *files):
    path.mkdir(exist_ok=True)
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        *(([name], True) for name in ("meta.properties", "bootstrap.checkpoint", ".kafka_cleanshutdown", ".lock")),
        (["recovery-point-offset-checkpoint"], True),
        ([f"orders-0/{LOG}", "notes.txt", "other/file"], True),
        (["orders-0/partition.metadata"], True),
        ([f"orders-0.{32 * 'a'}-stray/{LOG}"], True),
        ([], False),
        (["server.properties", "log"], False),
        (["dbus-1/system.conf", "rc-0.d/x"], False),
        ([LOG, "leader-epoch-checkpoint"], False),
        ([f"kafka-1/orders-0/{LOG}", "kafka-1/meta.properties"], False),
    ],
)
def test_what_is_a_log_directory(tmp_path, files, expected):
    path = made(tmp_path / "x", *files)
    assert is_log_dir(path) is expected
    if not expected:
        before = sorted(path.rglob("*"))
        for opened in (
            lambda: check_log_dir(path),
            lambda: LogDir.open_read_only(path),
            lambda: OwnedDir.open(path),
            *([lambda: OwnedDir.open(path, Opening(create=True))] if files else []),
        ):
            with pytest.raises(NotALogDir):
                opened()
        assert sorted(path.rglob("*")) == before


def test_the_directory_that_is_meant(tmp_path):
    logs = build_log_dir(made(tmp_path / "one") / "logs", {"t": [[b"x"]]}).path
    (tmp_path / "link").symlink_to(logs / "t-0")
    four = made(tmp_path / "four", *(f"kafka-{number}/meta.properties" for number in range(4)))
    listed = ", ".join(str(four / f"kafka-{number}") for number in range(3))
    inside = (logs / "t-0", tmp_path / "link", logs / "t-0" / LOG, made(logs / "backup", "file"))
    for wrong, advice in (
        *((path, f"The log directory is {logs}") for path in inside),
        (tmp_path / "one", f"There is one in it: {logs}"),
        (four, f"There are 4 in it: {listed} …"),
    ):
        with pytest.raises(NotALogDir) as caught:
            check_log_dir(wrong)
        assert caught.value.advice == advice
    with pytest.raises(NotALogDir, match="is not a directory"):
        check_log_dir(made(tmp_path / "files", "file") / "file")
    with pytest.raises(NotALogDir, match="an empty directory"):
        check_log_dir(made(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError):
        check_log_dir(tmp_path / "none")
    (tmp_path / "circle").symlink_to("back")
    (tmp_path / "back").symlink_to("circle")
    check_destination(tmp_path / "circle" / "new")
    with pytest.raises(OSError, match="symbolic link"):
        check_log_dir(tmp_path / "circle")
    for name in ("none", "empty"):
        check_log_dir(tmp_path / name, create=True)
        OwnedDir.open(tmp_path / name, Opening(create=True)).close()
        check_log_dir(tmp_path / name)


@pytest.mark.parametrize(
    "place",
    ["logs/new", "logs/t-0/new", "logs/a/b/c", "beside/../logs/new", "link/new", "dangling", "lone-0/new", "logs/out"],
)
def test_a_destination_in_a_log_directory(tmp_path, place):
    build_log_dir(tmp_path / "logs", {"t": [[b"x"]]}, broker=False)
    made(tmp_path / "beside")
    made(tmp_path / "lone-0", LOG)  # one that somebody copied
    (tmp_path / "link").symlink_to("logs/t-0")
    (tmp_path / "dangling").symlink_to("logs/new")
    (tmp_path / "logs" / "out").symlink_to("../beside/new")  # which a file that is renamed would replace
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadDestination):
        check_destination(tmp_path / place)
    with pytest.raises(BadDestination):
        OwnedDir.open(tmp_path / place, Opening(create=True))
    assert sorted(tmp_path.rglob("*")) == before
    for around in ("logs/..", "", "new", "logs", "logs2/x"):
        check_destination(tmp_path / around)


def test_destinations_where_little_marks_a_log_directory(tmp_path):
    """Somebody has copied partitions into a directory: it is a source, though nothing marks it. A lock alone may be any
    program's; with partitions it is of a process that was killed before it wrote a checkpoint."""
    copied = made(tmp_path / "copied", f"t-0/{LOG}")
    check_destination(copied / "new")  # otherwise a copy in /tmp would forbid all of /tmp
    for place in (copied / "new", copied):
        with pytest.raises(BadDestination):
            check_destination(place, copied)
    locked = made(tmp_path / "locked", names.LOCK)
    check_destination(locked / "new")
    made(locked, f"t-0/{LOG}")
    with pytest.raises(BadDestination):
        check_destination(locked / "new")

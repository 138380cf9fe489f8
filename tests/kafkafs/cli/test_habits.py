"""What people type who know Kafka's tools, kcat and the shell; what they are told where we call it otherwise."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from kafkafs.reading.range_names import LastMessages, dated
from kafkafs.reading.selection import Question
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, process, run
from tests.support.mounts import mounted, requires_fuse, run_kafkafs

DAY_MS = 86_400_000


@pytest.fixture
def logs(tmp_path):
    topics = {"orders": [[Record(b"k", b"one"), b"two"], [b"three"]], "order-items": [[b"x"]], "t": [[b"y"]]}
    return build_log_dir(tmp_path / "logs", topics, broker=False).path


def reset_to(logs, where):
    told = json.loads(output_of("groups", logs, "g", "--reset-to", where, "--topic", "orders/", "--json"))
    return [row["offset"] for row in told["offsets"]]


def fetched(logs, offset):
    with process("fetch", logs, "orders/0", "--offset", offset, "--max-bytes", 1000) as fetching:
        assert fetching.stdout is not None
        return bytes(fetching.stdout.read())


@pytest.mark.parametrize("word", ["earliest", "beginning"])
def test_from_the_beginning(logs, word):
    assert output_of("cat", logs, "orders", "--offsets", word) == b"one\ntwo\nthree\n"
    assert output_of("digest", logs, "orders", "--offsets", word) == output_of("digest", logs, "orders")
    assert output_of("diff", logs, logs, "orders", "--offsets", word) == b"orders/0: equal\norders/1: equal\n"
    assert reset_to(logs, word) == [0, 0]
    assert fetched(logs, word) == fetched(logs, 0)


@pytest.mark.parametrize("word", ["latest", "end"])
def test_from_the_end(logs, word):
    assert output_of("cat", logs, "orders", "--offsets", word) == b""
    assert reset_to(logs, word) == [2, 1]
    assert fetched(logs, word) == fetched(logs, 2)
    snapshot = LogDir.open_read_only(logs).log(TopicPartition("orders", 0)).snapshot()
    followed = Question(LastMessages(0)).resolve(snapshot, 0, follow=True, find_nth=False)
    assert (followed.start_offset, followed.end_offset) == (2, None)


def test_days(tmp_path):
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    midnight = int(today.timestamp()) * 1000
    times = {"old": -8 * DAY_MS, "week": -6 * DAY_MS, "yesterday": -1, "today": 0}
    records = [Record(None, name.encode(), (), midnight + delta) for name, delta in times.items()]
    build_log_dir(tmp_path, {"t": [records]}, broker=False)

    def at(text):
        return output_of("cat", tmp_path, "t", "--time", text).decode().split()

    assert at("today") == ["today"]
    assert at("yesterday") == at("yesterday--today") == at(f"{midnight - 1}--{midnight}") == ["yesterday"]
    assert at("yesterday--") == at("yesterdayT00--") == ["yesterday", "today"]
    assert at("until-today") == at("--today") == ["old", "week", "yesterday"]
    assert at("last-1w") == ["week", "yesterday", "today"]
    assert reset_time(tmp_path, "today") == 3
    for until, end_offset in (("2000-01-01", 0), ("today", len(times))):
        copy = json.loads(output_of("mirror", tmp_path, tmp_path.with_name("copy"), "t", "--until", until, "--json"))
        assert [partition["log_end_offset"] for partition in copy["partitions"]] == [end_offset]
    told = run("cat", tmp_path, "t", "--time", str(midnight))
    assert told.exit_code == 2
    assert f"write {midnight}-- or until-{midnight}" in told.stderr
    assert dated("2026-todays", today.date()) == "2026-todays"
    assert dated("today", today.date()) == today.date().isoformat()
    assert dated("yesterday--today", today.date()).startswith((today.date() - timedelta(days=1)).isoformat())


def reset_time(logs, where):
    told = json.loads(output_of("groups", logs, "g", "--reset-to", where, "--topic", "t", "--json"))
    return told["offsets"][0]["offset"]


def test_a_slash_at_the_end(logs):
    """The shell completes names of directories so."""
    assert output_of("cat", logs, "orders/") == output_of("cat", logs, "orders")
    assert output_of("cat", logs, "orders/1/") == b"three\n"
    assert output_of("topics", "describe", logs, "orders/") == output_of("topics", "describe", logs, "orders")
    assert output_of("topics", "create", logs, "new/") == b""
    assert output_of("topics", "alter", logs, "new/", "--partitions", 2) == b""
    assert output_of("topics", "delete", logs, "new/") == b""


def test_topics_by_globs(logs):
    def described(*patterns):
        told = json.loads(output_of("topics", "describe", logs, *patterns, "--json"))
        return [one["topic"] for one in told["topics"]]

    assert described("order*") == ["order-items", "orders"]
    assert described("t", "order*", "orders") == ["t", "order-items", "orders"]
    assert described() == ["order-items", "orders", "t"]
    assert run("topics", "describe", logs, "t", "none*").exit_code == 4


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("cat LOGS order", 4, "Did you mean orders?"),
        ("count LOGS ordres/1", 4, "Did you mean orders/1?"),
        ("count LOGS orders/7", 4, "orders has these partitions here: 0, 1"),
        ("count LOGS orders-1", 4, "A partition is written as topic/number: orders/1"),
        ("topics describe LOGS oders", 4, "Did you mean orders?"),
        ("topics alter LOGS oders --partitions 3", 4, "Did you mean orders?"),
        ("topics delete LOGS oders", 4, "Did you mean orders?"),
        ("topics delete LOGS orders/1", 4, "Name the topic alone: orders"),
        ("append LOGS oders", 4, "Did you mean orders?"),
        ("cat LOGS something-else", 4, "is named something-else\n"),
        ("cat LOGS orders --ofsets 1", 2, "--offsets"),
        ("ls LOGS", 2, "kafkafs topics list LOGDIR"),
        ("describe LOGS orders", 2, "kafkafs topics describe LOGDIR"),
        ("tail LOGS orders", 2, "kafkafs cat LOGDIR TP --offsets -10 --follow"),
        ("unmount mnt", 2, "kafkafs umount MNT"),
        ("topics LOGS", 2, "kafkafs topics list /"),
        ("topics nothing", 2, "No such command 'nothing'"),
        ("spark verify LOGS orders --notes --tier a", 2, "Use `kafkafs verify LOGDIR [TP]`"),
        ("spark compact LOGS orders/0 --dry-run", 2, "Use `kafkafs compact LOGDIR TP`"),
        ("spark latest LOGS table orders", 2, "Use `kafkafs cat LOGDIR TP --latest`, or the recipe for Spark"),
        ("tier LOGS orders --tier s3://bucket --json", 2, "Use `kafkafs verify LOGDIR [TP] --tier PATH`"),
        ("spark verify --help", 2, "Use `kafkafs verify LOGDIR [TP]`"),
    ],
)
def test_what_is_meant(logs, words, code, said):
    result = run(*(logs if word == "LOGS" else word for word in words.split()))
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


@requires_fuse
def test_a_directory_in_place_of_a_command(logs, monkeypatch):
    """`kafkafs LOGDIR MNT` is a mount, also of a name without a slash; but a command's name is the command."""
    monkeypatch.chdir(logs.parent)
    for words in (["logs", "missing"], ["./logs", "missing"], ["logs", "missing", "-o", "ro"]):
        result = run(*words)
        assert (result.exit_code, "missing: no such directory" in result.stderr) == (4, True)
    for name in ("count", "tail"):
        (logs.parent / name).mkdir()
    assert run("count", logs).exit_code == 0
    assert "--follow" in run("tail", logs).stderr
    assert "No such command 'nothing'" in run("nothing", "missing").stderr


def test_an_unknown_key(logs):
    """In the tree there is no such file: ENOENT, which commands answer as they do an unknown topic."""
    result = run("cat", logs, "orders", "--key", "none")
    assert (result.exit_code, result.stdout) == (4, "")
    assert result.stderr == f"kafkafs: {logs}: no message of orders has the key 'none'\n"
    for limits in (["--offsets", "1-"], ["--time", "2000"], ["--header", "a=b"], ["--latest"]):
        assert run("cat", logs, "orders", "--key", "none", *limits).exit_code == 0
    assert output_of("cat", logs, "orders", "--key", "k") == b"one\n"


@requires_fuse
def test_a_mount_that_holds_the_lock_is_named(logs, tmp_path):
    with mounted(logs, tmp_path / "mnt", write=True), mounted(logs, tmp_path / "reading"):
        mnt = tmp_path / "mnt"
        for words in (["topics", "delete", logs, "t"], ["recover", logs], ["recover", logs, "--dry-run"]):
            result = run(*words)
            assert result.exit_code == 3
            assert f"kafkafs mount {logs} {mnt} (process " in result.stderr
            assert result.stderr.endswith(f"It is mounted at {mnt}: `kafkafs umount {mnt}` releases it\n")
        (tmp_path / "third").mkdir()
        mount = run_kafkafs("mount", "--write", logs, tmp_path / "third", check=False)
        assert mount.returncode == 3
        said = f"`kafkafs umount {mnt}` releases it. Or mount it read-only, without --write\n"
        assert mount.stderr.decode().endswith(said)

"""`kafkafs retain`: its output, what it leaves, and which messages it never removes."""

from __future__ import annotations

import json

import pytest

from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.storage.staged_writes.test_pending_writes import FIRST, SECOND, SHARE, World
from tests.support.builders import ROLL, Partition, build_log_dir
from tests.support.commands import output_of, run
from tests.support.owned_dirs import append, opened, tree_of, values_of

TP = TopicPartition("t", 0)
VALUES = [b"message %04d" % n for n in range(80)]


@pytest.fixture
def logdir(tmp_path):
    """The topic t in small segments, none above the limit, and the topic other, which keeps everything."""
    path = tmp_path / "logs"
    owned = opened(path)
    owned.create_topic("t", 1, {"segment.bytes": "600", "retention.bytes": "100000"})
    owned.create_topic("other", 1, {"segment.bytes": "600"})
    for n in range(0, len(VALUES), 4):
        for tp in (TP, TopicPartition("other", 0)):
            append(owned.log(tp), VALUES[n : n + 4])
    assert owned.close().clean
    return path


def _values(logdir, topic="t"):
    return values_of(LogDir.open_read_only(logdir).log(TopicPartition(topic, 0)).snapshot())


def test_dry_run_then_the_real_one(logdir):
    output_of("topics", "alter", logdir, "t", "--config", "retention.bytes=1000")
    before = tree_of(logdir)
    told = json.loads(output_of("retain", logdir, "--dry-run", "--json"))
    assert tree_of(logdir) == before
    assert told["dry_run"] is True
    done = json.loads(output_of("retain", logdir, "--json"))
    kept = [partition.pop("kept") for partition in told["partitions"]]
    assert done == told | {"dry_run": False}
    assert {tuple(segment["kept_by"]) for segment in kept[0]} == {("no limit was set",)}
    assert sum(segment["bytes"] for segment in kept[1][1:]) < 1000
    assert kept[1][0]["kept_by"] == ["retention.bytes"]
    assert done["failed"] == []
    (other, t) = done["partitions"]
    assert (other["topic"], other["segments"]) == ("other", [])
    assert [segment["reason"] for segment in t["segments"]] == ["retention.bytes"] * len(t["segments"])
    assert t["segments"]
    assert _values(logdir) == VALUES[t["log_start_offset"] :]
    assert _values(logdir, "other") == VALUES
    assert verify_log_dir(logdir) == []
    assert not list(logdir.glob("*/*.deleted"))


def test_what_it_says(logdir):
    assert output_of("retain", logdir, "t") == b"t/0: 0 to 80, nothing to remove\n"
    text = output_of("retain", logdir, "t/0", "--before", "end", "--dry-run").decode()
    assert text.startswith("t/0: 80 to 80, ")
    assert "would be removed" in text
    assert "below the log start offset" in text


def test_before_an_offset(logdir):
    output_of("retain", logdir, "t/0", "--before", 41)
    assert _values(logdir) == VALUES[41:]
    assert verify_log_dir(logdir) == []
    result = run("retain", logdir, "t/0", "--before", 81)
    assert result.exit_code == 4
    assert "expected 0 to 80" in result.stderr
    assert _values(logdir) == VALUES[41:]


@pytest.mark.parametrize("arguments", [("--before", "5"), ("t", "--before", "x"), ("t", "--before", "-3")])
def test_usage(logdir, arguments):
    assert run("retain", logdir, *arguments).exit_code == 2


def test_nothing_called_so(logdir):
    assert run("retain", logdir, "nowhere").exit_code == 4


@pytest.mark.leaves_damage("partition-empty", "checkpoint-beyond-log", "index-without-log")
def test_a_partition_without_a_segment(logdir):
    output_of("topics", "alter", logdir, "t", "--config", "retention.ms=1000")
    for path in (logdir / "t-0").glob("*.log"):
        path.unlink()
    told = json.loads(output_of("retain", logdir, "--dry-run", "--json"))
    (t,) = [one for one in told["partitions"] if one["topic"] == "t"]
    assert (t["segments"], t["kept"]) == ([], [])


def test_in_a_brokers_directory_only_what_a_person_named(tmp_path):
    """Messages from years ago, under Kafka's default of seven days: nothing says that they should be removed."""
    items = [b"old", ROLL, b"old", ROLL, b"old"]
    build_log_dir(tmp_path, {"t": [Partition(items)], "__consumer_offsets": [Partition(items)]})
    assert output_of("retain", tmp_path) == b""
    told = json.loads(output_of("retain", tmp_path, "t", "--dry-run", "--json"))["partitions"][0]
    assert told["segments"] == []
    assert [kept["kept_by"] for kept in told["kept"]] == [["no limit was set"]] * 3
    assert _values(tmp_path) == [b"old"] * 3
    refused = run("retain", tmp_path, "__consumer_offsets/0", "--before", "end")
    assert refused.exit_code == 4
    assert "belongs to the brokers" in refused.stderr
    assert _values(tmp_path, "__consumer_offsets") == [b"old"] * 3
    output_of("retain", tmp_path, "t/0", "--before", "2")
    assert _values(tmp_path) == [b"old"]
    output_of("topics", "alter", tmp_path, "t", "--config", "retention.ms=1000")
    output_of("retain", tmp_path)
    assert _values(tmp_path) == []
    assert verify_log_dir(tmp_path) == []


@pytest.mark.parametrize("command", ["retain", "compact"])
def test_a_write_that_was_stopped_is_finished_first(tmp_path, command):
    """Then its messages are like others, and none is there twice."""
    world = World(tmp_path / "dir", retention_ms="1000", cleanup_policy="compact,delete")
    world.stop_between_shares()
    told = json.loads(output_of(command, world.path, "t/0", "--json"))["partitions"][0]
    assert told["removed_bytes"] > 0
    left = LogDir.open_read_only(world.path)
    assert not set(values_of(left.log(FIRST).snapshot())) & set(SHARE)
    assert values_of(left.log(SECOND).snapshot()) == SHARE
    end_offset = world.base + len(SHARE) + 10
    assert left.log(FIRST).snapshot().log_end_offset == end_offset
    world.check_finished(end_offset)

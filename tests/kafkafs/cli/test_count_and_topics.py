"""`kafkafs count`, `topics list`, `topics describe`."""

from __future__ import annotations

import json

import pytest

from tests.support.builders import ROLL, START_MS, STEP_MS, Batch, Partition, abort, build_log_dir, many, topic_id
from tests.support.commands import output_of, run


@pytest.fixture
def logdir(tmp_path):
    items = [Batch(many(5)), Batch(many(3), producer_id=1, transactional=True), abort(1), ROLL, Batch(many(4))]
    build_log_dir(
        tmp_path,
        {"orders": [Partition(items, log_start_offset=2), [b"a"]], "empty": [Partition([])]},
        extra={f"gone-0.{'a' * 32}-stray/{0:020d}.log": b"xyz", "lost+found/": b""},
    )
    return tmp_path


def test_count(logdir):
    assert output_of("count", logdir, "orders/0") == b"10\n"
    assert output_of("count", logdir, "orders/0", "--isolation", "read_committed") == b"7\n"
    assert output_of("count", logdir, "empty") == b"0\n"
    assert output_of("count", logdir, "orders").decode().split("\n") == [
        "PARTITION  MESSAGES",
        "orders/0         10",
        "orders/1          1",
        "total            11",
        "",
    ]
    assert json.loads(output_of("count", logdir, "--json")) == {
        "partitions": [
            {"topic": "empty", "partition": 0, "count": 0},
            {"topic": "orders", "partition": 0, "count": 10},
            {"topic": "orders", "partition": 1, "count": 1},
        ],
        "total": 11,
    }


def test_count_with_damage(logdir):
    log = logdir / "orders-0" / f"{0:020d}.log"
    data = bytearray(log.read_bytes())
    data[16] = 9  # magic of the first batch
    log.write_bytes(data)
    result = run("count", logdir, "orders")
    assert result.exit_code == 4
    assert result.stdout.split() == ["PARTITION", "MESSAGES", "orders/0", "orders/1", "1", "total"]
    assert str(log) in result.stderr
    found = json.loads(run("count", logdir, "orders", "--json").stdout)
    assert found["total"] is None
    assert found["partitions"][0]["count"] is None
    assert str(log) in found["partitions"][0]["error"]
    assert run("count", logdir, "orders/0").stdout == ""


def test_topics_list(logdir):
    lines = output_of("topics", "list", logdir).decode().splitlines()
    assert lines[0].split() == ["TOPIC", "PARTITIONS", "BYTES"]
    assert lines[1].split() == ["empty", "1", "0"]
    assert lines[2].split()[:2] == ["orders", "2"]
    assert lines[4].split() == ["NOT", "A", "LIVE", "PARTITION", "BYTES", "REASON"]
    assert lines[5].startswith(f"gone-0.{'a' * 32}-stray      3  is not in the broker's metadata")
    assert lines[6].startswith("lost+found")
    found = json.loads(output_of("topics", "list", logdir, "--json"))
    assert [topic["topic"] for topic in found["topics"]] == ["empty", "orders"]
    size = sum(path.stat().st_size for path in logdir.glob("orders-*/*.log"))
    assert found["topics"][1] == {"topic": "orders", "partitions": [0, 1], "bytes": size}
    assert [entry["directory"] for entry in found["hidden"]] == [f"gone-0.{'a' * 32}-stray", "lost+found"]


def test_topics_describe(logdir):
    (logdir / "orders-0" / "topic.properties").write_text("retention.ms=1000\n")
    text = output_of("topics", "describe", logdir, "orders").decode().splitlines()
    assert text[0] == f"orders: 2 partitions, 1 replica(s), id {topic_id('orders')}"
    assert text[1] == "config (topic.properties): retention.ms=1000"
    assert text[2].split() == ["PARTITION", "START", "END", "STABLE", "MESSAGES", "SEGMENTS", "BYTES",
        "GAPS", "FIRST", "LAST", "OLDEST"]  # fmt: skip
    assert text[3].split()[:6] == ["0", "2", "13", "13", "10", "2"]
    assert text[4].split()[:6] == ["1", "0", "1", "1", "1", "1"]
    (topic,) = json.loads(output_of("topics", "describe", logdir, "orders", "--json"))["topics"]
    assert topic["config"] == {"retention.ms": "1000"}
    assert topic["config_in_force"]["retention.ms"] == "1000"
    assert topic["topic_id"] == topic_id("orders")
    assert topic["partitions"][0]["log_end_offset"] == 13
    assert topic["problems"] == []


def test_describe_tells_the_age_and_the_gaps(tmp_path):
    items = [item for n in range(4) for item in (Batch(many(5), base_offset=n * 5), ROLL)][:-1]
    built = build_log_dir(tmp_path, {"t": [Partition(items)], "c": [Partition(items)]})
    (tmp_path / "c-0" / "topic.properties").write_text("cleanup.policy=compact\n")
    for topic in ("t", "c"):
        for path in (tmp_path / f"{topic}-0").glob(f"{built[topic, 0].segments[2]:020d}.*"):
            path.unlink()
    assert _described(tmp_path, "c")["gaps"] is None
    partition = _described(tmp_path, "t")
    assert (partition["gaps"], partition["segments"]) == (1, 3)
    assert partition["oldest_timestamp"] == START_MS + 4 * STEP_MS


def _described(path, topic):
    (found,) = json.loads(output_of("topics", "describe", path, topic, "--json"))["topics"]
    (partition,) = found["partitions"]
    return partition


def test_describe_nothing_and_problems(logdir):
    result = run("topics", "describe", logdir, "none")
    assert (result.exit_code, result.stdout) == (4, "")
    assert "'none'" in result.stderr
    (logdir / "orders-0" / "topic.properties").write_text("no.such.key=1\n")
    result = run("topics", "describe", logdir)
    assert result.exit_code == 4
    assert "no.such.key" in result.stderr
    assert result.stdout.startswith("empty: 1 partition")

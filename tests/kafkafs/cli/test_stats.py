"""`kafkafs stats` against plain counting of the messages that `cat` prints. See also transcripts/stats.txt."""

import base64
import json
import math
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.format.block import Record
from storage.format.compression import Codec
from storage.log.statistics import Sizes
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, requires_fixtures

START = 1_700_000_040_000
END_OF_9999 = 253_402_300_799_999


def stats(*arguments):
    return json.loads(output_of("stats", *arguments, "--json"))


def plain(shown):
    return None if shown is None else base64.b64decode(shown["base64"]) if isinstance(shown, dict) else shown.encode()


def messages_in(logs, tp):
    """(key, value, headers, timestamp, topic, partition, offset) of each message."""
    lines = output_of("cat", logs, tp, "--format", "jsonl").splitlines()
    return [
        (plain(line["key"]), plain(line["value"]), [tuple(map(plain, pair)) for pair in line["headers"]],
         line["timestamp"], line["topic"], line["partition"], line["offset"])
        for line in map(json.loads, lines)
    ]  # fmt: skip


def size_of(headers):
    return sum(len(name) + len(value or b"") for name, value in headers)


def check_sizes(shown, sizes):
    sizes = sorted(sizes)
    expected = {"count": len(sizes), "bytes": sum(sizes), "min": sizes[0] if sizes else 0, "max": max(sizes, default=0)}
    assert {name: shown[name] for name in expected} == expected
    for percent in (50, 90, 99):
        exact = sizes[math.ceil(percent / 100 * len(sizes)) - 1] if sizes else 0
        assert abs(shown[f"p{percent}"] - exact) <= exact / 1000


def check(shown, messages, on_disk):
    times = [timestamp for _, _, _, timestamp, *_ in messages if timestamp >= 0]
    assert shown["messages"] == len(messages)
    assert shown["null_keys"] == sum(key is None for key, *_ in messages)
    assert shown["tombstones"] == sum(value is None for _, value, *_ in messages)
    assert (shown["first_timestamp"], shown["last_timestamp"]) == (min(times, default=None), max(times, default=None))
    check_sizes(shown["sizes"]["keys"], [len(key) for key, *_ in messages if key is not None])
    check_sizes(shown["sizes"]["values"], [len(value) for _, value, *_ in messages if value is not None])
    check_sizes(shown["sizes"]["headers"], [size_of(headers) for _, _, headers, *_ in messages if headers])
    sizes = [len(key or b"") + len(value or b"") + size_of(headers) for key, value, headers, *_ in messages]
    assert shown["bytes_decoded"] == sum(sizes)
    assert shown["bytes_on_disk"] == on_disk
    for rows in (shown["codecs"], shown["topics"]):
        for name in ("messages", "bytes_on_disk", "bytes_decoded"):
            assert sum(row[name] for row in rows) == shown[name]
    for topic in shown["topics"]:
        assert topic["messages"] == sum(message[4] == topic["topic"] for message in messages)
    order = sorted(range(len(messages)), key=lambda number: (-sizes[number], number))[:10]
    assert [(one["bytes"], one["topic"], one["partition"], one["offset"]) for one in shown["largest"]] == [
        (sizes[number], *messages[number][4:]) for number in order
    ]
    assert shown["distinct_keys"] == len({key for key, *_ in messages if key is not None})
    headers = [pair for _, _, pairs, *_ in messages for pair in pairs]
    for one in shown["headers"]:
        of_name = [pair for pair in headers if pair[0] == plain(one["name"])]
        assert (one["headers"], one["bytes"]) == (len(of_name), size_of(of_name))
        assert one["values"] == (len(set(of_name)) if len(set(of_name)) <= 1000 else None)
        assert plain(one["example"]) == of_name[0][1]
    assert {plain(one["name"]) for one in shown["headers"]} == {name for name, _ in headers}
    over_time, width = shown["over_time"], shown["over_time"]["width_ms"]
    expected = Counter(time // width * width for time in times)
    assert {one["start_ms"]: one["messages"] for one in over_time["buckets"] if one["messages"]} == expected
    assert over_time["no_timestamp"]["messages"] == len(messages) - len(times)
    on_line = sum(one["bytes"] for one in over_time["buckets"]) + over_time["no_timestamp"]["bytes"]
    assert on_line == on_disk


def a_log(path):
    mixed = [
        Record(
            None if n % 5 == 0 else b"k%d" % (n % 11),
            None if n % 7 == 0 else bytes(n * 300),
            [(b"same", b"x" * 50), *([(b"other", b"%d" % n), (b"other", None)] if n % 3 else [])] if n % 4 else (),
            n * 600_000,
        )
        for n in range(60)
    ]
    ids = [Record(b"k", b"", [(b"id", b"%d" % n)], START) for n in range(1100)]
    return build_log_dir(
        path,
        {
            "mixed": [[Batch(mixed[:30]), Batch(mixed[30:])], [Batch(mixed[10:50], codec=Codec.GZIP)]],
            "timeless": [[Batch([Record(b"k", b"v", (), -1)])]],
            "packed": [Partition([Batch(many(500, 100), codec=Codec.ZSTD), Batch(ids[:700]), ROLL, Batch(ids)])],
            "tx": [[Batch(many(3), producer_id=7, transactional=True), abort(7), Batch(many(2)), commit(8)]],
            "empty": [[]],
        },
    )  # fmt: skip


def bytes_in(logs, pattern="*"):
    return sum(path.stat().st_size for path in logs.glob(f"{pattern}/*.log"))


def test_against_plain_counting(tmp_path):
    a_log(tmp_path / "logs")
    logs = tmp_path / "logs"
    for tp in ("*", "mixed", "packed/0", "timeless", "tx", "empty"):
        pattern = "*" if tp == "*" else f"{tp.replace('/', '-')}*"
        check(stats(logs, tp, "--distinct-keys"), messages_in(logs, tp), bytes_in(logs, pattern))
    producers = {one["producer_id"]: one["messages"] for one in stats(logs, "tx")["producers"]}
    assert producers == {7: 3, None: 2}
    assert stats(logs, "tx")["distinct_keys"] is None


LOGS = {
    "codecs": "*", "times": "t-append", "roll": "*", "transactions": "*", "v0": "*", "v1": "*",
    "compaction-after": "cmp-plain",
}  # fmt: skip


@requires_fixtures
@pytest.mark.parametrize("name", LOGS)
def test_against_plain_counting_of_what_brokers_wrote(name):
    logs, tp = FIXTURES / name / "log", LOGS[name]
    expected = messages_in(logs, tp)
    shown = stats(logs, tp, "--distinct-keys")
    check(shown, expected, shown["bytes_on_disk"])
    assert shown["bytes_on_disk"] <= bytes_in(logs, f"{tp}*")


def test_of_what_is_removed_already_nothing_counts(tmp_path):
    batches = [Batch(many(10)), Batch(many(10))]
    build_log_dir(tmp_path / "logs", {"t": [Partition(batches, log_start_offset=13)]})
    shown = stats(tmp_path / "logs", "t", "--distinct-keys")
    check(shown, messages_in(tmp_path / "logs", "t"), shown["bytes_on_disk"])
    assert shown["messages"] == 7
    assert shown["codecs"][0]["batches"] == 1


def test_damage_is_named_and_passed_over(tmp_path):
    built = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(3)), Batch(many(4)), Batch(many(5))]]})
    [segment] = (tmp_path / "logs" / "t-0").glob("*.log")
    flip(segment, built["t", 0].batches[1].position + 70)
    result = run("stats", tmp_path / "logs", "--json")
    shown = json.loads(result.stdout)
    assert (result.exit_code, shown["messages"]) == (4, 8)
    [damaged] = shown["damaged"]
    assert (damaged["topic"], damaged["partition"], damaged["bytes"]) == ("t", 0, built["t", 0].batches[1].size)
    assert "checksum" in damaged["reason"]
    assert "checksum" in result.stderr


@given(st.lists(st.lists(st.one_of(st.integers(0, 50), st.integers(0, 2**31)), min_size=1), min_size=1, max_size=5))
def test_quantiles(blocks):
    sizes = Sizes()
    for block in blocks:
        sizes.add(np.array(block, np.int64))
    shown = {"count": sizes.count, "bytes": sizes.bytes, "min": sizes.min, "max": sizes.max}
    shown |= {f"p{percent}": sizes.quantile(percent / 100) for percent in (50, 90, 99)}
    check_sizes(shown, [size for block in blocks for size in block])


def test_different_keys_are_estimated_within_a_few_percent(tmp_path):
    build_log_dir(tmp_path / "logs", {"t": [[Batch([Record(b"key %d" % n, b"") for n in range(100_000)])]]})
    assert abs(stats(tmp_path / "logs", "t", "--distinct-keys")["distinct_keys"] / 100_000 - 1) < 0.03


@pytest.mark.parametrize("odd", [START * 1_000_000, START * 1_000, 2**63 - 1, END_OF_9999])
def test_times_of_no_calendar(tmp_path, odd):
    """One batch with nanoseconds does not spoil the picture: the others are at their times."""
    items = [Batch([Record(None, b"message", (), START + n * 60_000)] * 3) for n in range(100)]
    items.insert(50, Batch([Record(None, b"message", (), odd)] * 7))
    build_log_dir(tmp_path / "logs", {"t": [Partition(items)]})
    shown = stats(tmp_path / "logs", "t")["over_time"]
    dated = sum(bucket["messages"] for bucket in shown["buckets"])
    assert (dated, shown["no_timestamp"]["messages"]) == ((307, 0) if odd == END_OF_9999 else (300, 7))
    assert len(shown["buckets"]) <= 40
    text = output_of("stats", tmp_path / "logs", "t", "--over-time").decode()
    assert text.splitlines()[-1].startswith("307 messages")


def test_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    a_log(tmp_path / "logs")
    output_of("stats", tmp_path / "logs", "--png", tmp_path / "t.png", "--svg", tmp_path / "t.svg")
    output_of("stats", tmp_path / "logs", "empty", "--png", tmp_path / "empty")
    for png in ("t.png", "empty.png"):
        assert (tmp_path / png).read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "t.svg").read_bytes()


def test_without_the_library_it_says_so(tmp_path, monkeypatch):
    a_log(tmp_path / "logs")
    monkeypatch.delitem(sys.modules, "kafkafs.cli.stats_plot", raising=False)
    for module in ("matplotlib", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    result = run("stats", tmp_path / "logs", "--png", tmp_path / "t.png")
    assert result.exit_code == 4
    assert "pip install 'kafkafs[plot]'" in result.output
    assert run("stats", tmp_path / "logs").exit_code == 0


def test_reasons_are_one_reason_at_each_position(tmp_path):
    """Errors that differ only in the position of a byte are one reason; the 8 of UTF-8 is no position."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "text", "type": "string"}]}
    (tmp_path / "t.avsc").write_text(json.dumps(schema))
    values = [b"\x02\xff", b"\x04a\xff", b"\x06ab\xff"]
    build_log_dir(tmp_path / "logs", {"t": [[Record(None, value) for value in values]]})
    shown = json.loads(
        output_of("stats", tmp_path / "logs", "t", "--decode", "--schemas", f"t={tmp_path / 't.avsc'}", "--json")
    )
    [reason] = shown["undecodable"]
    assert reason["messages"] == 3
    assert "UTF-8" in reason["reason"]


def test_the_reasons_after_the_first_hundred_are_counted_together(tmp_path):
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "7.avsc").write_text('"string"')
    ids = [*range(100, 203), 100, 202]
    values = [b"\0" + number.to_bytes(4) for number in ids]
    build_log_dir(tmp_path / "logs", {"t": [[Record(None, value) for value in values]]})
    shown = stats(tmp_path / "logs", "t", "--decode", "--schemas", tmp_path / "schemas")["undecodable"]
    counts = {one["reason"]: (one["messages"], one["offset"]) for one in shown}
    expected = {f"value: there is no schema {number}": (1, number - 100) for number in range(101, 200)}
    assert counts == {**expected, "value: there is no schema 100": (2, 0), "other reasons": (4, 100)}

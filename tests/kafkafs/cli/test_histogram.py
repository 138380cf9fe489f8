"""`kafkafs histogram`: the chart, the numbers, the pictures."""

from __future__ import annotations

import json
import sys

import pytest

from storage.format.block import Record
from tests.support.builders import ROLL, Batch, Partition, build_log_dir
from tests.support.commands import output_of, run

START = 1_700_000_040_000


def at(timestamp, count):
    """Messages with one timestamp."""
    return Batch([Record(None, b"message", (), timestamp)] * count)


@pytest.fixture
def logs(tmp_path):
    """One message per minute, but twenty in the third."""
    path = tmp_path / "logs"
    sizes = [1, 1, 20, 1]
    items = [at(START + n * 60_000, size) for n, size in enumerate(sizes)]
    build_log_dir(path, {"t": [Partition(items)], "empty": [Partition([])]})
    return path


def test_the_chart(logs):
    lines = output_of("histogram", logs, "t", "--buckets", "4").decode().splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [
        ["2023-11-14T22:14", "1"],
        ["2023-11-14T22:15", "1"],
        ["2023-11-14T22:16", "20"],
        ["2023-11-14T22:17", "1"],
    ]
    bars = [line.count("█") for line in lines[:4]]
    assert bars[2] == max(bars) > 20
    assert all(line[-1] in "▏▎▍▌▋▊▉█" for line in lines[:4])
    assert max(len(line) for line in lines) <= 80
    assert lines[4].startswith("23 messages, ")
    assert lines[4].endswith("a line is one minute")
    assert output_of("histogram", logs, "empty") == b"no messages\n"


def test_for_programs(logs):
    told = json.loads(output_of("histogram", logs, "t/0", "--buckets", "4", "--json"))
    assert told["width_ms"] == 60_000
    assert [(one["start_ms"], one["messages"]) for one in told["buckets"]] == [
        (START + n * 60_000, size) for n, size in enumerate([1, 1, 20, 1])
    ]
    assert told["no_timestamp"] == {"messages": 0, "bytes": 0}


@pytest.mark.parametrize("wrong", [START * 1_000_000, START * 1_000, 2**63 - 1, 253_402_300_799_999])
@pytest.mark.parametrize("place", ["first", "middle", "last", "small"])
def test_times_of_no_calendar(tmp_path, wrong, place):
    """One batch with nanoseconds does not spoil the chart: the others are at their times."""
    count = 5 if place == "small" else 2000  # with and without entries in the indexes
    items = [at(START + n * 60_000, 3) for n in range(count)]
    items.insert({"first": 0, "middle": count // 2, "last": count, "small": 2}[place], at(wrong, 7))
    build_log_dir(tmp_path / "logs", {"t": [Partition([*items, ROLL, at(START + count * 60_000, 1)])]})
    told = json.loads(output_of("histogram", tmp_path / "logs", "t", "--buckets", "40", "--json"))
    assert len(told["buckets"]) <= 40
    dated = sum(one["messages"] for one in told["buckets"])
    assert (dated, told["no_timestamp"]["messages"]) in [(3 * count + 1, 7), (3 * count + 8, 0)]
    if told["no_timestamp"]["messages"]:
        assert told["buckets"][0]["start_ms"] > START - 2 * told["width_ms"]
        assert told["width_ms"] <= 3_600_000
    assert output_of("histogram", tmp_path / "logs", "t").decode().splitlines()[-1].startswith(f"{3 * count + 8:,}")


def test_pictures(logs, tmp_path):
    pytest.importorskip("matplotlib")
    assert output_of("histogram", logs, "t", "--png", tmp_path / "t.png", "--svg", tmp_path / "t.svg") == b""
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "t.svg").read_bytes()
    output_of("histogram", logs, "empty", "--png", tmp_path / "empty.png")
    assert (tmp_path / "empty.png").exists()


def test_without_the_library_it_says_so(logs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in [name for name in sys.modules if name == "kafkafs.cli.histogram_plot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    result = run("histogram", logs, "t", "--png", tmp_path / "t.png")
    assert result.exit_code == 4
    assert "pip install 'kafkafs[plot]'" in result.output
    assert run("histogram", logs, "t").exit_code == 0

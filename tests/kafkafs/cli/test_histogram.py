"""`kafkafs histogram`: times of no calendar, and pictures. See also transcripts/histogram.txt."""

import json
import sys

import pytest

from storage.format.block import Record
from tests.support.builders import ROLL, Batch, Partition, build_log_dir
from tests.support.commands import output_of, run

START = 1_700_000_040_000
END_OF_9999 = 253_402_300_799_999


def at(timestamp, count):
    """Messages with one timestamp."""
    return Batch([Record(None, b"message", (), timestamp)] * count)


@pytest.fixture
def logs(tmp_path):
    return build_log_dir(tmp_path / "logs", {"t": [Partition([at(START, 2)])], "empty": [[]]}).path


@pytest.mark.parametrize("odd", [START * 1_000_000, START * 1_000, 2**63 - 1, END_OF_9999])
@pytest.mark.parametrize("place", ["first", "middle", "last", "small"])
def test_times_of_no_calendar(tmp_path, odd, place):
    """One batch with nanoseconds does not spoil the chart: the others are at their times."""
    count = 5 if place == "small" else 2000  # with and without entries in the indexes
    items = [at(START + n * 60_000, 3) for n in range(count)]
    items.insert({"first": 0, "middle": count // 2, "last": count, "small": 2}[place], at(odd, 7))
    build_log_dir(tmp_path / "logs", {"t": [Partition([*items, ROLL, at(START + count * 60_000, 1)])]})
    told = json.loads(output_of("histogram", tmp_path / "logs", "t", "--buckets", "40", "--json"))
    dated = sum(bucket["messages"] for bucket in told["buckets"])
    undated = told["no_timestamp"]["messages"]
    assert len(told["buckets"]) <= 40
    assert (dated, undated) == ((3 * count + 8, 0) if odd == END_OF_9999 else (3 * count + 1, 7))
    if undated:
        assert told["buckets"][0]["start_ms"] > START - 2 * told["width_ms"]
        assert told["width_ms"] == (10_000 if place == "small" else 3_600_000)
    assert output_of("histogram", tmp_path / "logs", "t").decode().splitlines()[-1].startswith(f"{3 * count + 8:,}")


def test_pictures(logs, tmp_path):
    pytest.importorskip("matplotlib")
    assert output_of("histogram", logs, "t", "--png", tmp_path / "t.png", "--svg", tmp_path / "t.svg") == b""
    output_of("histogram", logs, "empty", "--png", tmp_path / "empty.png")
    for png in ("t.png", "empty.png"):
        assert (tmp_path / png).read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "t.svg").read_bytes()


def test_without_the_library_it_says_so(logs, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "kafkafs.cli.histogram_plot", raising=False)
    for module in ("matplotlib", "matplotlib.backends.backend_agg"):
        monkeypatch.setitem(sys.modules, module, None)
    result = run("histogram", logs, "t", "--png", tmp_path / "t.png")
    assert result.exit_code == 4
    assert "pip install 'kafkafs[plot]'" in result.output
    assert run("histogram", logs, "t").exit_code == 0

"""@status.json, @metrics, @help: complete, well-formed, true."""

import json
import math
import re

import pytest

from kafkafs.mounting.status import Report, Sources, help_text
from kafkafs.tree import paths
from storage.log.log_dir import LogDir
from storage.types import TopicPartition

# https://prometheus.io/docs/instrumenting/exposition_formats/ (text format 0.0.4)
SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?P<labels>\{.*\})? (?P<value>\S+)")
LABELS = re.compile(r'\{(?:[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"(?:,(?=[a-zA-Z_]))?)+\}')
KINDS = ("counter", "gauge")


def samples_of(text):
    """Checks the whole text; the value of each name with its labels."""
    assert text.endswith(b"\n")
    samples, families = {}, {}
    lines = iter(text.decode().splitlines())
    for line in lines:
        if line.startswith("# HELP "):
            _, _, family, words = line.split(" ", 3)
            assert words
            assert family.startswith("kafkafs_")
            assert family not in families
            _, word, name, families[family] = next(lines).split(" ")
            assert (word, name) == ("TYPE", family)
            assert families[family] == ("counter" if family.endswith("_total") else "gauge")
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert match["name"] == family, line
        assert match["labels"] is None or LABELS.fullmatch(match["labels"]), line
        name = match["name"] + (match["labels"] or "")
        assert name not in samples
        samples[name] = float(match["value"])
        assert math.isfinite(samples[name])
    return samples


@pytest.fixture
def log_dir(tmp_path):
    for name in ("t-0", "t-1", "a.b_c-0", "t-2.3f0e61fc71d24e8ab5d0d2ab2d5f3b9c-delete", "odd name"):
        (tmp_path / name).mkdir()
    (tmp_path / ".kafka_cleanshutdown").touch()
    return LogDir.open_read_only(tmp_path)


class Clock:
    """Seconds, as the test wants them; each look takes `step` of them."""

    now = 100.0
    step = 0.0

    def __call__(self):
        self.now += self.step
        return self.now


def report_on(log_dir, clock=None, **fixed):
    sources = Sources(
        log_dir,
        tree=lambda: {"cache": {"used_bytes": 5}},
        requests=lambda: {"opens": 1, "reads": 2, "read_bytes": 3, "open_files": 4},
        errors=lambda: {"count": 6, "bugs": 0, "last": None},
        fixed={"mode": "read-only", **fixed},
        versions={"libfuse": "2.9"},
    )
    return Report(sources, clock or Clock())


def test_status_json(log_dir):
    log_dir.log(TopicPartition("t", 1)).snapshot()
    clock = Clock()
    report = report_on(log_dir, clock)
    clock.now += 12.5
    status = json.loads(report.status_json())
    assert (status["mode"], status["uptime_seconds"], status["topics"]) == ("read-only", 12.5, 2)
    numbers = ("log_start_offset", "local_log_start_offset", "log_end_offset", "segments", "size_bytes")
    assert status["partitions"] == {"t/1": {"state": "online", **dict.fromkeys(numbers, 0), "bytes_behind_the_end": 0}}
    hidden = {entry["name"]: entry["reason"] for entry in status["hidden"]}
    assert set(hidden) == {"t-2.3f0e61fc71d24e8ab5d0d2ab2d5f3b9c-delete", "odd name"}
    assert all(hidden.values())
    assert status["requests"]["read_bytes"] == 3
    assert status["cache"] == {"used_bytes": 5}
    assert status["process"]["memory_bytes"] > 1 << 20
    assert status["process"]["threads"] >= 1
    assert status["disk"]["size_bytes"] >= status["disk"]["free_bytes"] > 0
    assert status["kernels"]["storage.format.decode_kernel"] == "compiled"
    assert {"kafkafs", "python", "libfuse", "numpy", "linux"} <= set(status["versions"])


def test_a_partition_that_fails_is_told(log_dir):
    log = log_dir.log(TopicPartition("t", 1))
    (log_dir.path / "t-1").rmdir()
    report = report_on(log_dir)
    (partition,) = report.facts()["partitions"].values()
    assert partition["state"] == "failed"
    assert "t-1" in partition["error"]
    assert samples_of(report.metrics())['kafkafs_partition_online{topic="t",partition="1"}'] == 0
    assert log_dir.log(TopicPartition("t", 1)) is log


def test_gathering_takes_half_of_the_time_at_most(log_dir):
    clock = Clock()
    report = report_on(log_dir, clock)
    first = report.facts()
    assert report.facts() is not first  # it took no time
    clock.step = 0.5
    slow = report.facts()
    clock.step = 0
    clock.now += 0.4
    assert report.facts() is slow
    clock.now += 0.2
    assert report.facts() is not slow


def test_metrics(log_dir):
    log_dir.log(TopicPartition("a.b_c", 0))
    samples = samples_of(report_on(log_dir, mode='a "b" \\ c\nd').metrics())
    expected = {"reads_total": 2, "read_bytes_total": 3, "data_errors_total": 6, "topics": 2}
    expected['log_end_offset{topic="a.b_c",partition="0"}'] = 0
    expected['partition_online{topic="a.b_c",partition="0"}'] = 1
    assert {name: samples[f"kafkafs_{name}"] for name in expected} == expected
    assert samples["kafkafs_process_resident_memory_bytes"] > 1 << 20
    assert 'kafkafs_kernel_compiled{module="storage.format.decode_kernel"}' in samples
    assert any(r'mode="a \"b\" \\ c\nd"' in name for name in samples)


@pytest.mark.parametrize("writable", [False, True])
def test_help_is_one_screen(writable):
    text = help_text(writable=writable).decode()
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 80
    assert ("topics delete" in text) == writable


def test_help_is_true():
    """Every path in it is one of the tree's."""
    text = help_text().decode().replace("TOPIC/*", "TOPIC/0")
    named = re.findall(r"(?<!\S)(TOPIC\S+|@\S+)", text)
    assert len(named) > 12
    for path in named:
        paths.parse("/" + path.rstrip("/"))
    ranges = re.findall(r"\b(?:last-[0-9]+m|until-2026\S*|2026[-0-9T:+Z]+)", text)
    assert len(ranges) >= 7
    for name in ranges:
        paths.parse(f"/t/0/time/{name.rstrip(',.')}.txt")
    for name in ("100-", "100+50", "last-10", "100"):
        assert name in text
        paths.parse(f"/t/0/offsets/{name}.txt")

"""`kafkafs dump`: every file of the fixtures, and damaged ones."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from storage.files.log_file import LogFile
from storage.format.compression import Codec
from tests.support.builders import Batch, Partition, abort, build_log_dir, commit, many
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, requires_fixtures

Lines = list[dict[str, Any]]


def lines_of(output, kind=None):
    lines = [json.loads(line) for line in output.splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


@requires_fixtures
def test_every_file_of_the_fixtures():
    """Every file that real brokers wrote can be dumped; damage is reported."""
    kinds = set()
    for directory in [*sorted(FIXTURES.glob("*/log")), FIXTURES / "recovery" / "before"]:
        for partition in sorted(path for path in directory.iterdir() if path.is_dir()):
            result = run("dump", partition)
            assert result.exit_code in ((0, 4) if "recovery" in partition.parts else (0,)), (partition, result.stderr)
            lines = lines_of(result.stdout_bytes)
            assert (result.exit_code == 4) == any(line["kind"] == "damage" for line in lines)
            kinds |= {line["kind"] for line in lines}
        result = run("dump", directory)
        kinds |= {line["kind"] for line in lines_of(result.stdout_bytes)}
    assert kinds == {
        "batch", "record", "controlRecord", "offsetIndexEntry", "timeIndexEntry", "abortedTransaction", "producer",
        "leaderEpoch", "partitionMetadata", "checkpoint", "property", "damage", "preallocated",
    }  # fmt: skip


@pytest.fixture
def partition(tmp_path):
    items = [
        Batch(many(3, headers=[(b"h", b"\xff")]), codec=Codec.LZ4),
        Batch(many(2), producer_id=7, producer_epoch=1, transactional=True),
        abort(7, 1),
        Batch(many(1), producer_id=7, producer_epoch=1, transactional=True),
        commit(7, 1),
        Batch(many(2), magic=1, codec=Codec.GZIP),
        Batch(many(1), magic=0),
        Batch(many(1), log_append_time_ms=1234),
    ]
    spec = Partition(items, index_interval_bytes=0, preallocated=True)
    return build_log_dir(tmp_path, {"t": [spec]})["t", 0].path


def test_batches(partition):
    lines = lines_of(output_of("dump", partition / f"{0:020d}.log"))
    batches = [line for line in lines if line["kind"] == "batch"]
    assert batches[0] == {
        "file": str(partition / f"{0:020d}.log"),
        "kind": "batch",
        "position": 0,
        "size": batches[1]["position"],
        "baseOffset": 0,
        "lastOffset": 2,
        "count": 3,
        "magic": 2,
        "codec": "lz4",
        "timestampType": "CreateTime",
        "maxTimestamp": 1_700_000_002_000,
        "crc": batches[0]["crc"],
        "valid": True,
        "baseTimestamp": 1_700_000_000_000,
        "leaderEpoch": 0,
        "producerId": -1,
        "producerEpoch": -1,
        "baseSequence": -1,
        "isTransactional": False,
        "isControl": False,
    }
    assert [b["baseOffset"] for b in batches] == [0, 3, 5, 6, 7, None, 10, 11]
    assert [b["count"] for b in batches] == [3, 2, 1, 1, 1, None, 1, 1]
    assert [b["magic"] for b in batches] == [2, 2, 2, 2, 2, 1, 0, 2]
    assert [b["timestampType"] for b in batches][-2:] == ["NoTimestampType", "LogAppendTime"]
    assert batches[1]["producerId"] == 7
    assert batches[1]["isTransactional"]
    markers = [
        (line["offset"], line["type"], line["coordinatorEpoch"]) for line in lines if line["kind"] == "controlRecord"
    ]
    assert markers == [(5, "ABORT", 0), (7, "COMMIT", 0)]
    records = [line for line in lines if line["kind"] == "record"]
    assert [line["offset"] for line in records] == [0, 1, 2, 3, 4, 6, 8, 9, 10, 11]
    assert records[0]["headers"] == [["h", {"base64": "/w=="}]]
    assert records[-1]["timestamp"] == 1234
    order = [line["kind"] for line in lines]
    assert order[:6] == ["batch", "record", "record", "record", "batch", "record"]


def test_indexes(partition):
    lines = lines_of(output_of("dump", partition / f"{0:020d}.index"))
    assert lines[0]["kind"] == "offsetIndexEntry"
    assert lines[0]["offset"] == 4
    assert lines[0]["position"] > 0
    assert lines[-1]["kind"] == "preallocated"
    assert lines[-1]["position"] == (len(lines) - 1) * 8
    times = lines_of(output_of("dump", partition / f"{0:020d}.timeindex"), "timeIndexEntry")
    assert times[0] == {
        "file": str(partition / f"{0:020d}.timeindex"),
        "kind": "timeIndexEntry",
        "timestamp": times[0]["timestamp"],
        "offset": times[0]["offset"],
    }
    aborted = lines_of(output_of("dump", partition / f"{0:020d}.txnindex"))
    assert [(line["producerId"], line["firstOffset"], line["lastOffset"]) for line in aborted] == [(7, 3, 5)]


def test_a_damaged_batch(partition):
    """It is reported, and what follows it is printed."""
    log = partition / f"{0:020d}.log"
    second = lines_of(output_of("dump", "--no-records", log))[1]["position"]
    flip(log, second + 65)
    result = run("dump", log)
    assert result.exit_code == 4
    lines = lines_of(result.stdout)
    assert [b["valid"] for b in lines if b["kind"] == "batch"] == [True, False, True, True, True, True, True, True]
    (damage,) = [line for line in lines if line["kind"] == "damage"]
    assert damage["position"] == second
    assert damage["offset"] == 3
    assert "checksum" in damage["error"]
    assert [line["offset"] for line in lines if line["kind"] == "record"] == [0, 1, 2, 6, 8, 9, 10, 11]


def test_a_hole_is_not_read(partition, monkeypatch):
    """A file may claim more bytes than any disk has."""
    log = partition / f"{0:020d}.log"
    end, giant = log.stat().st_size, 1 << 40
    read = LogFile.read

    def near(file, position, size, into=None):
        assert position < 1 << 30
        return read(file, position, size, into)

    monkeypatch.setattr(LogFile, "read", near)
    os.truncate(log, giant)
    lines = lines_of(output_of("dump", "--no-records", log))
    assert lines[-1] == {"file": str(log), "kind": "preallocated", "position": end, "bytes": giant - end}


def test_a_torn_and_a_preallocated_tail(partition):
    log = partition / f"{0:020d}.log"
    content = log.read_bytes()
    log.write_bytes(content + bytes(3_000_000))
    lines = lines_of(output_of("dump", "--no-records", log))
    assert lines[-1] == {"file": str(log), "kind": "preallocated", "position": len(content), "bytes": 3_000_000}
    log.write_bytes(content + bytes(3_000_000) + b"x")
    assert lines_of(run("dump", "--no-records", log).stdout)[-1]["kind"] == "damage"
    log.write_bytes(content[:-1])
    result = run("dump", "--no-records", log)
    assert result.exit_code == 4
    last = lines_of(result.stdout)[-1]
    assert last["kind"] == "damage"
    assert last["position"] + last["bytes"] == len(content) - 1


def test_files_that_do_not_parse(tmp_path):
    partition = tmp_path / "t-0"
    partition.mkdir()
    (partition / "leader-epoch-checkpoint").write_text("0\nnonsense\n")
    (partition / "partition.metadata").write_text("version: 7\n")
    (partition / f"{5:020d}.snapshot").write_bytes(b"\0\1")
    (partition / f"{0:020d}.index").write_bytes(b"\0\0\0\5\0\0\0\5\0\0\0\3")
    result = run("dump", partition)
    assert result.exit_code == 4
    lines = lines_of(result.stdout)
    assert [line["kind"] for line in lines if line["kind"] != "offsetIndexEntry"] == ["damage"] * 4
    assert lines[0]["kind"] == "offsetIndexEntry"


def test_missing_and_unknown_files(tmp_path):
    result = run("dump", tmp_path / f"{0:020d}.log", tmp_path / f"{0:020d}.index")
    assert result.exit_code == 4
    assert [line["error"] for line in lines_of(result.stdout)] == ["No such file or directory"] * 2
    (tmp_path / "notes.md").touch()
    result = run("dump", tmp_path / "notes.md")
    assert result.exit_code == 2
    assert "notes.md" in result.stderr
    assert output_of("dump", tmp_path) == b""

"""Offsets further above the base of their segment than an index can have (KAFKA-6264), which all readers have; and
offsets that do not ascend, in batches with correct CRCs: a broker keeps them, and readers fail there."""

from __future__ import annotations

import json
import struct

import pytest

import kafkafs
from storage.errors import CorruptBatch
from tests.support.commands import output_of, process, run
from tests.support.raw_batches import batch, message, record
from tests.support.reference_views import content, readable, tree_of

pytest.importorskip("pyarrow")

FAR = 2**31 + 5
OFFSETS = [0, 10, FAR, FAR + 9]
VALUES = [b"1", b"2", b"3", b"4"]
TIMES = [1_763_683_200_000 + 86_400_000 * day for day in range(4)]


def batches(magic):
    if magic < 2:
        return [
            message(offset, value, magic=magic, timestamp=time)
            for offset, value, time in zip(OFFSETS, VALUES, TIMES, strict=True)
        ]
    return [
        batch([record(value=value)], offset, base_timestamp=time, max_timestamp=time)
        for offset, value, time in zip(OFFSETS, VALUES, TIMES, strict=True)
    ]


@pytest.fixture(params=["active", "sealed", "v1", "indexes of an old broker"])
def log_dir(request, tmp_path):
    """A log directory with these messages in t/0, in one segment."""
    directory = tmp_path / "log" / "t-0"
    directory.mkdir(parents=True)
    parts = batches(1 if request.param == "v1" else 2)
    segment = directory / f"{0:020d}"
    segment.with_suffix(".log").write_bytes(b"".join(parts))
    if request.param == "sealed":
        (directory / f"{FAR + 10:020d}.log").touch()
    if request.param == "indexes of an old broker":  # its entries for offsets beyond 31 bits are cut to 32
        place = {at: sum(map(len, parts[:at])) for at in range(4)}
        entries = [(OFFSETS[at] & 0xFFFF_FFFF, place[at]) for at in (1, 2, 3)]
        segment.with_suffix(".index").write_bytes(b"".join(struct.pack(">II", *entry) for entry in entries))
        times = [struct.pack(">qI", TIMES[at], OFFSETS[at] & 0xFFFF_FFFF) for at in (1, 2, 3)]
        segment.with_suffix(".timeindex").write_bytes(b"".join(times))
    return tmp_path / "log"


def test_commands_have_all_messages(log_dir, tmp_path):
    assert output_of("cat", log_dir, "t/0").split() == VALUES
    assert output_of("count", log_dir, "t/0") == b"4\n"
    assert output_of("cat", log_dir, "t/0", "--offsets", f"{FAR}-").split() == VALUES[2:]
    assert output_of("cat", log_dir, "t/0", "--offsets", f"{FAR + 1}-").split() == VALUES[3:]
    assert output_of("cat", log_dir, "t/0", "--time", "2025-11-23--").split() == VALUES[2:]
    with process("fetch", log_dir, "t/0", "--offset", FAR + 9, "--max-bytes", 10_000) as fetching:
        assert fetching.communicate()[0].endswith((log_dir / "t-0" / f"{0:020d}.log").read_bytes()[-30:])
    lines = output_of("dump", log_dir / "t-0" / f"{0:020d}.log").splitlines()
    assert [one["offset"] for one in map(json.loads, lines) if "offset" in one] == OFFSETS


@pytest.mark.parametrize("command", [("mirror",), ("salvage", "t"), ("revive",)], ids=" ".join)
def test_copies_have_all_messages(log_dir, tmp_path, command):
    name, *topics = command
    copy = tmp_path / "copy"
    output_of(name, log_dir, *topics, *([copy] if name == "mirror" else ["--to", copy]))
    assert output_of("cat", copy, "t/0").split() == VALUES


def test_views_have_all_messages(log_dir):
    tree = tree_of(log_dir)
    assert content(tree, "/t/0/messages.txt").split() == VALUES
    assert content(tree, "/t/0/offsets/last-2.txt").split() == VALUES[2:]
    assert content(tree, f"/t/0/offsets/{FAR}.txt").split() == VALUES[2:3]


def test_scans_and_sql_have_all_messages(log_dir):
    scan = kafkafs.open(log_dir)["t"].scan()
    assert scan.to_arrow().column("offset").to_pylist() == OFFSETS
    assert b"4" in output_of("sql", log_dir, f"SELECT value FROM t WHERE offset > {FAR}", "--format", "csv").split()


def test_no_check_takes_them_for_damage(log_dir):
    result = run("verify", log_dir)
    assert "segment-span" in result.stdout
    assert "damage" not in run("doctor", log_dir).stdout


# Offsets that do not ascend at the end of a log

SHAPES = {
    "the last": [0, 1, 2, 1],
    "the last again": [0, 1, 2, 2],
    "the last two": [0, 1, 2, 0, 1],
    "after a far one": [0, 1, 2, 2**20, 3, 4],
    "after a farther one": [0, 1, 2, 2**40, 3, 4],
    "the last, after a far one": [0, 1, 2, 2**20, 3],
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def fallen(request, tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    data = b"".join(batch([record(value=b"v")], offset, max_timestamp=1000) for offset in request.param)
    (directory / f"{0:020d}.log").write_bytes(data)
    return tmp_path


def test_readers_fail(fallen, tmp_path_factory):
    for name, place in (
        ("cat", "t/0"),
        ("count", "t/0"),
        ("digest", "t/0"),
        ("mirror", tmp_path_factory.mktemp("copy")),
    ):
        result = run(name, fallen, place)
        assert (name, result.exit_code) == (name, 4)
        assert "offsets do not ascend" in result.stderr
    scan = kafkafs.open(fallen)["t"].scan()
    for read in (scan.to_arrow, scan.count):
        with pytest.raises(CorruptBatch, match="offsets do not ascend"):
            read()
    stretches, errors = readable(tree_of(fallen).lookup("/t/0/messages.txt"))
    assert b"".join(stretches).startswith(b"v\nv\nv\n")
    assert errors

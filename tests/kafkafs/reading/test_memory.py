"""Memory stays bounded: whatever the log's size, and whatever a batch decompresses to."""

import base64
import json
import subprocess
import sys

import pytest

from kafkafs.formats.format import MOST_LINE_BYTES
from kafkafs.schemas.sources import schemas_at
from kafkafs.tree.tree import Tree, TreeOptions
from storage.errors import LineTooLong
from storage.format.compression import Codec
from storage.log.log_dir import LogDir
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import content, read_anyhow, readable, tree_of

MIB = 1 << 20

# A process of its own: only there the greatest resident size tells of nothing else.
READER = """
import ctypes, sys
from pathlib import Path
from kafkafs.tree.tree import Tree, TreeOptions
from storage.log.log_dir import LogDir

def resident():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

tree = Tree(LogDir.open_read_only(sys.argv[1]), TreeOptions(index_bytes=0))
tree.start()
buffer = ctypes.create_string_buffer(131072)
before = resident()
handle = tree.lookup(sys.argv[2]).open()
position = 0
while count := handle.read_into(ctypes.addressof(buffer), position, 131072):
    position += count
assert position == handle.size
tree.stop()
print(position, resident() - before, resident())
"""


def read_apart(log_dir, path):
    """Bytes read, growth of the process's greatest resident size while reading, and that size; the latter in MiB."""
    result = subprocess.run(
        [sys.executable, "-c", READER, str(log_dir), path], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    size, growth, resident = map(int, result.stdout.split())
    return size, growth // 1024, resident // 1024


def test_a_batch_that_renders_to_much_is_served_in_parts(tmp_path):
    live = LiveLog(tmp_path / "log", Codec.ZSTD)
    live.write(20)
    live.append(*(b"%09d" % number * 10_000 for number in range(800)))  # 69 MiB in one batch
    live.write(20)
    expected = live.text()
    assert len(expected) > MOST_LINE_BYTES
    tree = tree_of(live.path.parent)
    assert content(tree, "/t/0/messages.txt", step=16 * MIB) == expected
    assert content(tree, "/t/0/offsets/100-800.txt") == live.text(lambda offset, _: 100 <= offset <= 800)
    assert content(tree, "/t/0/offsets/10-821.txt") == live.text(lambda offset, _: 10 <= offset <= 821)
    first, last = START_MS + 30_000, START_MS + 830_000
    assert content(tree, f"/t/0/time/{first}--{last}.txt") == live.text(lambda _, stamp: first <= stamp < last)


@pytest.mark.parametrize("name", ["messages.txt", "messages.jsonl"])
def test_a_large_partition_takes_little_memory(tmp_path, name):
    live = LiveLog(tmp_path / "log")
    for _ in range(3):
        live.write(500, size=100_000, batch=5)
        live.roll()
    size, growth, resident = read_apart(live.path.parent, f"/t/0/{name}")
    assert size > 150_000_000
    assert growth < 120
    assert resident < 300


def test_a_line_that_is_too_long_takes_little_memory(tmp_path):
    """48 MiB of control characters, which JSON writes with six bytes each, in a batch of a few KiB."""
    live = LiveLog(tmp_path / "log", Codec.ZSTD)
    live.append(b"before", b"\1" * (48 * MIB), b"after")
    size, growth, _ = read_apart(live.path.parent, "/t/0/offsets/0.jsonl")
    assert size < 1000
    assert growth < 220  # the value, at most twice, and the cache of blocks


LINE = b"x" * (MOST_LINE_BYTES - 1)  # with its newline the longest that is shown


@pytest.mark.parametrize("alone", [False, True], ids=["in one batch", "each in its own"])
def test_a_line_that_is_too_long_is_an_error_in_its_place(tmp_path, alone):
    """What precedes it and what follows it is read, `.log` files have it, and it is in no other range."""
    live = LiveLog(tmp_path / "log", Codec.ZSTD)
    live.write(5)
    values = [b"before", b"x" * MOST_LINE_BYTES, LINE, b"y" * (MOST_LINE_BYTES + 9), b""]
    live.append(*values, batch=1 if alone else 0)
    live.write_segments(5, 1)
    tree = tree_of(live.path.parent)
    assert tree.lookup("/t/0/messages.txt").open().direct_io
    shown = [live.text(lambda offset, _: offset < 6), LINE + b"\n", live.text(lambda offset, _: offset > 8)]
    for name in ("messages", f"time/{START_MS}--"):
        stretches, errors = readable(tree.lookup(f"/t/0/{name}.txt"), step=200 * MIB)
        assert stretches == shown
        assert [type(error) for error in errors] == [LineTooLong] * 2
        assert [error.offset for error in errors] == [6, 8]
        assert {error.path for error in errors} == {live.log(0)}
    assert content(tree, "/t/0/offsets/7.txt", step=16 * MIB) == shown[1]
    assert content(tree, "/t/0/offsets/9-.txt") == shown[2]
    assert content(tree, "/t/0/messages.log") == live.log(0).read_bytes() + live.log(15).read_bytes()
    stretches, errors = readable(tree.lookup("/t/0/offsets/8.jsonl"))
    assert (stretches, [error.offset for error in errors]) == ([b"", b""], [8])


@pytest.mark.parametrize("name", ["messages.jsonl", "latest.jsonl", "keys/k.jsonl", "messages.decoded.jsonl"])
def test_a_line_is_as_long_as_its_format_makes_it(tmp_path, name):
    live = LiveLog(tmp_path / "log", Codec.ZSTD, key_of=lambda _offset: b"k")
    live.append(b"\1" * (MOST_LINE_BYTES // 6))
    (tmp_path / "1.json").write_text("{}")
    tree = Tree(LogDir.open_read_only(live.path.parent), TreeOptions(index_bytes=0), schemas=schemas_at(tmp_path))
    _, (error,) = readable(tree.lookup(f"/t/0/{name}"))
    assert isinstance(error, LineTooLong)
    assert error.offset == 0
    assert error.found > MOST_LINE_BYTES


def test_a_large_value_is_served_exactly(tmp_path):
    live = LiveLog(tmp_path / "log", Codec.ZSTD)
    large = b"\1\x02 plain" * MIB
    live.append(b"before", large, b"\xff" + large, b"after")
    path = "/t/0/messages.jsonl"
    data = content(tree_of(live.path.parent), path, step=MIB)
    values = [json.loads(line)["value"] for line in data.splitlines()]
    assert values[0] == "before"
    assert values[1] == large.decode()
    assert base64.b64decode(values[2]["base64"]) == b"\xff" + large
    assert values[3] == "after"
    read_anyhow(tree_of(live.path.parent).lookup(path).open(), data, seed=2, reads=30)

"""Memory stays bounded: whatever the log's size, and whatever a batch decompresses to."""

import base64
import json
import subprocess
import sys

import pytest

from kafkafs.reading.pieces import SPLIT_BYTES
from storage.format.compression import Codec
from tests.support.live_log import START_MS, LiveLog
from tests.support.reference_views import content, read_anyhow, tree_of

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
    live.append(*(b"%07d" % number * 16 for number in range(200_000)))  # 22 MiB in one batch
    live.append(b"x" * (3 * SPLIT_BYTES), b"y", b"z" * 10)  # a message larger than a part
    live.write(20)
    expected = live.text()
    tree = tree_of(live.path.parent)
    assert content(tree, "/t/0/messages.txt", step=MIB) == expected
    handle = tree.lookup("/t/0/messages.txt").open()
    read_anyhow(handle, expected, seed=1, reads=30)
    assert content(tree, "/t/0/offsets/100000-150000.txt") == live.text(lambda offset, _: 100_000 <= offset <= 150_000)
    assert content(tree, "/t/0/offsets/10-200021.txt") == live.text(lambda offset, _: 10 <= offset <= 200_021)
    first, last = START_MS + 1_000_000, START_MS + 190_000_000
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


def test_a_large_value_is_never_rendered_as_a_whole(tmp_path):
    """48 MiB of control characters, which JSON writes with six bytes each, in a batch of a few KiB."""
    live = LiveLog(tmp_path / "log", Codec.ZSTD)
    live.append(b"before", b"\1" * (48 * MIB), b"after")
    size, growth, _ = read_apart(live.path.parent, "/t/0/messages.jsonl")
    assert size > 288 * MIB
    assert growth < 220  # the value, at most twice, and the cache of blocks


def test_a_large_value_is_served_exactly(tmp_path):
    live = LiveLog(tmp_path / "log", Codec.ZSTD)
    large = b"\1\x02 plain" * (SPLIT_BYTES // 4)
    live.append(b"before", large, b"\xff" + large, b"after")
    path = "/t/0/messages.jsonl"
    data = content(tree_of(live.path.parent), path, step=MIB)
    values = [json.loads(line)["value"] for line in data.splitlines()]
    assert values[0] == "before"
    assert values[1] == large.decode()
    assert base64.b64decode(values[2]["base64"]) == b"\xff" + large
    assert values[3] == "after"
    read_anyhow(tree_of(live.path.parent).lookup(path).open(), data, seed=2, reads=30)

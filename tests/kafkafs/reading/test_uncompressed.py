"""A compressed view is large by what it has uncompressed, which the first batches of a few segments show."""

import json
import random

import pytest

from storage.files.log_file import LogFile
from storage.format.block import Record
from storage.format.compression import Codec
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir
from tests.support.live_log import LiveLog
from tests.support.reference_views import PATH, content, read_all, readable, scanned_bytes, tree_of

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
SEGMENTS, PER_SEGMENT = 20, 200


def value(number):
    return b"%d %s %s" % (number, b"x" * 370, random.Random(number).randbytes(60).hex().encode())


def log_of(tmp_path, codec, magic=2):
    """Segments of 200 messages of 500 bytes, which compress to a third or less."""
    items = []
    for first in range(0, SEGMENTS * PER_SEGMENT, 50):
        if first and first % PER_SEGMENT == 0:
            items.append(ROLL)
        records = [Record(None, value(n), (), START_MS + n) for n in range(first, first + 50)]
        items.append(Batch(records, codec=codec, magic=magic))
    return build_log_dir(tmp_path / "log", {"t": [Partition(items)]}).path


def text_of():
    return b"".join(value(number) + b"\n" for number in range(SEGMENTS * PER_SEGMENT))


def file_bytes(log_dir):
    return sum(path.stat().st_size for path in log_dir.glob("t-0/*.log"))


def sizes_of(tree):
    return json.loads(content(tree, "/t/0/@info.json")).get("sizes")


@pytest.fixture
def read_bytes(monkeypatch):
    """The numbers of bytes of segments that have been read, one for each read."""
    reads, read = [], LogFile.read

    def counting(file, position, size, into=None):
        data = read(file, position, size, into)
        reads.append(len(data))
        return data

    monkeypatch.setattr(LogFile, "read", counting)
    return reads


@pytest.mark.parametrize("codec", COMPRESSED)
@pytest.mark.parametrize(
    ("path", "magic"),
    [(PATH, 0), (PATH, 1), (PATH, 2), (f"/t/0/time/{START_MS}--.jsonl", 2), ("/t/0/offsets/7-3990.txt", 2)],
)
def test_a_compressed_view_is_open_at_once_if_it_has_much(tmp_path, codec, magic, path):
    if codec is Codec.ZSTD and magic < 2:
        pytest.skip("the format has no zstd")
    log_dir = log_of(tmp_path, codec, magic)
    limit = file_bytes(log_dir) * 11 // 10
    assert len(text_of()) > 2 * limit
    exact = content(tree_of(log_dir, exact_below=None), path)
    tree = tree_of(log_dir, exact_below=limit, workers=0)
    handle = tree.lookup(path).open()
    assert handle.read(0, 500) == exact[:500]
    assert handle.read(handle.size - 500, 500) == exact[-500:]
    assert scanned_bytes(tree) < file_bytes(log_dir) * 9 // 10
    assert sizes_of(tree) == "estimated"
    handle = tree.lookup(path).open()
    assert read_all(handle, 5000) == exact
    assert handle.size == tree.lookup(path).attributes().size == len(exact)


@pytest.mark.parametrize("codec", Codec)
def test_a_view_with_little_has_its_exact_size(tmp_path, codec):
    log_dir = log_of(tmp_path, codec)
    if codec is Codec.NONE:  # as many bytes as in its files
        limits = [file_bytes(log_dir)]
        assert sizes_of(tree_of(log_dir, exact_below=limits[0] - 1)) == "estimated"
    else:
        limits = [2 * len(text_of()), 1 << 30]
    for limit in limits:
        tree = tree_of(log_dir, exact_below=limit)
        assert tree.lookup(PATH).open().size == len(text_of())
        assert sizes_of(tree) is None


def test_what_has_been_measured_does_not_count(tmp_path):
    log_dir = log_of(tmp_path, Codec.ZSTD)
    tree = tree_of(log_dir, exact_below=len(text_of()) // 2)
    assert content(tree, "/t/0/offsets/0-2999.txt") == text_of()[: len(content(tree, "/t/0/offsets/0-2999.txt"))]
    assert tree.lookup(PATH).open().size == len(text_of())


def test_a_few_segments_show_how_much_all_have(tmp_path, read_bytes):
    log_dir = log_of(tmp_path, Codec.GZIP)
    tree = tree_of(log_dir, exact_below=None)
    tree.lookup(PATH).open()
    alone = sum(read_bytes)
    read_bytes.clear()
    tree_of(log_dir, exact_below=20 * len(text_of())).lookup(PATH).open()
    assert alone < sum(read_bytes) <= alone + file_bytes(log_dir) // SEGMENTS * 3


def test_a_listing_does_not_read_what_facts_need(tmp_path, read_bytes):
    log_dir = log_of(tmp_path, Codec.GZIP)
    tree = tree_of(log_dir, exact_below=len(text_of()) // 3)
    tree.lookup("/t/0").attributes()
    read_bytes.clear()
    tree.lookup("/t/0/@info.json").attributes()
    assert sum(read_bytes) < 1000


def test_damage_is_reported_by_reading(tmp_path):
    """Batches that are damaged count as their bytes."""
    live = LiveLog(tmp_path / "log", Codec.LZ4)
    live.write(1000, size=400, batch=100)
    path = live.log(0)
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    exact = repr(readable(tree_of(path.parent.parent, exact_below=None).lookup(PATH)))
    for limit in (len(data), len(data) // 2, 1 << 20):
        shown = tree_of(path.parent.parent, exact_below=limit, workers=0)
        assert repr(readable(shown.lookup(PATH))) == exact
        assert sizes_of(shown) == ("estimated" if limit < len(data) else None)

"""The key index: kept between mounts, never believed blindly. Whatever is on disk, no message is hidden."""

from __future__ import annotations

import os
import random
import shutil

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.reading import key_blocks, key_index
from kafkafs.reading import store as key_store
from kafkafs.reading.key_blocks import KeyBlocks
from kafkafs.reading.key_index import KeyIndex
from kafkafs.reading.store import KeyStore, file_key
from kafkafs.reading.workers import Workers
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.kafkafs.reading.test_keys import absent, expected, path_of
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, tree_of

KEYS = 500
SAMPLE = [b"k%d" % number for number in (0, 3, 77, 499)]


def key_of(offset):
    return b"k%d" % (offset * 7919 % KEYS)


@pytest.fixture
def live(tmp_path):
    """A sealed segment and an active one, both above the size from which their index is kept."""
    log = LiveLog(tmp_path / "log", key_of=key_of)
    log.write(1500, size=1000, batch=50)
    log.roll()
    log.write(1500, size=1000, batch=50)
    for path in log.path.glob("*.log"):
        os.utime(path, ns=(10**18, 10**18 + 1))  # long ago, so that the index is kept at once
    return log


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def tree(live, cache):
    return tree_of(live.path.parent, index_dir=cache, index_bytes=1 << 20)


def files(cache):
    return sorted(cache.glob("*.keys"))


def scanned(tree):
    return int(tree.status()["key_index"]["scanned_bytes"])


def look_up(live, cache, keys=SAMPLE):
    """Looks keys up in a new tree; how many bytes it has scanned for its index."""
    looked = tree(live, cache)
    for key in keys:
        if expected(live, key):
            assert content(looked, path_of(key)) == expected(live, key), key
        else:
            assert absent(looked, path_of(key))
    assert absent(looked, path_of(b"nobody"))
    looked.stop()
    return scanned(looked)


def test_it_is_kept_and_found_again(live, cache):
    sizes = [live.log(base).stat().st_size for base in live.segments]
    assert look_up(live, cache) >= sum(sizes) - key_blocks.BLOCK_BYTES
    assert len(files(cache)) == 2
    assert look_up(live, cache) == 0
    assert {path.stat().st_mode & 0o777 for path in files(cache)} == {0o600}


def test_a_segment_that_has_grown_keeps_its_blocks(live, cache):
    look_up(live, cache)
    live.write(1500, size=1000, batch=50)
    grown = look_up(live, cache)
    assert 0 < grown < live.log(live.segments[-1]).stat().st_size - key_blocks.BLOCK_BYTES
    live.roll()
    live.write(10)
    assert look_up(live, cache) < live.log(live.segments[-2]).stat().st_size - key_blocks.BLOCK_BYTES
    assert look_up(live, cache) == 0


def test_a_segment_that_was_cut_and_written_again(live, cache):
    """Its size may be any: the same, less, or more than what the index describes."""
    look_up(live, cache)
    kept = {path: path.read_bytes() for path in files(cache)}
    end = live.next_offset
    for count in (end - 2000, end - 1990, 300, 3000):
        live.truncate(2000)
        live.key_of = lambda offset: b"k%d" % (offset * 31 % KEYS)
        before = {offset: key_of(offset) for offset in range(2000)}
        live.key_of = lambda offset, before=before: before.get(offset) or b"k%d" % (offset * 31 % KEYS)
        live.write(count, size=1000, batch=50)
        for path, data in kept.items():
            path.write_bytes(data)
        look_up(live, cache)


def test_the_same_size_and_times_with_other_messages(live, cache):
    """A topic that was made again, with files of the same size, times and inode."""
    look_up(live, cache)
    for base in live.segments:
        path = live.log(base)
        status, data = path.stat(), path.read_bytes()
        path.write_bytes(data[: len(data) // 2].replace(b"k77", b"k78") + data[len(data) // 2 :])
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    changed = tree(live, cache)
    # Checksums no longer match, so what was k77 is damage: it is reported, not hidden.
    handle = changed.lookup(path_of(b"k77")).open()
    assert handle.size > 0
    handle.close()


def test_another_log_of_the_same_inode(live, cache):
    look_up(live, cache)
    live.key_of = lambda offset: b"k%d" % (offset % 10)
    for base, count in zip(live.segments, (1500, 1500), strict=True):
        path = live.log(base)
        status = path.stat()
        values = {offset: value for offset, _, value in live.messages}
        data = b"".join(
            encode_batch(
                [Record(live.key_of(o), values[o], (), 10**12) for o in range(first, first + 50)], base_offset=first
            )
            for first in range(base, base + count, 50)
        )
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    look_up(live, cache, [b"k1", b"k9", b"k77"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_hide_nothing(live, cache, tmp_path, data):
    """Bits flipped, bytes missing or added, files exchanged."""
    good = tmp_path / "good"
    if not good.exists():
        look_up(live, cache)
        shutil.copytree(cache, good)
    shutil.rmtree(cache)
    shutil.copytree(good, cache)
    one, other = files(cache)
    content_of = bytearray(one.read_bytes())
    match data.draw(st.sampled_from(["flip", "cut", "add", "exchange", "empty"])):
        case "flip":
            for _ in range(data.draw(st.integers(1, 3))):
                content_of[data.draw(st.integers(0, len(content_of) - 1))] ^= 1 << data.draw(st.integers(0, 7))
            one.write_bytes(content_of)
        case "cut":
            one.write_bytes(content_of[: data.draw(st.integers(0, len(content_of) - 1))])
        case "add":
            one.write_bytes(bytes(content_of) + data.draw(st.binary(min_size=1, max_size=100)))
        case "exchange":
            one.write_bytes(other.read_bytes())
        case "empty":
            one.write_bytes(b"")
    is_changed = one.read_bytes() != (good / one.name).read_bytes()
    assert (look_up(live, cache, SAMPLE[:1]) > 0) == is_changed


def test_blocks_that_are_wrong_with_a_right_checksum(live, cache):
    """As a faulty version would write them: what does not fit together is not used."""
    look_up(live, cache)
    log = LogDir.open_read_only(live.path.parent).log(TopicPartition("t", 0))
    segment = log.snapshot().segments[0]
    store = KeyStore(cache, 1 << 20)
    good = store.load(segment)
    assert good is not None
    rng, status, key = random.Random(5), segment.log.stat(), file_key(segment, key_store._WHAT, grows=True)
    place = store._files.path(key)
    for row in range(key_blocks.KEY_COLUMNS):
        if row == key_blocks.KEYS:
            continue  # a number for people
        for _ in range(4):
            columns = good.columns.copy()
            # The end of the last block is where the next scan begins; it is compared with the file's size alone.
            columns[row, rng.randrange(len(good) - 1)] += rng.choice((-1, 1, 1000, -(2**40)))
            blocks = KeyBlocks(columns, good.words, good.names, good.secret)
            times = status.st_mtime_ns, status.st_ctime_ns
            place.write_bytes(key_store._encode_keys(key, blocks, status.st_size, *times))
            assert store.load(segment) is None
    assert store.save(segment, good)
    assert look_up(live, cache) == 0


def test_all_blocks_are_compared_with_a_file_that_has_changed(live, cache, monkeypatch):
    """Also if its size and mtime are those of then; one whose ctime is, too, has not changed."""
    monkeypatch.setattr(key_store, "_COMPARED", 1)
    monkeypatch.setattr(key_store, "_SETTLED_NS", 0)
    look_up(live, cache)
    segment = LogDir.open_read_only(live.path.parent).log(TopicPartition("t", 0)).snapshot().segments[0]
    store = KeyStore(cache, 1 << 20)
    good = store.load(segment)
    assert good is not None
    assert len(good) > 1
    columns = good.columns.copy()
    columns[key_blocks.CRC, -1] ^= 1
    status, key = segment.log.stat(), file_key(segment, key_store._WHAT, grows=True)
    times = status.st_mtime_ns, status.st_ctime_ns
    other = KeyBlocks(columns, good.words, good.names, good.secret)
    store._files.path(key).write_bytes(key_store._encode_keys(key, other, status.st_size, *times))
    assert store.load(segment) is not None
    live.log(live.segments[0]).chmod(0o600)
    live.log(live.segments[0]).chmod(0o644)
    assert store.load(segment) is None


def test_memory_is_limited(live, monkeypatch):
    log = LogDir.open_read_only(live.path.parent).log(TopicPartition("t", 0))
    index = KeyIndex(Workers(), None, kept_bytes=1)
    snapshot = log.snapshot()
    for segment in snapshot.segments * 2:
        index.find(snapshot, segment, b"k1", 0, snapshot.end_position(segment))
    assert index.status()["segments"] == 1
    assert index.status()["lookups"] == 4
    index = KeyIndex(Workers(), None)
    for segment in snapshot.segments:
        index.find(snapshot, segment, b"k1", 0, snapshot.end_position(segment))
    index = KeyIndex(Workers(), None, kept_bytes=index.status()["memory_bytes"] * 3 // 2)
    for segment in snapshot.segments * 2:  # what is forgotten no longer counts
        index.forget(segment)
        index.find(snapshot, segment, b"k1", 0, snapshot.end_position(segment))
    assert index.status()["segments"] == len(snapshot.segments) > 1


def test_bytes_of_a_key(live):
    """About ten bits for each distinct key of a block."""
    log = LogDir.open_read_only(live.path.parent).log(TopicPartition("t", 0))
    index, snapshot = KeyIndex(Workers(), None), log.snapshot()
    segment = snapshot.segments[0]
    index.find(snapshot, segment, b"k1", 0, segment.size)
    blocks = index._extended(snapshot, segment, segment.size)
    assert blocks.file_end == segment.size
    counted = [len({key_of(offset) for offset in range(first, last)}) for first, last in ranges_of(blocks, segment)]
    keys = blocks.columns[key_blocks.KEYS]
    assert (np.abs(keys / counted - 1) < 0.03).all()  # counted by a sketch
    assert 10 * blocks.keys <= 64 * len(blocks.words) <= 10 * blocks.keys + 64 * len(blocks)


def ranges_of(blocks, segment):
    first = blocks.columns[key_blocks.BASE_OFFSET].tolist()
    return list(zip(first, [*first[1:], 1500], strict=True))


def test_a_lookup_reads_little(live, cache, monkeypatch):
    """With the index only blocks that may hold the key are measured."""
    for module in (key_blocks, key_index):
        monkeypatch.setattr(module, "BLOCK_BYTES", 20_000)
    look_up(live, cache)
    looked = tree(live, cache)
    assert absent(looked, path_of(b"nobody"))
    before = looked.status()["view_index"]["scanned_bytes"]
    assert before < sum(live.log(base).stat().st_size for base in live.segments) / 8
    rare = [key for key in SAMPLE if expected(live, key)]
    assert content(looked, path_of(rare[0])) == expected(live, rare[0])

"""The key index: kept between mounts, never believed blindly. Whatever is on disk, no message is hidden."""

import os
import random
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafkafs.reading import blocks, collector, selection
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.workers import Workers
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.kafkafs.reading.kept_files import with_arrays
from tests.kafkafs.reading.test_damage import batches
from tests.kafkafs.reading.test_keys import absent, expected, path_of
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, scanned_bytes, tree_of
from tests.support.uncompiled import uncompiled

KEYS = 500
SAMPLE = [b"k%d" % number for number in (0, 3, 77, 499)]


def key_of(offset):
    return b"k%d" % (offset * 7919 % KEYS)


@pytest.fixture
def live(tmp_path):
    """A sealed segment and an active one, both above the size from which their index is kept."""
    log = LiveLog(tmp_path / "log", key_of=key_of)
    log.write_segments(1500, 1500, size=1000, batch=50)
    for path in log.path.glob("*.log"):
        os.utime(path, ns=(10**18, 10**18 + 1))  # long ago, so that the index is kept at once
    return log


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def tree(live, cache):
    return tree_of(live.path.parent, index_dir=cache, index_bytes=1 << 20)


def files(cache):
    return sorted(cache.glob("*.npz"))


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
    return looked.status()["key_index"]["scanned_bytes"]


def sizes(live):
    return [live.log(base).stat().st_size for base in live.segments]


def plain_kernel(monkeypatch):
    for module in (blocks, collector, selection):
        monkeypatch.setattr(module, "block_kernel", uncompiled("kafkafs.reading.block_kernel"))


def small_blocks(monkeypatch, size=20_000):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", size)


def test_it_is_kept_and_found_again(live, cache):
    assert look_up(live, cache) >= sum(sizes(live)) - blocks.BLOCK_BYTES
    assert len(files(cache)) == 2
    assert look_up(live, cache) == 0
    assert {path.stat().st_mode & 0o777 for path in files(cache)} == {0o600}


def test_both_forms_of_the_kernel_make_the_same_files(live, cache, monkeypatch):
    made = []
    for _ in range(2):
        shutil.rmtree(cache, ignore_errors=True)
        monkeypatch.setattr("secrets.randbits", random.Random(1).getrandbits)
        small_blocks(monkeypatch)
        look_up(live, cache)
        made.append([path.read_bytes() for path in files(cache)])
        plain_kernel(monkeypatch)
    assert made[0] == made[1]
    assert look_up(live, cache) == 0


def test_a_segment_that_has_grown_keeps_its_blocks(live, cache):
    look_up(live, cache)
    live.write(1500, size=1000, batch=50)
    assert 0 < look_up(live, cache) < sizes(live)[-1] - blocks.BLOCK_BYTES
    live.roll()
    live.write(10)
    assert look_up(live, cache) < sizes(live)[-2] - blocks.BLOCK_BYTES
    assert look_up(live, cache) == 0


def test_a_segment_that_was_cut_and_written_again(live, cache):
    """Its size may be any: the same, less, or more than what the index describes."""
    look_up(live, cache)
    kept = {path: path.read_bytes() for path in files(cache)}
    live.key_of = lambda offset: key_of(offset) if offset < 2000 else b"k%d" % (offset * 31 % KEYS)
    for count in (1000, 1010, 300, 3000):
        live.truncate(2000)
        live.write(count, size=1000, batch=50)
        for path, data in kept.items():
            path.write_bytes(data)
        look_up(live, cache)


def rewrite(path, change):
    """Other bytes in a file of the same size, times and inode, as of a topic that was made again."""
    status, data = path.stat(), path.read_bytes()
    with path.open("r+b") as file:
        file.write(change(data))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size


def test_damage_in_a_file_of_the_same_size_and_times(live, cache):
    look_up(live, cache)
    for base in live.segments:
        rewrite(live.log(base), lambda data: data[: len(data) // 2].replace(b"k77", b"k78") + data[len(data) // 2 :])
    handle = tree(live, cache).lookup(path_of(b"k77")).open()
    assert handle.size > 0  # checksums no longer match: it is reported, not hidden
    handle.close()


@pytest.mark.parametrize("changed", [range(0, 3000, 50), [850]], ids=["all batches", "one of 60"])
def test_other_messages_in_a_file_of_the_same_size_and_times(live, cache, changed, monkeypatch):
    """A file's ctime tells that it has changed; then all blocks are compared, by the batches that they begin with."""
    small_blocks(monkeypatch)
    look_up(live, cache)
    live.key_of = lambda offset: b"u%s" % key_of(offset)[1:] if offset - offset % 50 in changed else key_of(offset)
    values = {offset: (stamp, value) for offset, stamp, value in live.messages}
    for first in changed:
        records = [Record(live.key_of(o), values[o][1], (), values[o][0]) for o in range(first, first + 50)]
        path = live.log(max(base for base in live.segments if base <= first))
        at = batches(path)[(first - int(path.stem)) // 50][0]
        data = encode_batch(records, base_offset=first)
        rewrite(path, lambda whole, at=at, data=data: whole[:at] + data + whole[at + len(data) :])
    look_up(live, cache, [b"k0", b"k77", b"u0", b"u77", b"u%s" % key_of(860)[1:]])


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
    found = bytearray(one.read_bytes())
    match data.draw(st.sampled_from(["flip", "cut", "add", "exchange"])):
        case "flip":
            for _ in range(data.draw(st.integers(1, 3))):
                found[data.draw(st.integers(0, len(found) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        case "cut":
            del found[data.draw(st.integers(0, len(found) - 1)) :]
        case "add":
            found += data.draw(st.binary(min_size=1, max_size=100))
        case "exchange":
            found[:] = other.read_bytes()
    one.write_bytes(found)
    is_changed = found != (good / one.name).read_bytes()
    assert (look_up(live, cache, SAMPLE[:1]) > 0) == is_changed


@pytest.mark.parametrize("difference", [-1, 1, 1000, -(2**40)])
@pytest.mark.parametrize(
    "row", [blocks.POSITION, blocks.FILE_END, blocks.BASE_OFFSET, blocks.CRC, blocks.FIRST, blocks.WORDS]
)
def test_blocks_that_are_wrong_with_a_right_checksum(live, cache, row, difference):
    """As a faulty version would write them: what does not fit together is not used."""
    look_up(live, cache)

    def change(arrays):
        # The end of the last block is where the next scan begins; it is compared with the file's size alone.
        arrays["blocks"][row, 0] += difference

    for path in files(cache):
        path.write_bytes(with_arrays(path, change))
    assert look_up(live, cache) >= sum(sizes(live)) - blocks.BLOCK_BYTES


def test_memory_is_limited(live):
    log = LogDir.open_read_only(live.path.parent).log(TopicPartition("t", 0))
    snapshot = log.snapshot()

    def looked_up(kept_bytes, *, forgetting=False):
        index = BlockIndex(Workers(), None, kept_bytes)
        for segment in snapshot.segments * 2:
            if forgetting:  # what is forgotten no longer counts
                index.forget(segment)
            index.find(snapshot, segment, b"k1", 0, snapshot.end_position(segment))
        return index.status()[1]

    assert (looked_up(1)["segments"], looked_up(1)["lookups"]) == (1, 4)
    whole = looked_up(1 << 20)
    assert whole["segments"] == 2
    assert looked_up(whole["memory_bytes"] * 3 // 2, forgetting=True)["segments"] == 2


@pytest.mark.parametrize("form", ["built", "plain"])
@pytest.mark.parametrize("distinct", [[4000, 4000, 4000], [4000, 1, 2900], [4000, 3700, 1000], [1]])
def test_filters(tmp_path, monkeypatch, form, distinct):
    """Ten bits for each distinct key of a block, which one in a hundred of other keys passes, whatever keys the block
    before has; none of its keys is denied."""
    monkeypatch.setattr("secrets.randbits", random.Random(1).getrandbits)
    if form == "plain":
        plain_kernel(monkeypatch)
    small_blocks(monkeypatch, 100_000)
    live = LiveLog(tmp_path / "log", key_of=lambda n: b"user-%d-%d" % (n // 4000, n % 4000 % distinct[n // 4000]))
    live.write(4000 * len(distinct), batch=4000)
    live.roll()
    snapshot = LogDir.open_read_only(tmp_path / "log").log(TopicPartition("t", 0)).snapshot()
    segment, index = snapshot.segments[0], BlockIndex(Workers(), None)
    index.find(snapshot, segment, b"", 0, segment.size)
    status, total = index.status()[1], sum(distinct)
    assert abs(status["keys"] / total - 1) < 0.02  # counted by a sketch
    words = (status["memory_bytes"] - 8 * blocks.COLUMNS * len(distinct)) // 8
    assert 0.98 * 10 * total <= 64 * words <= 1.1 * 10 * total + 128 * len(distinct)

    def blocks_of(key):
        stretches = index.find(snapshot, segment, key, 0, segment.size).stretches
        return sum((end - start) // 200_000 for start, end in stretches)  # a block has 250 kB

    for block, keys in enumerate(distinct):
        assert all(blocks_of(b"user-%d-%d" % (block, key)) for key in range(0, keys, 7))
    if form == "built" and total > 10_000:
        passed = sum(blocks_of(b"user-%d-x" % number) for number in range(10_000))
        assert 0.006 < passed / 10_000 / len(distinct) < 0.014  # in theory 0.0094


def test_a_lookup_reads_little(live, cache, monkeypatch):
    """With the index only blocks that may hold the key are measured."""
    small_blocks(monkeypatch)
    look_up(live, cache)
    looked = tree(live, cache)
    assert absent(looked, path_of(b"nobody"))
    assert scanned_bytes(looked) < sum(sizes(live)) / 8
    rare = next(key for key in SAMPLE if expected(live, key))
    assert content(looked, path_of(rare)) == expected(live, rare)

"""Damaged logs: the errno's error at the damaged place, right bytes everywhere else."""

import random
import struct

import pytest

from storage.errors import CorruptBatch, UnsupportedFormat
from storage.format.compression import Codec
from tests.support.damaged_bytes import overwrite, with_right_checksums
from tests.support.live_log import START_MS, LiveLog
from tests.support.readers import table_of
from tests.support.reference_views import content, readable, tree_of

PER_BATCH = 10


@pytest.fixture
def live(tmp_path):
    """Three segments of ten batches of ten messages."""
    log = LiveLog(tmp_path / "log")
    log.write_segments(*[100] * 2, 100, batch=PER_BATCH)
    return log


def batches(path):
    """Start and end of each batch."""
    table = table_of(path.read_bytes())
    return list(zip(table.position.tolist(), table.end.tolist(), strict=True))


def part(live, first, last):
    return live.text(lambda offset, _: first <= offset < last)


def check(tree, path, stretches, kind=CorruptBatch):
    """The readable stretches around one error of a file of `t/0`."""
    for step in (1, 37, 4096, 1 << 20):
        found, (error,) = readable(tree.lookup(f"/t/0/{path}"), step)
        assert found == stretches, step
        assert isinstance(error, kind)
    return error


def test_a_wrong_crc_takes_the_place_of_its_messages(live):
    start, end = batches(live.log(100))[4]
    overwrite(live.log(100), end - 3, b"\0")
    tree = tree_of(live.path.parent)
    error = check(tree, "messages.txt", [part(live, 0, 140), part(live, 150, 300)])
    assert tree.lookup("/t/0/messages.txt").attributes().size == len(live.text())
    assert (error.path, error.position, error.offset) == (live.log(100), start, 140)
    check(tree, "offsets/120-155.txt", [part(live, 120, 140), part(live, 150, 156)])
    check(tree, f"time/{START_MS}--.txt", [part(live, 0, 140), part(live, 150, 300)])
    assert content(tree, "/t/0/offsets/100-139.txt") == part(live, 100, 140)
    assert content(tree, "/t/0/offsets/150-.txt") == part(live, 150, 300)
    raw = b"".join(live.log(base).read_bytes() for base in live.segments)
    assert content(tree, "/t/0/messages.log") == raw


@pytest.mark.parametrize("indexed", [False, True])
def test_a_range_that_cuts_the_damaged_batch(live, indexed):
    _, end = batches(live.log(0))[4]
    overwrite(live.log(0), end - 3, b"\0")
    tree = tree_of(live.path.parent)
    if indexed:
        tree.lookup("/t/0/messages.txt").open().close()
    check(tree, "offsets/45-60.txt", [b"", part(live, 50, 61)])
    check(tree, "offsets/30-44.txt", [part(live, 30, 40), b""])


@pytest.mark.parametrize(
    ("at", "byte", "kind"),
    [(61, 0xFF, CorruptBatch), (22, 7, UnsupportedFormat)],
    ids=["the first record's length", "an unknown codec"],
)
def test_what_cannot_be_parsed_takes_one_byte(live, at, byte, kind):
    start, _ = batches(live.log(0))[7]
    data = bytearray(live.log(0).read_bytes())
    data[start + at] |= byte
    live.log(0).write_bytes(with_right_checksums(bytes(data)))
    tree = tree_of(live.path.parent)
    check(tree, "messages.txt", [part(live, 0, 70), part(live, 80, 300)], kind)
    assert tree.lookup("/t/0/messages.txt").attributes().size == len(live.text()) - len(part(live, 70, 80)) + 1


@pytest.mark.parametrize("length", [0, -1, 13, 2**31 - 1])
def test_a_header_of_impossible_length_costs_the_rest_of_the_segment(live, length):
    start, _ = batches(live.log(100))[5]
    overwrite(live.log(100), start + 8, struct.pack(">i", length))
    tree = tree_of(live.path.parent)
    check(tree, "messages.txt", [part(live, 0, 150), part(live, 200, 300)])
    check(tree, "offsets/110-250.txt", [part(live, 110, 150), part(live, 200, 251)])
    assert content(tree, "/t/0/offsets/0-149.txt") == part(live, 0, 150)
    assert content(tree, "/t/0/offsets/200-.txt") == part(live, 200, 300)


def test_an_unknown_magic_is_an_unsupported_format(live):
    start, _ = batches(live.log(100))[5]
    overwrite(live.log(100), start + 16, b"\x09")
    stretches, errors = readable(tree_of(live.path.parent).lookup("/t/0/messages.txt"))
    assert stretches[0] == part(live, 0, 150)
    assert stretches[-1].endswith(part(live, 200, 300))
    assert isinstance(errors[0], UnsupportedFormat)


def test_a_torn_end_is_damage_in_an_older_segment_alone(live):
    for base in (0, 200):
        data = live.log(base).read_bytes()
        live.log(base).write_bytes(data[:-10])
    check(tree_of(live.path.parent), "messages.txt", [part(live, 0, 90), part(live, 100, 290)])


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_damage_under_a_right_crc(tmp_path, codec):
    live = LiveLog(tmp_path / "log", codec)
    live.write(100, size=200, batch=PER_BATCH)
    live.roll()
    start, end = batches(live.log(0))[3]
    data = bytearray(live.log(0).read_bytes())
    data[start + 61 + 20 : end] = bytes(end - start - 81)
    live.log(0).write_bytes(with_right_checksums(bytes(data)))
    check(tree_of(live.path.parent), "messages.txt", [part(live, 0, 30), part(live, 40, 100)])


def test_damage_in_what_is_read_ahead_does_not_stop_the_workers(live):
    _, end = batches(live.log(0))[4]
    overwrite(live.log(0), end - 3, b"\0")
    tree = tree_of(live.path.parent)
    tree.start()
    try:
        for _ in range(3):
            check(tree, "messages.txt", [part(live, 0, 40), part(live, 50, 300)])
        assert content(tree, "/t/0/offsets/50-.txt") == part(live, 50, 300)
    finally:
        tree.stop()


# Where in a batch's header something is written, what, and which of the batch's two times then still are in it.
SPOILED = {
    "a greater last offset": (23, struct.pack(">i", 1000), slice(2)),
    "checksum": (17, b"bad!", slice(2)),
    "length": (8, struct.pack(">i", 0), slice(2)),
    "first time": (27, b"\x40", slice(1, 2)),
    "greatest time": (35, b"\x40", slice(1)),
}


@pytest.mark.parametrize("spoiled", SPOILED)
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_batch_shows_in_time_ranges_of_its_messages(tmp_path, spoiled, seed):
    """Segments of one to three batches, the times of batches in any order; one or two batches are damaged."""
    dice = random.Random(seed)
    live = LiveLog(tmp_path / "log")
    times = {}  # of a batch, by where it begins
    for _ in range(dice.randint(1, 4)):
        for _ in range(dice.randint(1, 3)):
            first = START_MS + 1000 * dice.randrange(8)
            path = live.log(live.segments[-1])
            times[path, path.stat().st_size] = first, first + 500
            live.append(b"a", b"b", timestamps=[first, first + 500])
        live.roll()
    live.append(b"the last", timestamps=[START_MS + 1000 * dice.randrange(8)])
    damaged = dice.sample(sorted(times), min(len(times), dice.randint(1, 2)))
    at, data, left = SPOILED[spoiled]
    for path, start in damaged:
        overwrite(path, start + at, data)
    tree = tree_of(live.path.parent)
    for indexed in (False, True):
        if indexed:
            tree.lookup("/t/0/messages.txt").open().close()
        for path, start in damaged:
            for stamp in times[path, start][left]:
                for name in (f"{stamp}--{stamp + 1}", f"{stamp}--", f"until-{stamp + 1}"):
                    _, errors = readable(tree.lookup(f"/t/0/time/{name}.txt"))
                    assert errors, (indexed, path.name, start, name)
                    raw = content(tree, f"/t/0/time/{name}.log")
                    assert path.read_bytes()[start : start + 61] in raw, (indexed, path.name, start, name)


def test_damage_belongs_to_the_ranges_that_touch_its_block_and_to_no_others(tmp_path):
    """An hour a segment of ten batches of half a MiB; a batch in the middle of the second hour has lost its content."""
    live = LiveLog(tmp_path / "log")
    hour, minute = 3_600_000, 60_000
    for number in range(3):
        for part in range(10):
            first = START_MS + number * hour + part * 6 * minute
            live.append(*(b"x" * (60 << 10) for _ in range(9)), timestamps=[first + row for row in range(9)])
        live.roll()
    live.append(b"the last", timestamps=[START_MS + 3 * hour])
    path = live.log(live.segments[1])
    start, end = batches(path)[5]
    overwrite(path, start + 17, bytes(end - start - 17))
    touched = START_MS + hour + 24 * minute, START_MS + hour + 36 * minute + 8  # of the batches around it
    tree = tree_of(live.path.parent)
    for _ in range(2):  # before and after the segment is measured
        for first in range(START_MS - minute, START_MS + 3 * hour, 10 * minute):
            for last in (first + 10 * minute, first + hour):
                _, errors = readable(tree.lookup(f"/t/0/time/{first}--{last}.txt"), 1 << 20)
                assert len(errors) == (first <= touched[1] and last > touched[0]), (first, last)
                raw = content(tree, f"/t/0/time/{first}--{last}.log", 1 << 20)
                assert (bytes(1000) in raw) == bool(errors), (first, last)
        tree.lookup("/t/0/messages.txt").open().close()

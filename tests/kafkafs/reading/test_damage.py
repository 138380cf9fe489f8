"""Damaged logs: the errno's error at the damaged place, right bytes everywhere else."""

from __future__ import annotations

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
    for _ in range(2):
        log.write(100, batch=PER_BATCH)
        log.roll()
    log.write(100, batch=PER_BATCH)
    return log


def batches(path):
    """Start and end of each batch."""
    table = table_of(path.read_bytes())
    return list(zip(table.position.tolist(), table.end.tolist(), strict=True))


def part(live, first, last):
    return live.text(lambda offset, _: first <= offset < last)


def check(tree, path, stretches, kind):
    for step in (1, 37, 4096, 1 << 20):
        found, errors = readable(tree.lookup(path), step)
        assert found == stretches, step
        assert len(errors) == 1
        assert isinstance(errors[0], kind)
    return errors[0]


def test_a_wrong_crc_takes_the_place_of_its_messages(live):
    start, end = batches(live.log(100))[4]
    overwrite(live.log(100), end - 3, b"\0")
    tree = tree_of(live.path.parent)
    size = len(live.text())
    error = check(tree, "/t/0/messages.txt", [part(live, 0, 140), part(live, 150, 300)], CorruptBatch)
    assert tree.lookup("/t/0/messages.txt").attributes().size == size
    assert (error.path, error.position, error.offset) == (live.log(100), start, 140)
    check(tree, "/t/0/offsets/120-155.txt", [part(live, 120, 140), part(live, 150, 156)], CorruptBatch)
    check(tree, f"/t/0/time/{START_MS}--.txt", [part(live, 0, 140), part(live, 150, 300)], CorruptBatch)
    assert content(tree, "/t/0/offsets/100-139.txt") == part(live, 100, 140)
    assert content(tree, "/t/0/offsets/150-.txt") == part(live, 150, 300)
    raw = b"".join(live.log(base).read_bytes() for base in live.segments)
    assert content(tree, "/t/0/messages.log") == raw


def test_a_range_that_cuts_the_damaged_batch(live):
    _, end = batches(live.log(0))[4]
    overwrite(live.log(0), end - 3, b"\0")
    tree = tree_of(live.path.parent)
    for indexed in (False, True):
        if indexed:
            tree.lookup("/t/0/messages.txt").open().close()
        check(tree, "/t/0/offsets/45-60.txt", [b"", part(live, 50, 61)], CorruptBatch)
        check(tree, "/t/0/offsets/30-44.txt", [part(live, 30, 40), b""], CorruptBatch)


def test_records_that_do_not_parse_take_one_byte(live):
    start, _ = batches(live.log(0))[7]
    data = bytearray(live.log(0).read_bytes())
    data[start + 61] = 0xFF  # the first record's length
    live.log(0).write_bytes(with_right_checksums(bytes(data)))
    tree = tree_of(live.path.parent)
    check(tree, "/t/0/messages.txt", [part(live, 0, 70), part(live, 80, 300)], CorruptBatch)
    assert tree.lookup("/t/0/messages.txt").attributes().size == len(live.text()) - len(part(live, 70, 80)) + 1


def test_an_unknown_codec_is_an_unsupported_format(live):
    start, _ = batches(live.log(0))[2]
    data = bytearray(live.log(0).read_bytes())
    data[start + 22] |= 7
    live.log(0).write_bytes(with_right_checksums(bytes(data)))
    check(tree_of(live.path.parent), "/t/0/messages.txt", [part(live, 0, 20), part(live, 30, 300)], UnsupportedFormat)


@pytest.mark.parametrize("length", [0, -1, 13, 2**31 - 1])
def test_a_header_of_impossible_length_costs_the_rest_of_the_segment(live, length):
    start, _ = batches(live.log(100))[5]
    overwrite(live.log(100), start + 8, struct.pack(">i", length))
    tree = tree_of(live.path.parent)
    check(tree, "/t/0/messages.txt", [part(live, 0, 150), part(live, 200, 300)], CorruptBatch)
    check(tree, "/t/0/offsets/110-250.txt", [part(live, 110, 150), part(live, 200, 251)], CorruptBatch)
    assert content(tree, "/t/0/offsets/0-149.txt") == part(live, 0, 150)
    assert content(tree, "/t/0/offsets/200-.txt") == part(live, 200, 300)


def test_an_unknown_magic_is_an_unsupported_format(live):
    start, _ = batches(live.log(100))[5]
    overwrite(live.log(100), start + 16, b"\x09")
    stretches, errors = readable(tree_of(live.path.parent).lookup("/t/0/messages.txt"))
    assert stretches[0] == part(live, 0, 150)
    assert stretches[-1].endswith(part(live, 200, 300))
    assert isinstance(errors[0], UnsupportedFormat)


def test_a_torn_older_segment(live):
    start, end = batches(live.log(0))[9]
    data = live.log(0).read_bytes()
    live.log(0).write_bytes(data[: end - 10])
    check(tree_of(live.path.parent), "/t/0/messages.txt", [part(live, 0, 90), part(live, 100, 300)], CorruptBatch)
    assert start < end


def test_a_torn_tail_is_not_shown(live):
    data = live.log(200).read_bytes()
    live.log(200).write_bytes(data[:-10])
    assert content(tree_of(live.path.parent), "/t/0/messages.txt") == part(live, 0, 290)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_damage_under_a_right_crc(tmp_path, codec):
    live = LiveLog(tmp_path / "log", codec)
    live.write(100, size=200, batch=PER_BATCH)
    live.roll()
    start, end = batches(live.log(0))[3]
    data = bytearray(live.log(0).read_bytes())
    data[start + 61 + 20 : end] = bytes(end - start - 81)
    live.log(0).write_bytes(with_right_checksums(bytes(data)))
    check(tree_of(live.path.parent), "/t/0/messages.txt", [part(live, 0, 30), part(live, 40, 100)], CorruptBatch)


def test_damage_in_what_is_read_ahead_does_not_stop_the_workers(live):
    _, end = batches(live.log(0))[4]
    overwrite(live.log(0), end - 3, b"\0")
    tree = tree_of(live.path.parent)
    tree.start()
    try:
        for _ in range(3):
            check(tree, "/t/0/messages.txt", [part(live, 0, 40), part(live, 50, 300)], CorruptBatch)
        assert content(tree, "/t/0/offsets/50-.txt") == part(live, 50, 300)
    finally:
        tree.stop()


def _raise_last_offset(path, start):
    overwrite(path, start + 23, struct.pack(">i", 1000))


def _spoil_checksum(path, start):
    overwrite(path, start + 17, b"bad!")


def _spoil_length(path, start):
    overwrite(path, start + 8, struct.pack(">i", 0))


def _spoil_first_time(path, start):
    overwrite(path, start + 27, b"\x40")


def _spoil_greatest_time(path, start):
    overwrite(path, start + 35, b"\x40")


@pytest.mark.parametrize(
    "spoil", [_raise_last_offset, _spoil_checksum, _spoil_length, _spoil_first_time, _spoil_greatest_time]
)
@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_batch_shows_in_time_ranges_of_its_messages(tmp_path, spoil, seed):
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
    for path, start in damaged:
        spoil(path, start)
    tree = tree_of(live.path.parent)
    for indexed in (False, True):
        if indexed:
            tree.lookup("/t/0/messages.txt").open().close()
        for path, start in damaged:
            left = {_spoil_first_time: slice(1, 2), _spoil_greatest_time: slice(1)}.get(spoil, slice(2))
            for stamp in times[path, start][left]:
                for name in (f"{stamp}--{stamp + 1}", f"{stamp}--", f"until-{stamp + 1}"):
                    _, errors = readable(tree.lookup(f"/t/0/time/{name}.txt"))
                    assert errors, (indexed, path.name, start, name)
                    raw = content(tree, f"/t/0/time/{name}.log")
                    assert path.read_bytes()[start : start + 61] in raw, (indexed, path.name, start, name)

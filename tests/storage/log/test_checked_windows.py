"""Large windows of batches whose CRCs have been checked."""

from __future__ import annotations

import os
import random

import pytest

from storage.errors import SegmentGone
from storage.files.log_file import LogFile
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from storage.log import segment_check as module
from storage.log.segment_check import checked_windows

WINDOW = 1024
FEW_ROWS = 3  # a window has some seven batches
MAGIC_AT = 16


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch):
    monkeypatch.setattr(module, "_WINDOW_BYTES", WINDOW)
    monkeypatch.setattr(module, "_FEW_ROWS", FEW_ROWS)


def batch(offset, value):
    return encode_batch([Record(None, value, (), 1_000 + offset)], base_offset=offset)


def batches(values):
    return b"".join(batch(offset, value) for offset, value in enumerate(values))


def rows_of(window, rows):
    table = window.table
    return [(int(table.position[row]), int(table.size[row]), int(table.last_offset[row])) for row in range(rows)]


def read(tmp_path, content):
    """Position, size and last offset of the sound batches, and whether what ends them is a wrong CRC."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    seen = []
    for window in checked_windows(LogFile(path), len(content), 0):
        # The bytes belong to the headers.
        for row in range(window.rows):
            at = int(window.table.position[row]) - window.origin
            assert int.from_bytes(window.data[at + 8 : at + 12]) + 12 == window.table.size[row]
        seen += rows_of(window, window.rows)
        if window.rows < window.table.rows:
            return seen, True
    return seen, False


def values(count):
    rng = random.Random(7)
    return [rng.randbytes(rng.randrange(100)) for _ in range(count)]


def test_more_batches_in_a_window_than_rows_in_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_ROWS", 5)
    seen, wrong = read(tmp_path, batches(values(300)))
    assert [last for _, _, last in seen] == list(range(300))
    assert not wrong


def test_batches_larger_than_a_window(tmp_path):
    large = [value * (60 if number % 9 == 0 else 1) for number, value in enumerate(values(120))]
    seen, wrong = read(tmp_path, batches(large))
    assert len(seen) == 120
    assert not wrong


def test_values_that_are_batches(tmp_path):
    """What the search finds inside of a value is sound in itself, and not in the log."""
    copies = [batches(values(number % 40)) for number in range(60)]
    seen, wrong = read(tmp_path, batches(copies))
    assert [last for _, _, last in seen] == list(range(60))
    assert not wrong


@pytest.mark.parametrize(("magic", "sound"), [(3, 200), (127, 200), (128, 100), (255, 100)])
def test_an_unknown_magic_is_read_as_v2(tmp_path, magic, sound):
    """From 128 on a broker has a number below 0 in its signed byte, and looks for the CRC of an old message."""
    content = bytearray(batches(values(200)))
    hundredth = sum(len(batch(offset, value)) for offset, value in enumerate(values(200)[:100]))
    content[hundredth + MAGIC_AT] = magic
    seen, wrong = read(tmp_path, bytes(content))
    assert [last for _, _, last in seen] == list(range(sound))
    assert not wrong


@pytest.mark.parametrize("seed", range(40))
def test_damage(tmp_path, seed):
    rng = random.Random(seed)
    content = bytearray(batches([rng.randbytes(rng.choice((10, 200, 3_000))) for _ in range(80)]))
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(content))
        content[at : at + rng.choice((1, 1, 500))] = rng.randbytes(rng.choice((1, 1, 300)))
    if rng.randrange(2):
        del content[rng.randrange(len(content)) :]
    seen, _ = read(tmp_path, bytes(content))
    ends = [position + size for position, size, _ in seen]
    assert [position for position, _, _ in seen] == [0, *ends][: len(seen)]


def test_a_file_that_goes(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    content = batches(values(400))
    path.write_bytes(content)
    windows = checked_windows(LogFile(path), len(content), 0)
    next(windows)
    path.unlink()
    with pytest.raises(SegmentGone):
        list(windows)


def test_a_file_that_shrinks(tmp_path):
    path = tmp_path / "00000000000000000000.log"
    content = batches(values(400))
    path.write_bytes(content)
    windows = checked_windows(LogFile(path), len(content), 0)
    first = next(windows)
    last = int(first.table.last_offset[-1])
    os.truncate(path, first.end)
    rest = [number for window in windows for number in window.table.last_offset[: window.rows].tolist()]
    # What was read before is still given, and no more than there was.
    assert rest == list(range(last + 1, last + 1 + len(rest)))


def test_a_log_that_is_cut_while_it_is_read_ends_there(tmp_path):
    """Not read for ever: a batch that the file has lost the end of never becomes whole."""
    content = batch(0, b"v" * 200)
    (tmp_path / "log").write_bytes(content[:100])
    windows = checked_windows(LogFile(tmp_path / "log"), len(content), 0)
    assert list(windows) == []

"""Large windows of batches whose CRCs have been checked."""

import os
import random

import pytest

from storage.errors import SegmentGone
from storage.files.log_file import LogFile
from storage.format.block import Record
from storage.format.record_batch import encode_batch
from storage.log import segment_check
from storage.log.segment_check import checked_windows

WINDOW = 1024  # has some seven batches


@pytest.fixture
def small_windows(monkeypatch):
    monkeypatch.setattr(segment_check, "WINDOW_BYTES", WINDOW)


def batch(offset, value):
    return encode_batch([Record(None, value, (), 1_000 + offset)], base_offset=offset)


def batches(values):
    return b"".join(batch(offset, value) for offset, value in enumerate(values))


def values(count):
    rng = random.Random(7)
    return [rng.randbytes(rng.randrange(100)) for _ in range(count)]


def read(tmp_path, content, size=None):
    """Of the sound batches position, size and last offset, and whether what ends them is a wrong CRC."""
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(content)
    seen = []
    for window in checked_windows(LogFile(path), size or len(content), 0):
        table = window.table
        for row in range(window.rows):
            at = int(table.position[row]) - window.origin
            assert int.from_bytes(window.data[at + 8 : at + 12]) + 12 == table.size[row]
        columns = (column[: window.rows].tolist() for column in (table.position, table.size, table.last_offset))
        seen += zip(*columns, strict=True)
        if window.rows < table.rows:
            return seen, True
    return seen, False


def test_more_batches_in_a_window_than_rows_in_the_table(tmp_path):
    """Windows of the usual size, full of the smallest batches: more than 65,536 in each."""
    one, count = batch(0, b""), 3 * segment_check.WINDOW_BYTES // 70
    seen, wrong = read(tmp_path, b"".join(number.to_bytes(8) + one[8:] for number in range(count)))
    assert [last for _, _, last in seen] == list(range(count))
    assert not wrong


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize(
    "content",
    [
        [value * (60 if number % 9 == 0 else 1) for number, value in enumerate(values(120))],  # larger than a window
        [batches(values(number % 40)) for number in range(60)],  # values that are batches, which count for nothing
    ],
    ids=["large batches", "batches in values"],
)
def test_whole_batches(tmp_path, content):
    seen, wrong = read(tmp_path, batches(content))
    assert [last for _, _, last in seen] == list(range(len(content)))
    assert not wrong


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize(("magic", "sound"), [(3, 200), (127, 200), (128, 100), (255, 100)])
def test_an_unknown_magic_is_read_as_v2(tmp_path, magic, sound):
    """From 128 on a broker has a number below 0 in its signed byte, and looks for the CRC of an old message."""
    content = bytearray(batches(values(200)))
    content[len(batches(values(200)[:100])) + 16] = magic
    seen, wrong = read(tmp_path, bytes(content))
    assert [last for _, _, last in seen] == list(range(sound))
    assert not wrong


@pytest.mark.usefixtures("small_windows")
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


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("goes", [True, False])
def test_a_file_that_goes_or_shrinks(tmp_path, goes):
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(batches(values(400)))
    windows = checked_windows(LogFile(path), path.stat().st_size, 0)
    first = next(windows)
    if goes:
        path.unlink()
        with pytest.raises(SegmentGone):
            list(windows)
        return
    last = int(first.table.last_offset[-1])
    os.truncate(path, first.end)
    rest = [number for window in windows for number in window.table.last_offset[: window.rows].tolist()]
    # What was read before is still given, and no more than there was.
    assert rest == list(range(last + 1, last + 1 + len(rest)))
    assert len(rest) < 100


@pytest.mark.usefixtures("small_windows")
def test_a_log_that_is_cut_while_it_is_read_ends_there(tmp_path):
    """Not read for ever: a batch that the file has lost the end of never becomes whole."""
    content = batch(0, b"v" * 200)
    assert read(tmp_path, content[:100], len(content)) == ([], False)

"""Writes that are refused in part, as the kernel hands them on: one write(2) comes as several requests, and only the
first one's error reaches the caller."""

import errno
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kafkafs.writing import line_writer
from kafkafs.writing.line_parsers import parse_txt
from kafkafs.writing.line_writer import LineWriter
from storage.errors import InvalidRecord, RecordTooLarge, StorageError
from tests.kafkafs.writing.written_lines import Kept

REQUEST_BYTES = 12
CUT_BYTES = 8  # what the first request of a cut write(2) has at least
LIMIT = 20


@pytest.fixture(autouse=True, scope="module")
def _small_requests():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_writer, "CUT_BYTES", CUT_BYTES)
        yield


class Kernel:
    """What write(2) makes of a writer: requests, the first of which may be smaller by where the buffer begins."""

    def __init__(self, writer, first=lambda: REQUEST_BYTES):
        self.writer = writer
        self._first = first

    def write(self, data):
        done, size = 0, self._first()
        while done < len(data):
            part = data[done : done + size]
            try:
                taken = self.writer.write(memoryview(part))
            except (StorageError, OSError):
                if done:
                    return done
                raise
            done += taken
            if taken < len(part):
                break
            size = REQUEST_BYTES
        return done


def write_all(kernel, data):
    """As cat and dd do: the rest of a short count is written again. What was left when an error came; b"" if none."""
    while data:
        try:
            data = data[kernel.write(data) :]
        except (StorageError, OSError):
            break
    return data


def is_bad(line):
    return line.startswith(b"BAD") or len(line) > LIMIT


def lines_of_all_kinds():
    """Each line is another one."""
    kinds = st.lists(st.tuples(st.sampled_from(["good", "good", "good", "bad", "overlong"]), st.integers(0, 60)))

    def named(drawn):
        lines = []
        for number, (kind, size) in enumerate(drawn):
            name = b"%d:" % number
            if kind == "good":
                lines.append((name + b"g" * size)[:LIMIT])
            elif kind == "bad":
                lines.append((b"BAD" + name + b"b" * size)[:LIMIT])
            else:
                lines.append(name + b"x" * (LIMIT + size))
        return lines

    return kinds.map(named)


def kernel_of(kept, data):
    writer = LineWriter(kept, parse_txt)
    return Kernel(writer, lambda: data.draw(st.integers(CUT_BYTES, REQUEST_BYTES)))


@settings(max_examples=200)
@given(lines_of_all_kinds(), st.data())
def test_callers_that_stop_at_an_error(lines, data):
    """Exactly what precedes the bad line is appended, and nothing more comes when the file is closed."""
    kept = Kept(LIMIT)
    kernel = kernel_of(kept, data)
    left = write_all(kernel, b"".join(line + b"\n" for line in lines))
    expected = list(itertools.takewhile(lambda line: not is_bad(line), lines))
    assert kept.values == expected
    assert bool(left) == (len(expected) < len(lines))
    if left:
        with pytest.raises((InvalidRecord, RecordTooLarge)):
            kernel.writer.write(left[:REQUEST_BYTES])  # whoever tries again sees the same
    kernel.writer.sync()  # all is told
    kernel.writer.close()
    assert kept.values == expected


@given(lines_of_all_kinds().filter(bool), st.data())
@example([b"BAD", b"next", b"third"], None)
def test_callers_that_leave_out_what_is_bad(lines, data):
    """After an error they go on behind the next newline of what was left."""
    kept = Kept(LIMIT)
    kernel = Kernel(LineWriter(kept, parse_txt)) if data is None else kernel_of(kept, data)
    left = b"".join(line + b"\n" for line in lines)
    refused = []
    while left := write_all(kernel, left):
        line, _, left = left.partition(b"\n")
        refused.append(line)
    good = [line for line in lines if not is_bad(line)]
    # An error that may have been dropped comes twice: the second is taken for that of the line after it.
    assert [line for line in good if line in kept.values or line in refused] == good
    assert [line for line in kept.values if line not in good] == []
    assert len(kept.values) == len(set(kept.values))
    if all(len(line) + 1 < CUT_BYTES for line in lines):
        assert kept.values == good


def test_a_short_count_tells_nobody_why():
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    assert writer.write(b"a\nBAD\n") == 2
    with pytest.raises(InvalidRecord):
        writer.write(b"c\n")
    assert writer.write(b"c\n") == 2
    assert writer.write(b"d\nBAD\n") == 2
    with pytest.raises(InvalidRecord):
        writer.sync()
    assert kept.synced == 1  # what is appended is on disk all the same
    writer.sync()
    assert writer.write(b"e\n") == 2
    assert writer.write(b"f\nBAD\n") == 2
    with pytest.raises(InvalidRecord):
        writer.close()
    assert kept.values == [b"a", b"c", b"d", b"e", b"f"]


def test_fsync_after_a_full_disk_says_so_and_forgets_nothing():
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    writer.write(b"thr")
    kept.failure = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        writer.write(b"ee\nfour\n")
    kept.failure = None
    for _ in range(2):
        with pytest.raises(OSError, match="full"):
            writer.sync()
    assert kept.values == []
    assert writer.write(b"ee\nfour\n") == 8
    writer.sync()
    assert kept.values == [b"three", b"four"]


def test_a_sync_ends_the_line_within_which_a_refused_write_ended():
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    with pytest.raises(InvalidRecord):
        writer.write(b"BAD\nthi")
    writer.sync()  # `thi` is over: what comes next is not its rest
    assert writer.write(b"four") == 4
    assert writer.write(b"th\n") == 3
    assert kept.values == [b"fourth"]


def test_the_end_of_a_full_request_is_not_the_end_of_a_write():
    """However few of its bytes were refused: the next line is not the rest of the one that it ends within."""
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    assert writer.write(b"good line\nBAD\nthi") == 10
    with pytest.raises(InvalidRecord):
        writer.write(b"another\n")
    assert writer.write(b"another\n") == 8
    assert kept.values == [b"good line", b"another"]

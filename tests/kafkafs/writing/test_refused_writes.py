"""Writes that are refused in part, as the kernel hands them on: one write(2) comes as several requests, and only the
first one's error reaches the caller. After an error nothing is taken any more, whatever the caller does."""

import errno
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafkafs.writing.line_parsers import parse_txt
from kafkafs.writing.line_writer import LineWriter
from storage.errors import InvalidRecord, RecordTooLarge, StorageError
from tests.kafkafs.writing.written_lines import Kept

REQUEST_BYTES = 12
LEAST_FIRST = 8  # the first request may be smaller, by where the buffer begins
LIMIT = 20


def write_once(writer, data, first):
    """write(2) as the kernel makes it of requests: how much was taken. Raises the error of the first request alone."""
    done, size = 0, first
    while done < len(data):
        part = data[done : done + size]
        try:
            taken = writer.write(memoryview(part))
        except (StorageError, OSError):
            if done:
                return done
            raise
        done += taken
        if taken < len(part):
            break
        size = REQUEST_BYTES
    return done


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


@settings(max_examples=200)
@given(lines_of_all_kinds(), st.data())
def test_what_precedes_the_first_bad_line_is_appended_and_nothing_else(lines, data):
    """Also by callers that pass over errors and short counts, and write on with whatever they please."""
    kept, refused = Kept(LIMIT), []
    writer = LineWriter(kept, parse_txt, lambda line, error, _: refused.append((line, type(error))))
    left, errors = b"".join(line + b"\n" for line in lines), []
    while left:
        try:
            left = left[write_once(writer, left, data.draw(st.integers(LEAST_FIRST, REQUEST_BYTES))) :]
        except (StorageError, OSError) as error:
            errors.append(error)
            left = left[data.draw(st.integers(1, len(left))) :]
    expected = list(itertools.takewhile(lambda line: not is_bad(line), lines))
    if len(expected) < len(lines):
        with pytest.raises((InvalidRecord, RecordTooLarge)) as raised:
            writer.sync()
        errors.append(raised.value)
        assert refused == [(len(expected) + 1, raised.type)]
    writer.close()
    assert kept.values == expected
    assert len(set(map(id, errors))) <= 1


def test_a_short_count_is_followed_by_the_error():
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    assert writer.write(b"a\nBAD\n") == 2
    for data in b"c\n", b"", b"BAD\n":
        with pytest.raises(InvalidRecord):
            writer.write(data)
    with pytest.raises(InvalidRecord):
        writer.sync()
    assert kept.synced == 1  # what is appended is on disk all the same
    writer.close()
    assert kept.values == [b"a"]


def test_after_a_full_disk_a_line_that_was_begun_is_no_message():
    """The caller cannot know whether its end is there, so neither part of it is."""
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    writer.write(b"one\ntw")
    kept.failure = OSError(errno.ENOSPC, "full")
    with pytest.raises(OSError, match="full"):
        writer.write(b"o\nthree\n")
    kept.failure = None
    for call in (lambda: writer.write(b"o\nthree\n"), writer.sync):
        with pytest.raises(OSError, match="full"):
            call()
    writer.close()
    assert kept.values == [b"one"]


def test_what_fsync_finds_is_refused_from_then_on():
    kept = Kept()
    writer = LineWriter(kept, parse_txt)
    writer.write(b"one\nBAD")
    with pytest.raises(InvalidRecord):
        writer.sync()
    with pytest.raises(InvalidRecord):
        writer.write(b"two\n")
    writer.close()
    assert (kept.values, kept.synced) == ([b"one"], 1)

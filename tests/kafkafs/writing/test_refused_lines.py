"""Why lines were refused: what is kept of it, what is logged, and which line it was."""

import errno
import logging

import pytest

from kafkafs.writing.line_parsers import parse_jsonl, parse_txt
from kafkafs.writing.line_writer import LineWriter
from kafkafs.writing.refused_lines import RefusedLines
from storage.errors import InvalidRecord, NotPermitted
from tests.kafkafs.writing.written_lines import Kept
from tests.support.owned_dirs import NOW_MS, StandingClock


@pytest.fixture
def clock():
    return StandingClock()


@pytest.fixture
def refused(clock):
    return RefusedLines(clock)


@pytest.fixture
def writer(refused):
    return LineWriter(Kept(), parse_jsonl, refused.at("t/@append.jsonl"))


def numbers_of(refused):
    return [entry["line"] for entry in refused.status()]


def test_the_last_twenty_are_kept_and_ten_a_second_are_logged(refused, clock, caplog):
    for number in range(25):
        refused.add("t/@append", number, InvalidRecord(f"reason {number}"))
    assert numbers_of(refused) == list(range(5, 25))
    last = {"time": "2025-11-21T04:40:00.000Z", "path": "t/@append", "line": 24, "reason": "reason 24"}
    assert refused.status()[-1] == last
    assert len(caplog.records) == RefusedLines.PER_SECOND
    clock.time_ms = NOW_MS + 1000
    refused.add("t/@append", 25, InvalidRecord("reason 25"))
    assert len(caplog.records) == RefusedLines.PER_SECOND + 1


def test_contents_are_printable_and_short(refused, caplog):
    with caplog.at_level(logging.WARNING):
        refused.add("a\x1b[2J\n", 1, InvalidRecord("bad", found="\x07\r\n\u202eé\ud800 " + "x" * 10_000))
    (entry,) = refused.status()
    assert entry["path"] == "a\\x1b[2J\\n"
    assert entry["reason"].startswith("bad; found \\x07\\r\\n\\u202eé\\ud800 xxx")
    assert len(entry["reason"]) < 600
    assert entry["reason"].isprintable()
    (record,) = caplog.records
    assert record.getMessage() == f"refused: {entry['path']}: line 1, after 0 accepted lines: {entry['reason']}"


def test_noting(refused):
    """Requests are noted that are refused for what they are, and not for the state of the disk."""
    for error in (NotPermitted("no"), OSError("full")):
        with pytest.raises(type(error)), refused.noting("x"):
            raise error
    assert [(entry["line"], entry["reason"]) for entry in refused.status()] == [(None, "no")]


def test_a_refusal_is_told_once_with_its_line_and_what_was_accepted(refused, caplog):
    writer = LineWriter(Kept(), parse_txt, refused.at("t/@append"))
    assert writer.write(b"one\ntwo\n") == 8
    assert writer.write(b"three\nBAD\nfour\n") == 6
    for _ in range(2):
        with pytest.raises(InvalidRecord):
            writer.write(b"BAD\nfour\n")
    assert numbers_of(refused) == [4]
    assert caplog.messages == ["refused: t/@append: line 4, after 3 accepted lines: bad"]


def test_it_is_told_how_many_later_lines_other_partitions_have(refused):
    refused.at("t/@append")(3, OSError(errno.ENOSPC, "full", "/logs/t-1"), 2)
    assert refused.status()[0]["reason"] == "full. 2 of the lines after it are in other partitions"


@pytest.mark.parametrize("end", [LineWriter.sync, LineWriter.close])
def test_a_bad_last_line(refused, writer, end):
    writer.write(b'{"value":')
    with pytest.raises(InvalidRecord):
        end(writer)
    assert numbers_of(refused) == [1]


@pytest.mark.parametrize("side", ["key", "value"])
def test_an_object_where_a_string_must_be(refused, writer, side):
    with pytest.raises(InvalidRecord, match=f"`{side}` must be a string.*jq -c '.{side} .= tojson'"):
        writer.write(b'{"value":"v","%s":{"a":1}}\n' % side.encode())
    assert numbers_of(refused) == [1]

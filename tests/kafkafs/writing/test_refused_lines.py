"""Why lines were refused: what is kept of it, what is logged, and which line it was."""

from __future__ import annotations

import logging

import pytest

from kafkafs.writing.line_parsers import parse_jsonl, parse_txt
from kafkafs.writing.line_writer import LineWriter, RefusedLines
from storage.errors import InvalidRecord, NotPermitted
from tests.support.owned_dirs import NOW_MS
from tests.support.written_lines import Kept


class Clock:
    """Epoch milliseconds, as the test wants them."""

    now = NOW_MS

    def now_ms(self):
        return self.now


@pytest.fixture
def refused():
    return RefusedLines(Clock())


def test_the_last_twenty_are_kept(refused):
    for number in range(25):
        refused.add("t/@append", number, InvalidRecord(f"reason {number}"))
    found = refused.status()
    assert [entry["line"] for entry in found] == list(range(5, 25))
    assert found[-1] == {"time": found[0]["time"], "path": "t/@append", "line": 24, "reason": "reason 24"}


def test_contents_are_printable_and_short(refused, caplog):
    with caplog.at_level(logging.WARNING):
        refused.add("a\x1b[2J\n", 1, InvalidRecord("bad", found="\x07\r\n\u202eé\ud800 " + "x" * 10_000))
    (entry,) = refused.status()
    assert entry["path"] == "a\\x1b[2J\\n"
    assert entry["reason"].startswith("bad; found \\x07\\r\\n\\u202eé\\ud800 xxx")
    assert len(entry["reason"]) < 600
    assert entry["reason"].isprintable()
    (record,) = caplog.records
    assert record.getMessage() == f"refused: {entry['path']}: line 1 of the write: {entry['reason']}"


def test_noting(refused):
    with pytest.raises(NotPermitted), refused.noting("x"):
        raise NotPermitted("no")
    with pytest.raises(OSError, match="full"), refused.noting("x"):
        raise OSError("full")
    assert [(entry["line"], entry["reason"]) for entry in refused.status()] == [(None, "no")]


def numbers_of(refused):
    return [entry["line"] for entry in refused.status()]


def test_a_bad_line_is_told_once_with_its_number(refused):
    writer = LineWriter(Kept(), parse_txt, refused.at("t/@append"))
    assert writer.write(b"one\ntwo\nBAD\nfour\n") == 8
    with pytest.raises(InvalidRecord):
        writer.write(b"BAD\nfour\n")  # as tools do after a short write
    assert numbers_of(refused) == [3]
    assert writer.write(b"five\n") == 5
    with pytest.raises(InvalidRecord):
        writer.write(b"BAD again\n")
    assert numbers_of(refused) == [3, 1]


def test_lines_are_counted_over_the_requests_of_a_write(refused):
    writer = LineWriter(Kept(), parse_jsonl, refused.at("t/@append.jsonl"))
    request = b'{"value":"v"}\n' * 9999  # as large as one that is cut
    writer.write(request)
    assert writer.write(b'{"value":"v"}\nnothing\n') == 14
    with pytest.raises(InvalidRecord):
        writer.write(b"nothing\n")
    writer.write(request)
    writer.write(b'{"value":"v"}\n{"value":')
    with pytest.raises(InvalidRecord):
        writer.sync()
    assert numbers_of(refused) == [10_001, 10_001]


@pytest.mark.parametrize("ends_by_sync", [True, False])
def test_a_bad_last_line(refused, ends_by_sync):
    writer = LineWriter(Kept(), parse_jsonl, refused.at("t/@append.jsonl"))
    writer.write(b'{"value":')
    with pytest.raises(InvalidRecord):
        (writer.sync if ends_by_sync else writer.close)()
    assert numbers_of(refused) == [1]


@pytest.mark.parametrize("side", ["key", "value"])
def test_an_object_where_a_string_must_be(side, refused):
    writer = LineWriter(Kept(), parse_jsonl, refused.at("t/@append.jsonl"))
    with pytest.raises(InvalidRecord, match=f"`{side}` must be a string.*jq -c '.{side} .= tojson'"):
        writer.write(b'{"value":"v","%s":{"a":1}}\n' % side.encode())
    assert len(refused.status()) == 1

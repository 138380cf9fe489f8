"""Every format against plain Python, at every size of the output, compiled and not."""

import random
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.decoding.decoded_jsonl import DecodedJsonl
from kafkafs.formats import by_name, program
from kafkafs.formats.long_record import LongRecord
from kafkafs.formats.templates import BadTemplate
from kafkafs.schemas.registry import Registry
from storage.format.block import RecordColumn
from storage.types import TopicPartition
from tests.support.blocks import EVERY_LETTER, TP, Row, block_of, every_letter_line, json_line, rows, txt_line
from tests.support.uncompiled import uncompiled

PLAIN = uncompiled("kafkafs.formats.render_kernel")
FORMATS = [
    pytest.param("txt", txt_line, id="txt"),
    pytest.param("jsonl", json_line, id="jsonl"),
    pytest.param(EVERY_LETTER, every_letter_line, id="template"),
]
Line = Callable[[Row], bytes]


@pytest.fixture(params=["built", "plain"])
def any_kernel(request, monkeypatch):
    """The kernel as it is installed, and its source run as Python."""
    if request.param == "plain":
        monkeypatch.setattr(program, "render_kernel", PLAIN)
    return str(request.param)


def check(form, line, chosen):
    block = block_of(chosen)
    lines = [line(row) for row in chosen]
    expected = b"".join(lines)
    sizes = np.full(len(chosen) + 2, -7, np.int64)
    form.measure(block, sizes)
    assert sizes.tolist() == [*map(len, lines), -7, -7]
    for spare in (0, 1, 5000):
        memory = bytearray(b"#" * (len(expected) + spare + 43))
        out = memoryview(memory)[20 : 23 + len(expected) + spare]
        assert form.render(block, out, 3) == 3 + len(expected)
        assert bytes(out[: 3 + len(expected)]) == b"###" + expected
        assert memory.startswith(b"#" * 20)
        assert memory.endswith(b"#" * 20)
    if not chosen:
        return
    out = memoryview(bytearray(len(expected) - 1))
    with pytest.raises(ValueError, match="too few"):
        form.render(block, out)
    assert form.render_rows(block, out) == (len(chosen) - 1, len(expected) - len(lines[-1]))
    assert bytes(out).startswith(b"".join(lines[:-1]))


@pytest.mark.parametrize(("name", "line"), FORMATS)
@given(chosen=st.lists(rows, max_size=6))
@example(chosen=[Row(value=b"\x1f" * 50 + b"\xff")])  # longer escaped than in base64
@example(chosen=[Row(key=b"", value=None, headers=((b"", None), (b"\xff", b"")), type=1)])
@example(chosen=[Row(-(2**63), 2**63 - 1, b'"' * 33, b"\\" * 31)])
def test_lines(name, line, chosen):
    check(by_name(name, TP), line, chosen)


@pytest.mark.parametrize(("name", "line"), FORMATS)
@given(chosen=st.lists(rows, max_size=2))
def test_lines_uncompiled(name, line, chosen):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program, "render_kernel", PLAIN)
        check(by_name(name, TP), line, chosen)


@pytest.mark.parametrize(("name", "line"), FORMATS)
def test_every_size_of_the_output(any_kernel, name, line):
    """Whole records, as many as fit, and never a byte beyond."""
    chosen = [
        Row(5, 1763683200000, b"k", b"plain " * 9, ((b"h", b"x"),)),
        Row(6, -1, None, b'"\x00\xff', ((b"\xe9", None),), 2),
        Row(7, 0, b"\xc3\xa9", None, type=1),
    ]
    form, block, lines = by_name(name, TP), block_of(chosen), [line(row) for row in chosen]
    for size in range(len(b"".join(lines)) + 40):
        out = memoryview(bytearray(b"#" * size))
        fitting = max(count for count in range(4) if len(b"".join(lines[:count])) <= size)
        expected = b"".join(lines[:fitting])
        assert form.render_rows(block, out) == (fitting, len(expected))
        assert bytes(out[: len(expected)]) == expected
        rest = memoryview(bytearray(5000))
        assert form.render_rows(block, rest, 0, fitting)[0] == len(lines)
        assert bytes(rest).rstrip(b"\0") == b"".join(lines[fitting:])


@pytest.mark.parametrize(
    "data",
    [
b"\x80", b"\xbf", b"\xc0\x80", b"\xc1\xbf", b"\xc2", b"\xc2\x41", b"\xe0\x80\x80", b"\xe0\x9f\xbf",
        b"\xe1\x80", b"\xed\xa0\x80", b"\xed\xbf\xbf", b"\xf0\x80\x80\x80", b"\xf0\x8f\xbf\xbf", b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80", b"\xff", b"\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f\x98\x41", b"\xe2\x28\xa1", b"\xc2\x80",
        b"\xdf\xbf", b"\xe0\xa0\x80", b"\xed\x9f\xbf", b"\xee\x80\x80", b"\xef\xbf\xbf", b"\xf0\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf", b"\xe2\x80\xa8", b"\x7f",
    ],
)  # fmt: skip
@pytest.mark.parametrize("around", [b"", b"abcdefg", b"0123456789012345678901234567890123456789"])
def test_utf8_at_its_edges(any_kernel, data, around):
    for value in (data, around + data, data + around, around + data + around):
        check(by_name("jsonl", TP), json_line, [Row(value=value)])


def test_every_short_byte_string_in_json(any_kernel):
    check(by_name("jsonl", TP), json_line, [Row(value=bytes([byte])) for byte in range(256)])
    if any_kernel == "built":
        pairs = [Row(value=bytes([first, second])) for first in range(256) for second in range(256)]
        check(by_name("jsonl", TP), json_line, pairs)


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (RecordColumn.VALUE_START, (-1, 2**62)),
        (RecordColumn.VALUE_LENGTH, (2**62, 100)),
        (RecordColumn.KEY_START, (2**63 - 1,)),
        (RecordColumn.HEADERS_START, (-5, 2**63 - 1)),
        (RecordColumn.HEADERS_COUNT, (1000,)),
        (RecordColumn.BATCH, (3, -1)),
    ],
)
def test_columns_outside_of_their_buffer(any_kernel, column, values):
    """Never read: an error instead, whatever comes first."""
    forms = by_name(EVERY_LETTER.replace("%T", "%T%h%h"), TP), by_name("jsonl", TP)
    block = block_of([Row(1, 2, b"key", b"value", ((b"h", b"x"),))] * 2)
    for value, form in product(values, forms):
        block.columns[column, 1] = value
        with pytest.raises(ValueError, match="outside"):
            form.measure(block, np.zeros(2, np.int64))
        for size in (0, 300, 100_000):
            with pytest.raises(ValueError, match=r"outside|too few"):
                form.render(block, memoryview(bytearray(size)))


@pytest.mark.parametrize("tail", [b"\x80", b"\x80\x80\x80\x80\x80\x01", b"\xfe\xff\xff\xff\x0f", b"\x02", b"\x04a"])
def test_headers_that_do_not_parse(any_kernel, tail):
    block = block_of([Row(value=tail)])
    block.columns[RecordColumn.HEADERS_START] = 0
    block.columns[RecordColumn.HEADERS_COUNT] = 1
    for name in ("%h", "jsonl"):
        with pytest.raises(ValueError, match="outside"):
            by_name(name, TP).measure(block, np.zeros(1, np.int64))


def test_a_selection_of_rows():
    """Columns that are views of larger ones have gaps between them."""
    chosen = [Row(i, i, b"k%d" % i, b"value %d" % i, ((b"h", b"%d" % i),)) for i in range(10)]
    block = block_of(chosen)
    block.columns = block.columns[:, :7]
    out = memoryview(bytearray(5000))
    end = by_name("jsonl", TP).render(block, out)
    assert bytes(out[:end]) == b"".join(map(json_line, chosen[:7]))
    end = by_name("jsonl", TP).render(block_of(chosen).select(np.array([1, 5, 6])), out)
    assert bytes(out[:end]) == b"".join(json_line(chosen[i]) for i in (1, 5, 6))


def test_bad_arguments():
    block = block_of([Row()])
    form = by_name("jsonl", TP)
    with pytest.raises(ValueError, match="sizes"):
        form.measure(block, np.zeros(0, np.int64))
    for start in (-1, 11):
        with pytest.raises(ValueError, match="position"):
            form.render_rows(block, memoryview(bytearray(10)), start)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%s", b"v"),
        (r"%s\0", b"v\0"),
        (r"\x41\x4a\x4A\x4", b"AJJ\x04"),
        (r"\x41\0101\65", b"AAA"),
        (r"\n\t\r\\\q\%s", b"\n\t\r\\q\\v"),  # as in kcat, a letter after a backslash is still one
        (r"\x", b"x"),
        ("%%s%s", b"%sv"),
        ("é%s\udcff", "é".encode() + b"v\xff"),
        (r"\\", b"\\"),
        ("\\%%", b"\\%"),
    ],
)
def test_templates(text, expected):
    out = memoryview(bytearray(100))
    end = by_name(text, TP).render(block_of([Row(value=b"v")]), out)
    assert bytes(out[:end]) == expected


@pytest.mark.parametrize("text", ["%", "%x", "%s%", "% s", "text", "json", "", "TXT", "%\n"])
def test_bad_templates(text):
    with pytest.raises(BadTemplate):
        by_name(text, TP)


# A record that is rendered in parts has the bytes that its format renders, wherever the parts are cut


CHUNK = 48 << 10
RANDOM = random.Random(19)
VALUES = {
    "null": None,
    "empty": b"",
    "plain": b"a" * (3 * CHUNK + 1),
    "escapes": b'\1"\\' * CHUNK,
    "at a cut": b"a" * (CHUNK - 1) + "€".encode() * CHUNK,
    "four bytes": b"ab" + "\U0001f600".encode() * CHUNK,
    "continuations": b"a" * CHUNK + b"\x80" * 9 + b"a" * CHUNK,
    "cut off": b"a" * 2 * CHUNK + "€".encode()[:2],
    "surrogate": b"a" * (CHUNK - 2) + b"\xed\xa0\x80" + b"a" * CHUNK,
    "binary": RANDOM.randbytes(2 * CHUNK + 1),
    "binary, thirds": RANDOM.randbytes(3 * CHUNK),
}
# Many small ones, nulls among them, large ones next to each other, and one that fills a chunk with what precedes it.
HEADERS = [
    *[(b"h%d" % i, (b"\1\xff", None, b"", b'"')[i % 4]) for i in range(CHUNK // 4)],
    (b"\xff" * 2 * CHUNK, None),
    (b"name", VALUES["cut off"]),
    (b"", b"x" * (CHUNK - 4)),
    (b"last", b"1"),
]


@pytest.mark.parametrize("form", ["jsonl", "txt", r"%o %T %k %K %s %S %R %h\n", "decoded"])
@pytest.mark.parametrize("name", VALUES)
def test_parts_equal_the_whole(name, form):
    headers = ((b"one", b"1"), (b"none", None), (b"large", VALUES["escapes"]), *HEADERS)
    block = block_of([Row(7, 1_763_700_000_000, VALUES["at a cut"], VALUES[name], headers)])
    tp = TopicPartition("t", 3)
    chosen = DecodedJsonl(tp, Registry()) if form == "decoded" else by_name(form, tp)
    sizes = np.empty(1, np.int64)
    chosen.measure(block, sizes)
    whole = bytearray(int(sizes[0]))
    assert chosen.render(block, memoryview(whole)) == len(whole)
    record = LongRecord(chosen, block)
    assert b"".join(bytes(part) for part in record.parts()) == whole
    assert record.size == len(whole)
    for _ in range(20):
        skip = RANDOM.randrange(len(whole) + 1)
        out = bytearray(RANDOM.randrange(min(len(whole) - skip, 3 * CHUNK) + 1))
        record.render(memoryview(out), skip)
        assert out == whole[skip : skip + len(out)]
    with pytest.raises(ValueError, match="bytes"):
        record.render(memoryview(bytearray(2)), len(whole) - 1)


@pytest.mark.parametrize("form", ["jsonl", "%h"])
def test_no_part_is_much_larger_than_a_chunk(form):
    headers = ((b"large", b"\1" * 9 * CHUNK), *[(b"", None) for _ in range(3 * CHUNK)])
    block = block_of([Row(7, 1_763_700_000_000, None, None, headers)])
    record = LongRecord(by_name(form, TopicPartition("t", 3)), block)
    assert record.size > 1_000_000
    assert max(len(part) for part in record.parts()) <= 10 * CHUNK

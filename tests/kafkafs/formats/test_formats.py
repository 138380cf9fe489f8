"""Every format against plain Python, at every size of the output, compiled and not."""

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafkafs.formats import by_name, program
from kafkafs.formats.templates import BadTemplate
from storage.format.columns import RecordColumn
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
        sizes[:] = -7
        assert form.render_rows(block, out, 3, 0, sizes) == (len(chosen), 3 + len(expected))
        assert sizes.tolist() == [*map(len, lines), -7, -7]
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
        if size:
            sizes = np.full(3, -7, np.int64)
            assert form.render_rows(block, out, 0, 0, sizes) == (fitting, len(expected))
            assert sizes[:fitting].tolist() == [len(line) for line in lines[:fitting]]
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

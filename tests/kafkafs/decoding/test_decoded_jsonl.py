"""The format decoded.jsonl: its lines beside jsonl's, at every size of the output, with texts that need room."""

import base64
import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.decoding import decoded_jsonl
from kafkafs.decoding.decoded_jsonl import DecodedJsonl, TextDecoder
from kafkafs.formats import by_name
from kafkafs.schemas.schema import AVRO, JSON, Schema
from storage.format.block import encode_varint
from storage.format.columns import RecordColumn
from tests.support.blocks import TP, Row, block_of
from tests.support.decoded_columns import SchemaTable, columns_of, decoded_texts, framed, lines

STRING = Schema(7, AVRO, '"string"')
LONG = Schema(8, AVRO, '"long"')
ANY_JSON = Schema(9, JSON, "{}")


def avro_string(text):
    return framed(encode_varint(len(text.encode())) + text.encode(), 7)


def table():
    return SchemaTable(STRING, LONG, ANY_JSON)


ROWS = [
    Row(1, 5, b"text", avro_string("naïve\n"), ((b"h", b"\xff"), (b"i", None))),
    Row(2, 5, framed(encode_varint(-4), 8), avro_string(""), type=1),
    Row(3, -1, None, None, type=2),
    Row(4, 0, b"", b""),
    Row(5, 0, b"\0\0\0\7", framed(b"", 12345)),
    Row(6, 0, avro_string("k"), framed(b'{ "a":\r\n [1] }\n', 9)),
    Row(7, 0, framed(b"", 7), framed(b"\x04\xff\xfe", 7)),
    Row(8, 0, b"\xff", b"\1\0\0\0\7\2a"),
    Row(9, 0, framed(b"", 4294967295), b'{"json":1}'),
]
EXPECTED = [
    ('"text"', '"naïve\\n"', None, 7, None),
    ("-4", '""', 8, 7, None),
    ("null", "null", None, None, None),
    ('""', '""', None, None, None),
    ('"\\u0000\\u0000\\u0000\\u0007"', '"\\u0000\\u0000\\u000009"', None, 12345, "value: there is no schema 12345"),
    ('"k"', '{ "a": [1] }', 7, 9, None),
    (
        '"\\u0000\\u0000\\u0000\\u0000\\u0007"',
        json.dumps({"base64": base64.b64encode(ROWS[6].value or b"").decode()}, separators=(",", ":")),
        7,
        7,
        "key: schema 7 does not fit the data: the data end too early, at byte 5; "
        "value: schema 7 does not fit the data: a string is not UTF-8, at byte 5",
    ),
    ('{"base64":"/w=="}', '"\\u0001\\u0000\\u0000\\u0000\\u0007\\u0002a"', None, None, None),
    ('{"base64":"AP////8="}', '"{\\"json\\":1}"', 4294967295, None, "key: there is no schema 4294967295"),
]


def expected_lines():
    """Those of jsonl, with keys and values replaced and the rest put before the end."""
    made = []
    jsonl = by_name("jsonl", TP)
    for row, (key, value, key_schema, value_schema, error) in zip(ROWS, EXPECTED, strict=True):
        (plain,) = lines(jsonl, [Row(row.offset, row.timestamp, b"KEY", b"VALUE", row.headers, row.type)])
        text = plain.decode().replace('"KEY"', key).replace('"VALUE"', value)
        more = f',"keySchema":{json.dumps(key_schema)},"valueSchema":{json.dumps(value_schema)}'
        more += f',"error":{json.dumps(error)}' if error else ""
        made.append(text.replace("]}\n", f"]{more}}}\n").encode())
    return made


def test_the_lines():
    found = lines(DecodedJsonl(TP, table()), ROWS)
    # "0" and "9" are the id 12345 as text: the bytes are shown as jsonl shows them.
    assert found == expected_lines()
    for line in found:
        json.loads(line)


def test_every_size_of_the_output():
    form, block = DecodedJsonl(TP, table()), block_of(ROWS)
    whole = b"".join(expected_lines())
    ends = np.cumsum([len(line) for line in expected_lines()]).tolist()
    for size in range(0, len(whole) + 3, 7):
        memory = bytearray(b"#" * (size + 20))
        row, end = form.render_rows(block, memoryview(memory)[:size])
        fitting = sum(last <= size for last in ends)
        assert (row, end) == (fitting, ends[fitting - 1] if fitting else 0)
        assert memory[:end] == whole[:end]
        assert memory.endswith(b"#" * 20)
        if size:
            sizes = np.full(len(ROWS), -7, np.int64)
            assert form.render_rows(block, memoryview(memory)[:size], 0, 0, sizes) == (fitting, end)
            assert sizes[:fitting].tolist() == np.diff(ends, prepend=0)[:fitting].tolist()
        rest = bytearray(len(whole) - end)
        assert form.render_rows(block, memoryview(rest), 0, row) == (len(ROWS), len(rest))
        assert rest == whole[end:]


def test_texts_that_do_not_fit_into_the_room(monkeypatch):
    """The lines are the same however small the room is at first, and however few rows a window has."""
    dice = random.Random(1)
    rows = []
    for i in range(200):
        size = dice.choice((0, 1, 10, 100, 9000 if i % 50 == 7 else 5))
        key, value = dice.choice(ROWS).key, dice.choice(ROWS).value
        key, value = dice.choice((key, avro_string("ß" * size))), dice.choice((value, avro_string("\1" * size)))
        rows.append(Row(i, 0, key, value))
    expected = lines(DecodedJsonl(TP, table()), rows)
    monkeypatch.setattr(decoded_jsonl, "ROOM_BYTES", 128)
    assert lines(DecodedJsonl(TP, table()), rows) == expected
    monkeypatch.setattr(decoded_jsonl, "MOST_ROWS", 3)
    monkeypatch.setattr(decoded_jsonl, "MOST_KEPT_BYTES", 1)
    assert lines(DecodedJsonl(TP, table()), rows) == expected


def test_columns_outside_the_buffer():
    form = DecodedJsonl(TP, table())
    for column, wrong in (
        (RecordColumn.KEY_LENGTH, 10**6),
        (RecordColumn.VALUE_START, -1),
        (RecordColumn.VALUE_LENGTH, 2**62),
    ):
        block = block_of([Row(key=avro_string("k"), value=avro_string("v"))])
        block.columns[column, 0] = wrong
        with pytest.raises(ValueError, match="record 0 of the block points outside its buffer"):
            form.measure(block, np.empty(1, np.int64))
    block = block_of(ROWS)
    with pytest.raises(ValueError, match="sizes for"):
        form.measure(block, np.empty(1, np.int64))
    with pytest.raises(IndexError, match="fewer sizes"):
        form.render_rows(block, memoryview(bytearray(10_000)), 0, 0, np.empty(1, np.int64))
    with pytest.raises(ValueError, match="too few"):
        form.render(block, memoryview(bytearray(10)))
    with pytest.raises(ValueError, match="position 11 in 10 bytes"):
        form.render_rows(block, memoryview(bytearray(10)), 11)


def test_texts_in_columns():
    """The same texts, and nothing for null."""
    values = [row.value for row in ROWS]
    texts, errors = decoded_texts(TextDecoder(table(), f"{TP.topic}-value"), values)
    assert texts == [value if row.value is not None else "" for row, (_, value, *_) in zip(ROWS, EXPECTED, strict=True)]
    assert set(errors) == {4, 6}
    decoder = TextDecoder(table(), f"{TP.topic}-value")
    assert decoder.decode(*columns_of(values))[2].tolist() == [7, 7, -1, -1, 12345, 9, 7, -1, -1]
    assert decoder.decode(*columns_of([]))[1].tolist() == []
    many = [avro_string(f"number {i}") for i in range(10_000)]
    assert decoded_texts(decoder, many) == ([f'"number {i}"' for i in range(10_000)], {})
    with pytest.raises(ValueError, match="outside"):
        decoder.decode(b"", np.array([1], np.int64), np.array([1], np.int64))


JSON_TEXTS = st.recursive(
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][-+]?[0-9]{1,3})?", fullmatch=True)
    | st.lists(st.sampled_from(["a", "é", "😀", r"\"", r"\\", r"\/", r"\n", r"\u00e9", r"\ud800"]), max_size=5).map(
        lambda parts: '"' + "".join(parts) + '"'
    )
    | st.sampled_from(["null", "true", "false", "-0", "1e400", "9" * 5000]),
    lambda inner: (
        st.lists(inner, max_size=4).map(lambda items: f"[ {' , '.join(items)}\t]")
        | st.lists(inner, max_size=4).map(lambda items: "{" + ",".join(f'"a":{item}' for item in items) + " }")
    ),
)


@given(JSON_TEXTS)
def test_json_is_copied_without_line_ends(text):
    """Numbers that no float holds, names that stand twice, escapes and spaces."""
    broken = text.replace(" ", "\r\n ")
    texts, errors = decoded_texts(TextDecoder(table(), "t-value"), [framed(t.encode(), 9) for t in (text, broken)])
    assert not errors
    assert texts == [text, text]


NOT_JSON = """
{ } ] [1 [1, [1,] [,1] {"a" {"a": {"a":1 {"a":1, {"a":1,} {1:2} [1} {"a":1] tru nul truex falsy NaN Infinity 01 - 1.
.5 1e +1 " "\\ "\\x" "\\u12g4" "\\u12 'a' {"a",1} : , [:]
"""


@pytest.mark.parametrize(
    "text",
    [
        *NOT_JSON.split(),
        *("", " ", "1 2", '"a\nb"', '"\t"', "\ufeff1", "{}\0", '["a" "b"]', '{"a" 1}', '{"a":1 "b":2}', "[1 2]"),
        "[" * 501 + "]" * 501,
    ],
)
def test_what_is_not_json(text):
    _, errors = decoded_texts(TextDecoder(table(), "t-value"), [framed(text.encode(), 9), framed(b'"\xff"', 9)])
    assert ("nested too deeply" if text.startswith("[[") else "not valid JSON") in errors[0]
    assert "not UTF-8" in errors[1]

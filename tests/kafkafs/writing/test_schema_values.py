"""Lines of decoded.jsonl that are appended: encoded by their schemas, or refused with the name of the field."""

from __future__ import annotations

import base64
import hashlib
import json

import numpy as np
import pytest

from kafkafs.schemas.sources import RegistryReplay
from kafkafs.writing.line_parsers import jsonl_with, parse_line
from storage.errors import InvalidRecord
from storage.format.block import Record
from tests.support.schema_logs import LONG, avro_string, framed, schema_record

RECORD = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "to", "type": {"type": "record", "name": "To", "fields": [{"name": "zip", "type": "string"}]}},
        ],
    }
)


def registry():
    replay = RegistryReplay()
    records = [
        schema_record("t-value", 1, 1),
        schema_record("t-key", 1, 2, LONG),
        schema_record("t-value", 2, 3, RECORD),
        schema_record("t-value", 3, 4, "{"),
        schema_record("t-value", 4, 5, '"null"'),
        schema_record(":.dr:u-value", 1, 1, LONG),
        schema_record("other", 1, 9, "x", schemaType="THRIFT"),
        schema_record("t-value", 5, 10, "{}", schemaType="JSON"),
    ]
    for offset, record in enumerate(records):
        replay.apply(record.key, record.value, offset, 0)
    return replay.registry()


def parse(*lines, topic="t"):
    texts = [json.dumps(line).encode() for line in lines]
    lengths = np.array([len(text) for text in texts], np.int64)
    return jsonl_with(registry(), topic)(b"".join(texts), lengths.cumsum() - lengths, lengths)


def parse_text(line):
    data = line.encode()
    return jsonl_with(registry(), "t")(data, np.zeros(1, np.int64), np.full(1, len(data), np.int64))


def record(line, topic="t"):
    parsed = parse(line, topic=topic)
    assert parsed.error is None, parsed.error
    return Record(parsed.columns.key(0), parsed.columns.value(0))


def test_encoding():
    found = record({"key": 5, "value": "v", "keySchema": 2, "valueSchema": 1})
    assert (found.key, found.value) == (framed(2, b"\n"), framed(1, avro_string("v")))
    found = record({"key": "k", "value": "v", "keySchema": None, "valueSchema": None})
    assert (found.key, found.value) == (b"k", b"v")
    assert record({"value": None, "valueSchema": None}).value is None
    assert record({"value": None, "valueSchema": 5}).value == framed(5, b"")
    found = record({"value": 7, "valueSchema": 1}, topic="u")
    assert found.value == framed(1, b"\x0e")  # the topic's subject is in another context


def test_what_could_not_be_decoded_is_taken_as_it_is():
    raw = framed(77, b"\xff\xfe")
    line = {"value": {"base64": "AAAAAE3//g=="}, "valueSchema": 77, "error": "value: there is no schema 77"}
    assert record(line).value == raw
    text = {"value": "\0\0\0\0Mx", "valueSchema": 77, "error": "value: there is no schema 77"}
    assert record(text).value == framed(77, b"x")
    # The other side of such a line is encoded, and so is a value that the error is not about.
    assert record({**line, "key": 5, "keySchema": 2}).key == framed(2, b"\n")
    assert record(
        {"value": "v", "valueSchema": 1, "key": "\0\0\0\0Mx", "keySchema": 77, "error": "key: x"}
    ).value == framed(1, avro_string("v"))
    del line["error"]
    assert "no schema has the id 77" in str(parse(line).error)


def test_schemas_that_are_named_by_a_guid():
    """The newer wire format: a header has the schema, the value is data alone."""
    guid = base64.b64encode(b"\1" + hashlib.md5(b'"string"').digest()).decode()
    other = base64.b64encode(b"\1" + hashlib.md5(LONG.encode()).digest()).decode()
    line = {"value": "v", "valueSchema": 1, "headers": [["__value_schema_id", {"base64": guid}]]}
    assert record(line).value == avro_string("v")
    raw = {**line, "value": "left as it is", "error": "value: schema 1 does not fit the data"}
    assert record(raw).value == b"left as it is"
    wrong = {**line, "headers": [["__value_schema_id", {"base64": other}]]}
    assert "header names another schema than 1" in str(parse(wrong).error)
    of_the_key = {**line, "headers": [["__key_schema_id", {"base64": guid}]]}
    assert record(of_the_key).value == framed(1, avro_string("v"))
    no_guid = {**line, "headers": [["__value_schema_id", "x"]]}
    assert record(no_guid).value == framed(1, avro_string("v"))


def test_protobuf_that_is_named_by_a_guid():
    text = 'syntax = "proto3"; message A { int32 n = 1; } message B { string s = 1; }'
    replay = RegistryReplay()
    one = schema_record("t-value", 1, 1, text, schemaType="PROTOBUF")
    replay.apply(one.key, one.value, 0, 0)
    parse_lines = jsonl_with(replay.registry(), "t")
    guid = b"\1" + hashlib.md5(text.encode()).digest()

    def appended(value, header):
        headers = [["__value_schema_id", {"base64": base64.b64encode(header).decode()}]]
        line = json.dumps({"value": value, "valueSchema": 1, "headers": headers}).encode()
        return parse_lines(line, np.zeros(1, np.int64), np.full(1, len(line), np.int64))

    assert appended({"n": 5}, guid).columns.value(0) == b"\x08\x05"
    assert appended({"n": 5}, guid + b"\0").columns.value(0) == b"\x08\x05"
    assert appended({"s": "x"}, guid + b"\x02\x02").columns.value(0) == b"\x0a\x01x"
    assert "the value is the message [1] of the schema, and the record's header names [0]" in str(
        appended({"s": "x"}, guid).error
    )
    assert "header names no message type" in str(appended({"n": 5}, guid + b"\xff").error)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"value": 5, "valueSchema": 1}, "value: does not fit the schema 1: "),
        ({"value": "x", "key": "y", "keySchema": 2}, "key: does not fit the schema 2: "),
        ({"value": {"id": 1, "to": {"zip": 7}}, "valueSchema": 3}, "zip"),
        ({"value": {"id": 1}, "valueSchema": 3}, "to"),
        ({"value": {"id": 1, "to": {"zip": ""}, "more": 1}, "valueSchema": 3}, "more"),
        ({"value": "x", "valueSchema": 4}, "the schema 4 cannot be used: "),
        ({"value": "x", "valueSchema": 9}, "the schema 9 cannot be used: "),
        ({"value": "x", "valueSchema": 6}, "value: no schema has the id 6 here"),
        ({"value": "x", "valueSchema": "1"}, "valueSchema must be a whole number"),
        ({"value": "x", "valueSchema": -1}, "valueSchema must be a whole number"),
        ({"value": "x", "valueSchema": True}, "valueSchema must be a whole number"),
        ({"value": "x", "valueSchema": 2**32}, "valueSchema must be a whole number"),
    ],
)
def test_refusals(line, message):
    parsed = parse({"value": "first"}, line, {"value": "never"})
    assert len(parsed.columns) == 1
    assert message in str(parsed.error)
    assert isinstance(parsed.error, InvalidRecord)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"value":1.10,"valueSchema":10}', "1.10"),
        (' { "value" :\t{"a": 1,  "a":2} , "valueSchema" : 10 } ', '{"a": 1,  "a":2}'),
        ('{"value":1,"valueSchema":10,"value":2.0}', "2.0"),
        (r'{"value":1,"valueSchema":10,"v\u0061lue":3e0}', "3e0"),
        (r'{"key":"\"value\":4","headers":[["value","{"]],"valueSchema":10,"value":[5.00]}', "[5.00]"),
        ('{"value":{"value":1},"valueSchema":10,"x":{"value":2}}', '{"value":1}'),
        (f'{{"value":{"9" * 5000},"valueSchema":10}}', "9" * 5000),
        (f'{{"value":{"[" * 500}{"]" * 500},"valueSchema":10}}', "[" * 500 + "]" * 500),
    ],
)
def test_json_is_taken_from_the_line(line, value):
    parsed = parse_text(line)
    assert parsed.error is None, parsed.error
    assert parsed.columns.value(0) == framed(10, value.encode())


@pytest.mark.parametrize("name", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_json(name):
    assert f'{name} is no JSON; such a number is a string, "{name}"' in str(
        parse_text(f'{{"value":[{name}],"valueSchema":10}}').error
    )


@pytest.mark.parametrize("depth", [501, *range(800, 1001, 5), 200_000])
def test_lines_that_are_nested_too_deeply(depth):
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        value = f"{opening * depth}0{closing * depth}"
        for line in (f'{{"value":{value},"valueSchema":10}}', f'{{"value":{value}}}'):
            error = str(parse_text(line).error)
            assert "line is nested too deeply; expected at most 500 arrays and objects within each other" in error


def test_brackets_in_texts_are_no_depth():
    text = "[{" * 1000
    assert record({"value": text}).value == text.encode()
    assert record({"value": text, "valueSchema": 10}).value == framed(10, json.dumps(text).encode())


def test_without_schemas():
    with pytest.raises(InvalidRecord, match="valueSchema names a schema, and none are known here; found 1"):
        parse_line(b'{"value":"x","valueSchema":1}')

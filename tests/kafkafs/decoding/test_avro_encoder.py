"""JSON values to Avro data: what fits, which branch of a union is taken, and which field does not fit."""

from __future__ import annotations

import base64
import json

import pytest

from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.decoded_jsonl import TextDecoder
from kafkafs.decoding.encoding import encode_json
from kafkafs.decoding.framing import DoesNotFit
from kafkafs.schemas.registry import AVRO, JSON, Schema
from tests.support.decoded_columns import SchemaTable, decoded_text, framed, one_schema

INNER = {"type": "record", "name": "In", "fields": [{"name": "zip", "type": ["null", "string"]}]}
OUTER = {
    "type": "record",
    "name": "Out",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "in", "type": INNER},
        {"name": "tags", "type": {"type": "array", "items": "long"}},
    ],
}
BYTES4 = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
STAMP = {"type": "long", "logicalType": "timestamp-millis"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DAY = {"type": "int", "logicalType": "date"}
TIME = {"type": "int", "logicalType": "time-millis"}


def encoded(schema, value):
    table = one_schema(json.dumps(schema))
    found = table.by_id(7)
    assert found is not None
    data = encode_json(found, table, value)
    assert data[:5] == framed(b"")
    return data[5:]


def again(schema, value):
    """What is shown of what was written."""
    decoder = TextDecoder(one_schema(json.dumps(schema)), "t-value")
    return json.loads(decoded_text(decoder, framed(encoded(schema, value))))


@pytest.mark.parametrize(
    ("schema", "value", "message"),
    [
        ("null", 0, "expected null, found 0"),
        ("boolean", 1, "expected true or false, found 1"),
        ("int", 2**31, "expected an integer of 32 bits, found 2147483648"),
        ("int", True, "expected an integer of 32 bits, found true"),
        ("int", 1.0, "expected an integer of 32 bits, found 1.0"),
        ("long", -(2**63) - 1, "expected an integer of 64 bits"),
        ("long", 10**4000, "found a very large integer"),
        ("float", 1e39, "expected a number that a float can hold, found 1e+39"),
        ("double", float("inf"), "expected a number that a double can hold"),
        ("float", float("nan"), "expected a number that a float can hold"),
        ("double", 10**400, "expected a number that a double can hold"),
        ("double", "nan", 'expected a number that a double can hold, found "nan"'),
        ("string", None, "expected a string, found null"),
        ("string", "\ud800", "expected a string of Unicode text"),
        ("bytes", "a", "expected bytes in base64"),
        ("bytes", "ä===", "expected bytes in base64"),
        ({"type": "fixed", "name": "F", "size": 3}, "AAA=", "expected 3 bytes in base64"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", 'expected a symbol of the enum E, found "B"'),
        ({"type": "array", "items": "int"}, {}, "expected an array, found an object"),
        ({"type": "map", "values": "int"}, [], "expected an object, found an array"),
        (BYTES4, "100.00", "at most 4 digits"),
        (BYTES4, "1.001", "at most 2 decimals"),
        (BYTES4, 1.5, "a decimal number in a string"),
        (BYTES4, "1e2", "a decimal number in a string"),
        (BYTES4, "9" * 20000, "a decimal number in a string"),
        (DAY, "2025-02-30", "expected a date like 2025-10-09"),
        (DAY, "2025-1-1", "expected a date"),
        (TIME, "24:00:00", "expected a time like 23:59:59"),
        (TIME, "00:00:00.0001", "at most 3 decimals"),
        (STAMP, "2025-01-01T00:00:00", "expected a timestamp like 2025-10-09T23:59:59Z"),
        (STAMP, "2025-01-01 00:00:00Z", "expected a timestamp"),
        (STAMP, True and "x", "expected a timestamp"),
        (LOCAL, "2025-01-01T00:00:00Z", "expected a timestamp like 2025-10-09T23:59:59 with"),
        (["null", "int"], "x", 'expected an integer of 32 bits, found "x"'),
        (["int", "boolean"], "x", 'expected one of int, boolean, found "x"'),
        (OUTER, {"id": 1, "in": {"zip": None}}, "field tags: the record Out has this field, the value has not"),
        (OUTER, {"id": 1, "in": {"zip": 5}, "tags": []}, "field in.zip: expected a string, found 5"),
        (OUTER, {"id": 1, "in": {"zap": 5}, "tags": []}, "field in.zap: the record In has no such field"),
        (OUTER, {"id": 1, "in": {"zip": None}, "tags": [1, "x"]}, "field tags.1: expected an integer of 64 bits"),
        (OUTER, [], "expected an object for the record Out, found an array"),
    ],
)
def test_values_that_do_not_fit(schema, value, message):
    with pytest.raises(DoesNotFit) as caught:
        encoded(schema, value)
    assert message in str(caught.value)


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
MICROS_OF_DAY = {"type": "long", "logicalType": "time-micros"}
DECIMAL_FIXED = {"type": "fixed", "name": "D", "size": 6, "logicalType": "decimal", "precision": 9, "scale": 1}
RECORD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": ["null", BYTES4, "string"]}]}
ENUM = {"type": "enum", "name": "E", "symbols": ["AAAA", "NaN", "B"]}
# Values of each type as they are shown, among them those that are others' too.
BRANCHES = [
    ("null", [None]),
    ("boolean", [True, False]),
    ("int", [0, 5, -(2**31)]),
    ("long", [0, 5, 2**40, 2**62, 10**15, -(2**63)]),
    ("float", [5.0, 0.1, -0.0, 1e30, "NaN", "-Infinity"]),
    ("double", [5.0, 0.1, 0.1000000001, -0.0, 1e300, "NaN", "Infinity"]),
    ("string", ["", "AAAA", "AAA=", "NaN", "12.5", "12.50", "012.50", "-0.00", "7", "2025-01-01", "00:00:00",
                "00:00:00.000", "2025-01-01T00:00:00Z", "2025-01-01T00:00:00.000Z", "B"]),
    ("bytes", ["", "AAAA", "NaNN", "1200", "AA=="]),
    ({"type": "fixed", "name": "F", "size": 3}, ["AAAA", "1200", "+/+/"]),
    (ENUM, ["AAAA", "NaN", "B"]),
    (BYTES4, ["12.50", "0.00", "-0.01"]),
    (DECIMAL_FIXED, ["12.5", "0.0", "-12345678.9"]),
    (DAY, ["2025-01-01", "0001-01-01", 2932897, -(2**31)]),
    (TIME, ["00:00:00.000", "23:59:59.999", -1, 86_400_000]),
    (MICROS_OF_DAY, ["00:00:00.000000", 86_400_000_000, -1]),
    (STAMP, ["2025-01-01T00:00:00.000Z", 10**15, 2**62]),
    (MICROS, ["2025-01-01T00:00:00.000000Z", 2**62]),
    (LOCAL, ["2025-01-01T00:00:00.000000", 2**62]),
    ({"type": "array", "items": ["string", BYTES4]}, [[], ["12.5", "12.50"]]),
    ({"type": "map", "values": [BYTES4, "string"]}, [{}, {"a": "12.5"}, {"a": "12.50"}]),
    (RECORD, [{"a": None}, {"a": "12.5"}, {"a": "12.50"}]),
]  # fmt: skip


@pytest.mark.parametrize("first", range(len(BRANCHES)), ids=lambda i: str(BRANCHES[i][0])[:50])
def test_all_pairs_of_branches(first):
    """What a union shows is written so that it is shown again, whichever branch it was."""
    for second in range(len(BRANCHES)):
        if first == second:
            continue
        union = [BRANCHES[first][0], BRANCHES[second][0]]
        table = one_schema(json.dumps(union))
        schema, decoder = table.by_id(7), TextDecoder(table, "t-value")
        assert schema is not None
        for branch, number in ((first, b"\0"), (second, b"\2")):
            single = BRANCHES[branch][0]
            for value in BRANCHES[branch][1]:
                data = base64.b64decode(value) if single == "bytes" else encoded(single, value)
                if single == "bytes":
                    data = bytes([2 * len(data)]) + data
                text = decoded_text(decoder, framed(number + data))
                assert json.loads(text) == value
                assert decoded_text(decoder, encode_json(schema, table, json.loads(text))) == text, (union, value)


@pytest.mark.parametrize(
    ("branches", "value", "branch"),
    [
        ([BYTES4, "long"], 5, 1),
        ([BYTES4, "int"], 5, 1),
        ([BYTES4, "double"], 5, 1),
        ([BYTES4, "float"], 5, 1),
        ([DECIMAL_FIXED, "double"], 5, 1),
        ([BYTES4, STAMP], 5, 1),
        ([BYTES4, DAY], 2**31 - 1, 1),
        (["double", TIME], 5, 1),
        ([STAMP, "int"], 5, 1),
        ([STAMP, "double"], 5, 0),
        ([BYTES4, "string"], 5, 0),  # it fits nothing else
        ([BYTES4, "int"], 2**33, None),
        ([{"type": "bytes", "logicalType": "decimal", "precision": 20}, "int"], 2**33, 0),
        ([BYTES4, "string"], "12.5", 1),
        ([BYTES4, "string"], "12.50", 0),
        ([BYTES4, "int"], "12.5", 0),
        ([MICROS, STAMP], 10**15, 1),
        ([DAY, "string"], "2025-01-01", 0),
        ([STAMP, "string"], "2025-01-01T00:00:00Z", 1),
        (["bytes", "double"], "Infinity", 1),
        (["double", "int"], 5.0, 0),
        (["double", "int"], float("inf"), None),
    ],
)
def test_which_branch(branches, value, branch):
    if branch is None:
        with pytest.raises(DoesNotFit, match="expected one of"):
            encoded(branches, value)
    else:
        assert encoded(branches, value)[0] == 2 * branch


def test_fewer_decimals_than_the_schema_has():
    assert again(BYTES4, "1.5") == "1.50"
    assert again(BYTES4, 7) == "7.00"
    assert again(STAMP, "2025-01-01T00:00:00Z") == "2025-01-01T00:00:00.000Z"


def test_unions_within_unions_are_tried_once():
    """Two records, each with the same two: without memory the 60 levels would take 2**60 attempts."""
    both = ["null", "A", "B"]
    a = {"type": "record", "name": "A", "fields": [{"name": "n", "type": ["null", "A", {"type": "record", "name": "B",
         "fields": [{"name": "n", "type": both}]}]}]}  # fmt: skip
    value = {"n": "no"}
    for _ in range(60):
        value = {"n": value}
    with pytest.raises(DoesNotFit):
        encoded(a, value)


@pytest.mark.parametrize("depth", [1, 200, 499, 5000])
def test_values_within_each_other(depth):
    """What is shown can be written, and no depth is a RecursionError."""
    unions = (["null", "N"], ["null", "N", "int"])
    kinds = [{"type": "record", "name": "N", "fields": [{"name": "n", "type": union}]} for union in unions]
    for node in kinds:
        value = {"n": None}
        for _ in range(depth):
            value = {"n": value}
        data = encoded(node, value)
        assert data == b"\x02" * depth + b"\0"
        if depth < 500:
            shown = decoded_text(TextDecoder(one_schema(json.dumps(node)), "t-value"), framed(data))
            assert shown == '{"n":' * (depth + 1) + "null" + "}" * (depth + 1)
    value = "x"
    for _ in range(depth):
        value = {"n": value}
    with pytest.raises(DoesNotFit, match="expected one of null, N, int"):
        encoded(kinds[1], value)


def test_json_and_schemas_that_cannot_be_used():
    any_json = Schema(9, JSON, "{}")
    assert encode_json(any_json, SchemaTable(), {"a": [1, "é"]}) == framed('{"a":[1,"é"]}'.encode(), 9)
    for value in (float("nan"), {1, 2}):
        with pytest.raises(DoesNotFit, match="is not JSON"):
            encode_json(any_json, SchemaTable(), value)
    with pytest.raises(BadSchema, match="unknown type"):
        encode_json(Schema(9, "THRIFT", ""), SchemaTable(), 1)
    with pytest.raises(BadSchema, match="is not defined"):
        encode_json(Schema(9, AVRO, '"x"'), SchemaTable(), 1)

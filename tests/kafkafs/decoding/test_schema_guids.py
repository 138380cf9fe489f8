"""The newer wire format: GUIDs in headers, for every kind of schema; and headers that only look like it."""

import json
from uuid import UUID

import numpy as np
import pytest

from kafkafs.decoding.decoded_jsonl import DecodedJsonl
from kafkafs.schemas.schema import AVRO, JSON, PROTOBUF, Schema
from storage.format.columns import RecordColumn
from tests.support.blocks import TP, Row, block_of
from tests.support.decoded_columns import SchemaTable, framed, lines

GUIDS = [UUID(int=i << 100 | 0xFFFE).bytes for i in range(4)]
PROTO = 'syntax = "proto3"; message A { int32 n = 1; } message B { string s = 1; }'
SCHEMAS = [Schema(70, AVRO, '"long"'), Schema(71, JSON, "{}"), Schema(72, PROTOBUF, PROTO)]


class WithGuids(SchemaTable):
    """SCHEMAS by the first GUIDS."""

    def by_guid(self, guid):
        return dict(zip(GUIDS, SCHEMAS, strict=False)).get(guid)


def header(which, side="value", indexes=b""):
    return f"__{side}_schema_id".encode(), b"\1" + GUIDS[which] + indexes


def shown(*rows):
    return [json.loads(line) for line in lines(DecodedJsonl(TP, WithGuids(*SCHEMAS)), list(rows))]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (Row(value=b"\x08", headers=(header(0),)), (None, 4, None, 70)),
        (Row(value=b'{"a": 1}', headers=((b"other", b"x"), header(1), (b"more", None))), (None, {"a": 1}, None, 71)),
        (Row(value=b"\x08\x05", headers=(header(2),)), (None, {"n": 5}, None, 72)),
        (Row(value=b"\x08\x05", headers=(header(2, indexes=b"\0"),)), (None, {"n": 5}, None, 72)),
        (Row(value=b"\x0a\x01x", headers=(header(2, indexes=b"\x02\x02"),)), (None, {"s": "x"}, None, 72)),
        (Row(key=b"\x0a", value=b"plain", headers=(header(0, "key"),)), (5, "plain", 70, None)),
        (Row(key=b"\x0a", value=b"\x0c", headers=(header(0, "key"), header(0))), (5, 6, 70, 70)),
        (Row(value=framed(b"\x08", 70)), (None, 4, None, 70)),
        (Row(value=None, headers=(header(0),)), (None, None, None, None)),
    ],
)
def test_every_kind_of_schema(row, expected):
    (line,) = shown(row)
    assert (line["key"], line["value"], line["keySchema"], line["valueSchema"]) == expected
    assert "error" not in line


@pytest.mark.parametrize(
    ("row", "error", "value", "schema"),
    [
        (Row(value=b"\x08", headers=(header(3),)), f"no schema with the GUID {UUID(bytes=GUIDS[3])}", "\x08", None),
        (
            Row(value=b"\x80", headers=(header(0),)),
            "schema 70 does not fit the data: the data end too early, at byte 0",
            {"base64": "gA=="},
            70,
        ),
        (Row(value=b"\0\0\0\0\0", headers=(header(0),)), "schema 70 does not fit the data", "\0\0\0\0\0", 70),
    ],
)
def test_what_cannot_be_decoded(row, error, value, schema):
    (line,) = shown(row)
    assert line["error"].startswith("value: ")
    assert error in line["error"]
    assert (line["value"], line["valueSchema"]) == (value, schema)


@pytest.mark.parametrize(
    "other",
    [
        (b"__value_schema_id", b"\1" + GUIDS[0][:15]),
        (b"__value_schema_id", b"\0" + GUIDS[0]),
        (b"__value_schema_id", b"\2" + GUIDS[0]),
        (b"__value_schema_id", None),
        (b"__value_schema_iD", b"\1" + GUIDS[0]),
        (b"__key_schema_id", b"\1" + GUIDS[0]),
    ],
)
def test_headers_that_are_none_of_these(other):
    (line,) = shown(Row(value=b"\x08", headers=(other,)))
    assert (line["value"], line["valueSchema"]) == ("\x08", None)
    assert "error" not in line


@pytest.mark.parametrize("count", [5, 50, 2**40, 2**63 - 1])
def test_headers_that_do_not_parse(count):
    block = block_of([Row(value=b"\x08", headers=(header(0),))])
    block.columns[RecordColumn.HEADERS_COUNT, 0] = count
    with pytest.raises(ValueError, match="outside its buffer"):
        DecodedJsonl(TP, WithGuids(*SCHEMAS)).measure(block, np.empty(1, np.int64))

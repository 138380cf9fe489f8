"""The newer wire format: GUIDs in headers, for every kind of schema; and headers that only look like it."""

from __future__ import annotations

import json
from uuid import UUID

import numpy as np
import pytest

from kafkafs.decoding.decoded_jsonl import DecodedJsonl
from kafkafs.schemas.registry import AVRO, JSON, PROTOBUF, Schema
from storage.format.block import RecordColumn
from tests.support.blocks import TP, Row, block_of
from tests.support.decoded_columns import SchemaTable, framed

GUIDS = [UUID(int=i << 100 | 0xFFFE).bytes for i in range(4)]
PROTO = 'syntax = "proto3"; message A { int32 n = 1; } message B { string s = 1; }'
SCHEMAS = [Schema(70, AVRO, '"long"'), Schema(71, JSON, "{}"), Schema(72, PROTOBUF, PROTO)]


class WithGuids(SchemaTable):
    """SCHEMAS by the first GUIDS."""

    def by_guid(self, guid):
        return dict(zip(GUIDS, SCHEMAS, strict=False)).get(guid)


def header(which, side="value", indexes=b""):
    return f"__{side}_schema_id".encode(), b"\1" + GUIDS[which] + indexes


def shown(rows):
    form, block = DecodedJsonl(TP, WithGuids(*SCHEMAS)), block_of(rows)
    sizes = np.empty(len(rows), np.int64)
    form.measure(block, sizes)
    out = np.empty(int(sizes.sum()), np.uint8)
    assert form.render(block, out.data) == len(out)
    return [json.loads(line) for line in out.tobytes().splitlines()]


def test_every_kind_of_schema():
    rows = [
        Row(value=b"\x08", headers=(header(0),)),
        Row(value=b'{"a": 1}', headers=((b"other", b"x"), header(1), (b"more", None))),
        Row(value=b"\x08\x05", headers=(header(2),)),
        Row(value=b"\x08\x05", headers=(header(2, indexes=b"\0"),)),
        Row(value=b"\x0a\x01x", headers=(header(2, indexes=b"\x02\x02"),)),
        Row(key=b"\x0a", value=b"plain", headers=(header(0, "key"),)),
        Row(key=b"\x0a", value=b"\x0c", headers=(header(0, "key"), header(0))),
        Row(value=framed(b"\x08", 70)),
        Row(value=b"\0\0\0\0\0", headers=(header(0),)),
    ]
    found = [(line["key"], line["value"], line["keySchema"], line["valueSchema"]) for line in shown(rows)]
    assert found == [
        (None, 4, None, 70),
        (None, {"a": 1}, None, 71),
        (None, {"n": 5}, None, 72),
        (None, {"n": 5}, None, 72),
        (None, {"s": "x"}, None, 72),
        (5, "plain", 70, None),
        (5, 6, 70, 70),
        (None, 4, None, 70),
        (None, "\0\0\0\0\0", None, 70),
    ]
    assert "error" in shown(rows)[-1]


def test_what_cannot_be_decoded():
    unknown, damaged, null = shown(
        [
            Row(value=b"\x08", headers=(header(3),)),
            Row(value=b"\x80", headers=(header(0),)),
            Row(value=None, headers=(header(0),)),
        ]
    )
    assert unknown["error"] == f"value: there is no schema with the GUID {UUID(bytes=GUIDS[3])}"
    assert (unknown["value"], unknown["valueSchema"]) == ("\x08", None)
    assert damaged["error"] == "value: schema 70 does not fit the data: the data end too early, at byte 0"
    assert (damaged["value"], damaged["valueSchema"]) == ({"base64": "gA=="}, 70)
    assert (null["value"], null["valueSchema"]) == (None, None)
    assert "error" not in null


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
    (line,) = shown([Row(value=b"\x08", headers=(other,))])
    assert (line["value"], line["valueSchema"]) == ("\x08", None)
    assert "error" not in line


@pytest.mark.parametrize("count", [5, 50, 2**40, 2**63 - 1])
def test_headers_that_do_not_parse(count):
    block = block_of([Row(value=b"\x08", headers=(header(0),))])
    block.columns[RecordColumn.HEADERS_COUNT, 0] = count
    with pytest.raises(ValueError, match="outside its buffer"):
        DecodedJsonl(TP, WithGuids(*SCHEMAS)).measure(block, np.empty(1, np.int64))

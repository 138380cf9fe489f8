"""Blocks of records for format tests, and each record in plain Python's form of kafkafs/CONTRACT.md, "Formats"."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from storage.format.batches import BatchTable
from storage.format.block import RecordBlock, encode_headers
from storage.format.columns import Column, RecordColumn
from storage.types import TopicPartition
from tests.support.builders import BuiltRecord
from tests.support.fixtures import Golden

TP = TopicPartition("my.topic-1", 12)
TYPES = ("CreateTime", "LogAppendTime", "NoTimestampType")


@dataclass(frozen=True, slots=True)
class Row:
    """A record and the type of its timestamp: an index into TYPES."""

    offset: int = 0
    timestamp: int = 0
    key: bytes | None = None
    value: bytes | None = b""
    headers: tuple[tuple[bytes, bytes | None], ...] = ()
    type: int = 0


def block_of(rows: Sequence[Row]) -> RecordBlock:
    """The rows as a block; its buffer has no byte to spare on either side."""
    buffer = bytearray()
    columns = np.zeros((len(RecordColumn), len(rows)), np.int64)

    def add(data: bytes | None) -> tuple[int, int]:
        if data is None:
            return 0, -1
        buffer.extend(data)
        return len(buffer) - len(data), len(data)

    for i, row in enumerate(rows):
        columns[RecordColumn.OFFSET, i] = row.offset
        columns[RecordColumn.TIMESTAMP, i] = row.timestamp
        columns[[RecordColumn.KEY_START, RecordColumn.KEY_LENGTH], i] = add(row.key)
        columns[[RecordColumn.VALUE_START, RecordColumn.VALUE_LENGTH], i] = add(row.value)
        start, _ = add(encode_headers(row.headers))
        columns[[RecordColumn.HEADERS_START, RecordColumn.HEADERS_COUNT], i] = start, len(row.headers)
        columns[RecordColumn.BATCH, i] = row.type
    table = BatchTable.empty(3)
    table.data[:] = 0
    table.rows = 3
    table.data[Column.MAGIC] = (2, 2, 0)
    table.data[Column.ATTRIBUTES] = (0, 8, 0)
    return RecordBlock(memoryview(bytes(buffer)), table, columns, 3)


def txt_line(row: Row) -> bytes:
    return (row.value or b"") + b"\n"


def json_text(data: bytes | None) -> object:
    if data is None:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def json_fields(tp: TopicPartition, record: Row | BuiltRecord | Golden, timestamp_type: str) -> dict[str, object]:
    return {
        "topic": tp.topic,
        "partition": tp.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": timestamp_type,
        "key": json_text(record.key),
        "value": json_text(record.value),
        "headers": [[json_text(name), json_text(value)] for name, value in record.headers],
    }


def json_text_line(fields: dict[str, object]) -> bytes:
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def json_line(row: Row) -> bytes:
    return json_text_line(json_fields(TP, row, TYPES[row.type]))


EVERY_LETTER = r"%t/%p@%o %T k=%k(%K) v=%s(%S)\t[%R] {%h}%%\n"


def every_letter_line(row: Row) -> bytes:
    def length(data: bytes | None) -> int:
        return -1 if data is None else len(data)

    headers = b",".join(name + b"=" + (b"NULL" if value is None else value) for name, value in row.headers)
    return (
        b"my.topic-1/12@%d %d k=" % (row.offset, row.timestamp)
        + (row.key or b"")
        + b"(%d) v=" % length(row.key)
        + (row.value or b"")
        + b"(%d)\t[" % length(row.value)
        + length(row.value).to_bytes(4, "big", signed=True)
        + b"] {"
        + headers
        + b"}%\n"
    )


int64s = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200) | st.sampled_from([9, 10, 99, 100, 9999, 10**18])
# Long runs of plain ASCII take other paths than what needs a look.
plain = st.binary(max_size=3).map(lambda seed: (seed.hex() or "ab").encode() * 20)
texts = st.text(max_size=80).map(lambda text: text.encode("utf-8", "surrogatepass"))
quoted = st.text(alphabet='"\\\n\t\x00\x1f\x7f{}:aé€😀', max_size=90).map(str.encode)
datas = st.one_of(
    st.binary(max_size=100),
    texts,
    quoted,
    st.builds(bytes.__add__, plain, st.binary(max_size=4)),
    st.builds(bytes.__add__, st.builds(bytes.__add__, plain, quoted), plain),
)
rows = st.builds(
    Row,
    int64s,
    int64s,
    st.none() | datas,
    st.none() | datas,
    st.lists(st.tuples(datas, st.none() | datas), max_size=3).map(tuple),
    st.integers(0, 2),
)

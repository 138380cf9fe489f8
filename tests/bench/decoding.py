"""Decoding without a mount: our kernel beside fastavro with orjson, and Protobuf beside the library's MessageToJson.

And Avro through a mount, beside jsonl of the same messages.
"""

import io
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path

import fastavro
import numpy as np
import orjson
import pyarrow as pa
from google.protobuf import json_format, message_factory

from kafkafs.arrow.avro_columns import AvroColumn
from kafkafs.decoding.avro_schema import parse
from kafkafs.decoding.decoded_jsonl import DecodedJsonl, TextDecoder
from kafkafs.decoding.protobuf import decoder as protobuf_decoder
from kafkafs.schemas.schema import AVRO, PROTOBUF, Schema
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock, RecordColumns
from storage.format.columns import Column, RecordColumn
from storage.types import TopicPartition
from tests.bench.data import BATCH_BYTES, CACHE, START_MS, SegmentWriter
from tests.bench.measure import Row, call_seconds
from tests.bench.noop_fuse import cat_seconds
from tests.bench.through_mount import fresh

# Bytes of values in a block: its lines are some 512 KiB, as a piece of a mount's file is.
BLOCK_BYTES = 200_000

_ADDRESS = {
    "type": "record",
    "name": "Address",
    "fields": [
        {"name": "street", "type": "string"},
        {"name": "city", "type": "string"},
        {"name": "zip", "type": ["null", "string"]},
    ],
}
ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "order_id", "type": "long"},
        {"name": "customer_id", "type": "int"},
        {"name": "paid", "type": "boolean"},
        {"name": "total", "type": "double"},
        {"name": "weight", "type": "float"},
        {"name": "status", "type": "string"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "address", "type": _ADDRESS},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "created", "type": "long"},
        {"name": "quantity", "type": "int"},
        {"name": "source", "type": "string"},
    ],
}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "text", "type": "string"}]}
WIDE = {
    "type": "record",
    "name": "Wide",
    "fields": [
        {"name": f"field_{i}", "type": ("int", "long", "double", "string", ["null", "string"])[i % 5]}
        for i in range(200)
    ],
}
PROTO = """
syntax = "proto3";
message Order {
  message Address { string street = 1; string city = 2; optional string zip = 3; }
  int64 order_id = 1; int32 customer_id = 2; bool paid = 3; double total = 4; float weight = 5; string status = 6;
  optional string note = 7; Address address = 8; repeated string tags = 9; int64 created = 10; int32 quantity = 11;
  string source = 12;
}
"""
SCHEMAS = {
    1: Schema(1, AVRO, json.dumps(ORDER)),
    2: Schema(2, AVRO, json.dumps(LINE)),
    3: Schema(3, AVRO, json.dumps(WIDE)),
    4: Schema(4, PROTOBUF, PROTO),
}


class Lookup:
    """SCHEMAS as a SchemaLookup."""

    def by_id(self, schema_id, subject=None):
        return SCHEMAS.get(schema_id)

    def by_guid(self, guid):
        return None

    def referenced(self, reference):
        return None

    def by_message_type(self, name):
        return None

    def of_file(self, subject):
        return None


def order(dice):
    return {
        "order_id": dice.randrange(10**9),
        "customer_id": dice.randrange(10**6),
        "paid": dice.random() < 0.5,
        "total": dice.randrange(10**7) / 100,
        "weight": dice.randrange(10**4) / 8,
        "status": dice.choice(("NEW", "PAID", "SHIPPED")),
        "note": dice.choice((None, "leave it with the neighbour, please")),
        "address": {"street": "Hauptstraße 17" if dice.random() < 0.2 else "17 High Street", "city": "Springfield",
                    "zip": dice.choice((None, "01234"))},
        "tags": ["one", "second tag"][: dice.randrange(3)],
        "created": 1_700_000_000_000 + dice.randrange(10**9),
        "quantity": dice.randrange(100),
        "source": "web-frontend",
    }  # fmt: skip


def wide(dice):
    kinds = (
        lambda: dice.randrange(1000),
        lambda: dice.randrange(10**12),
        lambda: dice.randrange(10**6) / 100,
        lambda: "some text",
        lambda: dice.choice((None, "more")),
    )
    return {f"field_{i}": kinds[i % 5]() for i in range(200)}


def line(dice):
    return {"text": f"a line of text, number {dice.randrange(10**6)}"}


def avro_rows(schema_id, make, count):
    """`count` messages in the wire format; some thousand different ones, again and again."""
    dice, parsed = random.Random(schema_id), fastavro.parse_schema(json.loads(SCHEMAS[schema_id].text))
    different = []
    for _ in range(min(count, 10_000)):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, parsed, make(dice))
        different.append(b"\0" + schema_id.to_bytes(4, "big") + out.getvalue())
    return [different[i % len(different)] for i in range(count)]


def message_class():
    return message_factory.GetMessageClass(protobuf_decoder(SCHEMAS[4], Lookup()).message_type((0,)))


def proto_rows(count):
    dice, kind = random.Random(4), message_class()
    different = []
    for _ in range(min(count, 2000)):
        fields = {name: value for name, value in order(dice).items() if value is not None}
        fields["address"] = {name: value for name, value in fields["address"].items() if value is not None}
        different.append(b"\0\0\0\0\4\0" + json_format.ParseDict(fields, kind()).SerializeToString())
    return [different[i % len(different)] for i in range(count)]


@dataclass(frozen=True, slots=True)
class Columns:
    """Values as columns over one buffer."""

    buffer: bytes
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows):
        lengths = np.array([len(row) for row in rows], np.int64)
        return cls(b"".join(rows), np.cumsum(lengths) - lengths, lengths)

    def windows(self):
        rows = BLOCK_BYTES * len(self.lengths) // len(self.buffer)
        for first in range(0, len(self.lengths), rows):
            yield slice(first, first + rows)

    def blocks(self):
        """With null keys and no headers."""
        table = BatchTable(np.zeros((len(Column), 1), np.int64), 1)
        table.data[Column.MAGIC] = 2
        for window in self.windows():
            columns = np.zeros((len(RecordColumn), len(self.lengths[window])), np.int64)
            columns[RecordColumn.KEY_LENGTH] = -1
            columns[RecordColumn.VALUE_START] = self.starts[window]
            columns[RecordColumn.VALUE_LENGTH] = self.lengths[window]
            yield RecordBlock(memoryview(self.buffer), table, columns, 1)


def decode_texts(columns):
    """Values to JSON texts; their bytes."""
    decoder, total = TextDecoder(Lookup(), "t-value"), 0
    for window in columns.windows():
        texts, _, _, errors = decoder.decode(columns.buffer, columns.starts[window], columns.lengths[window])
        if errors:
            raise AssertionError(errors)
        total += len(texts)
    return total


def render_lines(columns, out):
    """Messages to lines of decoded.jsonl; their bytes."""
    form, total = DecodedJsonl(TopicPartition("t", 0), Lookup()), 0
    for block in columns.blocks():
        total += form.render(block, out)
    return total


def decode_fastavro(rows, schema_id):
    parsed, total = fastavro.parse_schema(json.loads(SCHEMAS[schema_id].text)), 0
    for row in rows:
        total += len(orjson.dumps(fastavro.schemaless_reader(io.BytesIO(memoryview(row)[5:]), parsed)))
    return total


def decode_protobuf(rows):
    """By MessageToJson with the class at hand."""
    kind, total = message_class(), 0
    for row in rows:
        text = json_format.MessageToJson(
            kind.FromString(row[6:]), preserving_proto_field_name=True, indent=None, ensure_ascii=False
        )
        total += len(text)
    return total


def measure(context):
    report, messages, runs = context.report, context.messages, context.runs
    out = memoryview(bytearray(64 << 20))
    cases = (("12 fields", 1, order, 1), ("one line", 2, line, 1), ("200 fields", 3, wide, 20))
    for name, schema_id, make, share in cases:
        count = messages // share
        rows = avro_rows(schema_id, make, count)
        columns, fewer = Columns.of(rows), rows[: max(count // 20, 1)]
        size = sum(map(len, rows))
        peer = f"fastavro + orjson, {name}"
        reader = parse(SCHEMAS[schema_id], Lookup())
        values, typed = pa.array(rows, pa.binary()), AvroColumn(Lookup(), "t-value", reader)
        for _ in range(runs):
            row = Row(f"Avro to typed columns, {name}", bytes=size, messages=count, note="one thread", compare=(peer,))
            report.add(row, call_seconds(lambda values=values, typed=typed: typed.read(values, {})))
            row = Row(f"Avro to JSON, {name}", bytes=size, messages=count, note="one thread", compare=(peer,))
            report.add(row, call_seconds(lambda columns=columns: decode_texts(columns)))
            row = Row(f"decoded.jsonl, {name}", bytes=size, messages=count, note="one thread", compare=(peer,))
            report.add(row, call_seconds(lambda columns=columns: render_lines(columns, out)))
            row = Row(peer, bytes=size, messages=count, note="a twentieth of them, time by 20")
            seconds = call_seconds(lambda fewer=fewer, which=schema_id: decode_fastavro(fewer, which))
            report.add(row, seconds * len(rows) / len(fewer))
    rows = proto_rows(max(messages // 4, 1))
    columns, fewer = Columns.of(rows), rows[: max(len(rows) // 50, 1)]
    size = sum(map(len, rows))
    peer = "MessageToJson"
    for _ in range(runs):
        row = Row("Protobuf to JSON, 12 fields", bytes=size, messages=len(rows), note="one thread", compare=(peer,))
        report.add(row, call_seconds(lambda: decode_texts(columns)))
        row = Row("decoded.jsonl, Protobuf", bytes=size, messages=len(rows), note="one thread", compare=(peer,))
        report.add(row, call_seconds(lambda: render_lines(columns, out)))
        row = Row(peer, bytes=size, messages=len(rows), note="the library alone; a fiftieth, time by 50")
        report.add(row, call_seconds(lambda: decode_protobuf(fewer)) * len(rows) / len(fewer))
    _through_mount(context)


def _through_mount(context):
    """The messages of 12 fields, cold and warm."""
    columns = Columns.of(avro_rows(1, order, context.messages))
    count = len(columns.lengths)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="decoded-") as temporary:
        log_dir, schemas = Path(temporary) / "log", Path(temporary) / "schemas"
        schemas.mkdir()
        (schemas / "1.avsc").write_text(SCHEMAS[1].text)
        writer = SegmentWriter(log_dir / "avro-0")
        times = np.arange(START_MS, START_MS + count, dtype=np.int64)
        values = RecordColumns(columns.buffer, columns.starts, columns.lengths, times)
        writer.append_records(values, count, 0, memoryview(bytearray(BATCH_BYTES)))
        writer.close()
        for _ in range(context.runs):
            for kind in ("jsonl", "decoded.jsonl"):
                with fresh(log_dir, None, "--schemas", str(schemas)) as tree:
                    for state in ("cold", "warm"):
                        file = tree.path / "avro" / "0" / f"messages.{kind}"
                        seconds = cat_seconds(file)
                        compare = (f"avro jsonl {state}",) if kind == "decoded.jsonl" else ()
                        shown = f"cat MNT/avro/0/messages.{kind} >/dev/null"
                        row = Row(f"avro {kind} {state}", shown, [], file.stat().st_size, count, "", compare)
                        context.report.add(row, seconds)

"""Protobuf values as typed columns: what the library's own messages hold is what the columns hold."""

import json
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

pytest.importorskip("google.protobuf", reason="no protobuf: install the extra `schemas`")
pytest.importorskip("grpc_tools", reason="no grpcio-tools: install the extra `schemas`")
pytest.importorskip("pyarrow")

import pyarrow as pa
from google.protobuf import json_format, message_factory

import kafkafs
from kafkafs.arrow.protobuf_columns import ProtobufColumn
from kafkafs.decoding import protobuf
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.proto_any import is_repeated
from kafkafs.decoding.proto_program import Kind, kind_of
from kafkafs.decoding.protobuf import ProtobufDecoder
from kafkafs.schemas.schema import PROTOBUF, Schema
from storage.format.block import Record
from tests.kafkafs.decoding import random_protobuf
from tests.support.builders import Batch, build_log_dir
from tests.support.decoded_columns import one_schema
from tests.support.schema_logs import framed, schema_record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def held(message):
    """What the columns should hold of a message, by the library's attributes alone."""
    kind = kind_of(message.DESCRIPTOR)
    if kind is Kind.TIMESTAMP:
        return EPOCH + timedelta(seconds=message.seconds, microseconds=message.nanos // 1000)
    if kind is Kind.WRAPPER:
        return one(message.DESCRIPTOR.fields_by_name["value"], message.value)
    if kind is not Kind.MESSAGE or not message.DESCRIPTOR.fields:
        return json.loads(json_format.MessageToJson(message))
    found = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        below = field.message_type
        if below is not None and below.GetOptions().map_entry:
            of = below.fields_by_name["value"]
            key = below.fields_by_name["key"]
            found[field.name] = {one(key, name): one(of, value[name]) for name in value}
        elif is_repeated(field):
            found[field.name] = [one(field, item) for item in value]
        elif field.has_presence and not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = one(field, value)
    return found


def one(field, value):
    if field.message_type is not None:
        return held(value)
    if field.enum_type is not None:
        if field.enum_type.full_name == "google.protobuf.NullValue":
            return None
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return Decimal(value) if field.type in (4, 6) else value


def shown(value, kind, message_type):
    """The columns' value in the form of `held`."""
    if value is None or not pa.types.is_struct(kind):
        return json.loads(value) if pa.types.is_string(kind) and is_json(message_type) and value is not None else value
    return {
        field.name: of_field(value[field.name], kind.field(field.name).type, field) for field in message_type.fields
    }


def of_field(value, kind, field):
    below = field.message_type
    if pa.types.is_map(kind):
        of = below.fields_by_name["value"]
        return {key: of_field(item, kind.item_type, of) for key, item in value}
    if pa.types.is_list(kind):
        return [of_field(item, kind.value_type, field) for item in value]
    if field.enum_type is not None and field.enum_type.full_name == "google.protobuf.NullValue":
        return None
    return value if below is None else shown(value, kind, below)


def is_json(message_type):
    return kind_of(message_type) not in (Kind.TIMESTAMP, Kind.WRAPPER)


def test_random_schemas_and_messages(monkeypatch):
    read = 0
    for seed in range(150):
        dice = random.Random(seed)
        compiled = random_protobuf.schema(dice)
        decoder = ProtobufDecoder(compiled)
        monkeypatch.setattr(protobuf, "decoder", lambda *_, decoder=decoder: decoder)
        schemas = one_schema("", PROTOBUF)
        try:
            column = ProtobufColumn(schemas, "t-value", Schema(7, PROTOBUF, ""))
        except BadSchema as error:
            assert "itself" in str(error) or "no fields" in str(error)  # noqa: PT017 - both are right
            continue
        data = [random_protobuf.message(compiled, dice, 0) for _ in range(20)]
        kind = decoder.message_type((0,))
        values, _, errors = column.read(pa.array([framed(7, b"\0" + message) for message in data]), {})
        found = values.to_pylist()
        for row, message in enumerate(data):
            if row in errors:
                with pytest.raises(protobuf.CannotDecode):
                    decoder.decode(b"\0" + message)
                assert found[row] is None
                continue
            parsed = message_factory.GetMessageClass(kind)()
            parsed.MergeFromString(message)
            assert canonical(shown(found[row], column.type, kind)) == canonical(held(parsed)), (seed, row)
            read += 1
    assert read > 500


def canonical(value):
    """Equal for equal values: maps in any order, NaN as itself."""
    if isinstance(value, dict):
        return sorted((repr(key), canonical(item)) for key, item in value.items())
    if isinstance(value, datetime):
        return value.isoformat()
    return [canonical(item) for item in value] if isinstance(value, list) else repr(value)


V1 = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; string item = 2; google.protobuf.Timestamp at = 3; }
message Other { string item = 2; }"""
V2 = """syntax = "proto3"; package shop; import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  enum State { NEW = 0; PAID = 1; }
  int64 number = 1; string item = 2; google.protobuf.Timestamp at = 3; repeated double prices = 4;
  map<string, int32> counts = 5; State state = 6; optional bool gift = 7; google.protobuf.StringValue note = 8;
  bytes raw = 9; uint64 large = 10;
}"""
MOVED = """syntax = "proto3"; package shop; message First { int64 id = 1; } message Order { int64 id = 1; }"""


def test_all_versions_are_read_as_the_newest(tmp_path):
    schemas = [
        schema_record("t-value", 1, 1, V1, schemaType="PROTOBUF"),
        schema_record("t-value", 2, 3, MOVED, schemaType="PROTOBUF"),
        schema_record("t-value", 3, 2, V2, schemaType="PROTOBUF"),
    ]
    old = b"\x08\x05\x12\x03tea\x1a\x06\x08" + b"\x80\xe2\xcf\xaa\x06"
    new = b"\x08\x06\x22\x08" + b"\0\0\0\0\0\0\xf8\x3f" + b"\x2a\x05\x0a\x01x\x10\x02\x30\x01\x38\0\x42\x02\x0a\0"
    records = [
        Record(None, framed(1, b"\0" + old)),
        Record(None, framed(2, b"\x02\0" + new + b"\x4a\x01\xff\x50" + b"\xff" * 9 + b"\x01")),
        Record(None, framed(1, b"\x02\x02" + b"\x12\x01a")),  # the second message type
        Record(None, framed(3, b"\0" + b"\x08\x01")),
        Record(None, framed(2, b"\0" + b"\x08")),
        Record(None, b"plain"),
        Record(None, None),
        Record(None, framed(9, b"\0")),
    ]
    built = build_log_dir(tmp_path / "log", {"t": [[Batch(records)]], "_schemas": [[Batch(schemas)]]}, broker=False)
    table = kafkafs.open(built.path)["t"].scan(decode=True, columns=("value", "value_bytes", "decode_error")).to_arrow()
    first, second, *rest = table.column("value").to_pylist()
    nothing = {"prices": [], "counts": [], "state": "NEW", "gift": None, "note": None, "raw": b"", "large": Decimal(0)}
    assert first == {"number": 5, "item": "tea", "at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC), **nothing}
    given = {"number": 6, "item": "", "at": None, "prices": [1.5], "counts": [("x", 2)], "state": "PAID", "gift": False}
    assert second == given | {"note": "", "raw": b"\xff", "large": Decimal(2**64 - 1)}
    assert rest == [None] * 6
    none, also_none, *errors = table.column("decode_error").to_pylist()
    assert (none, also_none, errors.pop(-2)) == (None, None, None)
    for error, why in zip(errors, ("first message type", "schema 3 is of the type shop.First, not shop.Order",
                                   "schema 2 does not fit the data", "it is not in the wire format",
                                   "there is no schema 9"), strict=True):  # fmt: skip
        assert why in error
    kept = [record.value for record in records]
    assert table.column("value_bytes").to_pylist() == [None, None, *kept[2:6], None, kept[7]]

    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table, tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").to_pylist() == table.to_pylist()

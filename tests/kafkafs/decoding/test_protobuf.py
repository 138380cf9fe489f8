"""Protobuf by the library: kinds of fields, message indexes, and schemas that cannot be compiled."""

import gc
import json

import pytest

pytest.importorskip("grpc_tools")

from google.protobuf import json_format, message_factory

from kafkafs.decoding import proto_files, protobuf
from kafkafs.decoding.decoded_jsonl import TextDecoder
from kafkafs.schemas.schema import AVRO, PROTOBUF, Reference, Schema
from tests.support.decoded_columns import SchemaTable, decoded_text, decoded_texts, framed, one_schema

PROTO = """
syntax = "proto3";
package p;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/any.proto";
message A { int32 n = 1; string s = 2; }
message B {
  map<string, int64> counts = 1;
  message C { bool y = 1; message D { double d = 1; } }
  enum E { NONE = 0; ONE = 1; }
  E e = 2;
  repeated E es = 3;
  C c = 4;
  optional int32 maybe = 5;
  oneof which { string text = 6; bytes blob = 7; }
  google.protobuf.Timestamp at = 8;
  google.protobuf.Int64Value wrapped = 9;
  google.protobuf.Struct any_json = 10;
  google.protobuf.Any any = 11;
  float small = 12;
  uint64 big = 13;
  B inner = 14;
  string camelCase = 15;
}
"""
PROTO2 = """
syntax = "proto2";
message R { required string name = 1; optional int32 n = 2 [default = -7]; repeated int32 xs = 3 [packed = true];
            extensions 100 to 200; optional group G = 4 { optional int32 i = 1; } }
"""


def shown(data, text=PROTO):
    return json.loads(decoded_text(TextDecoder(one_schema(text, PROTOBUF), "t-value"), framed(data)))


def fault(data, text=PROTO):
    _, errors = decoded_texts(TextDecoder(one_schema(text, PROTOBUF), "t-value"), [framed(data)])
    return errors[0]


SECOND = b"\x02\x02"  # message [1]


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"\0", {}),
        (b"\0\x08\x05\x12\x01x", {"n": 5, "s": "x"}),
        (SECOND + b"\x10\x01\x1a\x03\x00\x01\x09", {"e": "ONE", "es": ["NONE", "ONE", 9]}),
        (SECOND + b"\x0a\x07\x0a\x01k\x10\xff\xff\x03", {"counts": {"k": "65535"}}),
        (SECOND + b"\x28\x00", {"maybe": 0}),
        (SECOND + b"\x32\x00", {"text": ""}),
        (SECOND + b"\x3a\x02\xff\xfe", {"blob": "//4="}),
        (SECOND + b"\x42\x02\x08\x01", {"at": "1970-01-01T00:00:01Z"}),
        (SECOND + b"\x4a\x00", {"wrapped": "0"}),
        (SECOND + b"\x65\x00\x00\xc0\x7f", {"small": "NaN"}),
        (SECOND + b"\x65\xcd\xcc\xcc\x3d", {"small": 0.1}),
        (SECOND + b"\x68" + b"\xff" * 9 + b"\x01", {"big": "18446744073709551615"}),
        (SECOND + b"\x72\x02\x72\x00", {"inner": {"inner": {}}}),
        (SECOND + b"\x7a\x01x", {"camelCase": "x"}),
        (SECOND + b"\xfa\x07\x01x", {}),  # an unknown field
        # Java's clients leave the entry types of maps out of the indexes, Python's count them.
        (b"\x04\x02\x00\x08\x01", {"y": True}),
        (b"\x04\x02\x02\x08\x01", {"y": True}),
        (b"\x06\x02\x00\x00", {}),
    ],
)
def test_fields_and_message_types(data, value):
    assert shown(data) == value


def test_proto2():
    assert shown(b"\0\x10\x05", PROTO2) == {"n": 5}, "a required field that is missing"
    assert shown(b"\0\x0a\x01x\x1a\x02\x01\x02\x18\x03", PROTO2) == {"name": "x", "xs": [1, 2, 3]}
    assert shown(b"\0\x23\x08\x01\x24", PROTO2) == {"g": {"i": 1}}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "the data end within the message indexes"),
        (b"\x04\x00", "the data end within the message indexes"),
        (b"\x03", "-2 message indexes"),
        (b"\x80\x80\x80\x80\x80", "more than 32 bits"),
        (b"\x02\x08", "there is no message type [4] in the schema"),
        (b"\x02\x01", "there is no message type [-1] in the schema"),
        (b"\xca\x01" + b"\0" * 200, "101 message indexes"),
        (b"\x06\x02\x00\x00\x08", ""),
        (b"\x00\x08", ""),
        (b"\x00\x12\x05x", ""),
        (b"\x00\x12\x02\xff\xfe", ""),
        (b"\x02\x02" + b"\x72\x7f" * 200, ""),
        (b"\x02\x02\x5a\x09\x0a\x04/p.B\x12\x01\x42", ""),  # Any of a type of the schema, but not its data
    ],
)
def test_data_that_do_not_fit(data, why):
    error = fault(data)
    assert error.startswith("schema 7 does not fit the data: ")
    assert why in error


def test_data_that_are_too_long():
    assert "up to 4 MiB" in fault(b"\0" + b"\x08\x05" * (8 << 20) + b"\0")


def test_schemas_that_do_not_compile():
    assert "schema 7 cannot be used: it does not compile: " in fault(b"\0", "message {")
    assert ": the schema:1:" in fault(b"\0", "message {")
    assert "does not compile" in fault(b"\0", 'import "missing.proto"; message A {}')
    assert "4 MiB" in fault(b"\0", "/" * (5 << 20))
    assert "there is no message type [0]" in fault(b"\0", 'syntax = "proto3";')


@pytest.mark.parametrize(
    ("limit", "less", "why"),
    [
        ("COMPILER_MEMORY_BYTES", 256 << 20, "ended with SIGABRT; the compiler may use at most 256 MiB"),
        ("COMPILER_OUTPUT_BYTES", 99, "made: File too large"),
        ("COMPILER_SECONDS", 0, "takes more than 0 s"),
    ],
)
def test_the_compiler_has_limits(limit, less, why, monkeypatch):
    """Messages whose descriptors take half a gigabyte."""
    monkeypatch.setattr(proto_files, limit, less)
    types = "".join(f"message M{i}{{M{i} a=1;M{i} b=2;M{i} c=3;}}" for i in range(50_000))
    assert why in fault(b"\0", f'syntax="proto3"; // {limit}\n{types}')


def test_names_do_not_make_few_bytes_a_text_of_gigabytes():
    text = f'syntax="proto3"; message M {{ repeated N n=1; }} message N {{ int32 {"n" * 900}=1; }}'
    data = b"\x0a\x02\x08\x01"
    assert shown(b"\0" + data * 10, text)["n"] == [{"n" * 900: 1}] * 10
    assert "longer than 1 MiB and 16 times" in fault(b"\0" + data * 25_000, text)


@pytest.mark.parametrize(
    "name", ["../x.proto", "/x.proto", "a//b.proto", "a/../../x", "", ".", "a\0b", "a\nb", "a\\b", "x" * 300]
)
def test_names_that_are_no_file_names(name):
    """A reference's name becomes a file: it must not be one elsewhere."""
    main = Schema(7, PROTOBUF, "message A {}", (Reference(name, "s", 1),))
    table = SchemaTable(main, versions={("s", 1): Schema(8, PROTOBUF, "message X {}")})
    _, errors = decoded_texts(TextDecoder(table, "t-value"), [framed(b"\0")])
    assert "is not a valid file name" in errors[0]


def test_references():
    low = Schema(1, PROTOBUF, 'syntax = "proto3"; package low; message L { int32 i = 1; }')
    middle = Schema(
        2,
        PROTOBUF,
        'syntax = "proto3"; import "d/low.proto"; message M { low.L l = 1; }',
        (Reference("d/low.proto", "low", 1),),
    )
    main = Schema(
        7,
        PROTOBUF,
        'syntax = "proto3"; import "mid.proto"; message T { M m = 1; }',
        (Reference("mid.proto", "mid", 1),),
    )
    table = SchemaTable(main, versions={("low", 1): low, ("mid", 1): middle})
    assert decoded_text(TextDecoder(table, "t-value"), framed(b"\0\x0a\x04\x0a\x02\x08\x05")) == '{"m":{"l":{"i":5}}}'
    for missing in (SchemaTable(main), SchemaTable(main, versions={("mid", 1): Schema(2, AVRO, '"int"')})):
        _, errors = decoded_texts(TextDecoder(missing, "t-value"), [framed(b"\0")])
        assert "refers to mid.proto" in errors[0]


TYPES = {
    "calendar_period": "CalendarPeriod", "color": "Color", "date": "Date", "datetime": "DateTime",
    "dayofweek": "DayOfWeek", "decimal": "Decimal", "expr": "Expr", "fraction": "Fraction", "interval": "Interval",
    "latlng": "LatLng", "localized_text": "LocalizedText", "money": "Money", "month": "Month",
    "phone_number": "PhoneNumber", "postal_address": "PostalAddress", "quaternion": "Quaternion",
    "timeofday": "TimeOfDay",
}  # fmt: skip
WELL_KNOWN = {
    "any": "Any", "api": "Api", "descriptor": "FieldOptions", "duration": "Duration", "empty": "Empty",
    "field_mask": "FieldMask", "source_context": "SourceContext", "struct": "Struct", "timestamp": "Timestamp",
    "type": "Type", "wrappers": "Int64Value",
}  # fmt: skip


def test_every_file_that_registries_know():
    pytest.importorskip("google.type", reason="googleapis-common-protos is not installed")
    names = {f"google/type/{file}.proto": f"google.type.{name}" for file, name in TYPES.items()}
    names |= {f"google/protobuf/{file}.proto": f"google.protobuf.{name}" for file, name in WELL_KNOWN.items()}
    names |= {"confluent/meta.proto": "confluent.Meta", "confluent/type/decimal.proto": "confluent.type.Decimal",
              "confluent/type/variant.proto": "confluent.type.Variant"}  # fmt: skip
    imports = "".join(f'import "{name}";' for name in names)
    fields = "".join(f"{kind} f{number} = {number};" for number, kind in enumerate(names.values(), 1))
    text = f'syntax = "proto3"; {imports} message A {{ {fields} string last = 99; }}'
    assert shown(b"\0\x9a\x06\x01x", text) == {"last": "x"}
    file = proto_files.compiled_files(Schema(7, PROTOBUF, text), SchemaTable()).file
    shapes = {kind.full_name: {field.name: (field.number, field.type) for field in kind.fields}
              for known in file.dependencies for kind in known.message_types_by_name.values()}  # fmt: skip
    assert shapes["confluent.type.Variant"] == {"metadata": (1, 12), "value": (2, 12)}
    assert shapes["confluent.type.Decimal"] == {"value": (1, 12), "precision": (2, 13), "scale": (3, 5)}
    assert shapes["confluent.Meta"] == {"doc": (1, 9), "params": (2, 11), "tags": (3, 9), "rules": (4, 11)}
    assert shapes["confluent.Rule"] == {"name": (1, 9), "doc": (2, 9), "expr": (3, 9), "sql": (4, 9)}
    (options,) = [known for known in file.dependencies if known.name == "confluent/meta.proto"]
    assert {name: (field.number, field.containing_type.name) for name, field in options.extensions_by_name.items()} == {
        "file_meta": (1088, "FileOptions"), "message_meta": (1088, "MessageOptions"),
        "field_meta": (1088, "FieldOptions"), "enum_meta": (1088, "EnumOptions"),
        "enum_value_meta": (1088, "EnumValueOptions"),
    }  # fmt: skip


CONFLUENT = """
syntax = "proto3";
import "confluent/type/decimal.proto";
import "confluent/meta.proto";
option (confluent.file_meta) = {doc: "f"};
message A {
  option (confluent.message_meta) = {doc: "m", params: [{key: "k", value: "v"}], tags: "t"};
  confluent.type.Decimal d = 1 [(confluent.field_meta) = {
    params: [{value: "4", key: "precision"}], rules: [{name: "r", doc: "d", expr: "e", sql: "s"}]
  }];
  E e = 2;
}
enum E { option (confluent.enum_meta) = {doc: "e"}; ZERO = 0 [(confluent.enum_value_meta) = {doc: "z"}]; }
"""
# d of value 00 ff, precision 4, scale 2
A_DECIMAL = b"\0\x0a\x08\x0a\x02\x00\xff\x10\x04\x18\x02"


@pytest.mark.parametrize(
    "text", [CONFLUENT, CONFLUENT.replace('import "confluent/meta.proto";\n', "")], ids=["imported", "not imported"]
)
def test_confluents_options_and_decimals(text):
    """ksqlDB writes the options without the import."""
    value = {"d": {"value": "AP8=", "precision": 4, "scale": 2}}
    assert shown(A_DECIMAL, text) == value


@pytest.mark.parametrize("name", ["confluent/type/decimal.proto", "google/type/money.proto"])
def test_a_reference_has_preference(name):
    """A registry may have another file of a name that needs no reference."""
    other = Schema(1, PROTOBUF, 'syntax = "proto3"; package other; message O { string s = 5; }')
    main = Schema(
        7, PROTOBUF, f'syntax = "proto3"; import "{name}"; message T {{ other.O o = 1; }}', (Reference(name, "s", 1),)
    )
    table = SchemaTable(main, versions={("s", 1): other})
    assert decoded_text(TextDecoder(table, "t-value"), framed(b"\0\x0a\x03\x2a\x01x")) == '{"o":{"s":"x"}}'


def test_without_the_extra(monkeypatch):
    monkeypatch.setattr(proto_files, "find_spec", lambda name: None)
    assert fault(b"\0").endswith("Protobuf needs the packages of an extra: pip install 'kafkafs[schemas]'")


def written(value, which, text=PROTO):
    """Data of the schema's message type `which`, as the library writes them."""
    kind = protobuf.decoder(Schema(7, PROTOBUF, text), SchemaTable()).message_type((which,))
    message = message_factory.GetMessageClass(kind)()
    data = json_format.ParseDict(value, message, max_recursion_depth=200).SerializeToString()
    return bytes([2, 2 * which]) + bytes(data)


def test_messages_within_each_other():
    """As deep as the library decodes."""
    value = {"text": ""}
    for _ in range(100):
        value = {"inner": value}
    assert shown(written(value, 1)) == value
    assert fault(written({"inner": value}, 1))


def test_descriptors_are_bounded_in_the_process(monkeypatch):
    """The library takes about 1 KiB for each: 24 schemas of 4 MiB took 4 GB in one view, 12 topics of one 1 GB."""
    monkeypatch.setattr(proto_files, "MOST_IN_PROCESS", 0)
    assert "too large together" in fault(b"\0", "message Z {}")  # after what nobody uses was forgotten
    gc.collect()
    in_use = sum(each.descriptors for each in gc.get_objects() if isinstance(each, proto_files.Compiled))
    monkeypatch.setattr(proto_files, "MOST_IN_PROCESS", in_use + 6)
    texts = [f'syntax="proto3"; message A{number} {{ int32 a = 1; int32 b = 2; }}' for number in range(3)]
    schemas = SchemaTable(*(Schema(number, PROTOBUF, text) for number, text in enumerate(texts, 1)))
    decoders = [TextDecoder(schemas, f"t{number}-value") for number in range(3)]  # as views of three topics have them
    assert decoded_text(decoders[0], framed(b"\0\x08\x05", 1)) == '{"a":5}'
    assert decoded_text(decoders[1], framed(b"\0\x08\x05", 2)) == '{"a":5}'
    found, errors = decoded_texts(decoders[2], [framed(b"\0\x08\x05", 3), framed(b"\0\x10\x05", 1)])
    assert list(errors) == [0]
    assert "too large together" in errors[0]
    assert found[1] == '{"b":5}'
    decoders.clear()
    assert decoded_text(TextDecoder(schemas, "t-value"), framed(b"\0\x08\x05", 3)) == '{"a":5}'


def test_long_names_count(monkeypatch):
    """300 KiB of text, in which each of 20,000 full names has 10,000 characters, took 400 MB."""
    monkeypatch.setattr(proto_files, "MOST_DESCRIPTORS", 50)
    inner = "".join(f"message A{number} {{}} " for number in range(5))
    assert shown(b"\0", f'syntax="proto3"; message N {{ {inner} }}') == {}
    long = f'syntax="proto3"; message {"n" * 10_000} {{ {inner} }}'
    assert "more than 50 descriptors" in fault(b"\0", long)


def test_one_compilation_for_all_partitions(monkeypatch):
    text = PROTO + "// of this test alone\n"
    assert shown(b"\0", text) == {}
    monkeypatch.setattr(proto_files, "COMPILER_SECONDS", 0)
    assert shown(b"\0", text) == {}


TEXT = """
syntax = "proto3";
import "google/protobuf/struct.proto";
message Outer {
  message Inner { map<string, string> names = 1; }
  string first = 1;
  map<string, Inner> inner = 2;
  repeated Inner list = 3;
  google.protobuf.Struct any = 4;
  map<int32, bool> numbers = 5;
  Outer again = 6;
}
"""


def test_maps_are_in_the_order_of_their_keys():
    """At any depth, by the kernel and by the library, whose order differs between processes."""
    names = {f"k{number}": "v" for number in range(9)}
    value = {
        "first": "x",
        "inner": {"a": {"names": names}, "b": {"names": names}},
        "list": [{"names": names}, {}],
        "any": {"a": None, "z": {"x": [{"c": 2.0, "d": 1.0}], "y": 1.0}},
        "numbers": {"1": True, "10": True, "9": False},
        "again": {"inner": {"c": {"names": names}}},
    }
    data = written(value, 0, TEXT)
    by_library = protobuf.decoder(Schema(7, PROTOBUF, TEXT), SchemaTable()).decode(data)
    for found in (shown(data, TEXT), json.loads(by_library)):
        assert json.dumps(found) == json.dumps(value)

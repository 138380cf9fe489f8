"""google.protobuf.Any: of types of the schema, of other schemas, and of none."""

import json

import pytest

import kafkafs
from kafkafs.decoding import proto_files
from kafkafs.decoding.decoded_jsonl import DecodedJsonl, TextDecoder
from kafkafs.schemas.proto_names import message_types
from kafkafs.schemas.registry import Registry, State, SubjectVersion
from kafkafs.schemas.schema import PROTOBUF, Schema
from kafkafs.schemas.sources import schemas_at
from kafkafs.schemas.steady_schemas import SteadySchemas
from storage.format.block import Record
from tests.support.blocks import TP, Row
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import output_of
from tests.support.decoded_columns import decoded_text, decoded_texts, framed, lines
from tests.support.schema_logs import schema_record

pytest.importorskip("grpc_tools")

ENVELOPE = """
syntax = "proto3";
package y;
import "google/protobuf/any.proto";
message Env {
  string id = 1;
  google.protobuf.Any payload = 2;
  repeated google.protobuf.Any more = 3;
  map<string, google.protobuf.Any> named = 4;
  oneof which { google.protobuf.Any chosen = 5; int32 number = 6; }
  Env inner = 7;
  message Own { int32 n = 1; google.protobuf.Any within = 2; map<string, int32> counts = 3; }
}
"""
OTHER = """
syntax = "proto3"; package x;
import "google/protobuf/any.proto";
message Other { string name = 1; google.protobuf.Any within = 2; message Deep { int32 d = 1; } }
"""
PREFIX = "type.googleapis.com/"
WELL = "google.protobuf."


def field(number, data):
    size, out = len(data), b""
    while size > 127:
        out, size = out + bytes([size & 127 | 128]), size >> 7
    return bytes([number << 3 | 2]) + out + bytes([size]) + data


def any_of(name, data=b"", prefix=PREFIX):
    return field(1, f"{prefix}{name}".encode()) + (field(2, data) if data else b"")


def version(subject, number, schema_id, text=OTHER, state=State.LIVE):
    return SubjectVersion(subject, number, Schema(schema_id, PROTOBUF, text), state)


def registry(*versions):
    return Registry([version("t-value", 1, 7, ENVELOPE), *versions])


ONE = registry(version("other-value", 1, 8))
BOB = field(1, b"bob")
PLAIN = {"type_url": f"{PREFIX}no.Such", "value": "CgNib2I="}
UNKNOWN = any_of("no.Such", BOB)
OTHERS = {"@type": f"{PREFIX}x.Other", "name": "bob"}


def shown(data, schemas=ONE):
    return json.loads(decoded_text(TextDecoder(schemas, "t-value"), framed(b"\0" + data)))


def fault(data, schemas=ONE):
    _, errors = decoded_texts(TextDecoder(schemas, "t-value"), [framed(b"\0" + data)])
    return errors[0]


def named(name, **fields):
    """An Any of a type that is known."""
    return {"@type": f"{PREFIX}{name}", **fields}


def plain(name, value):
    """An Any that is shown as it is."""
    return {"type_url": f"{PREFIX}{name}", "value": value}


ANY = "google.protobuf.Any"
ENTRIES = ((b"b", UNKNOWN), (b"a", any_of("x.Other", BOB)))
# The bytes of an Any in the field `payload`, and how it is shown.
PAYLOADS = {
    "of another schema": (any_of("x.Other", BOB), OTHERS),
    "nested in a type": (any_of("x.Other.Deep", b"\x08\x05"), named("x.Other.Deep", d=5)),
    "another prefix": (any_of("x.Other", BOB, "a/b/"), {"@type": "a/b/x.Other", "name": "bob"}),
    "no prefix": (any_of("x.Other", BOB, ""), {"@type": "x.Other", "name": "bob"}),
    "its own": (any_of("y.Env.Own", b"\x08\x05"), named("y.Env.Own", n=5)),
    "unknown": (UNKNOWN, PLAIN),
    "unknown, without data": (any_of("no.Such"), {"type_url": f"{PREFIX}no.Such"}),
    "no type": (field(2, b"\xff"), {"value": "/w=="}),
    "empty": (b"", {}),
    "an odd name": (any_of("x.Other\0", BOB), plain("x.Other\0", "CgNib2I=")),
    "not its data": (any_of("x.Other", b"\x0a\x7f"), plain("x.Other", "Cn8=")),
    "not UTF-8": (any_of("x.Other", field(1, b"\xff")), plain("x.Other", "CgH/")),
    "a wrapper": (any_of(f"{WELL}StringValue", BOB), named(f"{WELL}StringValue", value="bob")),
    "a duration": (any_of(f"{WELL}Duration", b"\x08\x05"), named(f"{WELL}Duration", value="5s")),
    "of google.type": (any_of("google.type.Date", b"\x08\x05"), named("google.type.Date", year=5)),
    "in an own type": (any_of("y.Env.Own", field(2, UNKNOWN)), named("y.Env.Own", within=PLAIN)),
    "in another schema's type": (any_of("x.Other", BOB + field(2, UNKNOWN)), OTHERS | {"within": PLAIN}),
    "own type in another schema's type": (
        any_of("x.Other", field(2, any_of("y.Env", field(1, b"i") + field(3, UNKNOWN)))),
        named("x.Other", within=named("y.Env", id="i", more=[PLAIN])),
    ),
    "Any in Any": (any_of(ANY, any_of(ANY, UNKNOWN)), named(ANY, value=named(ANY, value=PLAIN))),
    "known in Any in Any": (any_of(ANY, any_of("x.Other", BOB)), named(ANY, value=OTHERS)),
}
MAP = b"".join(field(4, field(1, key) + field(2, value)) for key, value in ENTRIES)
DEEPER = field(7, field(7, field(2, UNKNOWN) + field(1, b"i")))
CASES = {
    **{name: (field(2, data), {"payload": value}) for name, (data, value) in PAYLOADS.items()},
    "repeated": (field(3, any_of("x.Other", BOB)) + field(3, UNKNOWN) + field(3, b""), {"more": [OTHERS, PLAIN, {}]}),
    "in a map": (MAP, {"named": {"a": OTHERS, "b": PLAIN}}),
    "in a oneof": (field(5, UNKNOWN), {"chosen": PLAIN}),
    "deeper": (DEEPER, {"inner": {"inner": {"id": "i", "payload": PLAIN}}}),
}


@pytest.mark.parametrize(("data", "expected"), CASES.values(), ids=CASES)
def test_what_is_shown(data, expected):
    """Beside the other fields."""
    assert shown(field(1, b"e1") + data) == {"id": "e1", **expected}


def test_maps_within_are_in_order():
    counts = b"".join(field(3, field(1, key) + b"\x10\x01") for key in (b"c", b"a", b"b"))
    text = decoded_text(
        TextDecoder(ONE, "t-value"), framed(b"\0" + field(2, any_of("y.Env.Own", field(2, UNKNOWN) + counts)))
    )
    assert text.index('"counts":{"a":1,"b":1,"c":1}') < text.index('"within":{"type_url"')


def test_rows_with_and_without_an_any():
    """The compiled kernel leaves those that have one to the library, and only those."""
    rows = [Row(value=framed(b"\0" + field(1, b"e%d" % n) + (field(2, UNKNOWN) if n % 2 else b""))) for n in range(50)]
    found = lines(DecodedJsonl(TP, Registry([version("t-value", 1, 7, ENVELOPE)])), rows)
    expected = [{"id": f"e{n}"} | ({"payload": PLAIN} if n % 2 else {}) for n in range(50)]
    assert [json.loads(line)["value"] for line in found] == expected


# Which schema, if several have the type.


NONE = 'syntax = "proto3"; message Z {}'


def text_with(name):
    return f'syntax = "proto3"; package x; message Other {{ string {name} = 1; }}'


@pytest.mark.parametrize(
    ("versions", "name"),
    [
        ([("a", 1, 10, "a")], "a"),
        ([("a", 1, 10, "a"), ("b", 1, 11, "b")], "b"),
        ([("b", 1, 10, "b"), ("a", 1, 11, "a")], "a"),
        ([("a", 1, 10, "old"), ("a", 2, 11, "new")], "new"),
        ([("a", 1, 11, "old"), ("a", 2, 10, "new")], "new"),
        ([("a", 1, 12, "old"), ("a", 2, 10, "new"), ("b", 1, 11, "b")], "b"),
        ([("a", 1, 10, "a"), ("a", 2, 11, None)], "a"),
        ([("a", 1, 10, "a"), ("b", 1, 11, "gone", State.SOFT_DELETED)], "a"),
        ([("a", 1, 10, "a", State.HARD_DELETED), ("b", 1, 9, "gone", State.SOFT_DELETED)], "a"),
        ([("a", 1, 10, "live"), ("a", 2, 11, "gone", State.SOFT_DELETED)], "live"),
        ([("a", 1, 10, "a"), (":.dr:b", 1, 11, "b")], "a"),
        ([(":.dr:b", 1, 11, "b"), (":.zz:a", 1, 10, "a")], "b"),
    ],
)
def test_which_of_several(versions, name):
    """In each subject the newest version that has it and is not deleted; of these the greatest id; the default context
    first."""
    entries = [
        version(subject, number, schema_id, NONE if named is None else text_with(named), *state)
        for subject, number, schema_id, named, *state in versions
    ]
    for order in (entries, entries[::-1]):
        found = shown(field(2, any_of("x.Other", BOB)), registry(*order))
        assert found["payload"] == {"@type": f"{PREFIX}x.Other", name: "bob"}


def test_a_schema_that_cannot_be_used_leaves_the_type_unknown():
    broken = registry(version("other-value", 1, 8, 'syntax = "proto3"; package x; message Other { Nowhere n = 1; }'))
    expected = {"payload": plain("x.Other", "CgNib2I="), "id": "i"}
    assert shown(field(1, b"i") + field(2, any_of("x.Other", BOB)), broken) == expected
    avro = Registry([version("t-value", 1, 7, ENVELOPE), SubjectVersion("o", 1, Schema(8, "AVRO", text_with("a")))])
    assert shown(field(1, b"i") + field(2, any_of("x.Other", BOB)), avro) == expected


def test_a_type_that_becomes_known_stays_unknown_in_what_is_open(tmp_path):
    (tmp_path / "7.proto").write_text(ENVELOPE)
    source = schemas_at(tmp_path)
    steady, data = SteadySchemas(source), field(2, any_of("x.Other", BOB))
    before = shown(data, steady)
    assert before["payload"]["type_url"] == f"{PREFIX}x.Other"
    assert not steady.is_outdated()
    (tmp_path / "8.proto").write_text(OTHER)
    assert shown(data, steady) == before
    assert steady.is_outdated()
    assert shown(data, SteadySchemas(source)) == shown(data, source) == {"payload": OTHERS}


# Bounds.


def nested(levels):
    data = UNKNOWN
    for _ in range(levels):
        data = any_of("google.protobuf.Any", data)
    return field(2, data)


def test_any_within_each_other_are_bounded():
    def depth(value):
        return 1 + depth(value["value"]) if "@type" in value else 0

    assert depth(shown(nested(90))["payload"]) == 90
    assert "more than 100 messages are within each other" in fault(nested(100))
    assert "the Any within each other are more than" in fault(nested(1500))
    big = field(2, any_of("no.Such", b"x" * 300_000))
    for _ in range(40):
        big = field(2, any_of("y.Env", big))
    assert "more than 1 MiB and 16 times the data" in fault(big)


def test_long_names_of_another_schema_are_counted():
    """A field of two bytes becomes as long as its name."""
    types = f"message Other {{ repeated In i = 1; }} message In {{ int32 {'n' * 20_000} = 1; }}"
    schemas = registry(version("other", 1, 8, f'syntax = "proto3"; package x; {types}'))
    data = field(2, any_of("x.Other", field(1, b"\x08\x05") * 20_000))
    assert "longer than 1 MiB and 16 times the data" in fault(data, schemas)


def test_descriptors_of_other_schemas_are_counted(monkeypatch):
    """Where there is no room for them the type is unknown."""
    mine = proto_files.compiled_files(Schema(7, PROTOBUF, ENVELOPE + "// alone"), ONE)
    monkeypatch.setattr(proto_files, "MOST_DESCRIPTORS", mine.descriptors + 5)
    fields = " ".join(f"int32 f{n} = {n + 2};" for n in range(100))
    large = registry(
        version("other", 1, 8, f'syntax = "proto3"; package x; message Other {{ string name = 1; {fields} }}')
    )
    assert shown(field(1, b"i") + field(2, any_of("x.Other", BOB)), large)["payload"]["type_url"] == f"{PREFIX}x.Other"


def test_names_of_types_in_a_text():
    text = r"""
    syntax = "proto3"; // message A {
    /* message B { } */ package a . b;
    package p.q;
    option (o) = { text: "message C {" other: 'message D {' };
    message E { message F { enum G { H = 0; } message I {} } oneof j { string message = 1; } repeated E group = 2; }
    enum K { L = 0; }
    service M { rpc N (E) returns (E) { option x = 1; } }
    extend E { optional group O = 4 { optional int32 i = 1; } }
    message P { optional group Q = 4 [default = "{"] { message R {} } map<string, E> s = 5; }
    message T; message U
    {}
    "message V { \" message W {
    message X { /* message Y {
    """
    found = ["p.q.E", "p.q.E.F", "p.q.E.F.I", "p.q.O", "p.q.P", "p.q.P.Q", "p.q.P.Q.R", "p.q.U", "p.q.X"]
    assert list(message_types(text)) == found
    assert list(message_types("message A {} /*" * 3 + "message B {" * 200)) == ["A"]
    assert len(list(message_types("message B {" * 200))) == 100
    assert list(message_types("message A {} /*/*/*" + '"' * 10)) == ["A"]


# The ways in which a person sees it.


def records():
    schemas = [
        schema_record("t-value", 1, 7, ENVELOPE.replace("Env inner = 7;", ""), schemaType="PROTOBUF"),
        schema_record("other-value", 1, 8, OTHER, schemaType="PROTOBUF"),
    ]
    values = [field(1, b"e%d" % n) + field(2, data) for n, data in enumerate((any_of("x.Other", BOB), UNKNOWN))]
    return {"_schemas": [schemas], "t": [[Batch([Record(b"k", framed(b"\0" + value)) for value in values])]]}


def test_commands_and_columns(tmp_path):
    pytest.importorskip("pyarrow")
    path = build_log_dir(tmp_path, records()).path
    expected = [{"id": "e0", "payload": OTHERS}, {"id": "e1", "payload": PLAIN}]
    lines = [json.loads(line) for line in output_of("cat", path, "t", "--format", "decoded").splitlines()]
    assert [line["value"] for line in lines] == expected
    assert not any("error" in line for line in lines)
    log = kafkafs.open(path)
    assert [message.decoded for message in log["t"].messages()] == expected
    table = log["t"].scan(decode=True).to_arrow()
    assert table["decode_error"].null_count == 2
    assert [json.loads(text) for text in table["value_json"].to_pylist()] == expected
    rows = table["value"].to_pylist()
    assert [(row["id"], json.loads(row["payload"])) for row in rows] == [("e0", OTHERS), ("e1", PLAIN)]

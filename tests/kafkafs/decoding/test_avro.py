"""Avro data to JSON: every type against fastavro's data, every fault, every limit; compiled and not."""

import json
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafkafs.decoding import avro_kernel, avro_program, columns
from kafkafs.decoding.avro_schema import MAX_TEXT
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.decoding.decoded_jsonl import TextDecoder
from kafkafs.schemas.schema import AVRO, PROTOBUF, Reference, Schema
from storage.format.block import encode_varint
from storage.types import is_compiled
from tests.kafkafs.decoding.avro_samples import Samples, shown_decimal, shown_time
from tests.support.decoded_columns import SchemaTable, decoded_text, decoded_texts, framed, one_schema
from tests.support.uncompiled import uncompiled

SEEDS = st.integers(0, 2**64)
NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}


@pytest.fixture(params=["built", "plain"])
def _any_kernel(request, monkeypatch):
    """The kernel as it is installed, and its source run as Python."""
    if request.param == "plain":
        monkeypatch.setattr(columns, "avro_kernel", uncompiled("kafkafs.decoding.avro_kernel"))


def record(name, *fields, **more):
    made = [{"name": f"f{i}", "type": kind} for i, kind in enumerate(fields)]
    return {"type": "record", "name": name, "fields": made, **more}


def shown(schema, data):
    """The text of one datum that can be decoded."""
    return decoded_text(TextDecoder(one_schema(json.dumps(schema)), "t-value"), framed(data))


def fault(schema, data):
    """Why a datum cannot be decoded. It is then shown as jsonl shows it."""
    (text,), errors = decoded_texts(TextDecoder(one_schema(json.dumps(schema)), "t-value"), [framed(data)])
    assert list(errors) == [0]
    assert text.startswith(('"\\u0000', '{"base64":'))
    return errors[0]


def list_of_names(value):
    """The names of all objects in their order."""
    if isinstance(value, list):
        return [name for item in value for name in list_of_names(item)]
    if isinstance(value, dict):
        return [name for key, item in value.items() for name in (key, *list_of_names(item))]
    return []


@given(seed=SEEDS)
def test_random_schemas_and_data(seed):
    made = Samples(seed)
    rows = [made.sample() for _ in range(8)]
    decoder = TextDecoder(one_schema(made.text), "t-value")
    texts, errors = decoded_texts(decoder, [framed(data) for data, _ in rows])
    assert not errors, made.text
    for text, (_, expected) in zip(texts, rows, strict=True):
        assert json.loads(text) == expected, made.text
        assert list_of_names(json.loads(text)) == list_of_names(expected)


@given(seed=SEEDS)
def test_damaged_data_in_both_forms(seed):
    """Any damage gives a text or an error, the same in both forms; every text is JSON."""
    dice = random.Random(seed)
    made = Samples(seed)
    values = []
    for _ in range(6):
        data = bytearray(made.sample()[0])
        for _ in range(dice.randrange(3)):
            if data:
                data[dice.randrange(len(data))] = dice.choice((0, 1, 2, 127, 128, 255, dice.randrange(256)))
        values.append(framed(bytes(data[: dice.choice((len(data), dice.randrange(len(data) + 1)))])))
    decoder = TextDecoder(one_schema(made.text), "t-value")
    compiled = decoded_texts(decoder, values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "avro_kernel", uncompiled("kafkafs.decoding.avro_kernel"))
        assert decoded_texts(TextDecoder(one_schema(made.text), "t-value"), values) == compiled
    for text in compiled[0]:
        json.loads(text)


def float_texts(bits, kind):
    """The texts of numbers of these bits."""
    decoder = TextDecoder(one_schema(f'"{kind}"'), "t-value")
    texts, errors = decoded_texts(decoder, [framed(number.tobytes()) for number in bits])
    assert not errors
    return texts


def edges(kind, fraction_bits, exponents):
    """Around each power of two, and the smallest numbers."""
    powers = np.arange(exponents, dtype=kind) << kind(fraction_bits)
    near = [powers + kind(d) for d in (0, 1, 2, 2**fraction_bits - 1)]
    return np.concatenate([*near, np.arange(3000, dtype=kind)])


def python_text(number):
    return repr(number) if np.isfinite(number) else json.dumps(json.dumps(number))


DICE = np.random.default_rng(1)
TENS = np.array([float(f"{digits}e{e}") for e in range(-323, 308) for digits in ("1", "9.5", "9007199254740993")])
DOUBLES = {
    "any": DICE.integers(0, 2**64, 100_000, np.uint64),
    "edges": edges(np.uint64, 52, 2048),
    "negative edges": edges(np.uint64, 52, 2048) | np.uint64(2**63),
    "powers of ten": TENS.view(np.uint64),
    "decimals": (DICE.integers(0, 10**9, 50_000) / 1e4).view(np.uint64),
    "fractions": DICE.random(50_000).view(np.uint64),
    "integers": DICE.integers(0, 2**60, 50_000).astype(np.float64).view(np.uint64),
}
FLOATS = {"any": DICE.integers(0, 2**32, 100_000, np.uint32), "edges": edges(np.uint32, 23, 256)}


@pytest.mark.parametrize("bits", DOUBLES.values(), ids=DOUBLES)
def test_doubles_are_as_python_writes_them(bits):
    assert float_texts(bits, "double") == [python_text(number) for number in bits.view(np.float64).tolist()]


@pytest.mark.parametrize("bits", FLOATS.values(), ids=FLOATS)
def test_floats_are_the_shortest_that_read_back(bits):
    for text, number in zip(float_texts(bits, "float"), bits.view(np.float32), strict=True):
        if np.isfinite(number):
            assert float(text) == float(np.format_float_scientific(number, unique=True))
        else:
            assert text == python_text(float(number))


@pytest.mark.parametrize(
    ("kind", "bits"), [("double", DOUBLES["edges"][::7]), ("double", DOUBLES["any"][:2000]), ("float", FLOATS["edges"])]
)
def test_floats_in_both_forms(kind, bits, monkeypatch):
    compiled = float_texts(bits, kind)
    monkeypatch.setattr(columns, "avro_kernel", uncompiled("kafkafs.decoding.avro_kernel"))
    assert float_texts(bits, kind) == compiled


@pytest.mark.usefixtures("_any_kernel")
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 1000])
@pytest.mark.parametrize("scale", [0, 1, 3, 9, 400])
def test_decimals_of_any_size(size, scale):
    dice = random.Random(size * 1000 + scale)
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 4000, "scale": scale}
    numbers = [bytes(size), b"\xff" * size, b"\x80" + bytes(size - 1) if size else b"", dice.randbytes(size)]
    for number in [*numbers, b"\x7f" + b"\xff" * max(size - 1, 0), bytes(size // 2) + dice.randbytes(size - size // 2)]:
        expected = shown_decimal(int.from_bytes(number, "big", signed=True), scale)
        assert json.loads(shown(schema, encode_varint(len(number)) + number)) == expected


def test_a_decimal_that_is_too_large():
    schema = {"type": "bytes", "logicalType": "decimal", "precision": 30000, "scale": 2}
    most = b"\x7f" * 8192
    text = json.loads(shown(schema, encode_varint(8192) + most))
    assert len(text) > 19_000
    assert "more than 8192 bytes" in fault(schema, encode_varint(8193) + bytes(8193))


@pytest.mark.usefixtures("_any_kernel")
@pytest.mark.parametrize("logical", ["date", "time-millis", "timestamp-millis"])
def test_every_kind_of_day(logical):
    dice = random.Random(logical)
    day, base = (1, "int") if logical == "date" else (86_400_000, "long" if logical == "timestamp-millis" else "int")
    days = [0, 1, -1, 58, 59, 60, 789, 790, 11015, 11016, -719162, -719163, 2932896, 2932897, -135140, -25567]
    numbers = [n * day + rest for n in days for rest in {0, day - 1, 1}]
    numbers += [dice.randrange(-719162, 2932897) * day for _ in range(300)]
    for number in numbers:
        if base == "long" or -(2**31) <= number < 2**31:
            text = shown({"type": base, "logicalType": logical}, encode_varint(number))
            assert json.loads(text) == shown_time(number, logical)


def test_the_limits_of_longs():
    for number in (2**63 - 1, -(2**63), 10**18, -(10**18), 9999, 10000, -1):
        assert shown("long", encode_varint(number)) == str(number)
        assert shown({"type": "long", "logicalType": "timestamp-micros"}, encode_varint(number)) == json.dumps(
            shown_time(number, "timestamp-micros")
        )


@pytest.mark.usefixtures("_any_kernel")
@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        ("long", b"", "the data end too early"),
        ("long", b"\x80\x80", "the data end too early"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("int", encode_varint(2**31), "more than 32 bits"),
        ({"type": "int", "logicalType": "time-millis"}, encode_varint(2**31), "more than 32 bits"),
        ("string", b"\x01", "negative or larger"),
        ("string", b"\x0aabcd", "negative or larger"),
        ("string", encode_varint(2**63 - 1) + b"abcd", "negative or larger"),
        ("string", b"\x06a\xff\xfe", "not UTF-8"),
        ("string", b"\x06\xed\xa0\x80", "not UTF-8"),
        ("string", b"\x02ab", "left over"),
        ("double", b"\0" * 7, "the data end too early"),
        ("float", b"\0" * 3, "the data end too early"),
        ("boolean", b"", "the data end too early"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        (["null", "long"], b"\x04", "no such branch"),
        ([], b"\x00", "no such branch"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "no such symbol"),
        ({"type": "fixed", "name": "F", "size": 3}, b"ab", "the data end too early"),
        ({"type": "fixed", "name": "F", "size": 2**31 - 1}, b"ab", "the data end too early"),
        ({"type": "array", "items": "long"}, b"\x04\x02", "the data end too early"),
        ({"type": "array", "items": "long"}, b"\x01" + b"\xff" * 11, "more than 64 bits"),
        ({"type": "array", "items": "null"}, b"\x80\x89\x7a\x00", "more than 65536 items"),  # a million nulls
        ({"type": "array", "items": "null"}, encode_varint(-(2**63)) + b"\x00", "negative or larger"),
        ({"type": "array", "items": {"type": "array", "items": "null"}}, encode_varint(2**62) + b"\0", "too early"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}, b"", "nested too deeply"),
        (NODE, b"\x02" * 501 + b"\0", "nested too deeply"),
    ],
)
def test_data_that_do_not_fit(schema, data, why):
    assert why in fault(schema, data)
    assert "schema 7 does not fit the data: " in fault(schema, data)


def test_an_error_names_the_field():
    inner = {"type": "record", "name": "In", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "string"}]}
    outer = {"type": "record", "name": "Out", "fields": [{"name": "x", "type": "long"}, {"name": "in", "type": inner}]}
    assert fault(outer, b"\x02\x02\x04a\xff").endswith("a string is not UTF-8 in field in.b, at byte 7")


@pytest.mark.usefixtures("_any_kernel")
def test_blocks_with_sizes():
    """A negative count is followed by the block's size in bytes."""
    assert shown({"type": "array", "items": "int"}, b"\x03\x04\x02\x04\x02\x06\x00") == "[1,2,3]"
    assert shown({"type": "map", "values": "int"}, b"\x01\x06\x02k\x02\x02\x02l\x04\x00") == '{"k":1,"l":2}'
    assert shown({"type": "array", "items": "int"}, b"\x00") == "[]"
    assert shown({"type": "array", "items": "null"}, encode_varint(65536) + b"\0") == f"[{','.join(['null'] * 65536)}]"


TWENTY_NULLS = {
    "type": "record",
    "name": "R",
    "fields": [{"name": "n" * 100 + str(i), "type": "null"} for i in range(20)],
}


def long_name(kind):
    return {"type": "record", "name": "R", "fields": [{"name": "a" * (1 << 20), "type": kind}]}


@pytest.mark.parametrize(
    ("schema", "data", "why"),
    [
        # Nothing of the data is needed for names of fields.
        ({"type": "array", "items": TWENTY_NULLS}, encode_varint(65_000) + b"\0", "longer than 1 MiB"),
        (long_name("null"), b"", "longer than 1 MiB"),
        ({"type": "array", "items": "boolean"}, encode_varint(25_000_000) + b"\0" * 25_000_001, "or 128 MiB"),
        ("string", encode_varint(25_000_000) + b"\1" * 25_000_000, "or 128 MiB"),
    ],
    ids=["names", "a long name", "many booleans", "a string of escapes"],
)
def test_a_text_that_would_be_too_long(schema, data, why):
    if len(data) > 1 << 20 and not is_compiled(avro_kernel):
        pytest.skip("takes minutes")
    assert why in fault(schema, data)


def test_a_long_name_before_as_much_data():
    assert len(shown(long_name("bytes"), encode_varint(40) + b"x" * 40)) > 1 << 20


@pytest.mark.parametrize("size", [3000, 600_000, 9_000_000])
def test_long_strings(size):
    for unit in ("x", "\0", "é", '"'):
        text = unit * (size // len(unit.encode()))
        data = text.encode()
        assert json.loads(shown("string", encode_varint(len(data)) + data)) == text
    data = random.Random(size).randbytes(size)
    schema = {"type": "array", "items": "bytes"}
    assert len(json.loads(shown(schema, b"\x02" + encode_varint(size) + data + b"\0"))[0]) == (size + 2) // 3 * 4


@pytest.mark.parametrize("position", range(12))
def test_a_byte_to_escape_anywhere(position):
    """With nothing in the buffer behind the string, or more."""
    for byte in (b"\x00", b'"', b"\\", b"\x1f", "é".encode(), b"\x7f"):
        for size in (position + 1, position + 8, position + 40):
            data = (b"a" * position + byte).ljust(size, b"b")
            for kinds, behind in ((["string"], b""), (["string", "int"], b"\x02"), (["string"] * 2, b"\x0aabcde")):
                found = json.loads(shown(record("R", *kinds), encode_varint(len(data)) + data + behind))
                assert found["f0"] == data.decode()


# Texts of Avro schemas: names, references, and everything that is refused with a reason


def refused(text):
    """The error of a line whose schema has this text."""
    (_,), errors = decoded_texts(TextDecoder(one_schema(text), "t-value"), [framed(b"\2")])
    return errors[0]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ('"strin', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type":' * 50_000 + '"int"' + "}" * 50_000, "nested too deeply"),
        ('{"type":"array","items":' * 150 + '"int"' + "}" * 150, "nested deeper than 100"),
        ("7", "7 is not a type"),
        ("null", "null is not a type"),
        ('"strin"', '"strin" is not defined'),
        ('{"type":"Missing"}', '"Missing" is not defined'),
        ('{"no":1}', "has no type"),
        ('{"type":7}', "has no type"),
        ('["null",["int"]]', "a union is directly within a union"),
        ('{"type":"array"}', "array has no items"),
        ('{"type":"map"}', "map has no values"),
        ('{"type":"enum","name":"E"}', "no list of symbols"),
        ('{"type":"enum","symbols":[]}', "enum has no name"),
        ('{"type":"enum","name":"E","symbols":["\\ud800"]}', "not Unicode"),
        ('{"type":"fixed","name":"F","size":-1}', "no size"),
        ('{"type":"fixed","name":"F","size":true}', "no size"),
        ('{"type":"fixed","name":"F","size":1e400}', "no size"),
        ('{"type":"record","name":"R"}', "no list of fields"),
        ('{"type":"record","name":"R","fields":[{"name":"a"}]}', "no name or no type"),
        ('{"type":"record","name":"R","fields":[7]}', "no name or no type"),
        (json.dumps(record("R", record("R"))), "defined twice"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}', "two fields"),
        ('{"type":"bytes","logicalType":"decimal","precision":99999,"scale":5000}', "more than 4096"),
        (f'"{"x" * MAX_TEXT}"', "longer than 4 MiB"),
    ],
)
def test_texts_that_are_refused(text, why):
    assert "schema 7 cannot be used: " in refused(text)
    assert why in refused(text)


def test_a_kind_of_schema_that_is_unknown():
    (_,), errors = decoded_texts(TextDecoder(one_schema("{}", "THRIFT"), "t-value"), [framed(b"")])
    assert errors == {0: "schema 7 is of the unknown type THRIFT"}


def test_namespaces():
    """A name without a dot is in the namespace around it, a record's own namespace is that of its fields."""
    inner = record("Inner", "int", namespace="b.c")
    schema = record("a.Outer", inner, "b.c.Inner", record("Mine", "Outer"), ["null", "Mine"])
    found = parse_avro(Schema(1, AVRO, json.dumps(schema)), SchemaTable())
    assert found.name == "a.Outer"
    fields = dict(found.fields)
    assert fields["f0"] is fields["f1"]
    assert str(fields["f0"]) == "b.c.Inner"
    assert str(fields["f2"]) == "a.Mine"
    assert fields["f2"].fields[0][1] is found
    assert fields["f3"].branches[1] is fields["f2"]


def test_logical_types_that_are_not_valid_are_ignored():
    fixed = {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal"}
    cases = (
        ({"type": "bytes", "logicalType": "decimal"}, b"\x05", '"BQ=="'),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, b"\x05", '"BQ=="'),
        (fixed | {"precision": 3}, b"\x05", '"BQ=="'),
        (fixed | {"precision": 2}, b"\x05", '"5"'),
        (fixed | {"precision": 10**9}, b"\x05", '"BQ=="'),
        ({"type": "string", "logicalType": "decimal", "precision": 2}, b"\x02a", '"a"'),
        ({"type": "long", "logicalType": "date"}, b"\x02", "1"),
        ({"type": "int", "logicalType": ["x"]}, b"\x02", "1"),
        ({"type": {"type": "int"}, "logicalType": "date"}, b"\x02", "1"),
    )
    for schema, data, text in cases:
        assert decoded_text(TextDecoder(one_schema(json.dumps(schema)), "t-value"), framed(data)) == text


def test_references_to_what_refers_to_more():
    """The same schema reached twice counts once."""
    low = Schema(1, AVRO, json.dumps(record("x.Low", "int")))
    middle = Schema(2, AVRO, json.dumps(record("x.Middle", "Low")), (Reference("x.Low", "low", 1),))
    both = (Reference("x.Middle", "middle", 3), Reference("x.Low", "low", 1))
    top = Schema(7, AVRO, json.dumps(record("Top", "x.Middle", "x.Low")), both)
    table = SchemaTable(top, versions={("low", 1): low, ("middle", 3): middle})
    text = decoded_text(TextDecoder(table, "t-value"), framed(b"\2\4"))
    assert text == '{"f0":{"f0":{"f0":1}},"f1":{"f0":2}}'


class Endless(SchemaTable):
    def referenced(self, reference):
        following = Reference(f"R{reference.version + 1}", "s", reference.version + 1)
        return Schema(1, AVRO, json.dumps(record(f"R{reference.version}")), (following,))


TOP = Schema(7, AVRO, '"x.Low"', (Reference("x.Low", "low", 1),))
HIGH = Schema(7, AVRO, json.dumps(record("x.High", "x.Low")), (Reference("x.Low", "low", 1),))
LOW = Schema(8, AVRO, json.dumps(record("x.Low", "int")), (Reference("x.High", "high", 1),))


@pytest.mark.parametrize(
    ("table", "why"),
    [
        (SchemaTable(TOP), "refers to x.Low in subject low, version 1, which is not among the schemas"),
        (Schema(1, PROTOBUF, "message Low {}"), "refers to x.Low, which is of type PROTOBUF, not AVRO"),
        (Schema(1, AVRO, "{"), "not JSON"),
        (Schema(1, AVRO, '"int"'), '"x.Low" is not defined'),
        (SchemaTable(HIGH, versions={("low", 1): LOW, ("high", 1): HIGH}), "cannot be used"),
        (Endless(TOP), "refers to more than 1000 schemas"),
    ],
    ids=["missing", "of another type", "no schema", "another name", "circle", "endless"],
)
def test_references_that_cannot_be_used(table, why):
    """A schema: what is referred to."""
    if isinstance(table, Schema):
        table = SchemaTable(TOP, versions={("low", 1): table})
    (_,), errors = decoded_texts(TextDecoder(table, "t-value"), [framed(b"")])
    assert why in errors[0]


@pytest.mark.parametrize("name", ["f" * 1_000_000, "f"])
@pytest.mark.parametrize("kind", ["int", "t" * 1_000_000, {"type": "fixed", "name": "F" * 1_000_000, "size": -1}])
def test_an_error_does_not_repeat_a_long_name(name, kind):
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})
    _, errors = decoded_texts(TextDecoder(one_schema(text), "t-value"), [framed(b"")] * 2)
    assert errors[0] == errors[1]
    assert errors[0]
    assert len(errors[0]) < 500
    assert ("…" in errors[0]) == (len(text) > 1000)


def test_programs_are_bounded_together(monkeypatch):
    monkeypatch.setattr(avro_program, "MOST_TOGETHER", 10)
    schemas = SchemaTable(*(Schema(i, AVRO, '"int"') for i in (1, 2)))
    values = [framed(b"\2", 1), framed(b"\2", 2), framed(b"\4", 1)]
    texts, errors = decoded_texts(TextDecoder(schemas, "t-value"), values)
    assert (texts[0], texts[2]) == ("1", "2")
    assert list(errors) == [1]
    assert "too large together" in errors[1]


def test_a_program_stays_as_small_as_its_schema():
    """Each record has the one before it twice: written out it would have 2**60 fields."""
    schema = record("R0", "null")
    for i in range(1, 60):
        schema = record(f"R{i}", schema, f"R{i - 1}")
    _, errors = decoded_texts(TextDecoder(one_schema(json.dumps(schema)), "t-value"), [framed(b"")])
    assert "longer than 1 MiB" in errors[0]

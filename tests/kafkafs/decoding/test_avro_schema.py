"""Texts of Avro schemas: names, references, and everything that is refused with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kafkafs.decoding import TextDecoder, avro_program, parse_avro
from kafkafs.decoding.avro_schema import MAX_TEXT
from kafkafs.schemas.registry import AVRO, PROTOBUF, Reference, Schema
from tests.support.decoded_columns import SchemaTable, decoded_text, decoded_texts, framed, one_schema


def refused(text: str) -> str:
    """The error of a line whose schema has this text."""
    (_,), errors = decoded_texts(TextDecoder(one_schema(text), "t-value"), [framed(b"\2")])
    return errors[0]


def record(name: str, *fields: Any, **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(fields)],
    } | more


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ('"strin', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"type":' * 50_000 + '"int"' + "}" * 50_000, "nested too deeply"),
        ('{"type":"array","items":' * 150 + '"int"' + "}" * 150, "nested deeper than 100"),
        ("7", "7 is no type"),
        ("null", "null is no type"),
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
def test_texts_that_are_refused(text: str, why: str) -> None:
    assert "schema 7 cannot be used: " in refused(text)
    assert why in refused(text)


def test_a_type_that_is_unknown() -> None:
    (_,), errors = decoded_texts(TextDecoder(one_schema("{}", "THRIFT"), "t-value"), [framed(b"")])
    assert errors == {0: "schema 7 is of the unknown type THRIFT"}


def test_namespaces() -> None:
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


def test_logical_types_that_are_not_valid_are_ignored() -> None:
    cases = (
        ({"type": "bytes", "logicalType": "decimal"}, b"\x05", '"BQ=="'),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3}, b"\x05", '"BQ=="'),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3}, b"\x05", '"BQ=="'),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 2}, b"\x05", '"5"'),
        ({"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 10**9}, b"\x05", '"BQ=="'),
        ({"type": "string", "logicalType": "decimal", "precision": 2}, b"\x02a", '"a"'),
        ({"type": "long", "logicalType": "date"}, b"\x02", "1"),
        ({"type": "int", "logicalType": ["x"]}, b"\x02", "1"),
        ({"type": {"type": "int"}, "logicalType": "date"}, b"\x02", "1"),
    )
    for schema, data, text in cases:
        assert decoded_text(TextDecoder(one_schema(json.dumps(schema)), "t-value"), framed(data)) == text


def test_references_to_what_refers_to_more() -> None:
    """The same schema reached twice counts once."""
    low = Schema(1, AVRO, json.dumps(record("x.Low", "int")))
    middle = Schema(2, AVRO, json.dumps(record("x.Middle", "Low")), (Reference("x.Low", "low", 1),))
    both = (Reference("x.Middle", "middle", 3), Reference("x.Low", "low", 1))
    top = Schema(7, AVRO, json.dumps(record("Top", "x.Middle", "x.Low")), both)
    table = SchemaTable(top, versions={("low", 1): low, ("middle", 3): middle})
    text = decoded_text(TextDecoder(table, "t-value"), framed(b"\2\4"))
    assert text == '{"f0":{"f0":{"f0":1}},"f1":{"f0":2}}'


@pytest.mark.parametrize(
    ("referred", "why"),
    [
        (None, "refers to x.Low in subject low, version 1, which is not among the schemas"),
        (Schema(1, PROTOBUF, "message Low {}"), "refers to x.Low, which is of type PROTOBUF, not AVRO"),
        (Schema(1, AVRO, "{"), "not JSON"),
        (Schema(1, AVRO, '"int"'), '"x.Low" is not defined'),
    ],
)
def test_references_that_cannot_be_used(referred: Schema | None, why: str) -> None:
    top = Schema(7, AVRO, '"x.Low"', (Reference("x.Low", "low", 1),))
    table = SchemaTable(top, versions={} if referred is None else {("low", 1): referred})
    (_,), errors = decoded_texts(TextDecoder(table, "t-value"), [framed(b"")])
    assert why in errors[0]


def test_references_in_a_circle() -> None:
    one = Schema(7, AVRO, json.dumps(record("One", ["null", "Two"])), (Reference("Two", "two", 1),))
    two = Schema(8, AVRO, json.dumps(record("Two", "int")), (Reference("One", "one", 1),))
    table = SchemaTable(one, versions={("two", 1): two, ("one", 1): one})
    (_,), errors = decoded_texts(TextDecoder(table, "t-value"), [framed(b"")])
    assert "cannot be used" in errors[0]


def test_many_references() -> None:
    class Endless(SchemaTable):
        def referenced(self, reference: Reference) -> Schema:
            following = Reference(f"R{reference.version + 1}", "s", reference.version + 1)
            return Schema(1, AVRO, json.dumps(record(f"R{reference.version}")), (following,))

    table = Endless(Schema(7, AVRO, '"int"', (Reference("R1", "s", 1),)))
    (_,), errors = decoded_texts(TextDecoder(table, "t-value"), [framed(b"")])
    assert "refers to more than 1000 schemas" in errors[0]


@pytest.mark.parametrize("name", ["f" * 1_000_000, "f"])
@pytest.mark.parametrize("kind", ["int", "t" * 1_000_000, {"type": "fixed", "name": "F" * 1_000_000, "size": -1}])
def test_an_error_does_not_repeat_a_long_name(name: str, kind: Any) -> None:
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": kind}]})
    _, errors = decoded_texts(TextDecoder(one_schema(text), "t-value"), [framed(b"")] * 2)
    assert errors[0] == errors[1]
    assert errors[0]
    assert len(errors[0]) < 500
    assert "…" in errors[0] or "fff" not in errors[0]


def test_programs_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_program, "_MOST_TOGETHER", 10)
    schemas = SchemaTable(*(Schema(i, AVRO, '"int"') for i in (1, 2)))
    values = [framed(b"\2", 1), framed(b"\2", 2), framed(b"\4", 1)]
    texts, errors = decoded_texts(TextDecoder(schemas, "t-value"), values)
    assert (texts[0], texts[2]) == ("1", "2")
    assert list(errors) == [1]
    assert "too large together" in errors[1]


def test_a_program_stays_as_small_as_its_schema() -> None:
    """Each record has the one before it twice: written out it would have 2**60 fields."""
    schema: Any = record("R0", "null")
    for i in range(1, 60):
        schema = record(f"R{i}", schema, f"R{i - 1}")
    _, errors = decoded_texts(TextDecoder(one_schema(json.dumps(schema)), "t-value"), [framed(b"")])
    assert "longer than 1 MiB" in errors[0]

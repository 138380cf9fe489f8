"""Export of decoded values: typed columns of one Avro record, whichever version wrote them."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from pyarrow import dataset

from kafkafs.arrow.header_column import HEADERS
from kafkafs.arrow.typed_values import TypedValues, typed_form
from kafkafs.cli import main
from kafkafs.decoding.avro_resolution import ValueColumn
from kafkafs.decoding.avro_schema import BadSchema
from kafkafs.decoding.avro_schema import parse as parse_avro
from kafkafs.schemas.places import OWN_SCHEMAS
from kafkafs.schemas.registry import Registry
from kafkafs.schemas.schema import AVRO, Schema
from kafkafs.spark.jobs.commits import ExportForm, committed_sets
from kafkafs.spark.jobs.export import ExportOptions, export
from storage.errors import InvalidConfig, NotPermitted
from storage.format.block import Record
from storage.types import TopicPartition
from tests.support.builders import build_log_dir
from tests.support.commands import run
from tests.support.schema_logs import LONG, START_MS, GrowingLog, framed, schema_record

encoded = pytest.importorskip("tests.kafkafs.decoding.avro_samples", reason="no fastavro").encoded


TP = TopicPartition("t", 0)
UTC = datetime.UTC


def record_schema(*fields, **defaults):
    return {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": name, "type": kind} | ({"default": defaults[name]} if name in defaults else {})
            for name, kind in fields
        ],
    }


V1 = record_schema(("id", "int"), ("old", "string"))
V2 = record_schema(("id", "long"), ("more", ["null", "string"]), more=None)
V3 = record_schema(("id", "long"), ("more", ["null", "string"]), ("late", "double"), more=None, late=1.5)


def register(*schemas):
    return [schema_record("t-value", number, number, json.dumps(schema)) for number, schema in enumerate(schemas, 1)]


def a_log(path, values, *schemas):
    build_log_dir(
        path,
        {"_schemas": [register(*schemas)], "t": [[Record(b"k", value, (), START_MS) for value in values]]},
        broker=False,
    )
    return path


def typed(path, values):
    columns = [pa.array(values, pa.binary()), pa.nulls(len(values), HEADERS)]
    batch = pa.RecordBatch.from_arrays(columns, names=["value", "headers"])
    return TypedValues(typed_form((path,), OWN_SCHEMAS, [TP], None))(batch).to_pylist()


def test_versions_are_read_as_the_newest(tmp_path):
    values = [
        encoded(1, V1, {"id": 7, "old": "x"}),
        encoded(2, V2, {"id": 2**40, "more": "m"}),
        None,
        b"plain",
        framed(9, b"x"),
        framed(2, b"\x02"),
        encoded(2, V2, {"id": 1, "more": None}) + b"\0",
    ]
    rows = typed(a_log(tmp_path, values, V1, V2), values)
    assert [row["value"] for row in rows] == [{"id": 7, "more": None}, {"id": 2**40, "more": "m"}, *[None] * 5]
    assert [row["value_schema_id"] for row in rows] == [1, 2, None, None, 9, 2, 2]
    assert [row["value_bytes"] for row in rows] == [None, None, None, *values[3:]]
    errors = [row["decode_error"] for row in rows]
    assert errors[:4] == [None, None, None, "it is not in the wire format"]
    assert "there is no schema 9" in errors[4]
    assert all(errors[4:])


def test_every_type(tmp_path):
    kinds = [
        ("nothing", "null", None),
        ("flag", "boolean", True),
        ("int", "int", -5),
        ("long", "long", 2**60),
        ("float", "float", 1.5),
        ("double", "double", 1e300),
        ("bytes", "bytes", b"\xff"),
        ("text", "string", "é"),
        ("fixed", {"type": "fixed", "name": "F", "size": 2}, b"ab"),
        ("enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
        ("list", {"type": "array", "items": ["null", "long"]}, [1, None]),
        ("map", {"type": "map", "values": "int"}, {"a": 1}),
        ("maybe", ["null", "string"], None),
        ("either", ["null", "string", "int"], 5),
        ("below", record_schema(("x", "int")) | {"name": "Below"}, {"x": 1}),
        ("date", {"type": "int", "logicalType": "date"}, datetime.date(2026, 11, 22)),
        ("time", {"type": "int", "logicalType": "time-millis"}, datetime.time(1, 2, 3)),
        ("stamp", {"type": "long", "logicalType": "timestamp-millis"}, datetime.datetime(2026, 1, 2, tzinfo=UTC)),
        ("local", {"type": "long", "logicalType": "local-timestamp-micros"}, datetime.datetime(2026, 1, 2)),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, decimal.Decimal("-12.50")),
        ("huge", {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 0}, decimal.Decimal(10**50)),
    ]
    shown_otherwise = {"map": [("a", 1)], "either": "5", "time": "01:02:03.000", "huge": str(10**50)}
    schema = record_schema(*((name, kind) for name, kind, _ in kinds))
    written = {name: value for name, _, value in kinds}
    values = [encoded(1, schema, written)]
    (row,) = typed(a_log(tmp_path, values, schema), values)
    assert row["decode_error"] is None
    assert row["value"] == written | shown_otherwise


def test_a_column_of_nothing_is_a_column_of_texts(tmp_path):
    """Parquet has no type null that every reader knows; in lists and maps the nulls are counted."""
    schema = record_schema(
        ("nothing", "null"), ("list", {"type": "array", "items": "null"}), ("map", {"type": "map", "values": "null"})
    )
    value = {"nothing": None, "list": [None, None], "map": {"a": None}}
    log = a_log(tmp_path, [encoded(1, schema, value)], schema)
    kinds = {"nothing": pa.string(), "list": pa.list_(pa.string()), "map": pa.map_(pa.string(), pa.string())}
    read = TypedValues(typed_form((log,), OWN_SCHEMAS, [TP], None))
    assert read.type == pa.struct(list(kinds.items()))
    assert [row["value"] for row in typed(log, [encoded(1, schema, value)])] == [value | {"map": [("a", None)]}]


def test_a_union_that_is_nested_deeply(tmp_path):
    """Where one has too many levels for JSON, the value is an error, and those beside it are read."""
    schema = record_schema(("either", ["null", "string", "R"]))

    def levels(count):
        return framed(1, b"\4" * count + b"\0")

    values = [levels(3), levels(450), levels(2)]
    rows = typed(a_log(tmp_path, values, schema), values)
    texts = ['{"either":{"either":{"either":null}}}', None, '{"either":{"either":null}}']
    assert [row["value"] and row["value"]["either"] for row in rows] == texts
    assert [row["value_bytes"] for row in rows] == [None, levels(450), None]
    assert rows[1]["decode_error"] == "schema 1 does not fit the data: it is nested too deeply"


def test_what_a_column_cannot_express(tmp_path):
    """A year beyond Python's, a decimal of more digits than its type: the value stays as bytes, the others are read."""
    schema = record_schema(("when", {"type": "long", "logicalType": "timestamp-millis"}))
    good, bad = encoded(1, schema, {"when": 5}), framed(1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01")
    rows = typed(a_log(tmp_path, [good, bad], schema), [good, bad, good])
    assert [row["value"] is None for row in rows] == [False, True, False]
    assert rows[1]["value_bytes"] == bad
    assert rows[1]["decode_error"] == (
        "schema 1 does not fit the data: a number is beyond what its column can express in field when"
    )


def test_schemas_that_would_be_too_large(tmp_path):
    """Few lines of schema that mean a thousand million columns, or a default as long."""
    kinds = "int"
    for level in range(30):
        default = {} if level else 0
        other = f"L{level - 1}" if level else "int"
        kinds = record_schema(("a", kinds), ("b", other), a=default, b=default) | {"name": f"L{level}"}
    path = a_log(tmp_path / "columns", [None], record_schema(("x", kinds)))
    with pytest.raises(InvalidConfig, match="it has more than 20000 columns"):
        typed_form((path,), OWN_SCHEMAS, [TP], None)
    new = record_schema(("i", "int"), ("x", ["int", "string", kinds]), x={})
    path = a_log(tmp_path / "default", [None], record_schema(("i", "int")), new)
    (row,) = typed(path, [framed(1, b"\x02")])
    assert "field x: the default fits no type of the union" in row["decode_error"]


def test_a_schema_that_is_no_columns(tmp_path):
    def parsed(text):
        return ValueColumn.of(parse_avro(Schema(1, AVRO, text), Registry()))

    node = '{"type":"record","name":"Node","fields":[{"name":"next","type":["null","Node"]}]}'
    with pytest.raises(BadSchema, match="Node contains itself"):
        parsed(node)
    for number, text in enumerate((node, LONG)):
        path = tmp_path / str(number)
        build_log_dir(path, {"_schemas": [[schema_record("t-value", 1, 1, text)]], "t": [[b"v"]], "u": [[]]})
        with pytest.raises(InvalidConfig, match="the values of t cannot be columns: schema 1: "):
            typed_form((path,), OWN_SCHEMAS, [TP], None)
    with pytest.raises(InvalidConfig, match="the subject u-value has no schema"):
        typed_form((tmp_path / "0",), OWN_SCHEMAS, [TopicPartition("u", 0)], None)
    with pytest.raises(InvalidConfig, match="expected one topic, found t, u"):
        typed_form((tmp_path / "0",), OWN_SCHEMAS, [TP, TopicPartition("u", 0)], None)
    with pytest.raises(InvalidConfig, match="the schema 5, which this directory's files use for their values"):
        typed_form((tmp_path / "0",), OWN_SCHEMAS, [TP], 5)


def test_export(spark, tmp_path):
    """The first run chooses the version; a later one keeps it, whatever has been registered since."""
    log, out = tmp_path / "log", tmp_path / "out"
    schemas, topic = GrowingLog(log, "_schemas-0"), GrowingLog(log, "t-0")
    first, second, third = register(V1, V2, V3)
    schemas.append([first, second])

    def send(*values):
        topic.append([Record(b"k", value, (), START_MS) for value in values])

    send(encoded(1, V1, {"id": 1, "old": "x"}), encoded(2, V2, {"id": 2, "more": "y"}), None, b"plain")
    options = ExportOptions(decode=True)
    assert export(spark, log, out, [TP], options).messages == 4
    schemas.append([third])
    send(encoded(3, V3, {"id": 3, "more": "z", "late": 2.5}))
    assert export(spark, log, out, [TP], options).messages == 1
    assert {done.form for done in committed_sets(out)} == {ExportForm(False, "read_uncommitted", 2)}

    rows = sorted(dataset.dataset(out, partitioning="hive").to_table().to_pylist(), key=lambda row: row["offset"])
    assert [row["value"] for row in rows] == [
        {"id": 1, "more": None},
        {"id": 2, "more": "y"},
        None,
        None,
        {"id": 3, "more": "z"},
    ]
    assert [row["value_schema_id"] for row in rows] == [1, 2, None, None, 3]
    assert rows[3]["value_bytes"] == b"plain"
    found = spark.read.parquet(str(out)).where("value.id > 1").select("value.more").collect()
    assert sorted(row.more for row in found) == ["y", "z"]
    with pytest.raises(NotPermitted, match="another form"):
        export(spark, log, out, [TP], ExportOptions())
    plain = tmp_path / "plain"
    export(spark, log, plain, [TP], ExportOptions())
    with pytest.raises(NotPermitted, match="found values decoded"):
        export(spark, log, plain, [TP], options)


def test_options_that_do_not_go_together(tmp_path):
    assert "spark" in main.commands
    build_log_dir(tmp_path / "log", {"t": [[b"v"]]})
    for option, *value in ["--schemas", tmp_path], ["--strict"]:
        result = run("spark", "export", tmp_path / "log", tmp_path / "out", "t", option, *value)
        assert result.exit_code == 2
        assert f"{option} is for --decode" in result.output


def test_values_that_are_not_decoded_are_counted(tmp_path):
    log = a_log(tmp_path / "log", [encoded(1, V1, {"id": 1, "old": ""}), b"plain", None, framed(9, b"x")], V1)
    result = run("spark", "export", log, tmp_path / "text", "t", "--decode")
    assert result.exit_code == 0
    assert "t/0: 2 values cannot be decoded; they are in value_bytes" in result.stderr
    for exit_code, undecoded in (1, [{"topic": "t", "partition": 0, "messages": 2}]), (0, []):
        result = run("spark", "export", log, tmp_path / "json", "t", "--decode", "--json", "--strict")
        assert (result.exit_code, json.loads(result.stdout)["undecoded"]) == (exit_code, undecoded)

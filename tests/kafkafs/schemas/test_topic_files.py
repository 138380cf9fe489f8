"""`--schemas TOPIC=FILE[:MESSAGE]` and AWS Glue's framing, against fastavro and the protobuf library."""

import json
import subprocess
import sys
import zlib
from decimal import Decimal
from uuid import UUID

import pytest

import kafkafs
from kafkafs.schemas.places import schema_places
from kafkafs.schemas.sources import schemas_of
from kafkafs.tree.tree import Tree
from storage.errors import InvalidConfig
from storage.format.block import Record
from storage.log.log_dir import LogDir
from tests.kafkafs.decoding.avro_samples import avro_data
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.reference_views import content
from tests.support.schema_logs import framed, schema_record

AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "note", "type": ["null", "string"]},
        {"name": "count", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
ORDERS = [{"note": None if i % 3 else f"n{i}", "count": i, "price": Decimal(i).scaleb(-2)} for i in range(3000)]
PROTO = """syntax = "proto3"; package shop; import "common/money.proto";
message Other { bytes unlike = 9; }
message Order { message Line { int64 item = 1; } repeated Line lines = 1; Money total = 2; string text = 3; }
"""
MONEY = 'syntax = "proto3"; package shop; message Money { int64 units = 1; string currency = 2; }'
# lines { item: 7 }, total { units: 5 currency: "EUR" }
ORDER = b"\x0a\x02\x08\x07" + b"\x12\x07\x08\x05\x12\x03EUR"
SHOWN = {"lines": [{"item": "7"}], "total": {"units": "5", "currency": "EUR"}}
VERSION = UUID("8b9f2c6e-1111-2222-3333-444455556666")


def encoded(value, schema=AVRO):
    return avro_data(schema, value)


def shown(value):
    return {**value, "price": str(value["price"].quantize(Decimal("0.01")))}


def glue(data, version=VERSION, *, compressed=False):
    return b"\x03" + (b"\x05" if compressed else b"\0") + version.bytes + (zlib.compress(data) if compressed else data)


def lines(*args):
    return [json.loads(line) for line in output_of(*args).splitlines()]


@pytest.fixture
def places(tmp_path):
    """The files of schemas, and a log directory with values of each."""
    (tmp_path / "common").mkdir()
    (tmp_path / "order.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "order.proto").write_text(PROTO)
    (tmp_path / "common/money.proto").write_text(MONEY)
    build_log_dir(
        tmp_path / "logs",
        {
            "avro": [[Record(encoded(f"k{i}", "string"), encoded(order)) for i, order in enumerate(ORDERS)]],
            "proto": [[Record(None, ORDER), Record(None, None), Record(b"key", b"")]],
            "bad": [[Record(None, value) for value in (b"\xff\xff", encoded(ORDERS[0]) + b"x", b"", b"plain")]],
            "none": [[Record(None, encoded(ORDERS[0]))]],
        },
    )
    return tmp_path


def descriptor_set(folder, name, *files):
    target = folder / name
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={target}", *files], check=True)
    return target


def test_every_reader_decodes_by_a_file(places):
    """A union's first branch is a zero byte, with which the wire format begins as well."""
    logs, named = places / "logs", f"avro={places / 'order.avsc'}"
    expected = [shown(order) for order in ORDERS]
    for form in ("decoded", "decoded.jsonl"):
        printed = lines("cat", logs, "avro", "--format", form, "--schemas", named)
        assert [line["value"] for line in printed] == expected
        assert {(line["keySchema"], line["valueSchema"], "error" in line) for line in printed} == {(None, None, False)}
    key = places / "key.avsc"
    key.write_text('"string"')
    both = ("--schemas", named, "--schemas", f"avro#key={key}")
    assert [line["key"] for line in lines("cat", logs, "avro", "--format", "decoded", *both)] == [
        f"k{i}" for i in range(len(ORDERS))
    ]
    where = ("--where", "(value_json->>'count')::int = 17", "--format", "txt", *both)
    assert output_of("cat", logs, "avro", *where) == encoded(ORDERS[17]) + b"\n"
    query = "SELECT sum((value_json->>'count')::int) AS total FROM avro"
    assert lines("sql", logs, query, "--format", "jsonl", "--schemas", named) == [{"total": 2999 * 1500}]
    undecodable = json.loads(output_of("stats", logs, "avro", "--decode", "--json", *both))["undecodable"]
    assert undecodable == []
    log = kafkafs.open(logs, schemas=[named, f"avro#key={key}"])
    assert [message.decoded for message in log["avro"].messages(offsets=(5, 8))] == expected[5:8]
    table = log["avro"].scan(decode=True).to_arrow()
    assert table["value"].to_pylist() == ORDERS
    assert table["decode_error"].null_count == table["value_bytes"].null_count == len(ORDERS)
    log_dir = LogDir.open_read_only(logs)
    tree = Tree(log_dir, schemas=schemas_of(log_dir, schema_places([named])))
    view = content(tree, "/avro/0/messages.decoded.jsonl")
    assert [json.loads(line)["value"] for line in view.splitlines()] == expected


def test_protobuf_by_text_and_by_descriptor_set(places):
    compiled = descriptor_set(places, "all.binpb", "order.proto", "common/money.proto")
    for named in ("order.proto:shop.Order", "order.proto:Order", f"{compiled.name}:shop.Order"):
        printed = lines("cat", places / "logs", "proto", "--format", "decoded", "--schemas", f"proto={places / named}")
        assert [line["value"] for line in printed] == [SHOWN, None, {}]
        assert not any("error" in line for line in printed)
    log = kafkafs.open(places / "logs", schemas=f"proto={places / 'order.proto'}:shop.Order")
    table = log["proto"].scan(decode=True).to_arrow()
    assert table["decode_error"].null_count == table.num_rows
    values = table["value"].to_pylist()
    assert values[0]["lines"] == [{"item": 7}]
    assert values[1] is None
    only = descriptor_set(places, "money.desc", "common/money.proto")
    build_log_dir(places / "money", {"t": [[b"\x08\x05"]]})
    (line,) = lines("cat", places / "money", "t", "--format", "decoded", "--schemas", f"t={only}")
    assert line["value"] == {"units": "5"}


@pytest.mark.parametrize(
    ("named", "error"),
    [
        ("order.proto", "the file has 2 message types; name one as FILE:MESSAGE: shop.Other, shop.Order"),
        ("order.proto:shop.Missing", "the file has no message type shop.Missing; its types: shop.Other, shop.Order"),
        ("order.proto:shop.Other", "order.proto does not fit the data: they have none of its fields"),
        ("order.avsc", "order.avsc does not fit the data: "),
        ("broken.proto", "broken.proto cannot be used: it does not compile"),
        ("broken.avsc", "broken.avsc cannot be used: "),
        ("broken.desc", "broken.desc cannot be used: "),
    ],
)
def test_a_wrong_schema_is_an_error_in_the_line(places, named, error):
    for name in ("broken.proto", "broken.avsc", "broken.desc"):
        (places / name).write_text("nothing of the kind")
    result = run("cat", places / "logs", "proto", "--format", "decoded", "--schemas", f"proto={places / named}")
    assert result.exit_code == 0
    first = json.loads(result.stdout.splitlines()[0])
    assert error in first["error"]
    assert not isinstance(first["value"], dict) or list(first["value"]) == ["base64"]


def test_values_that_do_not_fit(places):
    named = f"bad={places / 'order.avsc'}"
    printed = lines("cat", places / "logs", "bad", "--format", "decoded", "--schemas", named)
    assert all(line["error"].startswith("value: order.avsc does not fit the data: ") for line in printed)
    assert printed[3]["value"] == "plain"
    stats = json.loads(output_of("stats", places / "logs", "bad", "--decode", "--json", "--schemas", named))
    assert sum(reason["messages"] for reason in stats["undecodable"]) == 4
    other = lines("cat", places / "logs", "none", "--format", "decoded", "--schemas", named)
    assert other[0]["value"] == encoded(ORDERS[0]).decode()
    assert "error" not in other[0]


def test_an_id_that_a_registry_knows_comes_first(places):
    value = encoded(ORDERS[0])
    build_log_dir(
        places / "both",
        {"_schemas": [[schema_record("t-value", 1, 7)]], "t": [[framed(7, b"\x04hi"), framed(8, b"\x04hi"), value]]},
    )
    printed = lines("cat", places / "both", "t", "--format", "decoded", "--schemas", f"t={places / 'order.avsc'}")
    assert [line["value"] for line in printed][::2] == ["hi", shown(ORDERS[0])]
    assert printed[1]["error"].startswith("value: order.avsc does not fit")
    assert [line["valueSchema"] for line in printed] == [7, None, None]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("t={}/none.avsc", "none.avsc, the schema of t-value, is not a file"),
        ("t={}/order.txt", "is not the file of a schema"),
        ("t={}/order.avsc:shop.Order", "only a Protobuf schema has message types such as shop.Order"),
        ("{}/order.avsc", "is not a directory; the file of a topic's schema is named as TOPIC=FILE"),
        ("t={}/latin.avsc", "schema is not UTF-8"),
        ("t={}/linked.proto", "common/link.proto"),
    ],
)
def test_a_file_that_cannot_be_a_schema_is_refused(places, text, error):
    (places / "order.txt").touch()
    (places / "latin.avsc").write_bytes(b'"\xff"')
    (places / "linked.proto").write_text('syntax = "proto3"; import "common/link.proto"; message M {}')
    (places / "common/link.proto").symlink_to("/etc/passwd")
    result = run("cat", places / "logs", "avro", "--format", "decoded", "--schemas", text.format(places))
    assert result.exit_code != 0
    assert error in result.stderr
    with pytest.raises((InvalidConfig, ValueError, OSError), match=error.split("'")[0].replace(".", r"\.")):
        kafkafs.open(places / "logs", schemas=text.format(places)).has_schemas  # noqa: B018


def test_the_framing_of_glue(places):
    known, proto, unknown = VERSION, UUID(int=1), UUID(int=2)
    (places / "glue").mkdir()
    (places / f"glue/{known}.avsc").write_text(json.dumps(AVRO))
    (places / f"glue/{proto}.proto").write_text(
        'syntax = "proto3"; message B { message C { } message A { message D { int32 n = 1; } } }'
    )
    values = [encoded(order) for order in ORDERS]
    framed_values = [glue(value, compressed=i % 3 == 1) for i, value in enumerate(values)]
    # Glue's numbers: B, B.A, B.A.D, B.C
    others = [
        glue(b"\x02\x08\x05", proto),
        glue(b"\x01", proto, compressed=True),
        glue(b"\x04", proto),
        glue(values[0], unknown),
        glue(values[0], compressed=True)[:-2],
        glue(values[0])[:17],
        b"\x03\x01" + known.bytes + values[0],
        glue(b"\xff" * 20, compressed=True),
    ]
    build_log_dir(places / "g", {"t": [framed_values, others]})
    named = ("--schemas", places / "glue")
    printed = lines("cat", places / "g", "t/0", "--format", "decoded", *named)
    assert [line["value"] for line in printed] == [shown(order) for order in ORDERS]
    assert {line["valueSchema"] for line in printed} == {None}
    printed = lines("cat", places / "g", "t/1", "--format", "decoded", *named)
    assert [line["value"] for line in printed[:2]] == [{"n": 5}, {}]
    errors = [line.get("error", "") for line in printed[2:]]
    assert "there is no message type 4 in the schema" in errors[0]
    assert errors[1] == f"value: there is no schema {unknown}"
    assert errors[2] == "value: its compressed data are cut off"
    assert errors[3:5] == ["", ""]
    assert f"schema {known} does not fit the data" in errors[5]
    query = "SELECT count(*) AS n FROM t WHERE decode_error IS NULL AND value_json->>'count' IS NOT NULL"
    assert lines("sql", places / "g", query, "--format", "jsonl", *named) == [{"n": len(ORDERS)}]


def test_typed_columns_read_the_framing_of_glue(places):
    """Values of all versions are read as the schema in the topic's file: Glue's files name no topic."""
    newer = UUID(int=3)
    later = {**AVRO, "fields": [*AVRO["fields"], {"name": "place", "type": ["null", "string"], "default": None}]}
    (places / "glue").mkdir()
    for version, schema in ((VERSION, AVRO), (newer, later)):
        (places / f"glue/{version}.avsc").write_text(json.dumps(schema))
    (places / "reader.avsc").write_text(json.dumps(later))
    old, new = ORDERS[:200], [{**order, "place": f"at {order['count']}"} for order in ORDERS[200:400]]
    values = [glue(encoded(order), compressed=i % 3 == 1) for i, order in enumerate(old)]
    values += [glue(encoded(order, later), newer, compressed=i % 3 == 1) for i, order in enumerate(new)]
    build_log_dir(places / "g", {"t": [values]})
    log = kafkafs.open(places / "g", schemas=[str(places / "glue"), f"t={places / 'reader.avsc'}"])
    table = log["t"].scan(columns=("value", "decode_error"), decode=True).to_arrow()
    assert table["value"].to_pylist() == [{"place": None, **order} for order in (*old, *new)]
    assert table["decode_error"].null_count == len(values)
    printed = run("schemas", places / "glue")
    assert (printed.exit_code, "AWS Glue" in printed.stderr) == (0, True)


def test_compressed_data_are_bounded(places):
    (places / "glue").mkdir()
    (places / f"glue/{VERSION}.avsc").write_text('"bytes"')
    size = (64 << 20) + 1
    build_log_dir(places / "g", {"t": [[glue(bytes(size), compressed=True), glue(b"\x02x", compressed=True)]]})
    first, second = lines("cat", places / "g", "t", "--format", "decoded", "--schemas", places / "glue")
    assert "decompress to more than 64 MiB" in first["error"]
    assert second["value"] == "eA=="

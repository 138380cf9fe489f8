"""`@schemas`, and where decoded views are."""

from __future__ import annotations

import json

import pytest

from kafkafs.tree.node import NodeKind
from kafkafs.tree.paths import NoSuchPath
from tests.support.builders import build_log_dir
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.reference_views import content, tree_of
from tests.support.schema_logs import LONG, START_MS, STRING, GrowingLog, other_record, schema_record

GOLDEN = FIXTURES / "schemas" / "golden"


def names(tree, path):
    return [entry.name for entry in tree.lookup(path).list()]


def walk(tree, path):
    for entry in tree.lookup(path).list():
        below = f"{path.rstrip('/')}/{entry.name}"
        if entry.kind is NodeKind.DIRECTORY:
            yield from walk(tree, below)
        else:
            yield below


@requires_fixtures
def test_the_fixtures_schemas():
    tree = tree_of(FIXTURES / "schemas" / "log")
    golden = json.loads((GOLDEN / "schemas.json").read_text())["ids"]
    suffixes = {"AVRO": "avsc", "PROTOBUF": "proto", "JSON": "json"}
    assert "@schemas" in names(tree, "/")
    assert names(tree, "/@schemas") == ["ids", "subjects"]
    wanted = {f"{number}.{suffixes[one['type']]}": one["schema"] for number, one in golden.items()}
    assert sorted(names(tree, "/@schemas/ids")) == sorted(wanted)
    for name, text in wanted.items():
        assert content(tree, f"/@schemas/ids/{name}").decode() == text
    for one in golden.values():
        for place in one["subjects"]:
            subject = place["subject"].replace("/", "%2F")
            path = f"/@schemas/subjects/{subject}/{place['version']}.{suffixes[one['type']]}"
            assert content(tree, path).decode() == one["schema"]
    assert "common%2Ftypes.proto" in names(tree, "/@schemas/subjects")
    assert names(tree, "/@schemas/subjects/:.dr:avro-orders-value") == ["1.avsc"]
    assert len(list(walk(tree, "/@schemas"))) == len(set(walk(tree, "/@schemas")))


def test_attributes(tmp_path):
    records = [
        schema_record("a/b", 1, 7, STRING, timestamp=START_MS),
        schema_record("a/b", 2, 8, LONG, timestamp=START_MS + 5000, references=[
            {"name": "n", "subject": "a/b", "version": 1}
        ]),
        schema_record("x" * 300, 1, 9),
        schema_record("", 1, 10, schemaType="THRIFT"),
        other_record("CONFIG", "a/b", {"compatibilityLevel": "NONE"}),
    ]  # fmt: skip
    build_log_dir(tmp_path, {"_schemas": [records], "t": [[b"v"]]})
    tree = tree_of(tmp_path)
    assert names(tree, "/@schemas/subjects") == ["%", "a%2Fb"]  # no system call takes the longest name
    assert names(tree, "/@schemas/ids") == ["7.avsc", "8.avsc", "9.avsc", "10.txt"]
    subject = tree.lookup("/@schemas/subjects/a%2Fb")
    assert subject.attributes().mtime_ns == (START_MS + 5000) * 1_000_000
    file = tree.lookup("/@schemas/subjects/a%2Fb/2.avsc")
    assert file.attributes().mtime_ns == (START_MS + 5000) * 1_000_000
    assert file.attributes().size == len(LONG)
    assert tree.lookup("/@schemas").attributes().nlink == 4
    assert tree.lookup("/@schemas/subjects").attributes().nlink == 4
    with pytest.raises(OSError, match="Read-only"):
        file.open_to_write()
    missing = ("ids/7.proto", "ids/07.avsc", "ids/11.avsc", "ids/x", "subjects/b", "subjects/a%2Fb/3.avsc", "other")
    for path in missing:
        with pytest.raises(NoSuchPath):
            tree.lookup(f"/@schemas/{path}")


def test_nothing_where_there_are_no_schemas(tmp_path):
    build_log_dir(tmp_path, {"t": [[b"v"]], "_schemas": [[other_record("NOOP", None, None)]]})
    tree = tree_of(tmp_path)
    assert "@schemas" not in names(tree, "/")
    for directory in ("/t", "/t/0"):
        assert not [name for name in names(tree, directory) if "decoded" in name]
    missing = ["/@schemas", "/@schemas/ids", "/t/latest.decoded.jsonl"]
    missing += [f"/t/0/{name}.decoded.jsonl" for name in ("messages", "latest", "offsets/0-1")]
    for path in missing:
        with pytest.raises(NoSuchPath):
            tree.lookup(path)


def test_they_appear_with_the_first_schema(tmp_path):
    log = GrowingLog(tmp_path, "_schemas-0")
    build_log_dir(tmp_path, {"t": [[b"v"]]}, broker=False)
    tree = tree_of(tmp_path)
    assert "messages.decoded.jsonl" not in names(tree, "/t/0")
    log.append([schema_record("t-value", 1, 1)])
    assert "messages.decoded.jsonl" in names(tree, "/t/0")
    assert "@schemas" in names(tree, "/")

"""`@schemas`, and where decoded views are."""

import json

import pytest

from kafkafs.tree.paths import NoSuchPath
from tests.support.builders import build_log_dir
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.reference_views import content, tree_of
from tests.support.schema_logs import LONG, START_MS, STRING, GrowingLog, other_record, schema_record

SUFFIXES = {"AVRO": "avsc", "PROTOBUF": "proto", "JSON": "json"}


def names(tree, path):
    return [entry.name for entry in tree.lookup(path).list()]


@requires_fixtures
def test_the_fixtures_schemas():
    tree = tree_of(FIXTURES / "schemas" / "log")
    golden = json.loads((FIXTURES / "schemas" / "golden" / "schemas.json").read_text())["ids"]
    assert "@schemas" in names(tree, "/")
    assert names(tree, "/@schemas") == ["ids", "subjects"]
    ids = {f"{number}.{SUFFIXES[one['type']]}": one["schema"] for number, one in golden.items()}
    assert sorted(names(tree, "/@schemas/ids")) == sorted(ids)
    for name, text in ids.items():
        assert content(tree, f"/@schemas/ids/{name}").decode() == text
    for one in golden.values():
        for place in one["subjects"]:
            subject = place["subject"].replace("/", "%2F")
            path = f"/@schemas/subjects/{subject}/{place['version']}.{SUFFIXES[one['type']]}"
            assert content(tree, path).decode() == one["schema"]
    assert "common%2Ftypes.proto" in names(tree, "/@schemas/subjects")
    assert names(tree, "/@schemas/subjects/:.dr:avro-orders-value") == ["1.avsc"]


def test_attributes(tmp_path):
    references = [{"name": "n", "subject": "a/b", "version": 1}]
    records = [
        schema_record("a/b", 1, 7, STRING, timestamp=START_MS),
        schema_record("a/b", 2, 8, LONG, timestamp=START_MS + 5000, references=references),
        schema_record("x" * 300, 1, 9),
        schema_record("", 1, 10, schemaType="THRIFT"),
        other_record("CONFIG", "a/b", {"compatibilityLevel": "NONE"}),
    ]
    build_log_dir(tmp_path, {"_schemas": [records], "t": [[b"v"]]})
    tree = tree_of(tmp_path)
    assert names(tree, "/@schemas/subjects") == ["%", "a%2Fb"]  # no system call takes the longest name
    assert names(tree, "/@schemas/ids") == ["7.avsc", "8.avsc", "9.avsc", "10.txt"]
    file = tree.lookup("/@schemas/subjects/a%2Fb/2.avsc")
    assert file.attributes().size == len(LONG)
    for view in (tree.lookup("/@schemas/subjects/a%2Fb"), file):
        assert view.attributes().mtime_ns == (START_MS + 5000) * 1_000_000
    for path in ("/@schemas", "/@schemas/subjects"):
        assert tree.lookup(path).attributes().nlink == 4
    with pytest.raises(OSError, match="Read-only"):
        file.open_to_write()
    for path in ("ids/7.proto", "ids/07.avsc", "ids/11.avsc", "ids/x", "subjects/b", "subjects/a%2Fb/3.avsc", "other"):
        with pytest.raises(NoSuchPath):
            tree.lookup(f"/@schemas/{path}")


def test_they_appear_with_the_first_schema(tmp_path):
    log = GrowingLog(tmp_path, "_schemas-0")
    log.append([other_record("NOOP", None, None)])
    build_log_dir(tmp_path, {"t": [[b"v"]]}, broker=False)
    tree = tree_of(tmp_path)
    assert "@schemas" not in names(tree, "/")
    for directory in ("/t", "/t/0"):
        assert not [name for name in names(tree, directory) if "decoded" in name]
    decoded = [f"/t/0/{name}.decoded.jsonl" for name in ("messages", "latest", "offsets/0-1")]
    for path in ("/@schemas", "/@schemas/ids", "/t/latest.decoded.jsonl", *decoded):
        with pytest.raises(NoSuchPath):
            tree.lookup(path)
    log.append([schema_record("t-value", 1, 1)])
    assert "messages.decoded.jsonl" in names(tree, "/t/0")
    assert "@schemas" in names(tree, "/")

"""`kafkafs schemas`: listed, written out, and read again from there; and decoded values on the command line."""

from __future__ import annotations

import json
import os

import pytest

from kafkafs.schemas.sources import schemas_at
from storage.format.block import Record
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.schema_logs import LONG, START_MS, avro_string, framed, other_record, schema_record

LOG = FIXTURES / "schemas" / "log"


@pytest.fixture
def logs(tmp_path):
    """A directory with two schemas and a topic whose messages have one of them, one that is unknown, and none."""
    path = tmp_path / "logs"
    records = [
        schema_record("t-value", 1, 7, timestamp=START_MS),
        schema_record("gone", 1, 8, LONG, deleted=True),
        other_record("CONFIG", None, {"compatibilityLevel": "FULL"}),
    ]
    values = [framed(7, avro_string("first")), framed(9, b"x"), b"plain"]
    build_log_dir(path, {"_schemas": [records], "t": [[Record(b"k", value, (), START_MS) for value in values]]})
    return path


def decoded(*args):
    return [json.loads(line) for line in output_of("cat", *args, "--format", "decoded").splitlines()]


def test_the_list(logs):
    assert output_of("schemas", logs).decode().splitlines() == [
        "SUBJECT  VERSION  ID  TYPE  STATE         REGISTERED",
        "gone           1   8  AVRO  soft-deleted  2023-11-14T22:13:20.000Z",
        "t-value        1   7  AVRO  live          2023-11-14T22:13:20.000Z",
    ]
    found = json.loads(output_of("schemas", logs, "--json"))
    assert found["compatibility"] == {"": "FULL"}
    assert found["schemas"][1] == {
        "subject": "t-value",
        "version": 1,
        "id": 7,
        "type": "AVRO",
        "state": "live",
        "timestamp": START_MS,
        "references": [],
        "schema": '"string"',
    }


def test_no_schemas(tmp_path):
    result = run("schemas", tmp_path)
    assert result.exit_code == 4
    assert "no schemas here; expected a log directory with _schemas-0" in result.stderr


@requires_fixtures
def test_written_out_and_read_again(tmp_path):
    target = tmp_path / "out"
    said = output_of("schemas", LOG, "--to", target).decode()
    assert said == f"{target}: subjects 22, versions 43, ids 39\n"
    source = schemas_at(LOG).registry()
    for schema_id, entry in source.ids().items():
        (path,) = (target / "ids").glob(f"{schema_id}.*")
        assert path.read_text() == entry.schema.text
        assert path.stat().st_mtime_ns == entry.timestamp * 1_000_000
    assert (target / "subjects" / "common%2Ftypes.proto" / "1.proto").read_text().startswith("syntax")
    (tmp_path / "as-usual").mkdir()
    assert target.stat().st_mode == (tmp_path / "as-usual").stat().st_mode
    (tmp_path / "as-usual").rmdir()
    read = schemas_at(target).registry()
    assert {place: (entry.schema, entry.state) for place, entry in read.versions.items()} == {
        place: (entry.schema, entry.state) for place, entry in source.versions.items()
    }
    assert list(tmp_path.iterdir()) == [target]
    found = json.loads(output_of("schemas", LOG, "--to", tmp_path / "second", "--json"))
    assert found == {"directory": str(tmp_path / "second"), "ids": 39, "subjects": 22, "versions": 43}


def test_nothing_is_overwritten(logs, tmp_path):
    empty, full, link = tmp_path / "empty", tmp_path / "full", tmp_path / "link"
    empty.mkdir()
    full.mkdir()
    (full / "mine").touch()
    link.symlink_to(empty)
    for target in (full, full / "mine", link):
        result = run("schemas", logs, "--to", target)
        assert result.exit_code == 4
        assert f"{target}: is there already; name a new or an empty directory" in result.stderr
    assert [path.name for path in full.iterdir()] == ["mine"]
    assert run("schemas", logs, "--to", empty).exit_code == 0
    assert run("schemas", logs, "--to", logs / "out").exit_code == 2
    assert run("schemas", logs, "--to", logs).exit_code == 2
    assert run("schemas", logs, "--to", tmp_path / "missing" / "out").exit_code == 4


@pytest.mark.parametrize("failing", range(1, 12))
def test_a_failure_leaves_nothing(logs, tmp_path, monkeypatch, failing):
    """A disk that fails at each of the syncs, and at the rename: either all of it is there, or nothing."""
    target, calls = tmp_path / "out", 0
    sync, rename = os.fsync, os.rename

    def count():
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", lambda descriptor: (count(), sync(descriptor))[1])
    monkeypatch.setattr(os, "rename", lambda *names, **within: (count(), rename(*names, **within))[1])
    result = run("schemas", logs, "--to", target)
    assert result.exit_code == 4
    # 2 ids, ids, 2 versions, 2 subjects, subjects, import.jsonl, DIR are synced; then the rename; then what is above.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


def test_cat(logs):
    first, second, third = decoded(logs, "t")
    assert list(first) == [
        "topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "keySchema",
        "valueSchema",
    ]  # fmt: skip
    assert (first["key"], first["value"], first["keySchema"], first["valueSchema"]) == ("k", "first", None, 7)
    assert second["valueSchema"] == 9
    assert second["value"] == "\0\0\0\0\tx"
    assert second["error"]
    assert (third["value"], third["valueSchema"]) == ("plain", None)
    assert "error" not in third
    assert [line["offset"] for line in decoded(logs, "t", "--offsets", "last-1", "--key", "k")] == [2]


def test_schemas_of_another_place(logs, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "9.avsc").write_text('{"type":"fixed","name":"F","size":1}')
    assert decoded(logs, "t", "--schemas", files)[1]["value"] == "eA=="
    bare = tmp_path / "bare"
    build_log_dir(bare, {"t": [[framed(7, avro_string("here"))]]})
    assert decoded(bare, "t", "--schemas", logs)[0]["value"] == "here"
    result = run("cat", bare, "t", "--format", "decoded")
    assert result.exit_code == 2
    assert "needs the topic _schemas there, or --schemas PATH" in result.stderr
    assert run("cat", bare, "t", "--schemas", logs).exit_code == 2
    assert run("cat", bare, "t", "--format", "decoded", "--schemas", tmp_path / "missing").exit_code == 2
    result = run("cat", bare, "t", "--format", "decoded", "--schemas", bare)
    assert result.exit_code == 4
    assert "no schemas here" in result.stderr


@pytest.mark.parametrize("broken", ["link", "directory", "gone", "FIFO"])
def test_schemas_that_cannot_be_read_are_no_wrong_usage(logs, broken):
    (log,) = (logs / "_schemas-0").glob("*.log")
    if broken in ("gone", "FIFO"):
        log.parent.rename(log.parent.with_name("other-0"))
        if broken == "FIFO":
            os.mkfifo(log.parent)
    else:
        log.unlink()
        log.symlink_to("elsewhere") if broken == "link" else log.mkdir()
    if broken != "gone":
        shown = run("schemas", logs)
        assert shown.exit_code == 4, shown.output
        assert "the schemas cannot be read: " in shown.stderr
        assert str(log.parent if broken == "FIFO" else log) in shown.stderr
    result = run("cat", logs, "t", "--format", "decoded")
    assert result.exit_code == (2 if broken == "gone" else 4), result.output
    assert ("there are no schemas in" if broken == "gone" else "the schemas cannot be read: ") in result.stderr


def test_the_links_of_a_config_map_are_followed(logs, tmp_path):
    """Kubernetes replaces `..data`. No link out of the directory is followed."""
    place = tmp_path / "schemas"
    (place / "..2026_11_24").mkdir(parents=True)
    (place / "..2026_11_24" / "7.avsc").write_text('"string"')
    (place / "..data").symlink_to("..2026_11_24")
    (place / "7.avsc").symlink_to("..data/7.avsc")
    (tmp_path / "9.avsc").write_text('"bytes"')
    (place / "9.avsc").symlink_to("../9.avsc")
    (place / "10.avsc").symlink_to("10.avsc")
    source = schemas_at(place)
    assert set(source.registry().ids()) == {7}
    assert decoded(logs, "t", "--schemas", place)[0]["value"] == "first"
    os.truncate(place / "7.avsc", 0)
    (place / "..2026_11_25").mkdir()
    (place / "..2026_11_25" / "7.avsc").write_text('"long"')
    (place / "..new").symlink_to("..2026_11_25")
    (place / "..new").rename(place / "..data")
    assert source.registry().ids()[7].schema.text == '"long"'

"""Schemas of a real registry, a disk that fails, links of a config map. See also transcripts/schemas.txt."""

import json
import os

import pytest

from kafkafs.schemas.sources import schemas_at
from storage.format.block import Record
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.schema_logs import LONG, avro_string, framed, schema_record

LOG = FIXTURES / "schemas" / "log"


@pytest.fixture
def logs(tmp_path):
    """Two schemas, and a message that has the first."""
    records = [schema_record("t-value", 1, 7), schema_record("gone", 1, 8, LONG, deleted=True)]
    messages = [[Record(b"k", framed(7, avro_string("first")))]]
    return build_log_dir(tmp_path / "logs", {"_schemas": [records], "t": messages}).path


@requires_fixtures
def test_written_out_and_read_again(tmp_path):
    target = tmp_path / "out"
    assert output_of("schemas", LOG, "--to", target).decode() == f"{target}: subjects 22, versions 43, ids 39\n"
    source = schemas_at(LOG).registry()
    for schema_id, entry in source.ids().items():
        (path,) = (target / "ids").glob(f"{schema_id}.*")
        assert path.read_text() == entry.schema.text
        assert path.stat().st_mtime_ns == entry.timestamp * 1_000_000
    (tmp_path / "as-usual").mkdir()
    assert target.stat().st_mode == (tmp_path / "as-usual").stat().st_mode
    (tmp_path / "as-usual").rmdir()
    again, first = (
        {place: (entry.schema, entry.state) for place, entry in registry.versions.items()}
        for registry in (schemas_at(target).registry(), source)
    )
    assert again == first
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("failing", range(1, 12))
def test_a_failure_leaves_nothing(logs, tmp_path, monkeypatch, failing):
    """A disk that fails at each of the syncs, and at the rename: either all of it is there, or nothing."""
    calls = 0
    sync, rename = os.fsync, os.rename

    def count():
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", lambda descriptor: (count(), sync(descriptor))[1])
    monkeypatch.setattr(os, "rename", lambda *names, **within: (count(), rename(*names, **within))[1])
    result = run("schemas", logs, "--to", tmp_path / "out")
    assert result.exit_code == 4
    # 2 ids, ids, 2 versions, 2 subjects, subjects, import.jsonl, DIR are synced; then the rename; then what is above.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs"]


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
    (message,) = output_of("cat", logs, "t", "--format", "decoded", "--schemas", place).splitlines()
    assert json.loads(message)["value"] == "first"
    os.truncate(place / "7.avsc", 0)
    (place / "..2026_11_25").mkdir()
    (place / "..2026_11_25" / "7.avsc").write_text('"long"')
    (place / "..new").symlink_to("..2026_11_25")
    (place / "..new").rename(place / "..data")
    assert source.registry().ids()[7].schema.text == '"long"'

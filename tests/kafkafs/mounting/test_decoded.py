"""Decoded views and `@schemas` through a real mount."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.builders import build_log_dir
from tests.support.commands import output_of
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.schema_logs import avro_string, framed, schema_record

pytestmark = requires_fuse

LOG = FIXTURES / "schemas" / "log"


@pytest.fixture(scope="module")
def fixture_mount(tmp_path_factory):
    with mounted(LOG, tmp_path_factory.mktemp("decoded") / "mnt") as mount:
        yield mount


@requires_fixtures
def test_schemas(fixture_mount):
    schemas = fixture_mount.path / "@schemas"
    assert (fixture_mount.path / "plain" / "0" / "messages.decoded.jsonl").exists()
    (path,) = (schemas / "ids").glob("4.*")
    assert json.loads(path.read_text())["name"] == "Address"
    same = schemas / "subjects" / "shop.common.Address" / "1.avsc"
    assert same.read_bytes() == path.read_bytes()
    assert (schemas / "subjects" / "common%2Ftypes.proto").is_dir()
    assert not (schemas / "subjects" / "nothing").exists()
    copied = subprocess.check_output(["tar", "-C", schemas, "-c", "."])
    assert copied
    # A directory of schemas of another mount serves as schemas=PATH.
    assert output_of("schemas", schemas).splitlines()[1].split()[:2] == [b"1", b"AVRO"]


def test_schemas_of_another_place(tmp_path):
    log, other = tmp_path / "log", tmp_path / "other"
    build_log_dir(log, {"t": [[framed(1, avro_string("a"))]]})
    build_log_dir(other, {"_schemas": [[schema_record("t-value", 1, 1)]]})
    with mounted(log, tmp_path / "plain") as mount:
        assert not (mount.path / "t" / "0" / "messages.decoded.jsonl").exists()
        assert not (mount.path / "@schemas").exists()
    for option in (("-o", f"schemas={other}"), ("--schemas", str(other))):
        with mounted(log, tmp_path / "mnt", *option) as mount:
            (line,) = (mount.path / "t" / "0" / "messages.decoded.jsonl").read_text().splitlines()
            assert json.loads(line)["value"] == "a"
            assert json.loads((mount.path / "@status.json").read_text())["schemas"] == str(other)
    done = run_kafkafs("mount", log, tmp_path / "mnt", "-o", f"schemas={log}", "--read-only", check=False)
    assert done.returncode == 2
    assert b"no schemas here" in done.stderr

"""A broker's directory whose older messages are in tiered storage: every command says what is not here."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures

pytestmark = requires_fixtures

LOG = FIXTURES / "tiered" / "log"
NOTE = "cut/0: messages 517 to 723 are in tiered storage"


def object_of(*words):
    return json.loads(output_of(*words, "--json"))


def test_describe():
    (topic,) = object_of("topics", "describe", LOG, "cut")["topics"]
    (facts,) = topic["partitions"]
    assert (facts["log_start_offset"], facts["local_log_start_offset"], facts["log_end_offset"]) == (517, 724, 1252)
    said = run("topics", "describe", LOG)
    assert said.exit_code == 0
    assert NOTE in said.stderr
    assert "gone/0: messages 0 to 1259 are in tiered storage" in said.stderr


def test_count():
    found = {(one["topic"], one["partition"]): one for one in object_of("count", LOG)["partitions"]}
    assert found["gone", 0] == {"topic": "gone", "partition": 0, "count": 0, "remote_offsets": [0, 1259]}
    assert found["cut", 0]["remote_offsets"] == [517, 723]
    assert "remote_offsets" not in found["__remote_log_metadata", 0]
    said = run("count", LOG, "cut/0")
    assert (said.stdout, said.exit_code) == ("528\n", 0)
    assert NOTE in said.stderr


def test_cat():
    said = run("cat", LOG, "cut/0", "--format", "%o\n")
    assert said.stdout.split()[0] == "724"
    assert NOTE in said.stderr
    said = run("cat", LOG, "cut/0", "--offsets", "600-800")
    assert (said.exit_code, said.stdout) == (4, "")
    assert "in tiered storage" in said.stderr
    assert "tiered" not in run("cat", LOG, "cut/0", "--offsets", "5").stderr
    assert "tiered" not in run("cat", LOG, "cut/0", "--offsets", "last-3").stderr
    assert NOTE in run("cat", LOG, "cut/0", "--offsets", "last-529").stderr


def test_verify_and_doctor():
    notes = [one for one in object_of("verify", LOG)["notes"] if one["name"] == "remote-segments"]
    assert len(notes) == 3
    said = run("verify", LOG, "cut", "--notes")
    assert said.exit_code == 0
    assert "note remote-segments" in said.stdout
    assert "offsets 517 to 723" in said.stdout
    for quick in ([], ["--quick"]):
        said = run("doctor", LOG, *quick)
        assert "note remote-segments: offsets 517 to 723 are in tiered storage" in said.stdout
        assert "and loses nothing\n" not in said.stdout


@pytest.mark.parametrize("configured", [True, False])
def test_doctor_with_a_configuration(tmp_path, configured):
    """A broker without tiered storage drops the lines of such partitions from log-start-offset-checkpoint."""
    properties = tmp_path / "server.properties"
    properties.write_text(f"log.dirs={LOG}\nremote.log.storage.system.enable={str(configured).lower()}\n")
    found = json.loads(run("doctor", LOG, "--server-properties", properties, "--json").stdout)
    named = {kind: [one for one in found[kind] if one["name"] == "remote-segments"] for kind in ("findings", "notes")}
    assert (len(named["findings"]), len(named["notes"])) == ((0, 3) if configured else (3, 0))
    assert {one["reaction"] for one in named["findings"] + named["notes"]} == {"fetches" if configured else "forgets"}


def test_copies_say_what_they_lack(tmp_path):
    for words in ("--dry-run",), ():
        told = object_of("revive", LOG, "cut", "--to", tmp_path / "new", *words)
        assert any(NOTE in note for note in told["notes"])
    said = run("mirror", LOG, tmp_path / "copy", "cut")
    assert said.exit_code == 0
    assert NOTE in said.stderr
    for copy in (tmp_path / "new", tmp_path / "copy"):
        (topic,) = object_of("topics", "describe", copy, "cut")["topics"]
        assert topic["partitions"][0]["log_start_offset"] == topic["partitions"][0]["local_log_start_offset"] == 724
        assert not any(key.startswith(("remote.", "local.")) for key in topic["config"])


def test_a_group_may_begin_in_tiered_storage(tmp_path):
    copy = tmp_path / "log"
    shutil.copytree(LOG, copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    shutil.rmtree(copy / "__cluster_metadata-0")
    (copy / "meta.properties").unlink()
    told = object_of("groups", copy, "g", "--reset-to", "earliest", "--topic", "cut")
    assert [one["offset"] for one in told["offsets"]] == [517]

"""`kafkafs revive` and `kafkafs doctor`: arguments, output, exit codes."""

from __future__ import annotations

import json
import shutil

import pytest

from storage.diagnosis import examination
from storage.diagnosis.predictions import Diagnosis, Prediction, Reaction
from storage.format import properties
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip


@pytest.fixture
def old(tmp_path):
    items = [Batch(many(10)), ROLL, Batch(many(10))]
    return build_log_dir(tmp_path / "old", {"t": [Partition(items), [b"one"]], "u": [[b"x"]]}).path


def revived(tmp_path, *words):
    return json.loads(output_of("revive", *words, "--to", tmp_path / "new", "--json"))


def test_sources_and_patterns(old, tmp_path):
    dry = revived(tmp_path, old, "t/1", "u", "--dry-run")
    assert not (tmp_path / "new").exists()
    told = revived(tmp_path, old, "t/1", "u", "--listener", "example.org:1234")
    assert [(one["topic"], one["partition"]) for one in told["partitions"]] == [("t", 1), ("u", 0)]
    assert {one["topic"]: one["missing"] for one in told["topics"]} == {"t": [0], "u": []}
    assert (dry["dry_run"], told["dry_run"]) == (True, False)
    settings = properties.parse((tmp_path / "new" / "server.properties").read_bytes())
    assert settings["listeners"] == "PLAINTEXT://example.org:1234,CONTROLLER://example.org:1235"
    assert settings["log.dirs"] == f"{tmp_path}/new"
    again = run("revive", old, "--to", tmp_path / "new")
    assert again.exit_code == 4
    assert "not empty" in again.stderr


def test_single_directories(old, tmp_path):
    (tmp_path / "new").mkdir()  # empty: it is replaced
    told = revived(tmp_path, old / "t-1", old / "u-0")
    assert [one["source"] for one in told["partitions"]] == [str(old / "t-1"), str(old / "u-0")]
    assert told["cluster_id"] == "a2Fma2Fmcy10ZXN0cy0wMQ"  # of the directory that they lie in


def test_text(old, tmp_path):
    (tmp_path / "new.reviving").mkdir()
    (tmp_path / "new.reviving" / "meta.properties").write_text("left by a killed run")
    said = output_of("revive", old, "--to", tmp_path / "new", "--config", "t:retention.ms=60000").decode()
    assert "had not finished: begun anew" in said
    assert "note: u: its retention is not known; it keeps everything" in said
    assert "note: t: its retention" not in said
    assert said.splitlines()[-1] == (
        f"{tmp_path}/new is complete: kafka-server-start.sh {tmp_path}/new/server.properties"
    )
    assert output_of("cat", tmp_path / "new", "t/1") == b"one\n"


def test_cuts(old, tmp_path):
    told = revived(tmp_path, old, "t", "--until", str(START_MS + 12_000))
    assert [(one["log_end_offset"], one["cut"]) for one in told["partitions"]] == [(20, False), (1, False)]
    shutil.rmtree(tmp_path / "new")
    told = revived(tmp_path, old, "t", "--until", "2023-11-14T22:13:25Z")  # offset 5
    assert [(one["log_end_offset"], one["holds_later_messages"]) for one in told["partitions"]] == [
        (10, True), (1, False),
    ]  # fmt: skip
    shutil.rmtree(tmp_path / "new")
    offsets = tmp_path / "offsets"
    offsets.write_text("0\n1\nt 0 10\n")  # as in a checkpoint
    told = revived(tmp_path, old, "--offsets", offsets)
    assert [one["log_end_offset"] for one in told["partitions"]] == [10, 1, 1]


@pytest.mark.parametrize(
    "words",
    [
        ("--until", "someday"),
        ("--until", "2026-11-20--"),
        ("--config", "retention.ms"),
        ("--config", ":retention.ms=1"),
        ("--partitions", "t"),
        ("--partitions", "t=0"),
        ("--listener", "localhost"),
        ("--offsets", "OFFSETS"),
    ],
)
def test_wrong_usage(old, tmp_path, words):
    (tmp_path / "offsets").write_text("t zero 10\n")
    given = [str(tmp_path / "offsets") if word == "OFFSETS" else word for word in words]
    assert run("revive", old, "--to", tmp_path / "new", *given).exit_code == 2
    assert not (tmp_path / "new").exists()


def test_errors(old, tmp_path):
    target = tmp_path / "new"
    assert run("revive", tmp_path / "missing", "--to", target).exit_code == 2
    assert run("revive", old, tmp_path / "missing", "--to", target).exit_code == 2
    assert run("revive", old, "nothing", "--to", target).exit_code == 4
    assert run("revive", tmp_path, "--to", target).exit_code == 4
    assert run("revive", old, "--to", target, "--config", "retention.msec=1").exit_code == 4
    assert "retention.ms" in run("revive", old, "--to", target, "--config", "retention.msec=1").stderr
    assert run("revive", old, "--to", target, "--partitions", "t=1").exit_code == 4
    assert "too many partitions" in run("revive", old, "--to", target, "--partitions", "t=1000001", "--dry-run").stderr
    assert not target.exists()


def test_a_revived_directory_is_well(old, tmp_path):
    revived(tmp_path, old)
    result = run("doctor", tmp_path / "new", "--server-properties", tmp_path / "new" / "server.properties")
    assert (result.exit_code, result.stdout) == (0, "the broker starts, and loses nothing\n")


def test_doctor(old, tmp_path):
    revived(tmp_path, old)
    new = tmp_path / "new"
    (new / "lost+found").mkdir()
    (new / "u-0" / "partition.metadata").unlink()
    result = run("doctor", new)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"{new}/lost+found: finding name-unparsable: ")
    assert lines[1:3] == [
        "  the broker: does not start: Found directory, not in the form of topic-partition",
        "  what to do: Move it elsewhere",
    ]
    assert lines[-1] == "the broker does not start"
    (new / "lost+found").rmdir()
    told = json.loads(run("doctor", new, "--json", "--quick").stdout)
    assert (told["starts"], told["loses_nothing"]) == (True, False)
    (finding,) = told["findings"]
    assert (finding["name"], finding["reaction"], finding["topic"]) == ("topic-id-missing", "sets-aside", "u")
    assert run("doctor", tmp_path / "missing").exit_code == 4


@pytest.mark.parametrize("options", [(), ("--link",)])
def test_a_dry_run_refuses_what_the_run_would_refuse(old, tmp_path, options):
    log = sorted((old / "t-0").glob("*.log"))[-1]
    flip(log, -1)
    words = ("revive", old, "--to", tmp_path / "new", *options)
    dry, told = run(*words, "--dry-run"), run(*words)
    assert dry.exit_code == told.exit_code == 4
    assert f"{log}: t/0 is damaged" in dry.stderr
    assert run(*words, "--salvage", "--dry-run").exit_code == 0
    assert not (tmp_path / "new").exists()


def test_a_quick_doctor_says_what_it_did_not_look_at(old, tmp_path):
    revived(tmp_path, old)
    result = run("doctor", tmp_path / "new", "--quick")
    assert result.exit_code == 0
    assert "no log was read" in result.stdout
    assert "loses nothing" not in result.stdout
    assert json.loads(run("doctor", tmp_path / "new", "--quick", "--json").stdout)["loses_nothing"] is None


SUMMARIES = {
    Reaction.REFUSES: "does not start",
    Reaction.UNNOTICED: "starts, and does not notice",
    Reaction.CUTS: "starts, and removes what the findings above say",
}


@pytest.mark.parametrize("first", Reaction, ids=lambda one: one.name)
def test_the_summary_of_the_doctor_agrees_with_each_pair_of_findings(old, monkeypatch, first):
    for second in Reaction:
        pair = [Prediction("name", one, old, "what", "what it does") for one in (first, second)]
        for stays in (True, False):
            diagnosis = Diagnosis(tuple(pair), stays or Reaction.OFFLINE not in (first, second))
            monkeypatch.setattr(examination, "examine", lambda *_, said=diagnosis, **__: said)
            result = run("doctor", old)
            summary = result.stdout.splitlines()[-1]
            findings = {one for one in (first, second) if one.is_finding}
            assert result.exit_code == (1 if findings else 0)
            if not findings:
                assert "starts, and loses nothing" in summary
            elif not diagnosis.starts:
                assert SUMMARIES[Reaction.REFUSES] in summary
            elif findings <= {Reaction.UNNOTICED, Reaction.CUTS}:
                worst = Reaction.CUTS if Reaction.CUTS in findings else Reaction.UNNOTICED
                assert SUMMARIES[worst] in summary
            else:
                assert "do not start it before" in summary

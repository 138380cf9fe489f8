"""What `verify` and `doctor` report of a tier, and the commands that bring a tiered topic back as a plain directory."""

from __future__ import annotations

import json
import os
import shutil

import pytest

from storage.log.log_dir import LogDir
from storage.types import Isolation
from tests.support.builders import build_log_dir, topic_id
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip
from tests.support.fixtures import read_jsonl, requires_fixtures
from tests.support.readers import read_all
from tests.support.tiers import ISOLATIONS, LAYOUTS, TIERS, copied, golden_of, partitions, tier_options

pytestmark = requires_fixtures


def verified(log, *options):
    """What `verify` reports of the tier: severity, name and what is wrong."""
    report = json.loads(run("verify", log, "--json", *options).stdout)
    both = [*report["findings"], *report["notes"]]
    return [(one["severity"], one["name"], one["what"]) for one in both if one["name"].startswith("remote-")]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_whole_tier_has_no_faults(layout):
    assert verified(TIERS / "log", *tier_options(layout)) == []


def test_gaps_and_missing_parts():
    place = TIERS / "lost"
    # This tier has unfinished uploads and segments whose removal has begun, too: a broker removes them.
    assert verified(place / "log", "--tier", place / "tier-local") == [
        ("finding", "remote-parts", "remote segment 781-tDUoI6SoRzG8APCYob1iJw lacks all its objects"),
        ("finding", "remote-segment", "messages 781 to 1538 are in tiered storage and cannot be read"),
        ("finding", "remote-parts", "remote segment 247-o9bm2N30SSeIzEFm0AHhBg lacks .index, .timeindex"),
    ]


def test_a_tier_that_was_not_restored(tmp_path):
    (tmp_path / "tier").mkdir()
    faults = verified(TIERS / "log", "--tier", tmp_path / "tier")
    lacking = [what for _, name, what in faults if name == "remote-parts"]
    assert len(lacking) == sum(1 for _ in (TIERS / "tier-local").rglob("*.log"))
    assert all(what.endswith(" lacks all its objects") for what in lacking)
    assert {name for _, name, _ in faults} == {"remote-parts", "remote-segment"}


def test_more_segments_than_are_listed_lack_objects(tmp_path):
    log = build_log_dir(tmp_path / "log", {"t": [[b"x"]]}).path
    directory = tmp_path / "tier" / f"t-0-{topic_id('t')}"
    directory.mkdir(parents=True)
    for number in range(30):
        name = f"{number:020}-{number:021}A"
        for suffix in (".log", ".snapshot", ".leader_epoch_checkpoint"):
            (directory / (name + suffix)).touch()
    result = run("verify", log, "--tier", tmp_path / "tier")
    assert result.exit_code == 1
    assert "lacks .index, .timeindex" in result.stdout
    assert "30 findings: 30 remote-parts" in result.stdout
    told = [what for _, _, what in predicted(log, "--tier", tmp_path / "tier")]
    assert len(told) == 20
    assert any(what.endswith("; and 10 more like this") for what in told)


def test_orphans_and_other_brokers_partitions(tmp_path):
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    (directory,) = tier.glob("two-0-*")
    deleted = tier / f"deleted-0-{'B' * 21}w"
    shutil.copytree(directory, deleted)
    for number in range(12):
        for suffix, size in ((".log", 100), (".snapshot", 7)):
            (directory / f"{number:020}-{number:021}A{suffix}").write_bytes(bytes(size))
    log = copied(TIERS / "log", tmp_path / "log")
    shutil.rmtree(log / "part-0")  # another broker has it: what it has uploaded is not orphaned
    gone, two = verified(log, "--tier", tier)
    assert gone[:2] == two[:2] == ("note", "remote-orphans")
    assert gone[2].startswith(f"deleted/0 ({deleted.name[10:]}): orphaned: 4 segments with ")
    assert two[2].startswith(f"two/0: orphaned: 12 segments with 1284 bytes: 0-{0:021}A, 1-{1:021}A, ")
    assert two[2].endswith(f", 9-{9:021}A, …")
    assert verified(log, "two", "--tier", tier) == [two]
    assert b"nothing wrong; 3 notes: 2 remote-orphans, " in output_of("verify", log, "--tier", tier)


def predicted(log, *options):
    """What `doctor` says of the tier: name, reaction and what it has found."""
    told = json.loads(run("doctor", log, "--quick", "--json", *options).stdout)
    names = ("remote-segment", "remote-parts", "remote-orphans")
    both = [*told["findings"], *told["notes"]]
    return [(one["name"], one["reaction"], one["what"]) for one in both if one["name"] in names]


def test_doctor_says_what_a_broker_will_miss(tmp_path):
    place = TIERS / "lost"
    tier = ("--tier", place / "tier-local")
    assert predicted(TIERS / "log", *tier_options("tier-aiven")) == []
    assert predicted(place / "log", *tier) == [
        ("remote-segment", "does-not-notice", "offsets 781 to 1538 are neither here nor in the tier"),
        ("remote-parts", "does-not-notice", "remote segment 781-tDUoI6SoRzG8APCYob1iJw lacks all its objects"),
        ("remote-parts", "does-not-notice", "remote segment 247-o9bm2N30SSeIzEFm0AHhBg lacks .index, .timeindex"),
    ]
    # Once, whatever the number of partitions.
    ((_, _, unreachable),) = predicted(TIERS / "log", "--tier", tmp_path / "none")
    assert unreachable == "there is no such directory"
    assert run("doctor", TIERS / "log", "--quick", *tier_options("tier-local")).exit_code == 0
    assert run("doctor", TIERS / "log", "--quick", "--tier", tmp_path / "none").exit_code == 1


def test_doctor_names_orphans_as_notes(tmp_path):
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    (directory,) = tier.glob("two-0-*")
    (directory / f"{'0' * 20}-{'A' * 21}Q.log").write_bytes(bytes(100))
    deleted = tier / f"deleted-0-{'B' * 21}w"
    deleted.mkdir()
    (deleted / f"{7:020}-{'C' * 21}A.log").write_bytes(b"c")
    assert predicted(TIERS / "log", "--tier", tier) == [
        (
            "remote-orphans",
            "ignores",
            f"deleted/0 ({deleted.name[10:]}): orphaned: 1 segment with 1 bytes: 7-{'C' * 21}A",
        ),
        ("remote-orphans", "ignores", f"two/0: orphaned: 1 segment with 100 bytes: 0-{'A' * 21}Q"),
    ]


def test_a_tier_that_cannot_be_reached(tmp_path):
    """Also where nothing tells that a topic is tiered, so that no message is missing."""
    log = build_log_dir(tmp_path / "log", {"t": [[b"x"]]}).path
    assert verified(log, "--tier", tmp_path / "none") == [
        ("finding", "remote-segment", "there is no such directory"),
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("command", ["mirror", "revive"])
def test_brought_back_as_a_plain_directory(command, layout, tmp_path):
    # The broker's metadata make no difference here.
    source = TIERS / "log" if layout != "tier-aiven" else copied(TIERS / "log", tmp_path / "log", metadata=False)
    target = tmp_path / "target"
    to = [target] if command == "mirror" else ["--to", target]
    output_of(command, source, *to, *tier_options(layout))
    back = LogDir.open_read_only(target)
    for tp in partitions():
        snapshot = back.log(tp).snapshot()
        assert snapshot.log_start_offset == (517 if tp.topic == "cut" else 0)
        assert not back.topic_info(tp.topic).overrides.keys() & {"remote.storage.enable", "local.retention.ms"}
        for isolation in ISOLATIONS:
            assert read_all(snapshot, isolation=Isolation(isolation)) == golden_of(tp, isolation), (tp, isolation)
    assert b"nothing wrong" in output_of("verify", target)


def test_what_the_tier_has_lost_is_told(tmp_path):
    place = TIERS / "lost"
    tier = ("--tier", place / "tier-local")
    result = run("revive", place / "log", "--to", tmp_path / "revived", *tier)
    assert result.exit_code == 4
    assert "messages 781 to 1538" in result.stderr
    assert not (tmp_path / "revived").exists()
    result = run("mirror", place / "log", tmp_path / "mirrored", *tier)
    assert result.exit_code == 4
    assert "messages 781 to 1538" in result.stderr
    back = LogDir.open_read_only(tmp_path / "mirrored")
    for tp in partitions():
        if tp.topic not in ("lz", "txn", "cut", "plain"):
            assert read_all(back.log(tp).snapshot()) == golden_of(tp), tp


def test_salvage_copies_what_the_tier_gives(tmp_path):
    place = TIERS / "lost"
    damaged = copied(TIERS / "tier-local", tmp_path / "tier")
    log = next(damaged.glob("cut-*/*0491-*.log"))
    data = bytearray(log.read_bytes())
    data[30_000] ^= 1
    log.write_bytes(bytes(data))
    target = tmp_path / "target"
    lost = {}
    logs = {"lz": place, "part": place, "cut": TIERS}
    for topic, source in logs.items():
        tier = damaged if topic == "cut" else place / "tier-local"
        (told,) = json.loads(output_of("salvage", source / "log", topic, "--to", target, "--tier", tier, "--json"))[
            "partitions"
        ]
        lost[topic] = [(one["first_offset"], one["last_offset"]) for one in told["lost"]]
    assert lost == {"lz": [(781, 1538)], "part": [], "cut": [(596, 615)]}
    back = LogDir.open_read_only(target)
    for tp in partitions():
        for first, last in lost.get(tp.topic, ()):
            expected = [one for one in golden_of(tp) if not first <= one.offset <= last]
            assert read_all(back.log(tp).snapshot()) == expected, tp


# `--tier` on the commands that read: the whole of a tiered topic


LOG = TIERS / "log"


def test_ranges_keys_and_the_latest():
    options = tier_options("tier-aiven-enc")
    golden = golden_of(next(iter(partitions())))
    lines = output_of("cat", LOG, "cut/0", "--format", "jsonl", "--offsets", "600-899", *options)
    assert read_jsonl(lines) == [record for record in golden if 600 <= record.offset <= 899]
    key = golden[3].key or golden[4].key or b""
    lines = output_of("cat", LOG, "cut/0", "--format", "jsonl", "--key", os.fsdecode(key), *options)
    assert read_jsonl(lines) == [record for record in golden if record.key == key]
    newest = {record.key: record for record in golden if record.key is not None}
    lines = output_of("cat", LOG, "cut/0", "--format", "jsonl", "--latest", *options)
    assert read_jsonl(lines) == sorted(record for record in newest.values() if record.value is not None)
    result = run("cat", LOG, "cut/0", "--offsets", "500-", *options)
    assert result.exit_code == 4


def test_a_gap_names_its_offsets_and_the_rest_is_shown():
    result = run("cat", TIERS / "lost" / "log", "lz/0", "--format", "jsonl", "--tier", TIERS / "lost" / "tier-local")
    assert result.exit_code == 4
    golden = golden_of(next(tp for tp in partitions() if tp.topic == "lz"))
    assert read_jsonl(result.stdout_bytes) == [one for one in golden if not 781 <= one.offset <= 1538]
    assert "messages 781 to 1538 are in tiered storage and cannot be read" in result.stderr


def test_describe_says_what_is_where():
    found = json.loads(output_of("topics", "describe", LOG, "cut", "--json", *tier_options("tier-local")))
    part = found["topics"][0]["partitions"][0]
    assert (part["log_start_offset"], part["local_log_start_offset"], part["messages"]) == (517, 724, 735)
    assert (part["remote_segments"], part["gaps"]) == (1, 0)
    assert part["bytes"] > part["remote_bytes"] == next((TIERS / "tier-local").glob("cut-*/*0491-*.log")).stat().st_size
    assert part["remote_places"] == [str(path) for path in (TIERS / "tier-local").glob("cut-*")]


def test_a_wrong_key_and_none(tmp_path):
    for key in ((), ("--tier-key", f"key1={TIERS / 'keys' / 'pub.pem'}"), ("--tier-key", f"key1={tmp_path / 'none'}")):
        result = run("cat", LOG, "cut/0", "--tier", TIERS / "tier-aiven-enc", *key)
        assert result.exit_code == 4
        assert "messages 491 to 723 are in tiered storage and cannot be read" in result.stderr
        assert "Traceback" not in result.stderr
    assert run("cat", LOG, "cut/0", "--tier", TIERS / "tier-aiven-enc", "--tier-key", "key1").exit_code == 2


def test_verify_finds_damage_in_the_tier(tmp_path):
    assert "nothing wrong" in output_of("verify", LOG, "cut", *tier_options("tier-local")).decode()
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    log = next(tier.glob("cut-*/*0491-*.log"))
    flip(log, 30_000)
    result = run("verify", LOG, "cut", "--json", "--tier", tier)
    assert result.exit_code == 1
    assert [one["name"] for one in json.loads(result.stdout)["findings"]] == ["remote-segment"]


def test_retain_says_what_the_broker_would_remove():
    found = json.loads(output_of("retain", LOG, "--dry-run", "--json", *tier_options("tier-local")))
    brokers = {f"{one['topic']}/{one['partition']}": one.get("broker") for one in found["partitions"]}
    assert brokers["plain/0"] is None
    assert brokers["part/0"] == {"total": [], "local": []}
    # 91,750 bytes may stay here, and nothing of the whole log has to go.
    without = json.loads(output_of("retain", LOG, "keep", "--dry-run", "--json"))
    assert without["partitions"][0]["broker"] == {"total": [], "local": []}

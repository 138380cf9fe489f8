"""`kafkafs dump` of the logs and snapshots of Kafka's own topics, and of MirrorMaker's."""

from __future__ import annotations

import json
import random
import shutil
import struct
from typing import Any

import pytest

from storage.format.block import Record
from storage.format.messages import GROUPS
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import INTERNAL, PARTITIONS, golden, lines, raw, without_name

Lines = list[dict[str, Any]]
SNAPSHOTS = [
    (fixture, path.name.removesuffix(".jsonl.gz"))
    for fixture in INTERNAL
    for path in sorted((FIXTURES / fixture / "golden").glob("*.checkpoint.jsonl.gz"))
]


def dumped(*args):
    return [line for line in map(json.loads, output_of("dump", *args).splitlines()) if "ecord" in line["kind"]]


def as_golden(shown):
    """Lines of the dump in the form of the golden files."""
    found = []
    for line in shown:
        if line["kind"] == "record":
            assert "error" not in line
            found.append({"offset": line["offset"], "key": without_name(line["key"]), "value": line["value"]})
        else:
            control = {name: line[name] for name in ("type", "version", "data")}
            found.append({"offset": line["offset"], "control": {**control, "keyVersion": 0}})
    return found


@requires_fixtures
@pytest.mark.parametrize(("fixture", "partition"), PARTITIONS)
def test_logs(fixture, partition, tmp_path):
    logs = sorted((FIXTURES / fixture / "log" / partition).glob("*.log"))
    wanted = golden(fixture, partition)
    shown = dumped(*logs)
    assert as_golden(shown) == wanted
    raw = dumped("--raw", *logs)
    assert [line["offset"] for line in raw] == [line["offset"] for line in shown]
    assert not [line for line in raw if isinstance(line.get("value"), dict) and "data" in line["value"]]
    # The same file where nothing but its records tells what it is.
    lone = tmp_path / logs[0].name
    shutil.copy(logs[0], lone)
    assert as_golden(dumped(lone)) == as_golden(dumped(logs[0]))


@requires_fixtures
@pytest.mark.parametrize(("fixture", "name"), SNAPSHOTS)
def test_snapshots_of_the_metadata_log(fixture, name):
    partition, _, file = name.partition(".")
    shown = dumped(FIXTURES / fixture / "log" / partition / file)
    assert as_golden(shown) == list(lines(FIXTURES / fixture / "golden" / f"{name}.jsonl.gz"))


@requires_fixtures
def test_the_bootstrap_checkpoint():
    shown = dumped(FIXTURES / "internal" / "log" / "bootstrap.checkpoint")
    assert {line["value"]["type"] for line in shown if line["kind"] == "record"} == {"FEATURE_LEVEL_RECORD"}


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def test_records_of_mirror_maker(tmp_path):
    checkpoint = Record(
        text("group") + text("a.orders") + b"\0\0\0\2", b"\0\0" + struct.pack(">qq", 7, 5) + text("m"), (), 5
    )
    heartbeat = Record(text("a") + text("b"), b"\0\0" + struct.pack(">q", 9), (), 5)
    topics = {"a.checkpoints.internal": checkpoint, "heartbeats": heartbeat, "a.heartbeats": heartbeat}
    built = build_log_dir(tmp_path, {topic: [[Batch([record])]] for topic, record in topics.items()})
    data = {}
    for topic in topics:
        (line,) = dumped(built[topic, 0].path / f"{0:020d}.log")
        data[topic] = line["key"]["name"], line["key"]["data"], line["value"]["data"]
    beat = ("Heartbeat", {"sourceClusterAlias": "a", "targetClusterAlias": "b"}, {"timestamp": 9})
    assert data == {
        "a.checkpoints.internal": (
            "Checkpoint",
            {"consumerGroupId": "group", "topic": "a.orders", "partition": 2},
            {"upstreamOffset": 7, "offset": 5, "metadata": "m"},
        ),
        "heartbeats": beat,
        "a.heartbeats": beat,
    }


def test_what_others_call_so_is_shown_as_it_is(tmp_path):
    built = build_log_dir(tmp_path, {"heartbeats": [[Batch([Record(b"k", b"up", (), 5)])]]})
    (line,) = dumped(built["heartbeats", 0].path / f"{0:020d}.log")
    assert (line["key"], line["value"]) == ("k", "up")
    assert line["error"].startswith("key: cut off")


@pytest.mark.parametrize("value", [b"v", b"\0\0", b"{}", None, b"\1\2\0"])
def test_records_of_clients_outside_of_any_directory_are_not_taken_for_kafkas(tmp_path, value):
    built = build_log_dir(tmp_path / "log", {"t": [[Batch([Record(b"\0\0\0\1", value, (), 5)])]]})
    lone = tmp_path / f"{0:020d}.log"
    shutil.copy(built["t", 0].path / lone.name, lone)
    (line,) = dumped(lone)
    assert (line["key"], "keySchema" in line) == ("\0\0\0\1", False)


# Kafka's own topics with records of every type in no sensible order, some of them damaged, against the commands that


def _damaged(dice, data):
    if data is None or dice.random() < 0.7:
        return data
    changed = bytearray(data)
    for _ in range(dice.randrange(3) if changed else 0):
        changed[dice.randrange(len(changed))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    return bytes(changed[: dice.choice((len(changed), dice.randrange(len(changed) + 1)))])


def _batches(dice, known):
    made = []
    for _ in range(dice.choice((1, 10, 30))):
        records = []
        for _ in range(dice.randrange(1, 30)):
            key, value = dice.choice(known)
            other = dice.choice(known)[1] if dice.random() < 0.3 else value
            records.append(Record(_damaged(dice, key), None if dice.random() < 0.1 else _damaged(dice, other)))
        made.append(Batch(records))
    return made


@requires_fixtures
@pytest.mark.leaves_damage
@pytest.mark.parametrize("seed", [4, 5, 7, 11])
def test_records_in_any_order_and_damaged_ones(seed, tmp_path):
    dice = random.Random(seed)
    vectors = [
        (line["topic"], raw(line)) for name in INTERNAL for line in lines(FIXTURES / name / "golden/vectors.jsonl.gz")
    ]
    made = build_log_dir(
        tmp_path / "log",
        {topic: [_batches(dice, [one for of, one in vectors if of == topic])] for topic in sorted(GROUPS)},
    )
    log_dir = tmp_path / "log"
    commands = [
        ("metadata", log_dir), ("metadata", log_dir, "--json", "--secrets"),
        ("metadata", log_dir, "--diff", "2020-01-01"),
        ("groups", log_dir), ("groups", log_dir, "--json"), ("transactions", log_dir, "--json"),
        ("doctor", log_dir, "--json"), ("verify", log_dir), ("topics", "describe", log_dir),
        *(("dump", made[topic, 0].path / f"{0:020d}.log") for topic in GROUPS),
        *(("cat", log_dir, f"{topic}/0", "--format", "decoded") for topic in GROUPS),
        ("revive", log_dir, "--to", tmp_path / "new"),
    ]  # fmt: skip
    for command in commands:
        result = run(*command)
        assert result.exit_code in (0, 1, 2, 3, 4), command
        if command[0] in ("dump", "cat"):
            for line in result.stdout_bytes.splitlines():
                json.loads(line)


def test_a_producer_id_that_nothing_can_follow_is_carried_over(tmp_path):
    batch = Batch(many(1), producer_id=2**63 - 1)
    log_dir = build_log_dir(tmp_path / "log", {"t": [Partition([batch])]}).path
    output_of("revive", log_dir, "--to", tmp_path / "new")
    assert output_of("count", tmp_path / "new", "t") == b"1\n"

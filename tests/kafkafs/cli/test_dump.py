"""`kafkafs dump` of files that brokers wrote, and of Kafka's own topics. See also transcripts/dump.txt."""

import json
import os
import random
import shutil
import struct

import pytest

from storage.files.log_file import LogFile
from storage.format.block import Record
from storage.format.messages import GROUPS
from tests.support.builders import Batch, build_log_dir
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import INTERNAL, PARTITIONS, golden, lines, raw, without_name

SNAPSHOTS = [
    (fixture, path.name.removesuffix(".jsonl.gz"))
    for fixture in INTERNAL
    for path in sorted((FIXTURES / fixture / "golden").glob("*.checkpoint.jsonl.gz"))
]


@requires_fixtures
def test_every_file_of_the_fixtures():
    """Every file that real brokers wrote can be dumped; damage is reported."""
    kinds = set()
    for directory in [*sorted(FIXTURES.glob("*/log")), FIXTURES / "recovery" / "before"]:
        for place in [directory, *sorted(path for path in directory.iterdir() if path.is_dir())]:
            result = run("dump", place)
            shown = {json.loads(line)["kind"] for line in result.stdout_bytes.splitlines()}
            assert result.exit_code == (4 if "damage" in shown else 0), (place, result.stderr)
            assert "damage" not in shown or "recovery" in place.parts, place
            kinds |= shown
    assert kinds == {
        "batch", "record", "controlRecord", "offsetIndexEntry", "timeIndexEntry", "abortedTransaction", "producer",
        "leaderEpoch", "partitionMetadata", "checkpoint", "property", "damage", "preallocated",
    }  # fmt: skip


def test_a_hole_is_not_read(tmp_path, monkeypatch):
    """A file may claim more bytes than any disk has."""
    log = build_log_dir(tmp_path, {"t": [[b"one"]]})["t", 0].log()
    end, giant = log.stat().st_size, 1 << 40
    read = LogFile.read

    def near(file, position, size, into=None):
        assert position < 1 << 30
        return read(file, position, size, into)

    monkeypatch.setattr(LogFile, "read", near)
    os.truncate(log, giant)
    last = json.loads(output_of("dump", "--no-records", log).splitlines()[-1])
    assert last == {"file": str(log), "kind": "preallocated", "position": end, "bytes": giant - end}


# Records of Kafka's own topics, and of MirrorMaker's.


def dumped(*args):
    return [line for line in map(json.loads, output_of("dump", *args).splitlines()) if "ecord" in line["kind"]]


def as_golden(shown):
    """Lines of the dump in the form of the golden files."""
    for line in shown:
        if line["kind"] == "record":
            assert "error" not in line
            yield {"offset": line["offset"], "key": without_name(line["key"]), "value": line["value"]}
        else:
            control = {name: line[name] for name in ("type", "version", "data")}
            yield {"offset": line["offset"], "control": {**control, "keyVersion": 0}}


@requires_fixtures
@pytest.mark.parametrize(("fixture", "partition"), PARTITIONS)
def test_logs(fixture, partition, tmp_path):
    logs = sorted((FIXTURES / fixture / "log" / partition).glob("*.log"))
    shown = dumped(*logs)
    assert list(as_golden(shown)) == golden(fixture, partition)
    plain = dumped("--raw", *logs)
    assert [line["offset"] for line in plain] == [line["offset"] for line in shown]
    assert not [line for line in plain if isinstance(line.get("value"), dict) and "data" in line["value"]]
    # The same file where nothing but its records tells what it is.
    lone = tmp_path / logs[0].name
    shutil.copy(logs[0], lone)
    assert list(as_golden(dumped(lone))) == list(as_golden(dumped(logs[0])))


@requires_fixtures
@pytest.mark.parametrize(("fixture", "name"), SNAPSHOTS)
def test_snapshots_of_the_metadata_log(fixture, name):
    partition, _, file = name.partition(".")
    shown = dumped(FIXTURES / fixture / "log" / partition / file)
    assert list(as_golden(shown)) == list(lines(FIXTURES / fixture / "golden" / f"{name}.jsonl.gz"))


@requires_fixtures
def test_the_bootstrap_checkpoint():
    shown = dumped(FIXTURES / "internal" / "log" / "bootstrap.checkpoint")
    assert {line["value"]["type"] for line in shown if line["kind"] == "record"} == {"FEATURE_LEVEL_RECORD"}


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def test_records_of_mirror_maker(tmp_path):
    """A topic of somebody else that is named like one of MirrorMaker's is shown as it is."""
    checkpoint = Record(
        text("group") + text("a.orders") + b"\0\0\0\2", b"\0\0" + struct.pack(">qq", 7, 5) + text("m"), (), 5
    )
    heartbeat = Record(text("a") + text("b"), b"\0\0" + struct.pack(">q", 9), (), 5)
    topics = {"a.checkpoints.internal": checkpoint, "heartbeats": heartbeat, "b.heartbeats": Record(b"k", b"up", (), 5)}
    built = build_log_dir(tmp_path, {topic: [[Batch([record])]] for topic, record in topics.items()})
    (first,), (second,), (other,) = (dumped(built[topic, 0].log()) for topic in topics)
    assert (first["key"]["name"], first["key"]["data"], first["value"]["data"]) == (
        "Checkpoint",
        {"consumerGroupId": "group", "topic": "a.orders", "partition": 2},
        {"upstreamOffset": 7, "offset": 5, "metadata": "m"},
    )
    assert (second["key"]["name"], second["key"]["data"], second["value"]["data"]) == (
        "Heartbeat", {"sourceClusterAlias": "a", "targetClusterAlias": "b"}, {"timestamp": 9},
    )  # fmt: skip
    assert (other["key"], other["value"]) == ("k", "up")
    assert other["error"].startswith("key: cut off")


@pytest.mark.parametrize("value", [b"v", b"\0\0", b"{}", None, b"\1\2\0"])
def test_records_of_clients_outside_of_any_directory_are_not_taken_for_kafkas(tmp_path, value):
    built = build_log_dir(tmp_path / "log", {"t": [[Batch([Record(b"\0\0\0\1", value, (), 5)])]]})
    lone = tmp_path / f"{0:020d}.log"
    shutil.copy(built["t", 0].path / lone.name, lone)
    (line,) = dumped(lone)
    assert (line["key"], "keySchema" in line) == ("\0\0\0\1", False)


# Kafka's own topics with records of every type in no sensible order, some of them damaged.


def damaged(dice, data):
    if data is None or dice.random() < 0.7:
        return data
    changed = bytearray(data)
    for _ in range(dice.randrange(3) if changed else 0):
        changed[dice.randrange(len(changed))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    return bytes(changed[: dice.choice((len(changed), dice.randrange(len(changed) + 1)))])


def random_batches(dice, known):
    for _ in range(dice.choice((1, 10, 30))):
        records = []
        for _ in range(dice.randrange(1, 30)):
            key, value = dice.choice(known)
            other = dice.choice(known)[1] if dice.random() < 0.3 else value
            records.append(Record(damaged(dice, key), None if dice.random() < 0.1 else damaged(dice, other)))
        yield Batch(records)


@requires_fixtures
@pytest.mark.leaves_damage
@pytest.mark.parametrize("seed", [4, 5, 7, 11])
def test_records_in_any_order_and_damaged_ones(seed, tmp_path):
    dice = random.Random(seed)
    vectors = [
        (line["topic"], raw(line)) for name in INTERNAL for line in lines(FIXTURES / name / "golden/vectors.jsonl.gz")
    ]
    log_dir = tmp_path / "log"
    topics = {topic: [[*random_batches(dice, [one for of, one in vectors if of == topic])]] for topic in sorted(GROUPS)}
    built = build_log_dir(log_dir, topics)
    for command in (
        ("metadata", log_dir), ("metadata", log_dir, "--json", "--secrets"),
        ("metadata", log_dir, "--at", "2020-01-01"),
        ("groups", log_dir), ("groups", log_dir, "--json"), ("transactions", log_dir, "--json"),
        ("doctor", log_dir, "--json"), ("verify", log_dir), ("topics", "describe", log_dir),
        ("revive", log_dir, "--to", tmp_path / "new"),
    ):  # fmt: skip
        assert run(*command).exit_code in (0, 1, 2, 3, 4), command
    for topic in GROUPS:
        for command in (
            ("dump", built[topic, 0].log()),
            ("cat", log_dir, f"{topic}/0", "--format", "decoded"),
        ):
            result = run(*command)
            assert result.exit_code == 0, (command, result.stderr)
            assert len([json.loads(line) for line in result.stdout_bytes.splitlines()]) >= 1

"""`kafkafs compact`: its output, what it leaves, and which messages it never removes."""

from __future__ import annotations

import json

import pytest

from kafkafs.cli.process import DATA_ERROR
from storage.append.appender import Appender
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip
from tests.support.owned_dirs import StandingClock, append, opened, tree_of

TP = TopicPartition("t", 0)


@pytest.fixture
def logdir(tmp_path):
    """The compacted topic t, five messages for each of twenty keys, one of them deleted; and another topic."""
    path = tmp_path / "logs"
    owned = opened(path)
    owned.create_topic("t", 2, {"cleanup.policy": "compact", "segment.bytes": "1500", "delete.retention.ms": "0"})
    owned.create_topic("other", 1)
    log = owned.log(TP)
    for n in range(100):
        record = Record(b"key %d" % (n % 20), None if n == 67 else b"value %d" % n)
        assert Appender(log, clock=StandingClock()).append([record]).error is None
    append(owned.log(TopicPartition("other", 0)), [b"x"])
    log.roll()
    assert owned.close().clean
    return path


def messages(path):
    """The only value of each key."""
    found = {}
    snapshot = LogDir.open_read_only(path).log(TP).snapshot()
    for block in read_range(snapshot, snapshot.log_start_offset):
        assert block.damage is None
        for row in range(len(block)):
            assert block.key(row) not in found
            found[block.key(row)] = block.value(row)
    return found


LATEST = {b"key %d" % (n % 20): b"value %d" % n for n in range(80, 100)}


def test_dry_run_then_the_real_one(logdir):
    before = tree_of(logdir)
    told = json.loads(output_of("compact", logdir, "t", "--dry-run", "--json"))
    assert tree_of(logdir) == before
    done = json.loads(output_of("compact", logdir, "t", "--json"))
    assert done == told | {"dry_run": False}
    assert done["failed"] == []
    first, second = done["partitions"]
    assert (first["records"], first["removed_records"], first["mapped_keys"]) == (100, 80, 20)
    assert first["compacted_to_offset"] == first["first_uncleanable_offset"] == 100
    assert (second["partition"], second["segments_before"]) == (1, 0)
    assert messages(logdir) == LATEST
    assert (logdir / "cleaner-offset-checkpoint").read_text() == "0\n1\nt 0 100\n"
    assert not list(logdir.glob("*/*.deleted"))
    assert not verify_log_dir(logdir)


def test_what_it_says(logdir):
    text = output_of("compact", logdir, "t/0", "--dry-run").decode()
    assert text.startswith("t/0: 80 of 100 records, ")
    assert "would be removed\n" in text
    assert "20 keys" in text
    text = output_of("compact", logdir, "t/0").decode()
    assert "removed\n" in text
    assert output_of("compact", logdir, "t/0") == b"t/0: nothing to compact below offset 100\n"


def test_topics_that_are_not_compacted_are_left_alone(logdir):
    before = tree_of(logdir)
    for more in ((), ("--dry-run",)):
        result = run("compact", logdir, "other", *more)
        assert result.exit_code == DATA_ERROR
        assert "other cannot be compacted" in result.stderr
    assert {name: data for name, data in tree_of(logdir).items() if "/" in name} == {
        name: data for name, data in before.items() if "/" in name
    }
    assert run("compact", logdir).exit_code == 2


@pytest.mark.leaves_damage("batch-crc")
def test_damage_is_told_and_nothing_lost(logdir):
    log = min((logdir / "t-0").glob("*.log"))
    flip(log, 70)  # of the record of the first batch
    before = {path.name: path.read_bytes() for path in (logdir / "t-0").glob("*.log")}
    for more in ((), ("--dry-run",)):
        result = run("compact", logdir, "t/0", *more)
        assert result.exit_code == DATA_ERROR
        assert "checksum differs" in result.stderr
    assert {path.name: path.read_bytes() for path in (logdir / "t-0").glob("*.log")} == before
    assert not list(logdir.glob("*/*.cleaned"))

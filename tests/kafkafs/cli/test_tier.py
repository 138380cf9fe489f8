"""Messages that a command reads from a tier are those that a consumer read. See also transcripts/tier.txt."""

import json
import os
import struct

import fsspec
import pytest

from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip, with_right_checksums
from tests.support.fixtures import read_jsonl, requires_fixtures
from tests.support.readers import read_all
from tests.support.tiers import ISOLATIONS, LAYOUTS, TIERS, copied, golden_of, partitions, tier_options

pytestmark = requires_fixtures
LOG, LOST = TIERS / "log", TIERS / "lost"
LOSING = ("--tier", LOST / "tier-local")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("command", ["mirror", "revive"])
def test_brought_back_as_a_plain_directory(command, layout, tmp_path):
    # The broker's metadata make no difference here.
    source = LOG if layout != "tier-aiven" else copied(LOG, tmp_path / "log", metadata=False)
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


def test_what_the_tier_has_lost_costs_no_other_partition(tmp_path):
    assert run("mirror", LOST / "log", tmp_path / "copy", *LOSING).exit_code == 4
    back = LogDir.open_read_only(tmp_path / "copy")
    for tp in partitions():
        if tp.topic not in ("lz", "txn", "cut", "plain"):
            assert read_all(back.log(tp).snapshot()) == golden_of(tp), tp


def test_salvage_copies_what_the_tier_gives(tmp_path):
    damaged = copied(TIERS / "tier-local", tmp_path / "tier")
    flip(next(damaged.glob("cut-*/*0491-*.log")), 30_000)
    target = tmp_path / "target"
    for topic, source, tier, expected in (
        ("lz", LOST, LOST / "tier-local", [(781, 1538)]),
        ("part", LOST, LOST / "tier-local", []),
        ("cut", TIERS, damaged, [(596, 615)]),
    ):
        report = json.loads(output_of("salvage", source / "log", topic, "--to", target, "--tier", tier, "--json"))
        lost = [(one["first_offset"], one["last_offset"]) for one in report["partitions"][0]["lost"]]
        assert (topic, lost) == (topic, expected)
        tp = TopicPartition(topic, 0)
        left = [one for one in golden_of(tp) if not any(first <= one.offset <= last for first, last in lost)]
        assert read_all(LogDir.open_read_only(target).log(tp).snapshot()) == left, tp


def test_ranges_keys_and_the_latest():
    golden = golden_of(TopicPartition("cut", 0))

    def printed(*options):
        command = ("cat", LOG, "cut/0", "--format", "jsonl", *options)
        return read_jsonl(output_of(*command, *tier_options("tier-aiven-enc")))

    assert printed("--offsets", "600-899") == [record for record in golden if 600 <= record.offset <= 899]
    key = golden[3].key or golden[4].key
    assert printed("--key", os.fsdecode(key)) == [record for record in golden if record.key == key]
    newest = {record.key: record for record in golden if record.key is not None}
    assert printed("--latest") == sorted(record for record in newest.values() if record.value is not None)


def test_messages_around_a_gap_are_shown():
    result = run("cat", LOST / "log", "lz/0", "--format", "jsonl", *LOSING)
    assert result.exit_code == 4
    golden = golden_of(TopicPartition("lz", 0))
    assert read_jsonl(result.stdout_bytes) == [one for one in golden if not 781 <= one.offset <= 1538]


def test_verify_compares_the_batches_of_a_remote_segment(tmp_path):
    """The CRCs are right, but a header does not say what its messages do."""
    damaged = copied(TIERS / "tier-local", tmp_path / "tier")
    (log,) = damaged.glob("two-0-*/*00000-*.log")
    data = bytearray(log.read_bytes())
    struct.pack_into(">q", data, 35, struct.unpack_from(">q", data, 35)[0] + 1)
    log.write_bytes(with_right_checksums(bytes(data)))
    result = run("verify", LOG, "two/0", "--tier", damaged)
    assert result.exit_code == 1
    assert "finding batch-max-timestamp" in result.stdout


def test_verify_reads_the_store_and_not_what_was_kept_of_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    system = fsspec.filesystem("memory")
    try:
        for path in (TIERS / "tier-local").glob("two-0-*/*"):
            system.pipe_file(f"/tier/{path.parent.name}/{path.name}", path.read_bytes())
        options = ("two/0", "--tier", "memory://tier")
        assert output_of("cat", LOG, *options)
        assert list(tmp_path.rglob("*.block"))
        name = next(name for name in system.find("/tier") if name.endswith(".log"))
        data = bytearray(system.cat_file(name))
        data[200] ^= 1
        system.pipe_file(name, bytes(data))
        assert output_of("cat", LOG, *options)
        result = run("verify", LOG, *options)
        assert result.exit_code == 1
        assert "finding remote-segment" in result.stdout
    finally:
        system.store.clear()

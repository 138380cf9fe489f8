"""`--tier` on the commands that read: the whole of a tiered topic."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.commands import output_of, run
from tests.support.fixtures import read_jsonl, requires_fixtures
from tests.support.tiers import ISOLATIONS, LAYOUTS, TIERS, copied, golden_of, partitions, tier_options

pytestmark = requires_fixtures

LOG = TIERS / "log"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cat_prints_all_records(layout: str) -> None:
    for tp in partitions():
        for isolation in ISOLATIONS:
            options = ("--format", "jsonl", "--isolation", isolation, *tier_options(layout))
            assert read_jsonl(output_of("cat", LOG, tp, *options)) == golden_of(tp, isolation), (tp, isolation)


def test_ranges_keys_and_the_latest() -> None:
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


def test_a_gap_names_its_offsets_and_the_rest_is_shown() -> None:
    result = run("cat", TIERS / "lost" / "log", "lz/0", "--format", "jsonl", "--tier", TIERS / "lost" / "tier-local")
    assert result.exit_code == 4
    golden = golden_of(next(tp for tp in partitions() if tp.topic == "lz"))
    assert read_jsonl(result.stdout_bytes) == [one for one in golden if not 781 <= one.offset <= 1538]
    assert "messages 781 to 1538 are in tiered storage and cannot be read" in result.stderr


def test_describe_says_what_is_where() -> None:
    found = json.loads(output_of("topics", "describe", LOG, "cut", "--json", *tier_options("tier-local")))
    part = found["topics"][0]["partitions"][0]
    assert (part["log_start_offset"], part["local_log_start_offset"], part["messages"]) == (517, 724, 735)
    assert (part["remote_segments"], part["gaps"]) == (1, 0)
    assert part["bytes"] > part["remote_bytes"] == next((TIERS / "tier-local").glob("cut-*/*0491-*.log")).stat().st_size
    assert part["remote_places"] == [str(path) for path in (TIERS / "tier-local").glob("cut-*")]


def test_a_wrong_key_and_none(tmp_path: Path) -> None:
    for key in ((), ("--tier-key", f"key1={TIERS / 'keys' / 'pub.pem'}"), ("--tier-key", f"key1={tmp_path / 'none'}")):
        result = run("cat", LOG, "cut/0", "--tier", TIERS / "tier-aiven-enc", *key)
        assert result.exit_code == 4
        assert "messages 517 to 723" in result.stderr or "messages 491 to 723" in result.stderr
        assert "Traceback" not in result.stderr
    assert run("cat", LOG, "cut/0", "--tier", TIERS / "tier-aiven-enc", "--tier-key", "key1").exit_code == 2


def test_verify_finds_damage_in_the_tier(tmp_path: Path) -> None:
    assert "nothing wrong" in output_of("verify", LOG, "cut", *tier_options("tier-local")).decode()
    tier = copied(TIERS / "tier-local", tmp_path / "tier")
    log = next(tier.glob("cut-*/*0491-*.log"))
    data = bytearray(log.read_bytes())
    data[30_000] ^= 1
    log.write_bytes(bytes(data))
    result = run("verify", LOG, "cut", "--json", "--tier", tier)
    assert result.exit_code == 1
    assert [one["name"] for one in json.loads(result.stdout)["findings"]] == ["remote-segment"]


def test_retain_says_what_the_broker_would_remove() -> None:
    found = json.loads(output_of("retain", LOG, "--dry-run", "--json", *tier_options("tier-local")))
    brokers = {f"{one['topic']}/{one['partition']}": one.get("broker") for one in found["partitions"]}
    assert brokers["plain/0"] is None
    assert brokers["part/0"] == {"total": [], "local": []}
    # 91,750 bytes may stay here, and nothing of the whole log has to go.
    without = json.loads(output_of("retain", LOG, "keep", "--dry-run", "--json"))
    assert without["partitions"][0]["broker"] == {"total": [], "local": []}

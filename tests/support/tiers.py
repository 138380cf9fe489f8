"""The fixture `tiers`: a broker's directory, its tier in three layouts, and what a consumer read."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from storage.log.log_dir import LogDir
from storage.tier.tier import Tier
from storage.types import TopicPartition
from tests.support.fixtures import FIXTURES, Golden, copy_log_dir, read_golden

TIERS = FIXTURES / "tiers"
LAYOUTS = ("tier-local", "tier-aiven", "tier-aiven-enc")
KEYS = {"key1": TIERS / "keys" / "priv.pem"}
ISOLATIONS = ("read_uncommitted", "read_committed")


def tier_options(layout: str) -> list[str]:
    return ["--tier", str(TIERS / layout), "--tier-key", f"key1={KEYS['key1']}"]


def opened(directory: Path, *places: Path) -> LogDir:
    return LogDir.open_read_only(directory, tier=Tier([str(place) for place in places], KEYS))


def golden_of(tp: TopicPartition, isolation: str = "read_uncommitted") -> list[Golden]:
    """What a consumer of that isolation read of a partition."""
    name = TIERS / "golden" / f"{tp.topic}-{tp.partition}.jsonl.gz"
    committed = name.with_name(name.name.replace(".jsonl", ".read_committed.jsonl"))
    return read_golden(committed if isolation == "read_committed" and committed.exists() else name)


def partitions() -> Iterator[TopicPartition]:
    """Those that have golden files."""
    for path in sorted((TIERS / "golden").glob("*-?.jsonl.gz")):
        topic, _, number = path.name.partition(".")[0].rpartition("-")
        yield TopicPartition(topic, int(number))


def copied(source: Path, target: Path, *, metadata: bool = True) -> Path:
    """A writable copy of a directory; without `metadata` the broker's records of remote segments are missing."""
    copy_log_dir(source, target)
    if not metadata:
        for path in target.glob("__remote_log_metadata-*"):
            shutil.rmtree(path)
    return target

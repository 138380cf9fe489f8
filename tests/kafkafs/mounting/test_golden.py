"""The records of some fixtures through a real mount, in both isolations; of all of them: tests/kafkafs/reading."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests.support.fixtures import GoldenCase, golden_cases
from tests.support.mounts import requires_fuse
from tests.support.reference_views import jsonl_objects, parsed, txt
from tests.support.serving_processes import watched

pytestmark = requires_fuse

# Every codec, the oldest format, transactions, and damage.
SOME = ("codecs", "v0", "transactions", "recovery")
# Their `after` logs hold damage that Kafka's recovery does not look for: consumers fail there, and so do we.
DAMAGED = ("rec-c4-", "rec-m-")


def groups() -> list[Any]:
    """Cases by fixture and isolation: one mount each."""
    some = [case for case in golden_cases() if case.fixture in SOME]
    chosen = sorted(some, key=lambda case: (case.fixture, case.isolation))
    found = [list(cases) for _, cases in groupby(chosen, key=lambda case: (case.fixture, case.isolation))]
    return [pytest.param(cases, id=f"{cases[0].fixture}-{cases[0].isolation}") for cases in found]


@pytest.fixture
def mnt(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    cases: list[GoldenCase] = request.getfixturevalue("cases")
    isolation = f"isolation={cases[0].isolation}"
    with watched(cases[0].log_dir, tmp_path / "mnt", "-o", isolation) as mount:
        yield mount.path


@pytest.mark.parametrize("cases", groups())
def test_every_record(cases: list[GoldenCase], mnt: Path) -> None:
    for case in cases:
        directory = mnt / case.topic / str(case.partition)
        records = case.records()
        damaged = case.topic.startswith(DAMAGED)
        assert cat(directory / "messages.txt", damaged) == txt(records), case
        lines = cat(directory / "messages.jsonl", damaged)
        assert parsed(lines) == jsonl_objects(case.topic, case.partition, records), case
        if not damaged:
            assert cat(directory / "time/1970--.txt") == txt([r for r in records if r.timestamp >= 0]), case


def cat(path: Path, damaged: bool = False) -> bytes:
    """What `cat` prints; of a damaged file, what it prints before it complains."""
    result = subprocess.run(["cat", path], capture_output=True, timeout=120, check=False)
    assert (result.returncode != 0) == damaged, result.stderr.decode()
    return result.stdout

"""`kafkafs cat` prints the same bytes as the view of the same range, in every format."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from kafkafs.tree.tree import Tree, TreeOptions
from storage.errors import OffsetOutOfRange
from storage.log.log_dir import LogDir
from storage.types import Isolation
from tests.support.commands import run
from tests.support.fixtures import GoldenCase, case_params, golden_cases

DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}
SOUND = [case for case in golden_cases() if case.topic not in DAMAGED]


def ranges(case: GoldenCase, rng: random.Random) -> list[tuple[str, str]]:
    """(directory, range): with messages, empty, and malformed."""
    records = case.records()
    offsets = [record.offset for record in records] or [0]
    low, high = sorted((rng.choice(offsets), rng.choice(offsets)))
    times = [record.timestamp for record in records if record.timestamp >= 0] or [0]
    early, late = sorted((rng.choice(times), rng.choice(times)))
    late += 1
    chosen = [
        ("offsets", f"{low}-{high}"),
        ("offsets", f"{low}-"),
        ("offsets", f"{high + 1}"),
        ("offsets", f"{low}+{rng.randint(1, 90)}"),
        ("offsets", f"{offsets[-1] + 1000}"),
        ("offsets", f"last-{rng.randint(1, 90)}"),
        ("time", f"{early:013d}--{late:013d}"),
        ("time", f"{early:013d}--"),
        ("time", f"until-{late:013d}"),
        ("time", "2001"),
    ]
    return rng.sample(chosen, 5)


@pytest.mark.parametrize("case", case_params(SOUND))
def test_same_bytes(case: GoldenCase, tmp_path: Path) -> None:
    tree = Tree(
        LogDir.open_read_only(case.log_dir),
        TreeOptions(isolation=Isolation(case.isolation), index_dir=tmp_path, workers=1),
    )
    tree.start()
    try:
        for directory, text in ranges(case, random.Random(str(case))):
            for ext in ("txt", "jsonl", "log"):
                view = tree.lookup(f"/{case.topic}/{case.partition}/{directory}/{text}.{ext}")
                option = "--offsets" if directory == "offsets" else "--time"
                arguments = ["--isolation", case.isolation, "--format", ext, option, text]
                result = run("cat", case.log_dir, f"{case.topic}/{case.partition}", *arguments)
                try:
                    handle = view.open()
                except OffsetOutOfRange:
                    assert result.exit_code == 4
                    assert "out of the range" in result.stderr
                    continue
                expected = bytes(handle.read(0, handle.size))
                handle.close()
                assert result.exit_code == 0, result.stderr
                assert result.stdout_bytes == expected, (directory, text, ext)
    finally:
        tree.stop()

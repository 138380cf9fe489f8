"""`kafkafs cat` of every fixture compared with what real consumers saw."""

from __future__ import annotations

import random
import re

import pytest

from storage.types import TopicPartition
from tests.support.blocks import EVERY_LETTER, every_letter_line, json_line, txt_line
from tests.support.commands import for_partition, output_of, rows_of, run
from tests.support.fixtures import GoldenCase, case_params, golden_cases

# A batch here fails for Kafka's consumer too, and the golden file ends before it.
DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}
SOUND = [case for case in golden_cases() if case.topic not in DAMAGED]


def arguments(case: GoldenCase) -> list[object]:
    return ["cat", case.log_dir, f"{case.topic}/{case.partition}", "--isolation", case.isolation]


def tp_of(case: GoldenCase) -> TopicPartition:
    return TopicPartition(case.topic, case.partition)


@pytest.mark.parametrize("case", case_params())
def test_equals_golden(case: GoldenCase) -> None:
    rows = rows_of(case.records())
    jsonl = b"".join(for_partition(json_line(row), tp_of(case)) for row in rows)
    txt = b"".join(map(txt_line, rows))
    if case.topic in DAMAGED:
        result = run(*arguments(case), "--format", "jsonl")
        assert result.exit_code == 4
        assert result.stdout_bytes == jsonl
        assert re.fullmatch(r"kafkafs: .*\.log: .*position \d+.*\n", result.stderr)
        return
    assert output_of(*arguments(case), "--format", "jsonl") == jsonl
    assert output_of(*arguments(case)) == txt
    template = EVERY_LETTER.replace("%t/%p", "my.topic-1/12")
    assert output_of(*arguments(case), "--format", template) == b"".join(map(every_letter_line, rows))


@pytest.mark.parametrize("case", case_params(SOUND))
def test_ranges_equal_golden(case: GoldenCase) -> None:
    rows = rows_of(case.records())
    if not rows:
        assert output_of(*arguments(case), "--offsets", "last-1") == b""
        return
    rng = random.Random(str(case))

    def cat(*options: str) -> list[int]:
        return [int(line) for line in output_of(*arguments(case), "--format", r"%o\n", *options).split()]

    start, end = sorted((rng.choice(rows).offset, rng.choice(rows).offset))
    count = rng.randint(1, 40)
    offsets = [row.offset for row in rows]
    assert cat("--offsets", f"{start}-{end}") == [o for o in offsets if start <= o <= end]
    assert cat("--offsets", f"{start}-") == [o for o in offsets if start <= o]
    assert cat("--offsets", f"{start}+{count}") == [o for o in offsets if start <= o][:count]
    assert cat("--offsets", f"-{count}") == cat("--offsets", f"last-{count}") == offsets[-count:]
    assert cat("--offsets", str(end)) == [end]
    times = [row.timestamp for row in rows if row.timestamp >= 0]
    if times:
        low, high = sorted((rng.choice(times), rng.choice(times)))
        inside = [row.offset for row in rows if low <= row.timestamp < high]
        if low < high:
            assert cat("--time", f"{low:013d}--{high:013d}") == inside
            assert cat("--time", f"{low:013d}--{high:013d}", "--offsets", f"{start}-") == [
                o for o in inside if o >= start
            ]
        assert cat("--time", f"{low:013d}--") == [row.offset for row in rows if low <= row.timestamp]
        assert cat("--time", f"until-{high:013d}") == [row.offset for row in rows if 0 <= row.timestamp < high]
    keys = [row.key for row in rows if row.key and b"\0" not in row.key]
    if keys:
        key = rng.choice(keys)
        found = output_of(*arguments(case), "--format", r"%o\n", "--key", key.decode("utf-8", "surrogateescape"))
        assert [int(line) for line in found.split()] == [row.offset for row in rows if row.key == key]
    headers = [h for row in rows for h in row.headers if h[1] is not None and b"\0" not in h[1] and b"=" not in h[0]]
    if headers:
        name, value = rng.choice(headers)
        assert value is not None
        text = (name + b"=" + value).decode("utf-8", "surrogateescape")
        assert cat("--header", text) == [row.offset for row in rows if (name, value) in row.headers]


@pytest.mark.parametrize("case", case_params(SOUND))
def test_log_is_whole_batches_verbatim(case: GoldenCase) -> None:
    """A whole log is its segments one after the other, without the batches before that of the log start."""
    found = output_of(*arguments(case), "--format", "log")
    segments = b"".join(path.read_bytes() for path in sorted(case.partition_dir.glob("*.log")))
    assert found in segments
    rows = rows_of(case.records())
    if case.isolation == "read_uncommitted" and rows and rows[0].offset == 0:
        assert segments.startswith(found)
    if rows:
        middle = rows[len(rows) // 2].offset
        part = output_of(*arguments(case), "--format", "log", "--offsets", f"{middle}-{middle}")
        assert part in found
        assert len(part) > 0

"""`kafkafs cat` of every fixture compared with what real consumers saw."""

from __future__ import annotations

import re

import pytest

from storage.types import TopicPartition
from tests.support.blocks import EVERY_LETTER, every_letter_line, json_line, txt_line
from tests.support.commands import for_partition, output_of, rows_of, run
from tests.support.fixtures import GoldenCase, case_params

# A batch here fails for Kafka's consumer too, and the golden file ends before it.
DAMAGED = {"rec-c4-flip-magic", "rec-m-flip-below-recovery-point"}


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

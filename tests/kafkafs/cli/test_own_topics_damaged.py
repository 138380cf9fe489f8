"""Kafka's own topics with records of every type in no sensible order, some of them damaged, against the commands that
read them: a line or an error, never a traceback, and every line of JSON is JSON."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from storage.format.block import Record
from storage.format.messages import GROUPS
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.own_topics import INTERNAL, lines, raw


def _damaged(dice: random.Random, data: bytes | None) -> bytes | None:
    if data is None or dice.random() < 0.7:
        return data
    changed = bytearray(data)
    for _ in range(dice.randrange(3) if changed else 0):
        changed[dice.randrange(len(changed))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
    return bytes(changed[: dice.choice((len(changed), dice.randrange(len(changed) + 1)))])


def _batches(dice: random.Random, known: list[tuple[bytes | None, bytes | None]]) -> list[Batch]:
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
def test_records_in_any_order_and_damaged_ones(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    vectors = [
        (line["topic"], raw(line)) for name in INTERNAL for line in lines(FIXTURES / name / "golden/vectors.jsonl.gz")
    ]
    made = build_log_dir(
        tmp_path / "log",
        {topic: [_batches(dice, [one for of, one in vectors if of == topic])] for topic in sorted(GROUPS)},
    )
    log_dir = tmp_path / "log"
    commands: list[tuple[object, ...]] = [
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


def test_a_producer_id_that_nothing_can_follow_is_carried_over(tmp_path: Path) -> None:
    batch = Batch(many(1), producer_id=2**63 - 1)
    log_dir = build_log_dir(tmp_path / "log", {"t": [Partition([batch])]}).path
    output_of("revive", log_dir, "--to", tmp_path / "new")
    assert output_of("count", tmp_path / "new", "t") == b"1\n"

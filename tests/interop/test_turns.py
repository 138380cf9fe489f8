"""A mount and a broker own one directory in turn, and are killed: see `turns`."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.interop.kafka import requires_kafka
from tests.interop.turns import Turns
from tests.support.mounts import requires_fuse

pytestmark = [requires_kafka, requires_fuse]


@pytest.mark.parametrize("seed", [1, secrets.randbelow(10**6)], ids=["fixed", "fresh"])
def test_nothing_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}: python -m tests.interop.turns --rounds 2 --seed {seed}")  # noqa: T201
    turns = Turns(tmp_path, seed)
    try:
        turns.begin()
        for _ in range(2):
            turns.round()
    finally:
        turns.close()
    assert turns.messages > 0

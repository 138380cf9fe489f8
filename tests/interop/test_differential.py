"""Random logs and damages, recovered, looked up, consumed and compacted by a broker and by us: see `differential`."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from tests.interop.differential import run
from tests.interop.kafka import requires_kafka

pytestmark = [requires_kafka]


@pytest.mark.parametrize("seed", [1, secrets.randbelow(10**6)], ids=["fixed", "fresh"])
def test_the_same_of_both(tmp_path: Path, seed: int) -> None:
    again = f"python -m tests.interop.differential --logs 40 --damages 40 --seed {seed}"
    print(again)  # noqa: T201 - shown when it fails
    outcome = run(tmp_path, logs=40, damages=40, seed=seed)
    assert not outcome.differences, f"{again}\n{outcome}"
    assert outcome.compacted > 0

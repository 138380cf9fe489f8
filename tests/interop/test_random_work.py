"""The programs that do random work with brokers, in short: `differential`, `turns` and `three_nodes`."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import subprocess
import sys

import pytest

from tests.interop import three_nodes
from tests.interop.kafka import JARS, on_broker, requires_kafka
from tests.interop.turns import Turns
from tests.support.fixtures import ROOT
from tests.support.message_definitions import HEADER, lines
from tests.support.mounts import requires_fuse

pytestmark = on_broker

# Random logs and damages, recovered, looked up, consumed and compacted by a broker and by us: see `differential`.

SEEDS = os.environ.get("KAFKAFS_DIFFERENTIAL_SEEDS", "1").split(",")


@requires_kafka
@pytest.mark.parametrize(
    ("seed", "count"),
    [("1", "15"), *(pytest.param(seed, "40", marks=pytest.mark.nightly) for seed in SEEDS)],
)
def test_the_same_of_both(seed, count):
    """In a process of its own: some of the damaged logs stay damaged."""
    command = [sys.executable, "-m", "tests.interop.differential", "--logs", count, "--damages", count, "--seed", seed]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} logs and {count} damages" in done.stdout
    assert " 0 logs compacted" not in done.stdout


# A mount and a broker own one directory in turn, and are killed: see `turns`.


@requires_kafka
@requires_fuse
@pytest.mark.parametrize("seed", [1, pytest.param(None, id="fresh", marks=pytest.mark.nightly)])
def test_nothing_is_lost_or_doubled(tmp_path, seed):
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"seed {seed}: python -m tests.interop.turns --rounds 2 --seed {seed}")  # noqa: T201
    turns = Turns(tmp_path, seed)
    try:
        turns.begin()
        for _ in range(2):
            turns.round()
    finally:
        turns.close()
    assert turns.messages > 0


# Three nodes that are killed under load, in short: what revives of the backups of two of them.


@pytest.mark.nightly
@requires_kafka
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of clients whose nodes were killed
def test_a_cluster_revives_from_backups(tmp_path, caplog):
    caplog.set_level(logging.CRITICAL, "aiokafka")  # of nodes that were killed
    with three_nodes.worst_day(tmp_path, 2) as cluster:
        room = tmp_path / "room"
        room.mkdir()
        row = three_nodes.restore(cluster, three_nodes.WAYS["backups of two"], room)
    gc.collect()  # clients that ended while they started are told here, and not in another test
    assert row["second start"] == "clean"
    assert row["g-share"] == "7 to 44"


# The definitions of Kafka's own records as the broker's jars have them.


@requires_kafka
def test_the_definitions_are_those_of_the_jars():
    """Of 4.3.0; the shipped ones are of 4.4.0, which adds a record and two tagged fields."""
    shipped = (ROOT / "storage" / "format" / "message_definitions.txt").read_text().removeprefix(HEADER).splitlines()
    older = lines(JARS)
    added = [line for line in shipped if line not in older]
    assert [line.split()[3] for line in added] == ["UNREGISTER_CONTROLLER_RECORD", "StreamsGroupMetadata"]
    (changed,) = [line for line in older if line not in shipped]
    assert added[1].startswith(changed)

"""The programs that do random work with brokers, in short: the modules say what each does, and what must hold."""

import gc
import logging
import os
import secrets
import subprocess
import sys

import pytest

from tests.interop import failovers, three_nodes, turns
from tests.interop.kafka import BROKER_VERSION, JARS, on_broker, requires_kafka, requires_tiering
from tests.interop.message_definitions import HEADER, lines
from tests.support.fixtures import ROOT
from tests.support.mounts import requires_fuse

pytestmark = [requires_kafka, on_broker]

SEEDS = os.environ.get("KAFKAFS_DIFFERENTIAL_SEEDS", "1").split(",")


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, "aiokafka")  # of nodes that were killed
    yield
    gc.collect()  # clients that ended while they started are told here, and not in another test


@pytest.mark.skipif(BROKER_VERSION < "4", reason="before 4.0 the cleaner leaves messages of old formats as they are")
@pytest.mark.parametrize(
    ("seed", "count"), [("1", "15"), *(pytest.param(seed, "40", marks=pytest.mark.nightly) for seed in SEEDS)]
)
def test_the_same_of_both(seed, count):
    """In a process of its own: some of the damaged logs stay damaged."""
    command = [
        sys.executable,
        "-m",
        "tests.interop",
        "differential",
        "--logs",
        count,
        "--damages",
        count,
        "--seed",
        seed,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} logs and {count} damages" in done.stdout
    assert " 0 logs compacted" not in done.stdout


@requires_fuse
@pytest.mark.parametrize("seed", [1, pytest.param(None, id="fresh", marks=pytest.mark.nightly)])
def test_nothing_is_lost_or_doubled(tmp_path, seed):
    seed = secrets.randbelow(10**6) if seed is None else seed
    print(f"seed {seed}: python -m tests.interop turns --rounds 2 --seed {seed}")  # noqa: T201
    assert not list(turns.run(tmp_path, rounds=2, seed=seed))[-1].startswith("0 messages")


@pytest.mark.nightly
@requires_tiering
@requires_fuse
def test_failovers(tmp_path):
    assert len(list(failovers.run(tmp_path, rounds=2, seed=1))) == 4


@pytest.mark.nightly
@pytest.mark.skipif(BROKER_VERSION < "4.1", reason="Kafka has share groups since 4.1")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of clients whose nodes were killed
def test_a_cluster_revives_from_backups_and_from_data(tmp_path):
    with three_nodes.worst_day(tmp_path, 2) as cluster:
        for way in ("backups of two", "data"):
            room = tmp_path / way
            room.mkdir()
            told = three_nodes.restore(cluster, three_nodes.WAYS[way], room)
    levels = {"metadata.version": 29, "transaction.version": 2, "group.version": 1, "share.version": 1}
    assert told["features"] == levels  # as the data decide


def test_the_definitions_are_those_of_the_jars():
    """Of 4.3.0; the shipped ones are of 4.4.0, which adds a record and two tagged fields."""
    shipped = (ROOT / "storage" / "format" / "message_definitions.txt").read_text().removeprefix(HEADER).splitlines()
    older = lines(JARS)
    added = [line for line in shipped if line not in older]
    assert [line.split()[3] for line in added] == ["UNREGISTER_CONTROLLER_RECORD", "StreamsGroupMetadata"]
    (changed,) = [line for line in older if line not in shipped]
    assert added[1].startswith(changed)

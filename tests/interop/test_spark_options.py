"""Every option of Spark's Kafka source, and what people write in its place: the same answer from a running broker,
through that source, and from its files, through ours. One Spark of each answers all cases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.interop.client import Client
from tests.interop.kafka import Broker, requires_kafka
from tests.interop.spark_kafka import PYTHON, ask, jars, requires_spark_kafka
from tests.interop.spark_options import CASES, produce

pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`")
pytestmark = [requires_kafka, requires_spark_kafka, pytest.mark.timeout(900)]

Answers = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answers, Answers]]:
    """What Spark's source and ours answer. From a broker of its own: a pattern finds the topics of other tests, too."""
    directory = tmp_path_factory.mktemp("options")
    broker = Broker(directory / "broker")
    try:
        produce(Client(broker.start().address))
        theirs = ask(PYTHON, "kafka", CASES, {"kafka.bootstrap.servers": broker.address}, directory, jars())
        files = {"kafka.bootstrap.servers": broker.address, "path": str(broker.log_dir)}
        ours = ask(sys.executable, "kafkafs", CASES, files, directory)
        yield theirs, ours
        broker.stop()
        assert not broker.complaints()
    finally:
        broker.kill()


# Where ours answers otherwise, and why: which of its partitions it reads, or what its error says.
BETTER: Final[dict[str, list[tuple[str, int]] | str]] = {
    # Spark's source passes over internal topics (describeTopics … filterNot(isInternal)): 0 rows, and not a word. Who
    # names one gets it.
    "subscribe_consumer_offsets": [("__consumer_offsets", 0)],
    "subscribe_transaction_state": [("__transaction_state", 0)],
    # A broker does not hand it out; in its directory it is a log like others.
    "subscribe_cluster_metadata": [("__cluster_metadata", 0)],
    # There: the partitions that are there, without a word of the other.
    "assign_missing_partition": "assign: clicks/9 is not in",
    # There: passed over. `misspelt` then reads from another offset than the query says.
    "include_timestamp": "unknown option 'includetimestamp'",
    "unknown": "unknown option 'foobar'",
    "misspelt": "is startingOffsets meant",
}


@pytest.mark.parametrize("case", [case for case in CASES if case not in BETTER])
def test_the_same_answer(answers: tuple[Answers, Answers], case: str) -> None:
    theirs, ours = (every[case] for every in answers)
    assert ours.get("error") is None or theirs.get("error") is not None, ours["error"]
    assert ("error" in ours) == ("error" in theirs)
    assert ours.get("schema") == theirs.get("schema")
    assert ours.get("rows") == theirs.get("rows")


@pytest.mark.parametrize("case", BETTER)
def test_another_answer(answers: tuple[Answers, Answers], case: str) -> None:
    """If Spark's source one day answers as ours does, the case belongs to the others."""
    theirs, ours = (every[case] for every in answers)
    wanted = BETTER[case]
    if isinstance(wanted, str):
        assert wanted in ours["error"]
        assert "error" not in theirs
    else:
        assert sorted({(row[2], row[3]) for row in ours["rows"]}) == wanted
        assert not theirs.get("rows")

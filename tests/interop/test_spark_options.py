"""Every option of Spark's Kafka source, and what people write by mistake: the same answer from a running broker,
through that source, and from its files, through ours. One Spark for each source answers all cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest

from tests.interop.client import Client
from tests.interop.kafka import Broker, requires_kafka
from tests.interop.spark_kafka import Answers, ask_both, assert_same, requires_spark_kafka
from tests.interop.spark_options import CASES, produce

pytest.importorskip("pyspark", reason="no pyspark: install the extra `spark`")
pytestmark = [requires_kafka, requires_spark_kafka, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Answers, Answers]]:
    """The answers of Spark's source and of ours. The broker is a new one: a pattern would find other tests' topics."""
    directory = tmp_path_factory.mktemp("options")
    broker = Broker(directory / "broker")
    try:
        produce(Client(broker.start().address))
        yield ask_both(broker, CASES, directory)
        broker.stop()
        assert broker.complaints() == []
    finally:
        broker.kill()


# Where our answer differs, and why: the partitions that ours reads, or what its error says.
BETTER: Final[dict[str, list[tuple[str, int]] | str]] = {
    # Spark's source silently skips internal topics (describeTopics … filterNot(isInternal)): 0 rows. Ours reads a topic
    # that is named.
    "subscribe_consumer_offsets": [("__consumer_offsets", 0)],
    "subscribe_transaction_state": [("__transaction_state", 0)],
    # A broker does not serve it to consumers; in its directory it is a log like any other.
    "subscribe_cluster_metadata": [("__cluster_metadata", 0)],
    # Spark's source silently reads the partitions that exist.
    "assign_missing_partition": "assign: clicks/9 is not in",
    # Spark's source ignores them, so `misspelt` reads from another offset than the query means.
    "include_timestamp": "unknown option 'includetimestamp'",
    "unknown": "unknown option 'foobar'",
    "misspelt": "did you mean startingOffsets",
}


@pytest.mark.parametrize("case", [case for case in CASES if case not in BETTER])
def test_the_same_answer(answers: tuple[Answers, Answers], case: str) -> None:
    theirs, ours = (every[case] for every in answers)
    assert_same(theirs, ours, case)


@pytest.mark.parametrize("case", BETTER)
def test_another_answer(answers: tuple[Answers, Answers], case: str) -> None:
    """If Spark's source one day answers as ours does, the case belongs in test_the_same_answer."""
    theirs, ours = (every[case] for every in answers)
    wanted = BETTER[case]
    if isinstance(wanted, str):
        assert wanted in ours["error"]
        assert "error" not in theirs
    else:
        assert sorted({(row[2], row[3]) for row in ours["rows"]}) == wanted
        assert not theirs.get("rows")

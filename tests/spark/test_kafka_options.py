"""Every option of Spark's Kafka source, and what people write by mistake: from a broker's files our source gives the
answer that Spark's own gave from the broker.

Spark's answers are recorded in the fixture `spark-options` (tests/interop/spark_options.py makes it). Nightly a broker
is started and Spark's source asked again: it must still give these answers, and ours too, from the running broker's
files.
"""

import pytest

from tests.interop.kafka import requires_kafka
from tests.interop.spark_kafka import ask, requires_spark_kafka
from tests.interop.spark_options import CASES, produced, recorded
from tests.interop.spark_queries import answer
from tests.support.fixtures import FIXTURES, requires_fixtures

PySparkException = pytest.importorskip("pyspark.errors").PySparkException


FIXTURE = FIXTURES / "spark-options"

# Where our answer differs, and why: the partitions that ours reads, or what its error says.
BETTER = {
    # Spark's source silently skips internal topics (describeTopics … filterNot(isInternal)): 0 rows. Ours reads a topic
    # that is named.
    "subscribe_consumer_offsets": [("__consumer_offsets", 0)],
    "subscribe_transaction_state": [("__transaction_state", 0)],
    # A broker does not serve it to consumers; in its directory it is a log like any other.
    "subscribe_cluster_metadata": [("__cluster_metadata", 0)],
    # Spark's source silently reads the partitions that exist.
    "assign_missing_partition": "option assign: clicks/9 is not in",
    # Patterns are those of Python's `re`.
    "pattern_java_class": "option subscribePattern: Python's re refuses",
    # Spark's source ignores them, so `misspelt` reads from another offset than the query means.
    "include_timestamp": "unknown option 'includetimestamp'",
    "unknown": "unknown option 'foobar'",
    "misspelt": "unknown option 'startingofsets': did you mean startingOffsets",
}

# What our source says where Spark's fails too: an InvalidOption, or a DataLoss where messages are missing.
REFUSED = {
    "subscribe_no_such_topic": "option subscribe: nosuch is not in",
    "subscribe_one_of_two_is_missing": "option subscribe: nosuch is not in",
    "subscribe_nothing": "option subscribe is empty",
    "pattern_malformed": "option subscribePattern: Python's re refuses",
    "assign_no_json": "option assign takes a JSON object",
    "assign_strings": "option assign takes a JSON object",
    "assign_and_subscribe": "exactly one of the options subscribe, subscribePattern, assign is needed: subscribe and",
    "no_topic_option": "exactly one of the options subscribe, subscribePattern, assign is needed: none is given",
    "starting_latest": "startingOffsets of a batch query cannot be latest",
    "starting_one_latest": "startingOffsets of a batch query cannot be latest",
    "starting_one_missing": "option startingOffsets must name every partition that is read: clicks/2 is missing",
    "starting_one_too_many": "option startingOffsets names clicks/3",
    "starting_below_minus_two": "option startingOffsets: -3 for clicks/0 is not a valid offset",
    "starting_beyond": "the range of clicks/0 begins at 99999, after its end 2000",
    "starting_beyond_without_failing": "the range of clicks/0 begins at 99999, after its end 2000",
    "starting_is_a_word": "option startingOffsets takes",
    "starting_is_a_number": "option startingOffsets takes",
    "ending_one_earliest": "endingOffsets of a batch query cannot be earliest",
    "ending_earliest": "endingOffsets of a batch query cannot be earliest",
    "ending_beyond": "clicks/0 has no messages 2000 to 4999: the log ends at 2000",
    "starting_behind_ending": "the range of clicks/0 begins at 100, after its end 50",
    "starting_behind_ending_without_failing": "the range of clicks/0 begins at 100, after its end 50",
    "time_starting_beyond": "no message of clicks/0 has a timestamp of",
    "time_starting_beyond_error": "no message of clicks/0 has a timestamp of",
    "time_strategy_is_unknown": "option startingOffsetsByTimestampStrategy must be error or latest, not 'foo'",
    "time_negative": "option startingTimestamp takes epoch milliseconds, not '-5'",
    "time_is_a_date": "option startingTimestamp takes epoch milliseconds, not '2025-11-21'",
    "times_starting_one_missing": "option startingOffsetsByTimestamp must name every partition that is read",
    "min_partitions_zero": "option minPartitions takes a positive number, not '0'",
    "min_partitions_is_a_word": "option minPartitions takes a positive number, not 'x'",
    "headers_yes": "option includeHeaders must be true or false, not 'yes'",
    "fail_on_data_loss_maybe": "option failOnDataLoss must be true or false, not 'maybe'",
    "isolation_is_unknown": "option isolation.level: 'foo' is not a valid Isolation",
    "kafka_auto_offset_reset": "option kafka.auto.offset.reset is not supported",
    "kafka_key_deserializer": "option kafka.key.deserializer is not supported",
    "kafka_enable_auto_commit": "option kafka.enable.auto.commit is not supported",
    "kafka_interceptors": "option kafka.interceptor.classes is not supported",
}


def ask_ours(spark, log_dir, case):
    """The answer of our source: the options are the same, it ignores those for Kafka's clients."""
    options = {"kafka.bootstrap.servers": "nowhere:9092", "path": str(log_dir), **CASES[case]}
    try:
        return answer(spark.read.format("kafkafs").options(**options).load())
    except PySparkException as error:
        return {"error": str(error)}


def check(theirs, ours, case):
    """The same schema and rows, or both refuse it; or one of the differences that are ours on purpose."""
    if isinstance(better := BETTER.get(case), list):
        assert sorted({(row[2], row[3]) for row in ours["rows"]}) == better
        assert not theirs.get("rows")
    elif isinstance(better, str):
        assert f"InvalidOption: {better}" in ours["error"]
        assert "error" not in theirs
    elif "error" in theirs:
        assert case in REFUSED, theirs["error"]
        kind = "DataLoss" if case == "ending_beyond" else "InvalidOption"
        assert f"{kind}: {REFUSED[case]}" in ours["error"]
    else:
        assert ours == theirs


@pytest.fixture(scope="module")
def answers():
    return recorded(FIXTURE)


@requires_fixtures
@pytest.mark.parametrize("case", CASES)
def test_the_recorded_answer(spark, answers, case):
    check(answers[case], ask_ours(spark, FIXTURE / "broker", case), case)


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    """The directory of a broker that runs, and what Spark's source has answered from it."""
    directory = tmp_path_factory.mktemp("options")
    with produced(directory) as broker:
        yield broker.log_dir, ask(broker, CASES, directory)


@pytest.mark.nightly
@pytest.mark.broker
@requires_kafka
@requires_spark_kafka
@pytest.mark.parametrize("case", CASES)
def test_the_answer_of_a_broker(spark, running, answers, case):
    log_dir, current = running
    theirs = current[case]
    check(theirs, ask_ours(spark, log_dir, case), case)
    # What was recorded is its answer, apart from what a broker makes anew: times of appends, and addresses in errors.
    assert places(theirs) == places(answers[case])


def places(answer):
    """The schema, and the topic, partition and offset of each row; or that it is an error."""
    return "error" in answer or (answer["schema"], [row[2:5] for row in answer["rows"]])

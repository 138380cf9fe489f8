"""What options mean, and how wrong ones are refused."""

from pathlib import Path

import pytest

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.spark import options as parsing
from kafkafs.spark.options import (
    EARLIEST,
    LATEST,
    Bound,
    OnCorruptBatch,
    Partitions,
    SourceOptions,
    TopicNames,
    TopicPattern,
)
from storage.types import Isolation, TopicPartition


def parse(**options):
    given = {name.replace("_", "."): value for name, value in options.items()}
    if not {"subscribe", "subscribepattern", "assign"} & {name.lower() for name in given}:
        given["subscribe"] = "t"
    return parsing.parse({"path": "/log", **given})


def test_defaults():
    options = parse()
    assert options == SourceOptions((Path("/log"),), TopicNames(("t",)), parsing.COLUMNS[:-1])
    assert options.fail_on_data_loss


def test_names_have_no_case_and_those_for_a_client_are_passed_over():
    options = parse(
        SUBSCRIBE=" b, a,,b ", INCLUDEheaders="TRUE", kafka_bootstrap_servers="x:9092", groupIdPrefix="g",
        kafka_security_protocol="SSL", failondataloss="false", minPartitions="7", maxRecordsPerPartition="8",
        maxOffsetsPerTrigger="9", onCorruptBatch="Skip", allowUncompiled="true",
    )  # fmt: skip
    assert options == SourceOptions(
        (Path("/log"),),
        TopicNames(("a", "b")),
        parsing.COLUMNS,
        min_partitions=7,
        max_records_per_partition=8,
        max_offsets_per_trigger=9,
        fail_on_data_loss=False,
        on_corrupt_batch=OnCorruptBatch.SKIP,
        allow_uncompiled=True,
    )


def test_columns_of_a_table_in_the_catalog():
    """What CREATE TABLE asks: Spark passes no option on to the queries, so only those about columns are allowed."""
    created = {"provider": "kafkafs", "owner": "me"}
    assert parsing.columns_of(created) == parsing.COLUMNS[:-1]
    assert parsing.columns_of({**created, "includeHeaders": "true"}) == parsing.COLUMNS
    assert parsing.columns_of({**created, "option.columns": "value", "columns": "value"}) == ("value",)
    for name, value, named in (("location", "/x", "path"), ("subscribe", "t", "subscribe")):
        with pytest.raises(InvalidOption, match=rf"does not keep the options .*\({named}\).*WITH \(path 'LOGDIR'"):
            parsing.columns_of({**created, name: value})


def test_what_is_read():
    assert parse(assign='{"b":[1,0],"a":[3]}').chosen == Partitions(
        (TopicPartition("a", 3), TopicPartition("b", 0), TopicPartition("b", 1))
    )
    chosen = parse(subscribePattern=" order.* ").chosen
    assert isinstance(chosen, TopicPattern)
    assert chosen.pattern.pattern == "order.*"


def test_columns():
    assert parse(columns="value").columns == ("value",)
    assert parse(columns=" Offset , headers,key", includeHeaders="false").columns == ("offset", "headers", "key")


@pytest.mark.parametrize("name", ["isolation.level", "kafka.isolation.level"])
def test_isolation(name):
    assert parse(**{name: "READ_COMMITTED"}).isolation is Isolation.READ_COMMITTED


def test_bounds_and_which_of_several_counts():
    by_offset = {"startingOffsets": '{"t":{"0":5,"1":-1}}', "endingOffsets": "Latest"}
    options = parse(**by_offset)
    assert options.starting == Bound({TopicPartition("t", 0): 5, TopicPartition("t", 1): LATEST})
    assert options.ending == Bound(LATEST)
    assert parse(startingOffsets="earliest").starting == Bound(EARLIEST)
    times = {"startingOffsetsByTimestamp": '{"t":{"0":17}}', "startingOffsetsByTimestampStrategy": "LATEST"}
    options = parse(**by_offset, **times)
    assert options.starting == Bound({TopicPartition("t", 0): 17}, is_time=True)
    assert options.latest_if_none_later
    assert parse(**by_offset, **times, startingTimestamp=" 3 ").starting == Bound(3, is_time=True)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"path": " "}, r"no log directory"),
        ({"path": "hdfs://there/logs"}, "is neither a directory on this machine nor a backup"),
        ({"path": "file://there/logs"}, "is not a directory on this machine"),
        ({"paths": "[/x"}, "takes a JSON list"),
        ({"subscrib": "t"}, "unknown option 'subscrib': did you mean subscribe"),
        ({"zzz": "t"}, "unknown option 'zzz'; the known options are path"),
        ({"minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "2"}, "is greater than maxOffsetsPerTrigger"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger takes a positive number"),
        ({"maxTriggerDelay": "soon"}, "takes a duration like 500ms, 30s or 15m"),
        ({"kafka.auto.offset.reset": "earliest"}, "startingOffsets says where a query begins"),
        ({"kafka.Interceptor.Classes": "x"}, "is not supported"),
        ({"startingTimestamp": "-5"}, "takes epoch milliseconds"),
        ({"startingOffsetsByTimestamp": '{"t":{"0":-5}}'}, "not below 0"),
        ({"subscribe": "t", "assign": "{}"}, "subscribe and assign exclude each other"),
        ({"subscribe": "  "}, "subscribe is empty"),
        ({"subscribe": ",,"}, "names no topic"),
        ({"subscribePattern": "a("}, r"Python's re refuses 'a(': missing ), unterminated subpattern at position 1"),
        ({"subscribePattern": r"\p{Lower}"}, r"bad escape \p at position 0. Write the pattern as re has it, [a-z] for"),
        ({"subscribePattern": "(?<n>a)"}, "(?P<name>...) for (?<name>...), or name the topics with subscribe"),
        ({"subscribePattern": "[a-z&&[^x]]"}, "Python's re refuses '[a-z&&[^x]]': Possible set intersection"),
        ({"subscribePattern": "[[0-9]a]"}, "Possible nested set at position 1"),
        ({"subscribePattern": "a{99999999999}"}, "the repetition number is too large"),
        ({"assign": "{}"}, "names no partition"),
        ({"assign": "[1]"}, "takes a JSON object"),
        ({"assign": '{"t":[true]}'}, "takes a JSON object"),
        ({"assign": '{"t":[-1]}'}, "takes a JSON object"),
        ({"assign": '{"t":0}'}, "takes a JSON object"),
        ({"columns": "value,valu"}, "'valu' is not one of key, value"),
        ({"columns": ""}, "'' is not one of"),
        ({"columns": "value,VALUE"}, "names value twice"),
        ({"startingOffsets": "first"}, 'startingOffsets takes "earliest", "latest" or {"topicA"'),
        ({"startingOffsets": '{"t":{"0":1.5}}'}, "startingOffsets takes"),
        ({"startingOffsets": '{"t":{"0":true}}'}, "startingOffsets takes"),
        ({"startingOffsets": '{"t":{"x":1}}'}, "startingOffsets takes"),
        ({"startingOffsets": '{"t":[1]}'}, "startingOffsets takes"),
        ({"startingOffsets": '{"t":{"0":9223372036854775808}}'}, "startingOffsets takes"),
        ({"endingOffsets": '{"t":{"0":-3}}'}, "-3 for t/0 is not a valid offset"),
        ({"endingTimestamp": "now"}, "endingTimestamp takes epoch milliseconds"),
        ({"endingOffsetsByTimestamp": "5"}, "endingOffsetsByTimestamp takes"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "must be error or latest"),
        ({"minPartitions": "0"}, "minPartitions takes a positive number"),
        ({"maxRecordsPerPartition": "-1"}, "takes a positive number"),
        ({"failOnDataLoss": "yes"}, "must be true or false"),
        ({"onCorruptBatch": "ignore"}, "must be fail or skip"),
        ({"isolation.level": "read"}, "isolation.level: 'read'"),
        ({"isolation.level": "read_committed", "kafka.isolation.level": "read_uncommitted"}, "differ"),
    ],
)
def test_wrong_options(options, error):
    with pytest.raises(InvalidOption) as caught:
        parse(**options)
    assert error in str(caught.value)


def test_nothing_says_what_is_read():
    with pytest.raises(InvalidOption, match="exactly one of the options subscribe, subscribePattern, assign"):
        parsing.parse({"path": "/log"})


@pytest.mark.parametrize(
    ("given", "paths"),
    [
        ({"path": "/x/a b"}, ["/x/a b"]),
        ({"path": "file:/x/y"}, ["/x/y"]),
        ({"path": "file:///x/y%20z"}, ["/x/y%20z"]),
        ({"path": "FILE://localhost/x"}, ["/x"]),
        ({"path": "/x/hdfs:/y"}, ["/x/hdfs:/y"]),
        ({"paths": '["/x", "file:/y", "/x"]'}, ["/x", "/y"]),
        ({"path": "x:y"}, [str(Path("x:y").absolute())]),
    ],
)
def test_where_the_logs_are(given, paths):
    assert [str(path) for path in parsing.parse({"subscribe": "t", **given}).paths] == paths

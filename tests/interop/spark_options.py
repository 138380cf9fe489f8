"""Every option of Spark's Kafka source, and what people write by mistake; and what that source answers.

    python -m tests.interop.spark_options DIRECTORY

makes the fixture `spark-options` in DIRECTORY, which `tests/fixtures/pack.py` packs: `broker`, the directory of a
broker with the topics that `produce` creates, and `answers.json.xz`, the answers of Spark's own Kafka source to all
cases.

The cases read `clicks` (three partitions of PER_PARTITION messages, a second apart), `orders`, `tx` (transactions, some
of them aborted), `acct` (compacted), `mixed` (anything), `stamped` (append times), `empty`; and internal topics.
"""

import json
import lzma
import random
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from tests.interop.client import Client, Message
from tests.interop.kafka import Broker
from tests.interop.spark_kafka import ask
from tests.support.waiting import wait_for

START = 1_763_683_200_000
PER_PARTITION = 2000
DELETED = 60


def _json(partitions):
    return json.dumps({"clicks": partitions})


def _at(seconds):
    """The time this many seconds after the first message."""
    return START + seconds * 1000


_LONG_AFTER = str(_at(10_000_000))
_STRATEGY, _POLL = "startingOffsetsByTimestampStrategy", "kafkaConsumer.pollTimeoutMs"
# How long Spark's source waits for what does not exist.
_IMPATIENT = {
    "fetchOffset.numRetries": "1",
    "kafka.default.api.timeout.ms": "8000",
    "kafka.request.timeout.ms": "7000",
    _POLL: "5000",
}
_SOME_TIMES = _json({"0": _at(3000), "1": _at(0), "2": _at(5000)})

# Which topics and partitions are read.
_CHOICES = {
    "subscribe_one": {"subscribe": "clicks"},
    "subscribe_two": {"subscribe": "clicks,orders"},
    "subscribe_with_blanks": {"subscribe": " clicks , orders "},
    "subscribe_with_a_comma_too_many": {"subscribe": "clicks,"},
    "subscribe_no_such_topic": {"subscribe": "nosuch", **_IMPATIENT},
    "subscribe_one_of_two_is_missing": {"subscribe": "clicks,nosuch", **_IMPATIENT},
    "subscribe_a_topic_without_messages": {"subscribe": "empty"},
    "subscribe_nothing": {"subscribe": ""},
    "subscribe_compacted": {"subscribe": "acct"},
    "subscribe_consumer_offsets": {"subscribe": "__consumer_offsets"},
    "subscribe_transaction_state": {"subscribe": "__transaction_state"},
    "subscribe_cluster_metadata": {"subscribe": "__cluster_metadata", **_IMPATIENT},
    "pattern_matches_whole_name": {"subscribePattern": "cl.*"},
    "pattern_finds_beginning_of_name": {"subscribePattern": "click"},
    "pattern_finds_end_of_name": {"subscribePattern": "ders"},
    "pattern_anchored_at_both_ends": {"subscribePattern": "^clicks$"},
    "pattern_anchored_finds_no_part": {"subscribePattern": "^click$"},
    "pattern_finds_nothing": {"subscribePattern": "zzz.*"},
    "pattern_of_alternatives": {"subscribePattern": "clicks|tx"},
    "pattern_finds_one_of_alternatives": {"subscribePattern": "lick|^x$"},
    "pattern_with_blanks_around": {"subscribePattern": " clicks "},
    "pattern_malformed": {"subscribePattern": "(cl"},
    "pattern_of_everything": {"subscribePattern": ".*"},
    "pattern_java_class": {"subscribePattern": r"\p{Lower}+"},
    "pattern_without_internal_topics": {"subscribePattern": ".*", "kafka.exclude.internal.topics": "false"},
    "assign": {"assign": '{"clicks":[0,2]}'},
    "assign_missing_partition": {"assign": '{"clicks":[0,9]}'},
    "assign_no_json": {"assign": "clicks"},
    "assign_twice_the_same": {"assign": '{"clicks":[0,0]}'},
    "assign_strings": {"assign": '{"clicks":["0"]}'},
    "assign_and_subscribe": {"assign": '{"clicks":[0,2]}', "subscribe": "clicks"},
    "no_topic_option": {},
}
_OFFSETS = _json({"0": 10, "1": -2, "2": 1990})
_BEHIND = {"startingOffsets": _json({"0": 100, "1": 0, "2": 0}), "endingOffsets": _json({"0": 50, "1": 10, "2": 10})}
# Of `clicks`, unless they name another topic.
_OTHERS = {
    # From which offset, up to which one.
    "starting_earliest": {"startingOffsets": "earliest"},
    "starting_in_capitals": {"startingOffsets": "EARLIEST"},
    "starting_latest": {"startingOffsets": "latest"},
    "starting_offsets": {"startingOffsets": _OFFSETS},
    "starting_one_latest": {"startingOffsets": _json({"0": 10, "1": -1, "2": 1990})},
    "starting_one_missing": {"startingOffsets": _json({"0": 10, "1": -2})},
    "starting_one_too_many": {"startingOffsets": _json({"0": 10, "1": -2, "2": 0, "3": 0})},
    "starting_below_minus_two": {"startingOffsets": _json({"0": -3, "1": -2, "2": 0})},
    "starting_beyond": {**_IMPATIENT, "startingOffsets": _json({"0": 99999, "1": -2, "2": 0})},
    "starting_is_a_word": {"startingOffsets": "foo"},
    "starting_is_a_number": {"startingOffsets": "5"},
    "ending_offsets": {"endingOffsets": _json({"0": 10, "1": -1, "2": 1990})},
    "ending_one_earliest": {"endingOffsets": _OFFSETS},
    "ending_earliest": {"endingOffsets": "earliest"},
    "ending_beyond": {**_IMPATIENT, "endingOffsets": _json({"0": 5000, "1": -1, "2": 1990})},
    "starting_behind_ending": _BEHIND,
    # From which time, up to which one.
    "time_starting": {"startingTimestamp": str(_at(3000))},
    "time_both": {"startingTimestamp": str(_at(3000)), "endingTimestamp": str(_at(4000))},
    "time_starting_beyond": {"startingTimestamp": _LONG_AFTER},
    "time_starting_beyond_latest": {"startingTimestamp": _LONG_AFTER, _STRATEGY: "latest"},
    "time_starting_beyond_error": {"startingTimestamp": _LONG_AFTER, _STRATEGY: "error"},
    "time_strategy_is_unknown": {"startingTimestamp": str(START), _STRATEGY: "foo"},
    "time_ending_beyond": {"endingTimestamp": _LONG_AFTER},
    "time_zero": {"startingTimestamp": "0"},
    "time_negative": {"startingTimestamp": "-5"},
    "time_is_a_date": {"startingTimestamp": "2025-11-21"},
    "times_starting": {"startingOffsetsByTimestamp": _SOME_TIMES},
    "times_starting_one_missing": {"startingOffsetsByTimestamp": _json({"0": _at(3000)})},
    "times_ending": {"endingOffsetsByTimestamp": _SOME_TIMES},
    "time_and_offsets": {"startingTimestamp": str(_at(3000)), "startingOffsets": _OFFSETS},
    # How much at once.
    "min_partitions": {"minPartitions": "10"},
    "min_partitions_zero": {"minPartitions": "0"},
    "min_partitions_is_a_word": {"minPartitions": "x"},
    "max_records": {"maxRecordsPerPartition": "100"},
    "max_records_and_min_partitions": {"maxRecordsPerPartition": "1000", "minPartitions": "9"},
    "max_offsets_per_trigger_in_a_batch": {"maxOffsetsPerTrigger": "10"},
    "min_offsets_per_trigger_in_a_batch": {"minOffsetsPerTrigger": "10"},
    "max_trigger_delay_in_a_batch": {"maxTriggerDelay": "5s"},
    # Everything else.
    "headers": {"includeHeaders": "true"},
    "headers_yes": {"includeHeaders": "yes"},
    "fail_on_data_loss_maybe": {"failOnDataLoss": "maybe"},
    "read_committed": {"subscribe": "tx", "kafka.isolation.level": "read_committed"},
    "read_uncommitted": {"subscribe": "tx"},
    "isolation_is_unknown": {"subscribe": "tx", "kafka.isolation.level": "foo"},
    "group_id_prefix": {"groupIdPrefix": "me"},
    "kafka_group_id": {"kafka.group.id": "me"},
    "kafka_bootstrap_servers": {},
    "kafka_auto_offset_reset": {"kafka.auto.offset.reset": "earliest"},
    "kafka_key_deserializer": {"kafka.key.deserializer": "org.foo"},
    "kafka_enable_auto_commit": {"kafka.enable.auto.commit": "true"},
    "kafka_interceptors": {"kafka.interceptor.classes": "org.foo"},
    "kafka_max_poll_records": {"kafka.max.poll.records": "10"},
    "fetch_retries": {"fetchOffset.numRetries": "3", "fetchOffset.retryIntervalMs": "10", _POLL: "1000"},
    "the_sinks_topic": {"topic": "orders"},
    "include_timestamp": {"includeTimestamp": "true"},
    "unknown": {"fooBar": "1"},
    "misspelt": {"startingOfsets": "latest"},
    # Disordered times, headers of all kinds, nulls, deleted messages; times of appends.
    "mixed": {"subscribe": "mixed,stamped", "includeHeaders": "true"},
    "mixed_time": {"subscribe": "mixed", "startingTimestamp": str(_at(100)), "endingTimestamp": str(_at(300))},
    "mixed_times": {
        "subscribe": "mixed",
        "startingOffsetsByTimestamp": json.dumps({"mixed": {"0": _at(70), "1": _at(141)}}),
        "endingOffsetsByTimestamp": json.dumps({"mixed": {"0": _at(250), "1": _at(500)}}),
    },
    "mixed_deleted_without_failing": {
        "subscribe": "mixed",
        "startingOffsets": '{"mixed":{"0":0,"1":3}}',
        "failOnDataLoss": "false",
    },
    "mixed_in_many_tasks": {"subscribe": "mixed,tx", "minPartitions": "13"},
    "committed_partly": {
        "subscribe": "tx",
        "kafka.isolation.level": "read_committed",
        "startingOffsets": '{"tx":{"0":5}}',
        "endingOffsets": '{"tx":{"0":25}}',
    },
}
# Also where messages may be missing.
_LENIENT = ("assign_missing_partition", "starting_beyond", "ending_beyond", "starting_behind_ending")

CASES = {**_CHOICES, **{name: {"subscribe": "clicks", **options} for name, options in _OTHERS.items()}}
CASES |= {f"{name}_without_failing": {**CASES[name], "failOnDataLoss": "false"} for name in _LENIENT}


def produce(client):
    """Creates the topics that the cases read."""
    client.create_topic("clicks", 3, {"retention.ms": -1})
    for partition in range(3):
        messages = [
            Message(
                b"click %d" % number,
                b"k%d" % (number % 20),
                (("h", b"x"),) if number % 10 == 0 else (),
                START + number * 1000,
            )
            for number in range(partition, 3 * PER_PARTITION, 3)
        ]
        client.produce("clicks", messages, partition, batch=500)
    client.create_topic("orders", 2, {"retention.ms": -1})
    for partition in range(2):
        client.produce("orders", [Message(b"%d" % number, timestamp=START) for number in range(50)], partition)
    client.create_topic("tx", 1, {"retention.ms": -1})
    for commit in (True, False, True):
        client.transactions("tx", [(commit, [Message(b"%d" % number, timestamp=START) for number in range(9)])])
    # Without a message after the last marker, Spark's source waits two minutes for one.
    client.produce("tx", [Message(b"plain", timestamp=START)] * 3)
    client.create_topic("acct", 1, {"cleanup.policy": "compact", "retention.ms": -1})
    client.produce("acct", [Message(None if n % 7 == 0 else b"%d" % n, b"%d" % (n % 10)) for n in range(100)])
    client.create_topic("empty", 2)
    rng, small = random.Random(6), {"internal.segment.bytes": 12_000, "index.interval.bytes": 300, "retention.ms": -1}
    client.create_topic("mixed", 2, small)
    for partition in range(2):
        messages = [
            Message(
                None if number % 33 == 0 else b"value-%d" % number,
                None if number % 3 else b"key-%d" % number,
                (("h", b"1"), ("none", None), ("", b"")) if number % 5 == 0 else (),
                START + number * 1000 + rng.randrange(-20_000, 20_000),
            )
            for number in range(400 * (partition + 1))
        ]
        client.produce("mixed", messages, partition, batch=17)
    client.delete_records("mixed", 1, DELETED)
    client.create_topic("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
    client.produce("stamped", [Message(b"x", timestamp=5)] * 3)
    client.commit("readers", {("clicks", 0): 5})  # so that there is __consumer_offsets


@contextmanager
def produced(directory):
    """A new broker with these topics: a pattern would find other tests' topics."""
    with Broker(directory / "broker") as broker:
        produce(Client(broker.start().address))
        log = LogDir.open_read_only(broker.log_dir).log(TopicPartition("mixed", 1))
        wait_for("the deletion", lambda: log.snapshot().log_start_offset == DELETED)  # of a periodic checkpoint
        yield broker
        broker.stop()
        assert broker.complaints() == []


def recorded(fixture):
    """The answers of Spark's source in the fixture, by case."""
    return json.loads(lzma.decompress((fixture / "answers.json.xz").read_bytes()))


def main(directory):
    fixture = directory / "spark-options"
    fixture.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        with produced(Path(temporary)) as broker:
            answers = ask(broker, CASES, Path(temporary))
        shutil.copytree(broker.log_dir, fixture / "broker", ignore=shutil.ignore_patterns(".lock"))
    text = json.dumps(answers, separators=(",", ":"))
    (fixture / "answers.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

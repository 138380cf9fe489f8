"""Configuration, against the definitions and the judgement of Kafka 4.3.0 itself."""

import gzip
import json
from functools import cache
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config import BROKER_KEYS, TOPIC_KEYS, BrokerConfig, LogConfig, Origin, read_overrides
from storage.config.log_config import check_topic_key, is_topic_key
from storage.errors import InvalidConfig
from storage.types import TimestampType

BROKER = BrokerConfig()


@cache
def kafka():
    """Names, types, defaults and verdicts of Kafka 4.3.0 (tests/storage/files/data/README.md)."""
    with gzip.open(Path(__file__).parent.parent / "files" / "data" / "kafka-4.3.0-config.json.gz", "rt") as text:
        return json.load(text)


def topic(**overrides):
    given = {key.replace("_", "."): text for key, text in overrides.items()}
    return LogConfig.from_overrides(BROKER.topic_defaults, given)


OURS = {"retention.free.bytes", "message.format.version"}


def test_topic_keys_and_defaults_are_kafkas():
    definitions = kafka()["definitions"]["topic"]
    assert TOPIC_KEYS.keys() - definitions.keys() == OURS
    for name in TOPIC_KEYS.keys() - OURS:
        assert TOPIC_KEYS[name].show(TOPIC_KEYS[name].default) == definitions[name]["default"].strip("[]"), name
    assert all(map(is_topic_key, definitions))


def test_broker_keys_and_defaults_are_kafkas():
    definitions = kafka()["definitions"]["broker"]
    assert BROKER_KEYS.keys() <= definitions.keys()
    for name in BROKER_KEYS.keys() - {"log.dirs", "log.dir"}:
        shown = BROKER_KEYS[name].show(BROKER_KEYS[name].default)
        assert shown.upper() in (definitions[name]["default"].upper(), "1.7976931348623157E+308"), name
    synonyms = {synonym.name for key in TOPIC_KEYS.values() for synonym in key.broker}
    assert synonyms - definitions.keys() == {"log.retention.free.bytes", "log.message.format.version"}
    others = definitions.keys() - BROKER_KEYS.keys() - synonyms
    assert BrokerConfig.from_values(dict.fromkeys(others, "x")).problems == (), "none of them counts as mistyped"


def test_keys_name_their_fields():
    for keys, config in ((TOPIC_KEYS, LogConfig()), (BROKER_KEYS, BROKER)):
        for name, key in keys.items():
            assert key.name == name
            assert key.doc
            assert getattr(config, key.field) == key.default


def test_verdicts_are_kafkas():
    checked = 0
    for case in kafka()["values"]:
        name, text = case["key"], case["text"]
        shown_as = "segment.bytes" if name == "internal.segment.bytes" else name
        config, problems = read_overrides(BROKER.topic_defaults, {name: text})
        # Ours: small segments are allowed as before 4.0; digits are ASCII; a ratio is a number.
        small_segment = name == "segment.bytes" and text.isdigit() and 14 <= int(text) < 2**20
        if small_segment or (name, text) == ("internal.segment.bytes", "13") or text in ("\uff11", "0.5d", "NaN"):
            assert bool(problems) != small_segment, case
            continue
        assert (not problems) == case["valid"], case
        if case["valid"]:
            assert config.texts()[shown_as] == case["value"].strip("[]").replace(", ", ","), case
            assert config.origin(shown_as) is Origin.TOPIC
        else:
            assert config == LogConfig(), case
            assert name in str(problems[0])
            assert repr(text) in str(problems[0])
        checked += 1
    assert checked > 600


# A topic's configuration


def test_what_keys_mean():
    assert topic(segment_ms="100", max_compaction_lag_ms="7").max_segment_ms == 100
    assert topic(segment_ms="100", max_compaction_lag_ms="7", cleanup_policy="compact").max_segment_ms == 7
    assert topic(segment_ms="5", max_compaction_lag_ms="7", cleanup_policy="compact").max_segment_ms == 5
    for policy, expected in {"compact": (True, False), "delete": (False, True), "compact,delete": (True, True)}.items():
        config = topic(cleanup_policy=policy)
        assert (config.compact, config.delete) == expected
    assert LogConfig().timestamp_type is TimestampType.CREATE_TIME
    assert topic(message_timestamp_type="LogAppendTime").timestamp_type is TimestampType.LOG_APPEND_TIME
    versions = {"0.8.2": 0, "0.9.0": 0, "0.10.0-IV1": 1, "0.10.2": 1, "0.11.0": 2, "1.0": 2, "3.0-IV1": 2, "4.3": 2}
    for version, magic in versions.items():
        assert topic(message_format_version=version).message_magic == magic


def test_two_names_of_one_key_and_keys_without_use_here():
    both = {"internal.segment.bytes": "2000", "segment.bytes": "1048576"}
    for overrides in (both, dict(reversed(both.items()))):
        config = LogConfig.from_overrides(BROKER.topic_defaults, overrides)
        assert (config.segment_bytes, config.origin("segment.bytes")) == (2000, Origin.TOPIC)
    overrides = {"min.insync.replicas": "2", "remote.storage.enable": "true"}
    config, problems = read_overrides(BROKER.topic_defaults, overrides)
    assert (problems, dict(config.other)) == ((), overrides)
    assert config.texts()["min.insync.replicas"] == "2"


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("retention", "Did you mean 'retention.ms'?"),
        ("segment.byte", "Did you mean 'segment.bytes'?"),
        ("cleanup_policy", "Did you mean 'cleanup.policy'?"),
        ("Retention.Ms", "Did you mean 'retention.ms'?"),
        ("min.insync.replica", "Did you mean 'min.insync.replicas'?"),
        ("log.retention.hours", "At topic level it is 'retention.ms'"),
        ("message.max.bytes", "At topic level it is 'max.message.bytes'"),
        ("xyzzy", "`kafkafs topics describe` lists all keys"),
    ],
)
def test_unknown_topic_keys(name, advice):
    for use in (
        lambda: LogConfig.from_overrides(BROKER.topic_defaults, {"segment.ms": "5", name: "1"}),
        lambda: check_topic_key(name),
    ):
        with pytest.raises(InvalidConfig) as refused:
            use()
        assert (refused.value.what, refused.value.advice) == (f"unknown topic configuration {name!r}", advice)
    config, problems = read_overrides(BROKER.topic_defaults, {"segment.ms": "5", name: "1"})
    assert config.segment_ms == 5
    assert len(problems) == 1


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("segment_bytes", "13", "invalid value for segment.bytes; expected a 32-bit integer at least 14, found '13'"),
        ("cleanup_policy", "shrink", "a comma-separated list of compact, delete, found 'shrink'"),
        *(("retention_bytes", str(number), "expected a 64-bit integer, found") for number in (-(2**63) - 1, 2**63)),
        *(("message_format_version", text, "a Kafka version such as 0.10.2")
          for text in ("", "2", "two", "0.x", "1.2.3.4.5", ".1")),
    ],
)  # fmt: skip
def test_bad_values_say_what_is_expected(key, text, expected):
    with pytest.raises(InvalidConfig) as refused:
        topic(**{key: text})
    assert expected in str(refused.value)
    assert topic(min_compaction_lag_ms="5", max_compaction_lag_ms="5").min_compaction_lag_ms == 5
    with pytest.raises(InvalidConfig, match="greater than max"):
        topic(min_compaction_lag_ms="6", max_compaction_lag_ms="5")


texts = st.sampled_from(
    ["-1", "0", "1", "14", "100", "2147483647", "9223372036854775807", "compact", "gzip", "true", "0.5", ""]
)


@given(st.dictionaries(st.sampled_from(sorted(TOPIC_KEYS)), texts, max_size=8))
def test_texts_round_trip(overrides):
    config, _ = read_overrides(BROKER.topic_defaults, overrides)
    again, problems = read_overrides(BROKER.topic_defaults, config.texts())
    lags_conflict = config.min_compaction_lag_ms > config.max_compaction_lag_ms
    assert bool(problems) == lags_conflict
    assert again.texts() == config.texts()


# A broker's configuration

HOURS, MINUTES, MS = "log.retention.hours", "log.retention.minutes", "log.retention.ms"


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({}, "retention_ms", 604_800_000),
        ({HOURS: "2"}, "retention_ms", 7_200_000),
        ({MINUTES: "3", HOURS: "2"}, "retention_ms", 180_000),
        ({HOURS: "2", MS: "5", MINUTES: "3"}, "retention_ms", 5),
        ({HOURS: "-1"}, "retention_ms", -1),
        ({HOURS: "-2147483648"}, "retention_ms", -1),
        ({MS: "-7"}, "retention_ms", -1),
        ({HOURS: "2147483647"}, "retention_ms", 2147483647 * 3_600_000),
        ({"log.roll.hours": "1"}, "segment_ms", 3_600_000),
        ({"log.roll.hours": "1", "log.roll.ms": "9"}, "segment_ms", 9),
        ({"log.roll.jitter.hours": "1"}, "segment_jitter_ms", 3_600_000),
        ({"log.roll.jitter.hours": "1", "log.roll.jitter.ms": "8"}, "segment_jitter_ms", 8),
        ({"log.flush.interval.ms": "4"}, "flush_ms", 4),
        ({"log.flush.scheduler.interval.ms": "6"}, "flush_ms", 6),
        ({"log.flush.scheduler.interval.ms": "6", "log.flush.interval.ms": "4"}, "flush_ms", 4),
        ({"log.segment.bytes": "1000"}, "segment_bytes", 1000),
        ({"message.max.bytes": "77"}, "max_message_bytes", 77),
        ({"log.cleanup.policy": "compact"}, "cleanup_policy", ("compact",)),
        ({"log.index.size.max.bytes": "80"}, "segment_index_bytes", 80),
        ({"log.segment.delete.delay.ms": "0"}, "file_delete_delay_ms", 0),
        ({"log.cleaner.min.cleanable.ratio": "0.1"}, "min_cleanable_dirty_ratio", 0.1),
        ({"log.retention.free.bytes": "9"}, "retention_free_bytes", 9),
    ],
)
def test_broker_level_forms_and_precedence(given, field, expected):
    broker = BrokerConfig.from_values(given)
    assert getattr(broker.topic_defaults, field) == expected
    assert broker.problems == ()
    assert set(broker.topic_defaults.origins.values()) == ({Origin.BROKER} if given else set())


def test_bad_broker_values():
    for name, values in {
        MS: ["0"],
        HOURS: ["0", "2147483648", "-2147483649", "9" * 5000],  # more digits than Python converts
        MINUTES: ["x"],
        "log.roll.ms": ["0"],
        "log.roll.hours": ["0"],
        "log.roll.jitter.hours": ["-1"],
        "log.segment.bytes": ["13"],
        "log.flush.scheduler.interval.ms": ["-1"],
        "num.partitions": ["0"],
        "log.cleaner.threads": ["-1"],
        "log.cleaner.enable": ["maybe"],
    }.items():
        for text, others in product(values, ({}, {MS: "5"})):  # also in a form that loses
            with pytest.raises(InvalidConfig, match=f"invalid value for {name}") as refused:
                BrokerConfig.from_values(others | {name: text})
            assert refused.value.found == repr(text)


def test_topic_over_broker():
    broker = BrokerConfig.from_values({"log.segment.bytes": "1000", HOURS: "1"})
    config = LogConfig.from_overrides(broker.topic_defaults, {"retention.ms": "5"})
    assert (config.segment_bytes, config.retention_ms) == (1000, 5)
    origins = [config.origin(name) for name in ("segment.bytes", "retention.ms", "segment.ms")]
    assert origins == [Origin.BROKER, Origin.TOPIC, Origin.DEFAULT]
    # A bad value of the topic leaves the broker's.
    config, problems = read_overrides(broker.topic_defaults, {"segment.bytes": "none", "segment.ms": "5"})
    assert (config.segment_bytes, config.segment_ms) == (1000, 5)
    assert config.origin("segment.bytes") is Origin.BROKER
    assert [problem.found for problem in problems] == ["'none'"]


def test_dynamic_values_win():
    broker = BrokerConfig.from_values({HOURS: "1", "num.partitions": "3"})
    changed = broker.with_values({MS: "5"})
    assert (changed.topic_defaults.retention_ms, changed.num_partitions) == (5, 3)
    assert broker.topic_defaults.retention_ms == 3_600_000


def test_mistyped_broker_keys_are_reported(tmp_path):
    for name, advice in (
        ("log.retention.houres", "Did you mean 'log.retention.hours'?"),
        ("num.partition", "Did you mean 'num.partitions'?"),
        ("retention.ms", "At broker level it is 'log.retention.ms'"),
        ("segment.bytes", "At broker level it is 'log.segment.bytes'"),
        ("log_retention_ms", "Did you mean 'log.retention.ms'?"),
        ("log.cleaner.thread", "Did you mean 'log.cleaner.threads'?"),
    ):
        broker = BrokerConfig.from_values({name: "1", "num.partitions": "4"})
        assert broker.num_partitions == 4
        (problem,) = broker.problems
        assert (problem.what, problem.advice) == (f"unknown broker configuration {name!r}", advice)
        assert broker.unused == ()
        assert broker.warnings(tmp_path) == [f"unknown broker configuration {name!r}. {advice}"]


def test_keys_that_are_not_used_are_named_in_one_line(tmp_path):
    """Also those of Kafka's that resemble used ones: offsets.retention.minutes is no mistyped log.retention.minutes."""
    unused = [
        "zookeeper.connect",
        "listener.name.internal.ssl.key",
        "offsets.retention.check.interval.ms",
        "offsets.retention.minutes",
        "log.local.retention.ms",
        "metadata.log.segment.bytes",
        "producer.id.expiration.check.interval.ms",
        "xyzzy",
    ]
    broker = BrokerConfig.from_values(dict.fromkeys(unused, "whatever") | {"num.partitions": "4"})
    assert broker.problems == ()
    assert broker.given["xyzzy"] == "whatever"
    assert broker.warnings(tmp_path) == [f"not used by kafkafs: {', '.join(unused)}"]


SERVER_PROPERTIES = """
# A broker's own file
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
log.dirs=/data/a, /data/b
num.partitions=3
log.retention.hours=24
log.segment.bytes=1048576
log.cleaner.dedupe.buffer.size=1000000
offsets.topic.replication.factor=1
"""


def test_from_file(tmp_path):
    path = tmp_path / "server.properties"
    with pytest.raises(FileNotFoundError):
        BrokerConfig.from_file(path)
    path.write_text(SERVER_PROPERTIES)
    broker = BrokerConfig.from_file(path)
    assert (broker.num_partitions, broker.log_dirs) == (3, ("/data/a", "/data/b"))
    assert broker.cleaner_dedupe_buffer_size == 1_000_000
    assert broker.topic_defaults.retention_ms == 86_400_000
    unused = "not used by kafkafs: process.roles, node.id, listeners, offsets.topic.replication.factor"
    assert broker.warnings(Path("/data/a")) == [unused, "log.dirs names /data/b; only /data/a is used"]
    assert broker.warnings(tmp_path) == [unused, f"log.dirs names /data/a, /data/b; only {tmp_path} is used"]
    for text, what in (("num.partitions=none\n", "num.partitions"), ("a=\\u00\n", "escape")):
        path.write_text(text)
        with pytest.raises(InvalidConfig, match=what) as refused:
            BrokerConfig.from_file(path)
        assert refused.value.path == path


def test_warnings(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    for name, text, expected in (
        ("log.dirs", str(link), []),
        ("log.dir", str(tmp_path), []),
        ("log.dir", "/x", [f"log.dir names /x; only {tmp_path} is used"]),
        (
            "log.cleaner.io.max.bytes.per.second",
            "0",
            ["log.cleaner.io.max.bytes.per.second lets the cleaner read nothing; a mount compacts nothing"],
        ),
        ("log.cleaner.io.max.bytes.per.second", "0.5", []),
    ):
        assert BrokerConfig.from_values({name: text}).warnings(tmp_path) == expected

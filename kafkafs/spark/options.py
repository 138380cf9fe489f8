"""Parsing of a query's options: those of Spark's Kafka source, with the same meanings, and a few of our own.

Options that only matter to a broker's client (`kafka.bootstrap.servers`, `groupIdPrefix`, …) are ignored, so that a
query for a broker reads files once its format and path are changed. Source: KafkaSourceProvider.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from kafkafs.arrow import COLUMNS, DECODED
from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.schemas.places import OWN_SCHEMAS, SchemaPlaces
from kafkafs.spark.option_values import (
    REFUSED_BY_SOURCE,
    SOURCE,
    by_lower_name,
    directories,
    flag,
    milliseconds,
    one_of,
    positive,
    schema_places,
    table_options,
    tier,
)
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.tier.tier import Tier
from storage.types import Isolation, TopicPartition

EARLIEST: Final = -2  # KafkaOffsetRangeLimit
LATEST: Final = -1
# Keys next to the topics in a stream's offsets (`stream`, `read_marks`), which no topic can have as its name.
INITIAL: Final = "@initial"
READ: Final = "@read"

_CHOICES: Final = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True)
class TopicNames:
    """`subscribe`: these topics, with all their partitions in the log directories."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """`subscribePattern`: the topics in whose names the pattern matches, except Kafka's internal topics."""

    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Partitions:
    """`assign`: these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: an offset, EARLIEST or LATEST, or with `is_time` a time in epoch milliseconds.
    `at`: the same number for all partitions, or a number for each."""

    at: int | Mapping[TopicPartition, int]
    is_time: bool = False

    def of(self, tp: TopicPartition) -> int:
        """Return the number for a partition."""
        return self.at if isinstance(self.at, int) else self.at[tp]

    def has(self, offset: int) -> bool:
        """Whether the number is `offset` for any partition."""
        return not self.is_time and offset in ((self.at,) if isinstance(self.at, int) else self.at.values())


class OnCorruptBatch(Enum):
    """How a task treats a batch that fails its checks."""

    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """A query's parsed options. `paths`: the log directories, usually one. `starting` and `ending` are None if the
    options do not give them.

    `min_offsets_per_trigger`: a micro-batch waits for this many offsets, but at most `max_trigger_delay_ms` after the
    previous batch. `latest_if_none_later`: a starting time after all messages means the log's end instead of an error.
    """

    paths: tuple[Path, ...]
    chosen: TopicNames | TopicPattern | Partitions
    columns: tuple[str, ...]
    starting: Bound | None = None
    ending: Bound | None = None
    latest_if_none_later: bool = False
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    fail_on_data_loss: bool = True
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    on_corrupt_batch: OnCorruptBatch = OnCorruptBatch.FAIL
    allow_uncompiled: bool = False
    schemas: SchemaPlaces = OWN_SCHEMAS
    tier: Tier | None = None

    @property
    def decodes(self) -> bool:
        """Whether the query decodes keys and values by schemas: those at `schemas`, or in the log directories."""
        return any(column in DECODED for column in self.columns)

    @property
    def needs_schemas(self) -> bool:
        """Whether the query decodes topics other than Kafka's own, whose definitions are built in."""
        match self.chosen:
            case TopicNames(topics):
                return self.decodes and not KAFKAS_OWN_TOPICS.issuperset(topics)
            case Partitions(partitions):
                return self.decodes and not KAFKAS_OWN_TOPICS.issuperset(tp.topic for tp in partitions)
            case _:
                return self.decodes


def parse(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options as Spark passes them, with names in any case. InvalidOption."""
    given = by_lower_name(options, SOURCE, REFUSED_BY_SOURCE)
    isolations = {given[name].lower() for name in ("isolation.level", "kafka.isolation.level") if name in given}
    if len(isolations) > 1:
        raise InvalidOption("options isolation.level and kafka.isolation.level differ")
    least, most = positive(given, "minOffsetsPerTrigger"), positive(given, "maxOffsetsPerTrigger")
    if least is not None and most is not None and least > most:
        raise InvalidOption(f"minOffsetsPerTrigger ({least}) is greater than maxOffsetsPerTrigger ({most})")
    return SourceOptions(
        paths=directories(given, "load(path)"),
        chosen=_chosen(given),
        columns=_columns(given),
        starting=_bound(given, "starting"),
        ending=_bound(given, "ending"),
        latest_if_none_later=one_of(given, "startingOffsetsByTimestampStrategy", {"error": False, "latest": True}),
        min_partitions=positive(given, "minPartitions"),
        max_records_per_partition=positive(given, "maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=milliseconds(given, "maxTriggerDelay", 15 * 60_000),
        fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
        isolation=_isolation(isolations),
        on_corrupt_batch=one_of(given, "onCorruptBatch", {choice.value: choice for choice in OnCorruptBatch}),
        allow_uncompiled=flag(given, "allowUncompiled", default=False),
        schemas=schema_places(given),
        tier=tier(given),
    )


def columns_of(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of a query with these options, or of a table that is created with them. InvalidOption."""
    of_table = table_options(options)
    return parse(options).columns if of_table is None else _columns(of_table)


def _chosen(given: Mapping[str, str]) -> TopicNames | TopicPattern | Partitions:
    choices = [name for name in _CHOICES if name.lower() in given]
    if len(choices) != 1:
        problem = f"{' and '.join(choices)} exclude each other" if choices else "none is given"
        raise InvalidOption(f"exactly one of the options {', '.join(_CHOICES)} is needed: {problem}")
    text = given[choices[0].lower()]
    if choices[0] == "assign":
        assigned = _partition_lists(text)
        if not assigned:
            raise InvalidOption(f"option assign names no partition: {text}")
        return Partitions(assigned)
    if not text.strip():
        raise InvalidOption(f"option {choices[0]} is empty")
    if choices[0] == "subscribe":
        names = tuple(sorted({name.strip() for name in text.split(",")} - {""}))
        if not names:
            raise InvalidOption(f"option subscribe names no topic: {text!r}")
        return TopicNames(names)
    return TopicPattern(_pattern(text.strip()))


def _pattern(text: str) -> re.Pattern[str]:
    """The pattern of `subscribePattern`, in the syntax of Python's `re`. InvalidOption."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # `[a&&b]`, `[[a]b]`: Java's sets, which `re` reads as others
            return re.compile(text, re.ASCII)
    except (re.error, FutureWarning, OverflowError, RecursionError) as error:
        raise InvalidOption(
            f"option subscribePattern: Python's re refuses {text!r}: {error}. Write the pattern as re has it, "
            r"[a-z] for Java's \p{Lower} and (?P<name>...) for (?<name>...), or name the topics with subscribe"
        ) from None


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    headers = flag(given, "includeHeaders", default=False)
    decode = flag(given, "decode", default=False)
    text = given.get("columns")
    if text is None:
        return (*(COLUMNS if headers else COLUMNS[:-1]), *(DECODED if decode else ()))
    known = (*COLUMNS, *DECODED)
    by_name = {name.lower(): name for name in known}
    columns = []
    for part in text.split(","):
        column = by_name.get(part.strip().lower())
        if column is None:
            raise InvalidOption(f"option columns: {part.strip()!r} is not one of {', '.join(known)}")
        if column in columns:
            raise InvalidOption(f"option columns names {column} twice")
        columns.append(column)
    return tuple(columns)


def _bound(given: Mapping[str, str], which: str) -> Bound | None:
    """The bound that the options `starting…` or `ending…` give; if several are set, the option that Spark prefers."""
    timestamp = given.get(f"{which}timestamp")
    if timestamp is not None:
        if not re.fullmatch("[0-9]{1,18}", timestamp.strip()):
            raise InvalidOption(f"option {which}Timestamp takes epoch milliseconds, not {timestamp!r}")
        return Bound(int(timestamp), is_time=True)
    name = f"{which}OffsetsByTimestamp"
    text = given.get(name.lower())
    if text is not None:
        times = _numbers_by_partition(name, text, '{"topicA":{"0":1763683200000}}')
        if any(time < 0 for time in times.values()):
            raise InvalidOption(f"option {name} takes epoch milliseconds, not below 0: {text}")
        return Bound(times, is_time=True)
    name = f"{which}Offsets"
    text = given.get(name.lower())
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(EARLIEST if word == "earliest" else LATEST)
    offsets = _numbers_by_partition(name, text, '"earliest", "latest" or {"topicA":{"0":23,"1":-1}}')
    for tp, offset in offsets.items():
        if offset < EARLIEST:
            raise InvalidOption(
                f"option {name}: {offset} for {tp} is not a valid offset (-1 is the latest, -2 the earliest)"
            )
    return Bound(offsets)


def _partition_lists(text: str) -> tuple[TopicPartition, ...]:
    wrong = InvalidOption(f'option assign takes a JSON object like {{"topicA":[0,1]}}, not {text}')
    topics = _json_object(text, wrong)
    chosen: set[TopicPartition] = set()
    for topic, partitions in topics.items():
        if not isinstance(partitions, list) or not all(type(number) is int and number >= 0 for number in partitions):
            raise wrong
        chosen.update(TopicPartition(topic, number) for number in partitions)
    return tuple(sorted(chosen))


def _numbers_by_partition(name: str, text: str, example: str) -> dict[TopicPartition, int]:
    """{"topic":{"partition":number}}."""
    wrong = InvalidOption(f"option {name} takes {example}, not {text}")
    topics = _json_object(text, wrong)
    number_by_partition = {}
    for topic, numbers in topics.items():
        if topic in (INITIAL, READ):
            continue
        if not isinstance(numbers, dict):
            raise wrong
        for partition, number in numbers.items():
            if not re.fullmatch("[0-9]{1,10}", partition) or type(number) is not int or not -(2**63) <= number < 2**63:
                raise wrong
            number_by_partition[TopicPartition(topic, int(partition))] = number
    return number_by_partition


def _json_object(text: str, wrong: InvalidOption) -> dict[str, object]:
    with suppress(ValueError):
        if isinstance(value := json.loads(text), dict):
            return value
    raise wrong


def _isolation(words: set[str]) -> Isolation:
    try:
        return Isolation(words.pop()) if words else Isolation.READ_UNCOMMITTED
    except ValueError as error:
        raise InvalidOption(
            f"option isolation.level: {error} ({' or '.join(level.value for level in Isolation)})"
        ) from None


def decoded_offsets(topics: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """A stream's offsets by partition, parsed from the form that its checkpoint has, {"topic":{"partition":offset}}."""
    return {
        TopicPartition(topic, int(partition)): int(offset)
        for topic, partitions in topics.items()
        if topic not in (INITIAL, READ)
        for partition, offset in partitions.items()
    }

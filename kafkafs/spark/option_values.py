"""The names of the options of source and sink, and the parsing of their values.

A query may pass the same options to source and sink, as with Spark's Kafka format: each ignores the other's. Unlike
Spark's, both refuse an unknown name, because nobody would notice the mistake.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.schemas.places import OWN_SCHEMAS, SchemaPlaces
from storage.errors import TierUnavailable
from storage.files.opening import real_place
from storage.log.stored_dir import open_stored
from storage.tier.tier import Tier

# Spelled as documented; Spark ignores the case of names.
SOURCE: Final = (
    "path",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "isolation.level",
    "kafka.isolation.level",
    "columns",
    "decode",
    "schemas",
    "tier",
    "tierKey",
    "onCorruptBatch",
    "allowUncompiled",
)
SINK: Final = (
    "path",
    "topic",
    "force",
    "lockTimeoutMs",
    "onChangedReplay",
    "txnAppId",
    "txnVersion",
    "allowUncompiled",
    "includeHeaders",
    "checkpointLocation",
)
# Options of Spark's Kafka source that only affect its clients.
_IGNORED: Final = (
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "kafkaConsumer.useDeprecatedOffsetFetching",
    "producer.cache.timeout",
)

_CLIENTS: Final = "kafka."
_PROVIDER: Final = "provider"  # CREATE TABLE adds it to the options
_OF_A_TABLE: Final = ("columns", "includeheaders", "decode")  # the options that say which columns a table has
_KNOWN: Final = {name.lower(): name for name in (*SOURCE, *SINK, *_IGNORED)}

# The options that Spark's Kafka source and sink refuse, and why. Source: KafkaSourceProvider.validateGeneralOptions,
# kafkaParamsForProducer.
REFUSED_BY_SOURCE: Final = {
    "kafka.auto.offset.reset": "startingOffsets says where a query begins",
    "kafka.key.deserializer": "keys are bytes: decode them with functions of the DataFrame",
    "kafka.value.deserializer": "values are bytes: decode them with functions of the DataFrame",
    "kafka.enable.auto.commit": "a query's offsets are in its checkpoint",
    "kafka.interceptor.classes": "messages are read as they are",
}
REFUSED_BY_SINK: Final = {
    "kafka.key.serializer": "a key is bytes or a string: encode it with functions of the DataFrame",
    "kafka.value.serializer": "a value is bytes or a string: encode it with functions of the DataFrame",
}

_UNITS_MS: Final = {
    "": 1, "us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip

_URI: Final = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/]*))?(?P<path>/.*)")

_T = TypeVar("_T")


def by_lower_name(options: Mapping[str, str], own: tuple[str, ...], refused: Mapping[str, str]) -> dict[str, str]:
    """The options by their names in lower case. InvalidOption for an unknown name; the message lists the names
    `own`."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name in refused:
            raise InvalidOption(f"option {name} is not supported: {refused[name]}")
        if name in _KNOWN or name.startswith(_CLIENTS) or name == "paths":
            continue
        near = get_close_matches(name, _KNOWN, 1)
        hint = f": did you mean {_KNOWN[near[0]]}?" if near else f"; the known options are {', '.join(own)}"
        raise InvalidOption(f"unknown option {name!r}{hint}")
    return given


def table_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a CREATE TABLE that say which columns the table has, by their names in lower case; None if the
    options are a query's. InvalidOption for any other option: Spark would not pass it on to the table's queries."""
    given = {name.lower(): value for name, value in options.items()}
    if _PROVIDER not in given:
        return None
    lost = [_KNOWN[name] for name in given if name in _KNOWN and name not in _OF_A_TABLE]
    if lost or "location" in given:  # a path becomes a location
        raise InvalidOption(
            f"Spark does not keep the options of a table of this format ({', '.join(lost or ['path'])}): create it "
            "without them (CREATE TABLE name USING kafkafs) and name them in each query or view (SELECT * FROM name "
            "WITH (path 'LOGDIR', subscribe 'TOPIC')), or use CREATE TEMPORARY VIEW name USING kafkafs OPTIONS (…)"
        )
    return {name: given[name] for name in _OF_A_TABLE if name in given}


def directories(given: Mapping[str, str], where: str) -> tuple[Path, ...]:
    """The log directories in `path`, or in `paths` (a `load` of several), each once. InvalidOption if there are none.
    `where`: the calls that take them, for the message."""
    texts = [given["path"]] if "path" in given else []
    if "paths" in given:
        try:
            texts += json.loads(given["paths"])
        except ValueError:
            raise InvalidOption(f"option paths takes a JSON list of log directories, not {given['paths']}") from None
    if not texts or not all(text.strip() for text in texts):
        raise InvalidOption(
            f"no log directory: name it in {where}, or as option 'path'; of a table in SQL, in WITH (path 'LOGDIR', …)"
        )
    return tuple(dict.fromkeys(_local(text) for text in texts))


def schema_places(given: Mapping[str, str]) -> SchemaPlaces:
    """The places in option `schemas`: a place or a JSON list of places. InvalidOption."""
    if given.get("schemas", "x").strip() == "":
        raise InvalidOption("option schemas is empty")
    places = OWN_SCHEMAS
    try:
        for text in _texts(given, "schemas"):
            named = OWN_SCHEMAS.with_text(text)
            places |= named if named.directory is None else SchemaPlaces(_local(text))
    except ValueError as error:
        raise InvalidOption(f"option schemas: {error}") from None
    return places.absolute()


def tier(given: Mapping[str, str]) -> Tier | None:
    """The tier in option `tier` (a place or a JSON list of places), with the keys in `tierKey` (ID=FILE or a JSON list
    of such); None if `tier` is absent. InvalidOption."""
    places, keys = (_texts(given, name) for name in ("tier", "tierKey"))
    pairs = [text.partition("=") for text in keys]
    if not all(name and file for name, _, file in pairs):
        raise InvalidOption(f"option tierKey takes ID=FILE, not {given['tierkey']}")
    absolute = [place if "://" in place else str(Path(place).absolute()) for place in places]
    return Tier(absolute, {name: Path(file).absolute() for name, _, file in pairs}) if absolute else None


def _texts(given: Mapping[str, str], name: str) -> list[str]:
    text = given.get(name.lower(), "")
    if not text.startswith("["):
        return [text] if text else []
    try:
        return [str(item) for item in json.loads(text)]
    except ValueError:
        raise InvalidOption(f"option {name} takes a JSON list of texts, not {text}") from None


def _local(text: str) -> Path:
    """The path that `text` names: a path, a `file:` URI as Hadoop writes it, in which percent signs are not escapes, or
    the URL of a backup in an object store."""
    uri = _URI.match(text)
    if "://" in text and not text.lower().startswith("file:"):
        try:
            return open_stored(text)
        except TierUnavailable as error:
            raise InvalidOption(
                f"{text} is neither a directory on this machine nor a backup that `kafkafs mirror` made: {error}"
            ) from None
    if uri is None:
        return real_place(Path(text).absolute())
    if uri["scheme"].lower() != "file" or uri["host"] not in (None, "", "localhost"):
        raise InvalidOption(f"{text} is not a directory on this machine")
    return Path(uri["path"])


def positive(given: Mapping[str, str], name: str) -> int | None:
    """The value of an option that takes a positive number; None if the option is absent. InvalidOption."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not re.fullmatch("[0-9]{1,18}", text.strip()) or int(text) == 0:
        raise InvalidOption(f"option {name} takes a positive number, not {text!r}")
    return int(text)


def milliseconds(given: Mapping[str, str], name: str, default: int) -> int:
    """The milliseconds in an option that takes a duration as Spark writes it (`15m`). InvalidOption."""
    text = given.get(name.lower())
    if text is None:
        return default
    duration = re.fullmatch("([0-9]{1,12}) *([a-z]*)", text.strip().lower())
    if duration is None or duration[2] not in _UNITS_MS:
        raise InvalidOption(f"option {name} takes a duration like 500ms, 30s or 15m, not {text!r}")
    return int(int(duration[1]) * _UNITS_MS[duration[2]])


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """The value of an option that is true or false. InvalidOption."""
    word = given.get(name.lower(), str(default)).strip().lower()
    if word not in ("true", "false"):
        raise InvalidOption(f"option {name} must be true or false, not {given[name.lower()]!r}")
    return word == "true"


def one_of(given: Mapping[str, str], name: str, choices: Mapping[str, _T]) -> _T:
    """The value in `choices` for an option's word; the first choice if the option is absent. InvalidOption."""
    word = given.get(name.lower(), next(iter(choices))).strip().lower()
    if word not in choices:
        raise InvalidOption(f"option {name} must be {' or '.join(choices)}, not {given[name.lower()]!r}")
    return choices[word]

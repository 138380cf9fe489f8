"""Paths of the mounted tree: path text to node, and back to names. Pure. See kafkafs/CONTRACT.md, "The tree".

A node is the meaning of a path, which need not exist: `/t/7` is a PartitionPath whether or not the topic has eight
partitions. Two spellings of one range (`20261120`, `2026-11-20`) give equal nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar
from urllib.parse import quote, unquote_to_bytes

from kafkafs.file_names import decoded_name
from kafkafs.reading.range_names import MalformedRange, OffsetSpec, TimeSpec, parse_offset_spec, parse_time_spec
from storage.files.names import partition_number, topic_name_problem
from storage.types import TopicPartition

_Spec = TypeVar("_Spec")

DECODED = "decoded.jsonl"
STATE_FILE = "@state.json"
EXTENSIONS = ("txt", DECODED, "jsonl", "log")  # the first that a name ends with counts: DECODED ends with "jsonl"
MAX_NAME_BYTES = 255  # NAME_MAX, as statfs reports it
RENDERED = tuple(ext for ext in EXTENSIONS if ext != "log")  # rendered message by message
_SCHEMA_NAME = re.compile(r"(0|[1-9][0-9]{0,9})\.([a-z]+)")
ROOT_FILES = ("@help", "@status.json", "@metrics")

_LATEST = "latest."


class NoSuchPath(Exception):
    """The tree has no such file or directory (ENOENT)."""


class NameTooLong(Exception):
    """A name in a path has more than MAX_NAME_BYTES (ENAMETOOLONG)."""


@dataclass(frozen=True, slots=True)
class Root:
    """The mountpoint itself."""


@dataclass(frozen=True, slots=True)
class RootFile:
    """`@help`, `@status.json` or `@metrics`."""

    name: str


@dataclass(frozen=True, slots=True)
class Groups:
    """`@groups`"""


@dataclass(frozen=True, slots=True)
class GroupDir:
    """`@groups/<group>`; `group` is decoded."""

    group: str


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """`@groups/<group>/<topic>`"""

    group: str
    topic: str


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """`@groups/<group>/<topic>/<partition>`: a committed offset."""

    group: str
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class GroupState:
    """`@groups/<group>/@state.json`"""

    group: str


@dataclass(frozen=True, slots=True)
class Schemas:
    """`@schemas`, or its directory `ids` or `subjects`."""

    part: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaSubject:
    """`@schemas/subjects/<subject>`; `subject` is decoded."""

    subject: str


@dataclass(frozen=True, slots=True)
class SchemaFile:
    """`@schemas/ids/<number>.<suffix>` (`subject` None), or `@schemas/subjects/<subject>/<number>.<suffix>`."""

    subject: str | None
    number: int
    suffix: str


@dataclass(frozen=True, slots=True)
class TopicPath:
    """`<topic>`"""

    topic: str


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """`<topic>/@config`"""

    topic: str


@dataclass(frozen=True, slots=True)
class Append:
    """`@append` (lines) or `@append.jsonl` of a topic, by its name, or of a partition."""

    place: str | TopicPartition
    jsonl: bool


@dataclass(frozen=True, slots=True)
class PartitionPath:
    """`<topic>/<partition>`"""

    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionEntry:
    """`@info.json`, `offsets`, `time` or `segments` of a partition."""

    tp: TopicPartition
    name: str


@dataclass(frozen=True, slots=True)
class RangePath:
    """`messages.EXT` (`spec` None: the whole partition, growing), `offsets/RANGE.EXT` or `time/RANGE.EXT`; with a `key`
    (then `spec` is None) `keys/<key>.EXT` of a partition."""

    tp: TopicPartition
    spec: OffsetSpec | TimeSpec | None
    ext: str
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Keys:
    """`keys` of a topic, given by its name, or of a partition."""

    place: str | TopicPartition


@dataclass(frozen=True, slots=True)
class TopicKey:
    """`<topic>/keys/<key>.EXT`: the messages with a key in all partitions."""

    topic: str
    key: bytes
    ext: str


@dataclass(frozen=True, slots=True)
class LatestPath:
    """`latest.EXT` of a topic, by its name, or of a partition: the last message of every key."""

    place: str | TopicPartition
    ext: str


@dataclass(frozen=True, slots=True)
class SegmentPath:
    """`segments/<name>`: any name; the view finds out whether the file exists."""

    tp: TopicPartition
    name: str


Node = (
    Root
    | RootFile
    | Groups
    | GroupDir
    | GroupTopic
    | GroupOffset
    | GroupState
    | Schemas
    | SchemaSubject
    | SchemaFile
    | TopicPath
    | TopicConfig
    | Append
    | PartitionPath
    | PartitionEntry
    | RangePath
    | Keys
    | TopicKey
    | LatestPath
    | SegmentPath
)


@lru_cache(maxsize=1024)
def parse(path: str) -> Node:
    """The node at `path`, as FUSE gives it: `/`-separated from the mountpoint, `/` for the mountpoint itself.

    Raises NoSuchPath for a path that the tree cannot have; NameTooLong for a name of more than MAX_NAME_BYTES: the
    kernel itself refuses only names of more than 1024 bytes.
    """
    names = [name for name in path.split("/") if name]
    if len(path) * 4 > MAX_NAME_BYTES and any(len(name.encode(errors="replace")) > MAX_NAME_BYTES for name in names):
        raise NameTooLong(path)
    if not names:
        return Root()
    first, rest = names[0], names[1:]
    if first == "@groups":
        return _parse_group(path, rest)
    if first == "@schemas":
        return _parse_schema(path, rest)
    if first.startswith("@"):
        if rest or first not in ROOT_FILES:
            raise NoSuchPath(path)
        return RootFile(first)
    return _parse_topic(path, _topic(path, first), rest)


def _name(encoded: str) -> str:
    """The group or subject that a file name stands for. NoSuchPath."""
    try:
        return decoded_name(encoded)
    except ValueError:
        raise NoSuchPath(encoded) from None


def key_name(key: bytes) -> str:
    """A key as the name of a file without its extension: `/`, `%`, control characters, a leading `.` and bytes that are
    not UTF-8 are percent-encoded; the empty key is a single `%`."""
    if not key:
        return "%"
    text = key.decode("utf-8", "surrogateescape")
    encoded = "".join(quote(name_bytes(char), safe="") if _is_encoded(char) else char for char in text)
    return "%2E" + encoded[1:] if encoded.startswith(".") else encoded


def key_from_name(name: str) -> bytes:
    """The key that a file name stands for: the inverse of `key_name`, but `%XX` may stand for any byte. Raises
    NoSuchPath for a name that stands for no key."""
    if name == "%":
        return b""
    if not name or re.search("%(?![0-9A-Fa-f]{2})", name):
        raise NoSuchPath(name)
    try:
        return unquote_to_bytes(name_bytes(name))
    except UnicodeEncodeError:
        raise NoSuchPath(name) from None


def name_bytes(text: str) -> bytes:
    """The bytes of a name; surrogates stand for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def _is_encoded(char: str) -> bool:
    return char in "/%" or char < " " or "\x7f" <= char < "\xa0" or "\udc80" <= char <= "\udcff"


def _key(path: str, name: str) -> tuple[bytes, str]:
    """The key and the extension of a file in `keys`. NoSuchPath."""
    for ext in sorted(RENDERED, key=len, reverse=True):  # the longest: `decoded.jsonl` also ends in `.jsonl`
        if name.endswith(f".{ext}"):
            return key_from_name(name.removesuffix(f".{ext}")), ext
    raise NoSuchPath(path)


def _topic(path: str, name: str) -> str:
    if topic_name_problem(name) is not None:
        raise NoSuchPath(path)
    return name


@lru_cache(maxsize=1024)  # A partition has many names, and a walk looks them up one after the other.
def _tp(topic: str, name: str) -> TopicPartition:
    number = partition_number(name)
    if number is None:
        raise NoSuchPath(f"{topic}/{name}")
    return TopicPartition(topic, number)


def _parse_group(path: str, names: list[str]) -> Node:
    match names:
        case []:
            return Groups()
        case [group]:
            return GroupDir(_name(group))
        case [group, name] if name == STATE_FILE:
            return GroupState(_name(group))
        case [group, topic]:
            return GroupTopic(_name(group), _topic(path, topic))
        case [group, topic, partition]:
            return GroupOffset(_name(group), _tp(_topic(path, topic), partition))
    raise NoSuchPath(path)


def _parse_schema(path: str, names: list[str]) -> Node:
    match names:
        case []:
            return Schemas()
        case ["ids" | "subjects" as part]:
            return Schemas(part)
        case ["subjects", subject]:
            return SchemaSubject(_name(subject))
        case ["ids", name] if match := _SCHEMA_NAME.fullmatch(name):
            return SchemaFile(None, int(match[1]), match[2])
        case ["subjects", subject, name] if match := _SCHEMA_NAME.fullmatch(name):
            return SchemaFile(_name(subject), int(match[1]), match[2])
    raise NoSuchPath(path)


def _parse_topic(path: str, topic: str, names: list[str]) -> Node:
    match names:
        case []:
            return TopicPath(topic)
        case ["@config"]:
            return TopicConfig(topic)
        case ["keys"]:
            return Keys(topic)
        case ["keys", name]:
            return TopicKey(topic, *_key(path, name))
        case ["@append" | "@append.jsonl" as name]:
            return Append(topic, jsonl=name == "@append.jsonl")
        case [name] if _is_latest(name):
            return LatestPath(topic, name.removeprefix(_LATEST))
        case [partition, *rest]:
            return _parse_partition(path, _tp(topic, partition), rest)
    raise NoSuchPath(path)


def _parse_partition(path: str, tp: TopicPartition, names: list[str]) -> Node:
    match names:
        case []:
            return PartitionPath(tp)
        case ["@append" | "@append.jsonl" as name]:
            return Append(tp, jsonl=name == "@append.jsonl")
        case ["@info.json" | "offsets" | "time" | "segments" as name]:
            return PartitionEntry(tp, name)
        case ["offsets", name]:
            return RangePath(tp, *_range(path, name, parse_offset_spec))
        case ["time", name]:
            return RangePath(tp, *_range(path, name, parse_time_spec))
        case ["keys"]:
            return Keys(tp)
        case ["keys", name]:
            key, ext = _key(path, name)
            return RangePath(tp, None, ext, key)
        case ["segments", name] if name not in (".", ".."):
            return SegmentPath(tp, name)
        case [name] if name.startswith("messages.") and name.removeprefix("messages.") in EXTENSIONS:
            return RangePath(tp, None, name.removeprefix("messages."))
        case [name] if _is_latest(name):
            return LatestPath(tp, name.removeprefix(_LATEST))
    raise NoSuchPath(path)


def _is_latest(name: str) -> bool:
    return name.startswith(_LATEST) and name.removeprefix(_LATEST) in RENDERED


def _range(path: str, name: str, parse_spec: Callable[[str], _Spec]) -> tuple[_Spec, str]:
    ext = next((ext for ext in EXTENSIONS if name.endswith(f".{ext}")), None)
    if ext is None:
        raise NoSuchPath(path)
    try:
        return parse_spec(name.removesuffix(f".{ext}")), ext
    except MalformedRange as error:
        raise NoSuchPath(f"{path}: {error}") from None

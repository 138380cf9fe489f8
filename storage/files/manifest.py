"""A backup's manifest: a JSON file that lists what `kafkafs mirror --manifest` copied, and proves it later.

It is kept outside the log's own files, and replaced as a whole. That of a backup in an object store also says which
objects are the segments: an object's key has the SHA-256 of its bytes, so no object is ever replaced by another one.
See storage/FORMAT.md, "Manifests".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, cast, get_origin, get_type_hints

from storage.errors import CorruptCheckpoint, UnsupportedFormat
from storage.files import names
from storage.files.disk import replace_file
from storage.files.disk_protocol import Disk
from storage.files.log_file import open_quietly
from storage.files.names import FileKind
from storage.files.opening import real_place
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.format.range_digest import BatchRange
from storage.types import TopicPartition

FORMAT: Final = "kafkafs-manifest"
VERSION: Final = 1
_ADVICE: Final = "Restore the file from a copy, or have `kafkafs mirror --manifest` make another one"

_Made = TypeVar("_Made")


@dataclass(frozen=True, slots=True)
class ManifestTopic:
    """A topic as it was in the source. `source_topic`: its name there; `partition_count`: None if unknown there."""

    source_topic: str
    topic_id: str | None
    partition_count: int | None
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ManifestSegment:
    """A segment in an object store: its .log is the next `size_bytes` of the partition's ranges, each of which is an
    object. `mark`: identifies its file in the source, as it was when it was copied. `max_timestamp`: the greatest in
    its batches, -1 without any, and `max_timestamp_offset` the last offset of the first batch that has it.
    """

    base_offset: int
    size_bytes: int
    mark: str
    max_timestamp: int
    max_timestamp_offset: int


@dataclass(frozen=True, slots=True)
class ManifestPartition:
    """The copied part of a partition: ranges of batches, ascending. `log_end_offset`: the offset after the last one.
    `segments`: in an object store, ascending."""

    log_start_offset: int
    log_end_offset: int
    ranges: tuple[BatchRange, ...] = ()
    segments: tuple[ManifestSegment, ...] = ()


@dataclass(frozen=True, slots=True)
class ManifestOffset:
    """An offset that a consumer group had committed in the source; the topic has its name in the copy."""

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """A file of the copy other than a `.log`: its size, and its SHA-256 in hexadecimal. `content`: in Base64, if it is
    a small file in an object store, without an object of its own."""

    size_bytes: int
    sha256: str
    content: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a backup. Topics and partitions are by their names in the copy.

    `cluster_id`: of the source, None if it has none. `created_ms`, `updated_ms`: when the first and the last mirror
    ended, epoch milliseconds. `until_ms`: where the last one cut, None if nowhere. `files`: by path below the copy;
    none of a copy in a broker's directory, because the broker changes them. `superseded`: keys of objects in a store
    that the previous manifest named, and this one does not: the next mirror removes them.
    """

    cluster_id: str | None
    created_ms: int
    updated_ms: int
    until_ms: int | None
    topics: Mapping[str, ManifestTopic] = field(default_factory=dict)
    partitions: Mapping[TopicPartition, ManifestPartition] = field(default_factory=dict)
    groups: tuple[ManifestOffset, ...] = ()
    files: Mapping[str, ManifestFile] = field(default_factory=dict)
    superseded: tuple[str, ...] = ()


def range_key(tp: TopicPartition, listed: BatchRange) -> str:
    """The key of the object in a store that has the bytes of a range."""
    return f"{tp.dir_name}/{listed.first_offset:020d}-{listed.sha256}{FileKind.LOG.value}"


def file_key(path: str, listed: ManifestFile) -> str:
    """The key of the object in a store that has the bytes of a file, where the manifest does not have them."""
    directory, slash, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".")
    return f"{directory}{slash}{stem}-{listed.sha256}{dot}{suffix}"


def is_object_key(key: str) -> bool:
    """Whether `range_key` or `file_key` may have made a key. A store may hold other objects, and a manifest may be a
    stranger's."""
    directory, _, name = key.rpartition("/")
    stem, dash, rest = name.partition("-")
    digest, dot, suffix = rest.partition(".")
    is_hex = len(digest) == 64 and not digest.strip("0123456789abcdef")
    is_file = names.parse_segment_file(f"{stem}{dot}{suffix}") is not None
    return bool(dash) and is_hex and is_file and names.parse_dir(directory).partition is not None


def encode(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    partitions = [
        {
            **asdict(tp),
            "log_start_offset": partition.log_start_offset,
            "log_end_offset": partition.log_end_offset,
            "ranges": [_range_json(batch_range) for batch_range in partition.ranges],
            **({"segments": [asdict(segment) for segment in partition.segments]} if partition.segments else {}),
        }
        for tp, partition in sorted(manifest.partitions.items())
    ]
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "cluster_id": manifest.cluster_id,
        "created_ms": manifest.created_ms,
        "updated_ms": manifest.updated_ms,
        "until_ms": manifest.until_ms,
        "topics": [{"topic": name, **_topic_json(topic)} for name, topic in sorted(manifest.topics.items())],
        "partitions": partitions,
        "groups": [asdict(committed) for committed in manifest.groups],
        "files": [{"path": name, **_known(file)} for name, file in sorted(manifest.files.items())],
    }
    if manifest.superseded:
        content["superseded"] = list(manifest.superseded)
    return json.dumps({**content, "sha256": _digest(content)}, indent=1, ensure_ascii=False).encode() + b"\n"


def parse(data: bytes, path: Path | str | None = None) -> Manifest:
    """The content of the file. CorruptCheckpoint unless it is exactly what was written; UnsupportedFormat for a
    version that is not known here."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise ValueError(f"not an object with the format {FORMAT!r}")
        if content["version"] != VERSION:
            raise UnsupportedFormat(
                "manifest has an unknown version", path=path, expected=VERSION, found=content["version"]
            )
        stored = content.pop("sha256")
        if stored != _digest(content):
            raise ValueError("its content does not have the SHA-256 that it states")
        return _manifest(content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        found = f"no member {error}" if isinstance(error, KeyError) else error
        raise CorruptCheckpoint("manifest does not parse", path=path, found=found, advice=_ADVICE) from None


def read(path: Path) -> Manifest | None:
    """Reads a manifest, a file that a person names; None when there is none. CorruptCheckpoint, UnsupportedFormat,
    OSError."""
    data = read_whole(real_place(path), MOST_ENTRIES_BYTES)
    return None if data is None else parse(data, path)


def digest_file(path: Path) -> ManifestFile | None:
    """A file as a manifest lists it; None when there is none. OSError."""
    try:
        with open(path, "rb", buffering=0, opener=open_quietly) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return ManifestFile(file.tell(), digest)
    except FileNotFoundError:
        return None


def write(disk: Disk, path: Path, manifest: Manifest) -> None:
    """Replaces the file as a whole and durably (storage.files.disk.replace_file). OSError."""
    replace_file(disk, real_place(path), encode(manifest))


def _digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of the content as JSON with sorted keys, without white space."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _topic_json(topic: ManifestTopic) -> dict[str, Any]:
    return {**asdict(topic), "configs": dict(sorted(topic.configs.items()))}


def _range_json(batch_range: BatchRange) -> dict[str, Any]:
    return {**_known(batch_range), "crc_of_crcs": f"{batch_range.crc_of_crcs:08x}"}


def _known(listed: ManifestFile | BatchRange) -> dict[str, Any]:
    return {name: value for name, value in asdict(listed).items() if value is not None}


def _manifest(content: Mapping[str, Any]) -> Manifest:
    topics = {
        _text(topic["topic"]): _typed(
            ManifestTopic, topic["source_topic"], topic["topic_id"], topic["partition_count"], dict(topic["configs"])
        )
        for topic in content["topics"]
    }
    partitions = {
        _typed(TopicPartition, entry["topic"], entry["partition"]): _typed(
            ManifestPartition,
            entry["log_start_offset"],
            entry["log_end_offset"],
            tuple(map(_range, entry["ranges"])),
            tuple(_typed(ManifestSegment, **segment) for segment in entry.get("segments", ())),
        )
        for entry in content["partitions"]
    }
    groups = tuple(_typed(ManifestOffset, **committed) for committed in content["groups"])
    # Manifests of earlier versions of kafkafs list no files.
    files = {
        _text(entry["path"]): _typed(ManifestFile, entry["size_bytes"], entry["sha256"], entry.get("content"))
        for entry in content.get("files", ())
    }
    superseded = tuple(map(_text, content.get("superseded", ())))
    times = content["created_ms"], content["updated_ms"], content["until_ms"]
    return _typed(Manifest, content["cluster_id"], *times, topics, partitions, groups, files, superseded)


def _range(entry: dict[str, Any]) -> BatchRange:
    return _typed(BatchRange, **{**entry, "crc_of_crcs": int(entry["crc_of_crcs"], 16)})


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _typed(kind: type[_Made], *values: Any, **named: Any) -> _Made:
    """Makes a `kind` of these values. TypeError if a text, number or None does not have its field's type."""
    checked = kind(*values, **named)
    for name, expected in _simple_types(cast("Hashable", kind)):
        value = getattr(checked, name)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}")
    return checked


@cache
def _simple_types(kind: Hashable) -> list[tuple[str, Any]]:
    hints = get_type_hints(kind).items()
    return [(name, expected) for name, expected in hints if get_origin(expected) in (None, UnionType)]

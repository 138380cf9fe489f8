"""How tiers lay out their objects, detected from the names in a place.

    LocalTieredStorage   <topic>-<partition>-<topic id>/<base offset>-<segment id>.log .index .timeindex .snapshot
                         .leader_epoch_checkpoint .txnindex; uploaded in this order, except that .snapshot comes last
    Aiven's plugin       <prefix><topic>-<topic id>/<partition>/<base offset>-<segment id>.log .indexes .rsm-manifest;
                         uploaded in this order
    plain segments       <topic>-<partition>/<base offset>.log and so on: a partition's directory, perhaps of a backup

Ids are 22 characters, base offsets 20 digits. A place may hold several layouts, in any directories. Sources: Kafka's
RemoteTopicPartitionDirectory, RemoteLogSegmentFileset; Aiven's ObjectKeyFactory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Final

from storage.files import leader_epochs, names
from storage.files.names import DirKind, FileKind, FileState
from storage.files.partition_metadata import id_bytes, id_text
from storage.tier.object_places import ListedObject, Place
from storage.tier.remote_segments import Content, RemoteFile, RemoteSegment, TopicIdPartition
from storage.types import MAX_OFFSET

_SEGMENT: Final = re.compile(r"([0-9]{20})-([A-Za-z0-9_-]{22})(\.[a-z_-]+)")
_WITH_ID: Final = re.compile(r"(.+)-([A-Za-z0-9_-]{22})")
_KINDS: Final = {kind.value: kind for kind in FileKind}
_LOCAL_EPOCHS: Final = ".leader_epoch_checkpoint"
_MOST_LEVELS: Final = 12  # of directories above a partition's: a prefix has few


class TierLayout(Enum):
    """A layout; the value is its name for people."""

    LOCAL = "LocalTieredStorage"
    AIVEN = "Aiven"
    PLAIN = "plain segments"


# The suffixes of the objects of every segment, and of those that are missing if its upload was not finished.
_EXPECTED: Final = {
    TierLayout.LOCAL: (".log", ".index", ".timeindex", ".snapshot", _LOCAL_EPOCHS),
    TierLayout.AIVEN: (".log", ".indexes", ".rsm-manifest"),
    TierLayout.PLAIN: (".log", ".index", ".timeindex"),
}
_COMPLETE: Final = {
    TierLayout.LOCAL: (".log", ".snapshot"),
    TierLayout.AIVEN: (".log", ".rsm-manifest"),
    TierLayout.PLAIN: (".log",),
}


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing."""

    place: Place
    key: str
    size: int
    version: str

    @property
    def name(self) -> str:
        return self.place.object_name(self.key)


Opener = Callable[[StoredObject], RemoteFile]
Loader = Callable[[TopicIdPartition, str, int, Mapping[str, StoredObject]], Content]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The partitions to look for; None matches everything."""

    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None

    def has(self, partition: TopicIdPartition, layout: TierLayout) -> bool:
        """Whether a partition matches. Its id decides if both have one: the topic in its directory's name may begin
        with a key prefix."""
        if self.partition not in (None, partition.partition):
            return False
        if self.topic_id is not None and partition.topic_id is not None:
            return self.topic_id == partition.topic_id
        if self.topic is None or self.topic == partition.topic:
            return True
        return layout is TierLayout.AIVEN and partition.topic.endswith(self.topic)

    def may_be_below(self, name: str) -> bool:
        """Whether a directory with this name may contain a matching partition."""
        with_id = _with_id(name)
        if with_id is None:
            return True
        topic, topic_id = with_id
        if self.topic_id is not None:
            return topic_id == self.topic_id
        return self.topic is None or topic.endswith((self.topic, f"{self.topic}-{self.partition}"))


@dataclass(frozen=True, slots=True)
class RemoteDirectory:
    """A directory that holds a partition's segments, or some of them."""

    of: TopicIdPartition
    place: Place
    key: str
    layout: TierLayout


def find(place: Place, sought: Wanted, listed: Callable[[str], Sequence[ListedObject]]) -> Iterator[RemoteDirectory]:
    """Yield the directories of a place with matching partitions; `listed` lists a directory. TierUnavailable."""
    to_list: list[tuple[str, int]] = [("", 0)]
    while to_list:
        key, level = to_list.pop()
        entries = listed(key)
        parent, name = (*place.path, *key.split("/"))[-2:] if key else (("", "", *place.path)[-2:])
        kind = _recognised(parent, name, entries)
        if kind is not None:
            if sought.has(*kind):
                yield RemoteDirectory(kind[0], place, key, kind[1])
            continue
        with_id = _with_id(name)
        for entry in reversed(entries):
            if entry.size is not None:
                continue
            inner = f"{key}/{entry.name}" if key else entry.name
            number = names.partition_number(entry.name)
            if with_id is not None and number is not None:
                partition = TopicIdPartition(*with_id, number)
                if sought.has(partition, TierLayout.AIVEN):
                    yield RemoteDirectory(partition, place, inner, TierLayout.AIVEN)
            elif level < _MOST_LEVELS and sought.may_be_below(entry.name):
                to_list.append((inner, level + 1))


def _recognised(parent: str, name: str, entries: Sequence[ListedObject]) -> tuple[TopicIdPartition, TierLayout] | None:
    files = [entry.name for entry in entries if entry.size is not None]
    if any(map(_SEGMENT.fullmatch, files)):
        number, with_id = names.partition_number(name), _with_id(parent)
        if number is not None and with_id is not None:
            return TopicIdPartition(*with_id, number), TierLayout.AIVEN
        with_id = _with_id(name)
        plain = with_id and names.parse_dir(with_id[0]).partition
        if with_id and plain:
            return TopicIdPartition(plain.topic, with_id[1], plain.partition), TierLayout.LOCAL
    if any((parsed := names.parse_segment_file(file)) and parsed.kind is FileKind.LOG for file in files):
        directory = names.parse_dir(name)
        if directory.kind is DirKind.PARTITION and directory.partition is not None:
            return TopicIdPartition(directory.partition.topic, None, directory.partition.partition), TierLayout.PLAIN
    return None


def _with_id(name: str) -> tuple[str, str] | None:
    """A topic (perhaps after a key prefix) and its id, if a name ends with an id."""
    match = _WITH_ID.fullmatch(name)
    # Not every 22 characters are an id: the last character has only two bits.
    return (match[1], match[2]) if match and id_text(id_bytes(match[2])) == match[2] else None


def segments(
    of: TopicIdPartition, directories: Sequence[RemoteDirectory], opened: Opener, manifested: Loader
) -> list[RemoteSegment]:
    """The segments of a partition in these directories, ascending. `opened` opens an object as a file; `manifested`
    returns the content of a segment with a manifest, by its id, base offset and objects by suffix. TierUnavailable."""
    remote_segments: list[RemoteSegment] = []
    # An upload's objects may be in several directories: a key prefix may have been changed.
    uploads: dict[tuple[TierLayout, int, str], dict[str, StoredObject]] = defaultdict(dict)
    for directory in directories:
        plain: dict[str, StoredObject] = {}
        for entry in directory.place.entries(directory.key):
            if entry.size is None:
                continue
            key = f"{directory.key}/{entry.name}".lstrip("/")
            stored = StoredObject(directory.place, key, entry.size, entry.version)
            if directory.layout is TierLayout.PLAIN:
                plain[entry.name] = stored
            elif (match := _SEGMENT.fullmatch(entry.name)) and int(match[1]) <= MAX_OFFSET:
                uploads[directory.layout, int(match[1]), match[2]].setdefault(match[3], stored)
        remote_segments += _plain_segments(of, plain, opened)
    for (layout, base, segment_id), objects in uploads.items():
        name = next(iter(objects.values())).name.rpartition(".")[0]
        if layout is TierLayout.AIVEN:
            load = partial(manifested, of, segment_id, base, objects)
        else:
            load = partial(_local_content, objects, opened)
        remote_segments.append(_segment(of, segment_id, base, name, load, layout, objects))
    return sorted(remote_segments, key=lambda segment: (segment.base_offset, segment.segment_id or ""))


def _segment(
    of: TopicIdPartition,
    segment_id: str | None,
    base: int,
    name: str,
    load: Callable[[], Content],
    layout: TierLayout,
    objects: Mapping[str, StoredObject],
) -> RemoteSegment:
    return RemoteSegment(
        of,
        segment_id,
        base,
        name,
        load,
        is_complete=all(suffix in objects for suffix in _COMPLETE[layout]),
        missing=tuple(suffix for suffix in _EXPECTED[layout] if suffix not in objects),
        stored_bytes=sum(stored.size for stored in objects.values()),
    )


def _local_content(objects: Mapping[str, StoredObject], opened: Opener) -> Content:
    parts = {_KINDS[suffix]: opened(stored) for suffix, stored in objects.items() if suffix in _KINDS}
    epochs = objects.get(_LOCAL_EPOCHS)
    return Content(parts, None if epochs is None else opened(epochs))


def _plain_segments(of: TopicIdPartition, files: Mapping[str, StoredObject], opened: Opener) -> Iterator[RemoteSegment]:
    """Segments named as in a partition's directory. The end of the last segment is unknown."""
    parsed = [part for part in map(names.parse_segment_file, files) if part and part.state is FileState.LIVE]
    bases = sorted(part.offset for part in parsed if part.kind is FileKind.LOG)
    for base, after in zip(bases, (*bases[1:], None), strict=False):
        objects = {kind.value: files[name] for kind in FileKind if (name := names.segment_file(base, kind)) in files}
        objects.pop(FileKind.PRODUCER_SNAPSHOT.value, None)  # the snapshot belongs to the previous segment
        if after is not None and (snapshot := names.segment_file(after, FileKind.PRODUCER_SNAPSHOT)) in files:
            objects[FileKind.PRODUCER_SNAPSHOT.value] = files[snapshot]
        name = objects[FileKind.LOG.value].name.rpartition(".")[0]
        load = partial(_plain_content, base, after, objects, files.get(names.LEADER_EPOCH_CHECKPOINT), opened)
        yield _segment(of, None, base, name, load, TierLayout.PLAIN, objects)


def _plain_content(
    base: int, after: int | None, objects: Mapping[str, StoredObject], epochs: StoredObject | None, opened: Opener
) -> Content:
    content = _local_content(objects, opened)
    file = None if epochs is None else opened(epochs)
    own = None
    if file is not None:
        own = leader_epochs.parse(bytes(file.whole()), Path(file.name)).truncate_from_start(base)
        own = own if after is None else own.truncate_from_end(after)
    return Content(content.parts, file, None if after is None else after - 1, own)

"""Remote segments and their parts, whatever the layout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

from storage.errors import CorruptData
from storage.files import leader_epochs
from storage.files.leader_epochs import LeaderEpochs
from storage.files.names import FileKind
from storage.files.small_files import MOST_ENTRIES_BYTES
from storage.tier.object_places import Place


class RemoteFile(ABC):
    """A part of a remote segment, with the bytes of the broker's file. `name`: of the object, for people; `size`: in
    bytes. Thread-safe."""

    __slots__ = ("name", "size")

    def __init__(self, name: str, size: int) -> None:
        self.name: Final = name
        self.size: Final = size

    @property
    def content_key(self) -> str | None:
        """A name for the file's bytes that is known without a request; None if only reading them can distinguish
        them."""
        return None

    @abstractmethod
    def read(self, position: int, size: int) -> memoryview:
        """The bytes from a position on, fewer than `size` only if the file ends. TierUnavailable; CorruptData if the
        object has an unexpected content."""

    def whole(self) -> memoryview:
        """All bytes of an index or a snapshot. The errors of `read`, and CorruptData for impossible sizes."""
        if self.size > MOST_ENTRIES_BYTES:
            expected = f"at most {MOST_ENTRIES_BYTES} bytes"
            raise CorruptData("is too large for what it is", path=self.name, expected=expected, found=self.size)
        return self.read(0, self.size)


class ObjectFile(RemoteFile):
    """An object with the file's own bytes, in a place whose ranges are read on request."""

    __slots__ = ("_key", "_place")

    def __init__(self, place: Place, key: str, size: int) -> None:
        super().__init__(place.object_name(key), size)
        self._place: Final = place
        self._key: Final = key

    def read(self, position: int, size: int) -> memoryview:
        length = max(0, min(size, self.size - position))
        data = self._place.read(self._key, position, length)
        if len(data) < length:
            found = position + len(data)
            raise CorruptData("object is cut off", path=self.name, expected=f"{self.size} bytes", found=found)
        return memoryview(data)


class JoinedFile(RemoteFile):
    """Files back to back, read like one file."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, name: str, parts: Sequence[RemoteFile]) -> None:
        self._parts: Final = tuple(parts)
        self._ends: Final = tuple(accumulate(part.size for part in parts))
        super().__init__(name, self._ends[-1] if self._ends else 0)

    @property
    def content_key(self) -> str | None:
        keys = [part.content_key for part in self._parts]
        return repr(keys) if keys and None not in keys else None

    def read(self, position: int, size: int) -> memoryview:
        end, pieces = min(position + size, self.size), []
        while position < end:
            slot = bisect_right(self._ends, position)
            start = self._ends[slot] - self._parts[slot].size
            pieces.append(self._parts[slot].read(position - start, min(end, self._ends[slot]) - position))
            position = min(end, self._ends[slot])
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))


class BytesFile(RemoteFile):
    """A file whose bytes are in memory."""

    __slots__ = ("_data",)

    def __init__(self, name: str, data: bytes) -> None:
        super().__init__(name, len(data))
        self._data: Final = data

    def read(self, position: int, size: int) -> memoryview:
        return memoryview(self._data)[position : position + size]


@dataclass(frozen=True, slots=True)
class TopicIdPartition:
    """Kafka's TopicIdPartition; `topic_id` is its text, None in a layout without ids."""

    topic: str
    topic_id: str | None
    partition: int


@dataclass(frozen=True, slots=True)
class Content:
    """`parts`: the files of a segment by kind. `epochs_file`: the leader epochs of the partition from its start to the
    segment's end, as a leader-epoch-checkpoint. `end_offset` is included; None if the layout does not have it."""

    parts: Mapping[FileKind, RemoteFile]
    epochs_file: RemoteFile | None
    end_offset: int | None = None
    segment_epochs: LeaderEpochs | None = None


class RemoteSegment:
    """An upload of a segment.

    `of`: its partition; `segment_id`: of this upload, None in a layout without ids; `name`: the common part of its
    objects' names, for people; `is_complete`: whether the layout shows that the upload was finished; `missing`: the
    suffixes of missing objects; `stored_bytes`: the sizes of the others. Properties may have to be read from an object
    at first use: this raises TierUnavailable and CorruptData. Thread-safe.
    """

    def __init__(
        self,
        of: TopicIdPartition,
        segment_id: str | None,
        base_offset: int,
        name: str,
        load: Callable[[], Content],
        *,
        is_complete: bool,
        missing: tuple[str, ...],
        stored_bytes: int,
    ) -> None:
        self.of: Final = of
        self.segment_id: Final = segment_id
        self.base_offset: Final = base_offset
        self.name: Final = name
        self.is_complete: Final = is_complete
        self.missing: Final = missing
        self.stored_bytes: Final = stored_bytes
        self._load: Final = load
        # Not a cached_property: in Python 3.11 those of all segments share one lock, so that reads would wait for each
        # other.
        self._content: Content | None = None  # two threads may read it at the same time; the results are equal

    def __repr__(self) -> str:
        return f"RemoteSegment({self.name})"

    @property
    def content(self) -> Content:
        """The segment's files, and its manifest's data if the layout has manifests. Read once."""
        if self._content is None:
            self._content = self._load()
        return self._content

    @property
    def end_offset(self) -> int | None:
        """The last offset, included, which may be above the last record's; None if the layout does not have it."""
        return self.content.end_offset

    @property
    def log_size(self) -> int | None:
        """The size of the .log in bytes; None if it is missing."""
        log = self.part(FileKind.LOG)
        return None if log is None else log.size

    def part(self, kind: FileKind) -> RemoteFile | None:
        """The segment's file of a kind; None if it is missing, or the broker had none (a transaction index)."""
        return self.content.parts.get(kind)

    @property
    def epochs(self) -> LeaderEpochs | None:
        """The leader epochs of the partition from its start to the segment's end; None if they are missing. Also raises
        CorruptCheckpoint."""
        file = self.content.epochs_file
        return None if file is None else leader_epochs.parse(bytes(file.whole()), Path(file.name))

    @property
    def segment_epochs(self) -> LeaderEpochs | None:
        """The leader epochs of the segment's own offsets, the first from its base offset on. The errors of `epochs`."""
        own = self.content.segment_epochs
        if own is None and (epochs := self.epochs) is not None:
            own = epochs.truncate_from_start(self.base_offset)
        return own

"""A segment's .log whose bytes are in a tier.

A remote segment may begin before and end after the part that the log needs (`remote_lineage.slices_of`): the file is a
span of the remote .log. To readers it is a file that never changes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.errors import StorageError, TierUnavailable, error_text
from storage.files import offset_index
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind
from storage.types import TimestampOffset

if TYPE_CHECKING:
    from storage.tier.remote_segments import RemoteSegment

REQUESTS_AT_ONCE: Final = 16  # to a tier, by a caller that needs several


class RemoteSpan(NamedTuple):
    """Bytes from `start` to `end` (excluded) of a remote segment's .log; all of it if `is_whole`. Its first batch
    begins at or after `base_offset`; `end_offset` (excluded) is where the next segment begins. `remote`: None if its
    objects are missing, for the `reason`. `where`: the kind of its place, for people. `greatest`: the greatest
    timestamp and the last offset of the first batch that has it, if that is known without reading. `times`: offsets,
    ascending, each with the least and greatest timestamp of the messages from it to the next offset, if known without
    reading."""

    base_offset: int
    end_offset: int
    start: int
    end: int
    remote: RemoteSegment | None
    is_whole: bool = True
    reason: str = "no segment in the tier has them"
    where: str = "tiered storage"
    greatest: TimestampOffset | None = None
    times: tuple[tuple[int, int, int], ...] = ()


def unavailable(first_offset: int, end_offset: int, reason: object, path: Path | None, where: str) -> TierUnavailable:
    """The error for messages up to `end_offset` (excluded) that a tier or a backup (`where`) cannot deliver."""
    what = f"messages {first_offset} to {end_offset - 1} are in {where} and cannot be read"
    return TierUnavailable(what, path=path, offset=first_offset, found=reason)


class TieredFile(LogFile):
    """A .log in a tier. Thread-safe."""

    __slots__ = ("_failures", "_look_later", "span")

    def __init__(self, path: Path, span: RemoteSpan, look_later: Callable[[], object] = lambda: None) -> None:
        """`path`: for errors. `look_later`: makes the log look at the tier again at its next use."""
        from hashlib import blake2b

        number = int.from_bytes(blake2b(f"{path} {span}".encode("utf-8", "surrogateescape"), digest_size=7).digest())
        super().__init__(path, FileIdentity(0, number))
        self._look_later = look_later
        self._failures = 0
        self.span: Final = span

    @property
    def content_key(self) -> str | None:
        """`RemoteFile.content_key` for all bytes of the file."""
        try:
            log = None if self.span.remote is None else self.span.remote.part(FileKind.LOG)
        except StorageError:
            return None
        if log is None or not log.content_key:
            return None
        return repr((log.content_key, self.span.start, self.span.end))

    def part(self, kind: FileKind) -> bytes | None:
        """The segment's index of a kind, adapted to the bytes of this file; None if it cannot be read."""
        remote = self.span.remote
        try:
            if remote is None or (kind is not FileKind.OFFSET_INDEX and not self.span.is_whole):
                return None
            file = remote.part(kind)
            data = None if file is None else bytes(file.whole())
            return data if data is None or self.span.is_whole else self._shifted(data, remote.base_offset)
        except (StorageError, OSError):
            return None

    def _shifted(self, data: bytes, base_offset: int) -> bytes:
        """The entries within the span of an .index of a segment with this base offset."""
        index, span = offset_index.parse(data, base_offset, self.span.end), self.span
        entries = [
            (offset, position - span.start)
            for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True)
            if position > span.start and span.base_offset < offset < span.end_offset
        ]
        return offset_index.encode(
            [entry for entry, _ in entries], [position for _, position in entries], span.base_offset
        )

    def read(self, position: int, size: int, into: bytearray | memoryview | None = None) -> memoryview:
        """`LogFile.read`. TierUnavailable, naming the offsets, if the tier does not give the bytes."""
        span = self.span
        size = max(0, min(size, self._size - position))
        data = self._read(span.start + position, size) if size else memoryview(b"")
        if into is None:
            return data
        target = memoryview(into)
        target[: len(data)] = data
        return target[: len(data)]

    def _read(self, position: int, size: int) -> memoryview:
        span = self.span
        try:
            if span.remote is None:
                raise TierUnavailable(span.reason)
            file = span.remote.part(FileKind.LOG)
            if file is None:
                raise TierUnavailable(f"{span.remote.name}.log is not there")
            data = file.read(position, size)
            if len(data) < size:
                raise TierUnavailable(f"{file.name} has {position + len(data)} of {span.end} bytes")
            return data
        except (StorageError, OSError) as error:
            self._failures += 1
            self._look_later()
            raise unavailable(span.base_offset, span.end_offset, error_text(error), self.path, span.where) from error

    @property
    def _size(self) -> int:
        return self.span.end - self.span.start

    def skip_hole(self, position: int) -> int:
        return position

    def has_holes(self) -> bool:
        return False

    def uncached(self, start: int, end: int) -> list[tuple[int, int]]:
        return []

    def read_each(self, positions: Iterable[int], size: int) -> list[bytes]:
        return [bytes(self.read(position, size)) for position in positions]

    def stat(self) -> os.stat_result:
        """A status with the file's size. The ctime changes when a read fails, so that readers examine the file
        again."""
        times = {"st_mtime_ns": 0, "st_atime_ns": 0, "st_ctime_ns": self._failures}
        return os.stat_result((0o100444, self.identity.inode, 0, 1, 0, 0, self._size, 0, 0, 0), times)

"""A segment's .log whose bytes are in a tier, or will be: read in the log directory as long as it is there.

Remote segments need not begin and end where the log needs them (`remote_choice`), nor where the file did that was here
before. So what is remote is a row of spans, each of one remote file. To readers it is one file that never changes: a
segment means the same bytes before and after it has moved.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from storage.errors import SegmentGone, StorageError, TierUnavailable
from storage.files import offset_index
from storage.files.descriptors import wait_for_room
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind

if TYPE_CHECKING:
    from storage.tier.remote_segments import RemoteSegment

REQUESTS_AT_ONCE: Final = 16  # of a tier, by whoever needs several
_COPY_BYTES: Final = 1 << 20


class Span(NamedTuple):
    """Bytes from `start` to `end` (excluded) of a remote segment's .log; all of it if `is_whole`. Its first batch
    begins at `base_offset`, or behind it; `end_offset` (excluded) is where the next span begins. `remote`: None where
    nothing is there, for the `reason`."""

    base_offset: int
    end_offset: int
    start: int
    end: int
    remote: RemoteSegment | None
    is_whole: bool = True
    reason: str = "no segment in the tier has them"


def unavailable(first_offset: int, end_offset: int, reason: object, path: Path | None) -> TierUnavailable:
    """The error for messages up to `end_offset` (excluded) that a tier does not give."""
    what = f"messages {first_offset} to {end_offset - 1} are in tiered storage and cannot be read"
    return TierUnavailable(what, path=path, offset=first_offset, found=reason)


class TieredFile(LogFile):
    """A .log that is here, in a tier, or first here and then there. Thread-safe.

    `spans`: where it is in the tier; empty as long as that is not known.
    """

    __slots__ = ("_failures", "_has_moved", "_here", "_look", "_look_later", "_noted", "_size", "spans")

    def __init__(
        self,
        here: LogFile | None,
        path: Path,
        spans: tuple[Span, ...],
        look: Callable[[], object] = lambda: None,
        look_later: Callable[[], object] = lambda: None,
    ) -> None:
        """`here`: the file in the log directory. `path`: what errors name. `look`: has the log look where its files are
        now, and move this one; `look_later`: at its next use."""
        from hashlib import blake2b

        number = int.from_bytes(blake2b(f"{path} {spans}".encode("utf-8", "surrogateescape"), digest_size=7).digest())
        super().__init__(path, FileIdentity(0, number) if here is None else here.identity)
        self._here = here
        self._look = look
        self._look_later = look_later
        self._failures = 0
        self._has_moved = False
        self._noted: os.stat_result | None = None
        self._size = sum(span.end - span.start for span in spans)
        self.spans = spans

    @property
    def path(self) -> Path:
        return super().path if self._here is None else self._here.path

    @property
    def was_here(self) -> bool:
        """Whether it was in the log directory, and is read in the tier now."""
        return self._has_moved

    @property
    def is_here(self) -> bool:
        """Whether it is still read in the log directory."""
        return self._here is not None

    @property
    def content_key(self) -> str | None:
        """`RemoteFile.content_key` of all its bytes."""
        if self._here is not None:
            return None
        try:
            logs = [None if span.remote is None else span.remote.part(FileKind.LOG) for span in self.spans]
        except StorageError:
            return None
        keys = [None if log is None else log.content_key for log in logs]
        if not all(keys):
            return None
        return repr([(key, span.start, span.end) for key, span in zip(keys, self.spans, strict=True)])

    def move(self, spans: tuple[Span, ...]) -> None:
        """From now on it is read in the tier, where these spans have all its bytes."""
        self._size = sum(span.end - span.start for span in spans)
        self.spans = spans
        self._has_moved = True
        self._here = None

    def part(self, kind: FileKind) -> bytes | None:
        """The content of the segment's index of a kind, as for a file of these bytes; None where it is in the log
        directory, or cannot be read."""
        if self._here is not None:
            return None
        try:
            if len(self.spans) == 1 and self.spans[0].is_whole and self.spans[0].remote is not None:
                return _bytes_of(self.spans[0].remote, kind)
            return self._offset_index() if kind is FileKind.OFFSET_INDEX else None
        except (StorageError, OSError):
            return None

    def _offset_index(self) -> bytes:
        offsets: list[int] = []
        positions: list[int] = []
        shift = 0
        for span in self.spans:
            data = None if span.remote is None else _bytes_of(span.remote, FileKind.OFFSET_INDEX)
            if data is not None and span.remote is not None:
                index = offset_index.parse(data, span.remote.base_offset, span.end)
                for offset, position in zip(index.offsets.tolist(), index.positions.tolist(), strict=True):
                    at = position - span.start + shift
                    if position >= span.start and at > 0 and self.spans[0].base_offset < offset < span.end_offset:
                        offsets.append(offset)
                        positions.append(at)
            shift += span.end - span.start
        return offset_index.encode(offsets, positions, self.spans[0].base_offset)

    def read(self, position: int, size: int, into: bytearray | memoryview | None = None) -> memoryview:
        """`LogFile.read`. TierUnavailable, naming the offsets, where it is in the tier and cannot be read."""
        here = self._here
        if here is not None:
            try:
                return here.read(position, size, into)
            except SegmentGone:
                self._find()
        parts: list[memoryview] = []
        at = 0
        for span in self.spans:
            start, end = max(position, at), min(position + size, at + span.end - span.start)
            if start < end:
                parts.append(self._read_span(span, span.start + start - at, end - start))
            at += span.end - span.start
        if into is None:
            return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        target, filled = memoryview(into), 0
        for part in parts:
            target[filled : filled + len(part)] = part
            filled += len(part)
        return target[:filled]

    def _read_span(self, span: Span, position: int, size: int) -> memoryview:
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
            raise unavailable(span.base_offset, span.end_offset, str(error), self.path) from error

    def _find(self) -> None:
        """Has the log look where the file is now; to be called where it is not here. Raises what is being handled if
        that did not help."""
        self._look()
        if self._here is not None:
            raise

    def skip_hole(self, position: int) -> int:
        here = self._here
        return position if here is None else here.skip_hole(position)

    def read_each(self, positions: Iterable[int], size: int) -> list[bytes]:
        here = self._here
        if here is not None:
            try:
                return here.read_each(positions, size)
            except SegmentGone:
                self._find()
        return [bytes(self.read(position, min(size, self._size - position))) for position in positions]

    def send(self, out_fd: int, position: int, size: int) -> int:
        here = self._here
        if here is not None:
            return here.send(out_fd, position, size)
        sent = 0
        while sent < size and (data := self.read(position + sent, min(size - sent, _COPY_BYTES))):
            while data:
                try:
                    count = os.write(out_fd, data)
                except BlockingIOError:
                    wait_for_room(out_fd)
                    continue
                data, sent = data[count:], sent + count
        return sent

    def stat(self) -> os.stat_result:
        """In the tier: the status that the file had here, or else one of its size. The ctime changes when a read fails:
        what was found of it then is found again."""
        here = self._here
        if here is not None:
            try:
                self._noted = here.stat()
                return self._noted
            except SegmentGone:
                self._find()
        noted = self._noted
        if noted is not None and not self._failures:
            return noted
        mtime, number = (0, self.identity.inode) if noted is None else (noted.st_mtime_ns, noted.st_ino)
        seconds = (mtime // 10**9,) * 3
        times = {"st_mtime_ns": mtime, "st_atime_ns": mtime, "st_ctime_ns": self._failures}
        return os.stat_result((0o100444, number, 0, 1, 0, 0, self._size, *seconds), times)


def _bytes_of(remote: RemoteSegment, kind: FileKind) -> bytes | None:
    file = remote.part(kind)
    return None if file is None else bytes(file.whole())

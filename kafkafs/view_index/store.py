"""The view index on disk: a small file per measured segment in the user's cache directory, never in a log directory.

Like any cache, a file is only a hint: one that does not match the segment as it is now, or is unreadable, is ignored.
All may be removed at any time; if they cannot be written, segments are measured again after the next start.

    8 bytes   KFSVIEW + version byte
    4 bytes   CRC-32C of everything after it
    4 bytes   length of the key
    ...       the key: what the pieces were made of, JSON
    40 bytes  start, file end, number of pieces; offset and CRC of the last marker that decided about a transaction in
              them (-1: none): it may be in a later segment, which the key does not describe
    ...       the columns of Pieces one after the other, int64, little-endian like all numbers here
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kafkafs.view_index.pieces import COLUMNS, FILE_END, NO_CRC, SIZE, Piece, Pieces
from storage.errors import SegmentGone
from storage.files.file_mark import FileMark
from storage.format.batches import BATCH_HEADER_SIZE, MAGIC_AT
from storage.format.checksum import crc32c
from storage.log.segment import Segment

_log = logging.getLogger(__name__)

# The last byte must be incremented with any change of the layout, of what is measured, or of a format's rendering.
_MAGIC: Final = b"KFSVIEW\x04"
_HEAD: Final = struct.Struct("<8sII")
_SPAN: Final = struct.Struct("<qqqqq")
_SUFFIX: Final = ".view"
# Of a batch's header.
_BASE_AND_CRC: Final = struct.Struct(">q9xI")
_OLD_CRC: Final = struct.Struct(">12xI")
_LEAST_HEADER: Final = 21
_LEAST_BYTES: Final = 1 << 20  # a smaller segment is measured faster than its file is found
_KEPT_PART: Final = 0.9  # of `max_bytes`, after making room


def default_directory() -> Path:
    """`$XDG_CACHE_HOME/kafkafs/views` (XDG base directory specification)."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(home) if home.startswith("/") else Path.home() / ".cache"
    return base / "kafkafs" / "views"


class Marker(NamedTuple):
    """What identifies a transaction's marker."""

    offset: int
    crc: int


NO_MARKER: Final = Marker(-1, -1)


class Store:
    """Measured segments, by what identifies their file. Thread-safe. Errors of its directory are never raised."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        # constant after construction
        self.directory = directory
        self.max_bytes = max_bytes
        # guarded by the lock
        self._lock = threading.Lock()
        self._used_bytes: int | None = None
        self._complained = False

    def load(self, segment: Segment, rendition: str) -> tuple[Pieces, Marker] | None:
        """The pieces of a whole segment, if they were kept and its file is the same, and the marker that must be in the
        log for them to be right. SegmentGone."""
        if segment.size < _LEAST_BYTES:
            return None
        key = _key(segment, rendition)
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        found = _decode(data, key)
        if found is None:
            _log.info("%s: not a view index of this version, or damaged: measuring again", path)
        elif not _describes(found[0], segment):
            _log.info("%s: describes other batches than %s has: measuring again", path, segment.log.path)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # recently used
        return found

    def save(self, segment: Segment, rendition: str, pieces: Pieces, marker: Marker = NO_MARKER) -> bool:
        """Keeps the pieces of a whole segment; False if its file has changed too recently to be sure that it no longer
        changes.

        What was measured must belong to the file identity under which it is kept: the pieces are compared with the file
        after the identity is taken, and then the identity is compared again. Where times are whole seconds, a recently
        written file may be written again without a change of its times. Pieces of a damaged segment are not kept: it
        may be repaired, and its mtime set back.
        """
        if pieces.is_damaged or pieces.start != 0 or pieces.file_end < _LEAST_BYTES:
            return True
        try:
            mark = FileMark.of(segment.log.stat())
            key = _key(segment, rendition)
            if mark.size != pieces.file_end or not _describes(pieces, segment):
                return True
            if not mark.still_shows(segment.log.stat()):
                return False
        except SegmentGone:
            return True
        data = _encode(key, pieces, marker)
        with self._lock:
            try:
                self._make_room_locked(len(data))
                self._write_locked(self._path(key), data)
            except OSError as error:
                if not self._complained:
                    _log.warning("the view index cannot be kept in %s: %s", self.directory, error)
                    self._complained = True
        return True

    def used_bytes(self) -> int:
        """The size of the directory as of the last change."""
        with self._lock:
            return self._used_bytes or 0

    def _path(self, key: bytes) -> Path:
        return self.directory / (hashlib.blake2b(key, digest_size=16).hexdigest() + _SUFFIX)

    def _write_locked(self, path: Path, data: bytes) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            with open(partial, "wb", opener=_private) as file:
                file.write(data)
            partial.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                partial.unlink()
            raise
        self._used_bytes = (self._used_bytes or 0) + len(data)

    def _make_room_locked(self, size: int) -> None:
        if self._used_bytes is not None and self._used_bytes + size <= self.max_bytes:
            return
        files = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.directory) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat()
                    files.append((status.st_mtime_ns, status.st_size, entry.path))
        used = sum(size for _, size, _ in files)
        if used + size > self.max_bytes:
            for _, freed, path in sorted(files):
                if used + size <= self.max_bytes * _KEPT_PART:
                    break
                with contextlib.suppress(FileNotFoundError):
                    Path(path).unlink()
                used -= freed
        self._used_bytes = used


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _key(segment: Segment, rendition: str) -> bytes:
    """What distinguishes a segment's file from every other, and from itself after a change."""
    status = segment.log.stat()
    head = segment.log.read(0, BATCH_HEADER_SIZE)
    return json.dumps(
        {
            "device": status.st_dev,
            "inode": status.st_ino,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "first_batch": bytes(head).hex(),
            "partition": segment.directory.name,
            "rendition": rendition,
        }
    ).encode()


def _describes(pieces: Pieces, segment: Segment) -> bool:
    """Whether the first and the last piece begin with the batches that are there now. SegmentGone.

    The size and times of a file are not enough: a topic that is made again may have segments of the same sizes.
    """
    for row in {0, len(pieces) - 1} if len(pieces) else ():
        piece = pieces.piece(row)
        if piece.crc == NO_CRC:
            continue
        head = segment.log.read(piece.position, BATCH_HEADER_SIZE)
        if len(head) < _LEAST_HEADER or not _is_header_of(head, piece):
            return False
    return True


def _is_header_of(head: memoryview, piece: Piece) -> bool:
    if head[MAGIC_AT] < 2:  # a compressed message's offset is its last one's
        return bool(_OLD_CRC.unpack_from(head)[0] == piece.crc)
    return bool(_BASE_AND_CRC.unpack_from(head) == (piece.base_offset, piece.crc))


def _encode(key: bytes, pieces: Pieces, marker: Marker) -> bytes:
    columns = np.ascontiguousarray(pieces.columns, dtype="<i8").tobytes()
    span = _SPAN.pack(pieces.start, pieces.file_end, len(pieces), *marker)
    body = struct.pack("<I", len(key)) + key + span + columns
    return _MAGIC + struct.pack("<I", crc32c(body)) + body


def _decode(data: bytes, key: bytes) -> tuple[Pieces, Marker] | None:
    if len(data) < _HEAD.size + len(key) + _SPAN.size:
        return None
    magic, crc, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc32c(data[12:]) != crc or data[_HEAD.size : _HEAD.size + length] != key:
        return None
    start, file_end, count, offset, marker_crc = _SPAN.unpack_from(data, _HEAD.size + length)
    columns = np.frombuffer(data, dtype="<i8", offset=_HEAD.size + length + _SPAN.size).astype(np.int64)
    if count < 0 or len(columns) != count * COLUMNS:
        return None
    columns = columns.reshape(COLUMNS, count)
    if count and ((columns[SIZE] <= 0).any() or int(columns[FILE_END, -1]) > file_end):
        return None
    return Pieces(columns, start, file_end), Marker(offset, marker_crc)

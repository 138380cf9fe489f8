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

import logging
import struct
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kafkafs.view_index.cache_files import LEAST_BYTES, begins_with, file_key
from kafkafs.view_index.pieces import COLUMNS, FILE_END, NO_CRC, SIZE, Pieces
from storage.errors import SegmentGone
from storage.files.cache_files import CacheFiles
from storage.files.file_mark import FileMark
from storage.format.checksum import crc32c
from storage.log.segment import Segment

_log = logging.getLogger(__name__)

# The last byte must be incremented with any change of the layout, of what is measured, or of a format's rendering.
_MAGIC: Final = b"KFSVIEW\x04"
_HEAD: Final = struct.Struct("<8sII")
_SPAN: Final = struct.Struct("<qqqqq")
_SUFFIX: Final = ".view"


class Marker(NamedTuple):
    """What identifies a transaction's marker."""

    offset: int
    crc: int


NO_MARKER: Final = Marker(-1, -1)


class Store:
    """Measured segments, by what identifies their file. Thread-safe. Errors of its directory are never raised."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._files = CacheFiles(directory, _SUFFIX, max_bytes)

    def load(self, segment: Segment, rendition: str) -> tuple[Pieces, Marker] | None:
        """The pieces of a whole segment, if they were kept and its file is the same, and the marker that must be in the
        log for them to be right. SegmentGone."""
        if segment.size < LEAST_BYTES:
            return None
        key = file_key(segment, rendition)
        data = self._files.read(key)
        if data is None:
            return None
        found = _decode(data, key)
        if found is None:
            _log.info("%s: not a view index of this version, or damaged: measuring again", self._files.path(key))
        elif not _describes(found[0], segment):
            _log.info("%s: describes other batches than %s has: measuring again", self._files.path(key), segment)
            return None
        self._files.used(key)
        return found

    def save(self, segment: Segment, rendition: str, pieces: Pieces, marker: Marker = NO_MARKER) -> bool:
        """Keeps the pieces of a whole segment; False if its file has changed too recently to be sure that it no longer
        changes.

        What was measured must belong to the file identity under which it is kept: the pieces are compared with the file
        after the identity is taken, and then the identity is compared again. Where times are whole seconds, a recently
        written file may be written again without a change of its times. Pieces of a damaged segment are not kept: it
        may be repaired, and its mtime set back.
        """
        if pieces.is_damaged or pieces.start != 0 or pieces.file_end < LEAST_BYTES:
            return True
        try:
            mark = FileMark.of(segment.log.stat())
            key = file_key(segment, rendition)
            if mark.size != pieces.file_end or not _describes(pieces, segment):
                return True
            if not mark.still_shows(segment.log.stat()):
                return False
        except SegmentGone:
            return True
        self._files.write(key, _encode(key, pieces, marker))
        return True

    def used_bytes(self) -> int:
        """The size of what is kept, as of the last change."""
        return self._files.used_bytes()


def _describes(pieces: Pieces, segment: Segment) -> bool:
    """Whether the first and the last piece begin with the batches that are there now. SegmentGone.

    The size and times of a file are not enough: a topic that is made again may have segments of the same sizes.
    """
    for row in {0, len(pieces) - 1} if len(pieces) else ():
        piece = pieces.piece(row)
        if piece.crc != NO_CRC and not begins_with(segment, piece.position, piece.base_offset, piece.crc):
            return False
    return True


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

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

import json
import logging
import struct
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kafkafs.reading.key_blocks import (
    FIRST,
    KEY_BASE_OFFSET,
    KEY_COLUMNS,
    KEY_CRC,
    KEY_FILE_END,
    KEY_POSITION,
    KEYS,
    WORDS,
    KeyBlocks,
)
from kafkafs.reading.pieces import COLUMNS, NO_CRC, Pieces, can_be_measured
from storage.errors import SegmentGone
from storage.files.cache_files import CacheFiles, cache_directory
from storage.files.file_mark import FileMark
from storage.format.batches import BATCH_HEADER_SIZE, MAGIC_AT
from storage.format.checksum import crc32c
from storage.log.segment import Segment

# Small files about segments in the user's cache directory (storage/files/cache_files.py), by what identifies the
# segment's file.
#
# Whoever reads one must compare it with the segment as it is now.

LEAST_BYTES: Final = 1 << 20  # a smaller segment is read faster than its file here is found
# Of a batch's header.
_BASE_AND_CRC: Final = struct.Struct(">q9xI")
_OLD_CRC: Final = struct.Struct(">12xI")
_LEAST_HEADER: Final = 21


def default_directory() -> Path:
    """Where they are kept."""
    return cache_directory("views")


def file_key(segment: Segment, what: str, *, grows: bool = False) -> bytes:
    """What distinguishes a segment's file from every other, and (unless `grows`) from itself after a change; `what`:
    what is kept of it, a rendition for example. SegmentGone."""
    status = segment.log.stat()
    content = segment.content_key
    if content is not None:
        names = {"content": content, "size": status.st_size, "partition": segment.directory.name, "rendition": what}
        return json.dumps(names).encode()
    head = segment.log.read(0, BATCH_HEADER_SIZE)
    facts = {"device": status.st_dev, "inode": status.st_ino}
    state = {} if grows else {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
    names = {"first_batch": bytes(head).hex(), "partition": segment.directory.name, "rendition": what}
    return json.dumps(facts | state | names).encode()


def begins_with(segment: Segment, position: int, base_offset: int, crc: int) -> bool:
    """Whether the batch with this base offset and CRC begins at a position of a segment's file. SegmentGone."""
    return is_header_of(segment.log.read(position, BATCH_HEADER_SIZE), base_offset, crc)


def is_header_of(head: memoryview | bytes, base_offset: int, crc: int) -> bool:
    """Whether bytes begin with the header of the batch with this base offset and CRC."""
    if len(head) < _LEAST_HEADER:
        return False
    if head[MAGIC_AT] < 2:  # a compressed message's offset is its last one's
        return bool(_OLD_CRC.unpack_from(head)[0] == crc)
    return bool(_BASE_AND_CRC.unpack_from(head) == (base_offset, crc))


_log = logging.getLogger(__name__)

# The last byte must be incremented with any change of the layout, of what is measured, or of a format's rendering.
_MAGIC: Final = b"KFSVIEW\x05"
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
    if segment.content_key is not None:
        return True
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
    at = _HEAD.size + length
    start, file_end, count, offset, marker_crc = _SPAN.unpack_from(data, at)
    if count < 0 or len(data) != at + _SPAN.size + 8 * count * COLUMNS:
        return None
    columns = np.frombuffer(data, dtype="<i8", offset=at + _SPAN.size).astype(np.int64).reshape(COLUMNS, count)
    if start != 0 or file_end != json.loads(key)["size"] or not can_be_measured(columns, file_end):
        return None
    return Pieces(columns, start, file_end), Marker(offset, marker_crc)


# The keys of segments on disk: a file per segment in the user's cache directory (see `cache_files`).
#
#     8 bytes   KFSKEYS + version byte
#     4 bytes   CRC-32C of everything after it
#     4 bytes   length of the key
#     ...       the key: which segment it is, JSON; zero bytes up to a multiple of eight
#     64 bytes  size, mtime and ctime (-1: was not settled) of the segment's file; the two halves of the secret; numbers
#               of blocks, of words and of names (-1: too many names)
#     ...       the columns of KeyBlocks one after the other, int64, little-endian like all numbers here
#     ...       the words of all filters, uint64
#     ...       each name: its length (2 bytes) and the key
#
# A file is believed if its checksum is right, it is of this segment, and each block begins with the batch that is there
# now (base offset and CRC). Where the segment has its ctime of then, which nobody can set back, only some blocks are
# compared: a read for each of a thousand would be half of what the first lookup takes. A segment that has only grown
# since keeps its blocks but the last one.
#
# Numbers are used where they lie in what was read, without a copy.

# The last byte must be incremented with any change of the layout, of the hash, or of a filter's bits.
_KEY_MAGIC: Final = b"KFSKEYS\x02"
_KEY_SPAN: Final = struct.Struct("<qqqQQqqq")
_LENGTH: Final = struct.Struct("<H")
_KEY_SUFFIX: Final = ".keys"
_WHAT: Final = f"keys, {sys.byteorder}"  # hashes are made of words as the machine reads them
_COMPARED: Final = 16  # blocks of a segment that has not changed
_SETTLED_NS: Final = 2_100_000_000  # another change after this time has another ctime on every file system
_NOT_SETTLED: Final = -1


class KeyStore:
    """The keys of segments, by what identifies a segment's file. Thread-safe. Errors of its directory are never
    raised."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._files = CacheFiles(directory, _KEY_SUFFIX, max_bytes)

    def load(self, segment: Segment) -> KeyBlocks | None:
        """The blocks that were kept, as far as they are right for the segment as it is now. SegmentGone."""
        if segment.size < LEAST_BYTES:
            return None
        key = file_key(segment, _WHAT, grows=True)
        data = self._files.read(key)
        if data is None:
            return None
        status = segment.log.stat()
        found = _decode_keys(data, key)
        if found is not None and _describes_keys(found.blocks, segment, some=status.st_ctime_ns == found.ctime_ns):
            blocks = found.blocks
            if status.st_size > found.size:
                # It may have been cut within the last block, and written again. Not before: the last block would begin
                # with another batch.
                self._files.used(key)
                return blocks.until(max(0, len(blocks) - 1))
            if (status.st_size, status.st_mtime_ns) == (found.size, found.mtime_ns):
                self._files.used(key)
                return blocks
        _log.info("%s is damaged or outdated: the keys of %s are read again", self._files.path(key), segment)
        return None

    def save(self, segment: Segment, blocks: KeyBlocks) -> bool:
        """Keeps the blocks of a segment; False if its file has changed too recently to be sure that it no longer
        changes. Those of a damaged segment are not kept: it may be repaired."""
        if blocks.is_damaged or blocks.file_end < LEAST_BYTES:
            return True
        try:
            status = segment.log.stat()
            mark = FileMark.of(status)
            key = file_key(segment, _WHAT, grows=True)
            if mark.size < blocks.file_end or not _describes_keys(blocks, segment):
                return True
            if not mark.still_shows(segment.log.stat()):
                return False
        except SegmentGone:
            return True
        is_settled = time.time_ns() - status.st_ctime_ns > _SETTLED_NS
        ctime_ns = status.st_ctime_ns if is_settled else _NOT_SETTLED
        self._files.write(key, _encode_keys(key, blocks, mark.size, mark.mtime_ns, ctime_ns))
        return True

    def used_bytes(self) -> int:
        """The size of what is kept, as of the last change."""
        return self._files.used_bytes()


def _describes_keys(blocks: KeyBlocks, segment: Segment, *, some: bool = False) -> bool:
    """Whether each block, or some of them, begins with the batch that is there now. SegmentGone."""
    if segment.content_key is not None:
        return True
    columns = blocks.columns
    if some and len(blocks) > _COMPARED:
        columns = columns[:, np.linspace(0, len(blocks) - 1, _COMPARED).astype(np.intp)]
    heads = segment.log.read_each(columns[KEY_POSITION].tolist(), BATCH_HEADER_SIZE)
    batches = columns[KEY_BASE_OFFSET].tolist(), columns[KEY_CRC].tolist()
    return all(is_header_of(*batch) for batch in zip(heads, *batches, strict=True))


def _encode_keys(key: bytes, blocks: KeyBlocks, size: int, mtime_ns: int, ctime_ns: int) -> bytes:
    names = b"".join(_LENGTH.pack(len(name)) + name for name in sorted(blocks.names or ()))
    count = -1 if blocks.names is None else len(blocks.names)
    span = _KEY_SPAN.pack(size, mtime_ns, ctime_ns, *blocks.secret, len(blocks), len(blocks.words), count)
    columns = np.ascontiguousarray(blocks.columns, dtype="<i8").tobytes()
    words = np.ascontiguousarray(blocks.words, dtype="<u8").tobytes()
    body = struct.pack("<I", len(key)) + key + bytes(-len(key) % 8) + span + columns + words + names
    return _KEY_MAGIC + struct.pack("<I", crc32c(body)) + body


class _Kept(NamedTuple):
    """What was kept of a segment, whose file had this size, mtime and ctime."""

    blocks: KeyBlocks
    size: int
    mtime_ns: int
    ctime_ns: int


def _decode_keys(data: bytes, key: bytes) -> _Kept | None:
    """What is in a file; None if it is not what `_encode` has made."""
    at = _HEAD.size + len(key) + -len(key) % 8
    if len(data) < at + _KEY_SPAN.size:
        return None
    magic, crc, length = _HEAD.unpack_from(data)
    if magic != _KEY_MAGIC or crc32c(memoryview(data)[12:]) != crc or data[_HEAD.size : _HEAD.size + length] != key:
        return None
    size, mtime_ns, ctime_ns, first, second, count, words_count, names_count = _KEY_SPAN.unpack_from(data, at)
    at += _KEY_SPAN.size
    if min(count, words_count) < 0 or len(data) < at + 8 * (count * KEY_COLUMNS + words_count):
        return None
    columns = (
        np.frombuffer(data, "<i8", count * KEY_COLUMNS, at).astype(np.int64, copy=False).reshape(KEY_COLUMNS, count)
    )
    at += columns.nbytes
    words = np.frombuffer(data, "<u8", words_count, at).astype(np.uint64, copy=False)
    names = _names(data, at + words.nbytes, names_count)
    if not _is_sound(columns, words_count) or (count and int(columns[KEY_FILE_END, -1]) > size):
        return None
    return _Kept(KeyBlocks(columns, words, names, (first, second)), size, mtime_ns, ctime_ns)


def _is_sound(columns: np.ndarray[tuple[int, int], np.dtype[np.int64]], words: int) -> bool:
    """Whether the blocks follow each other, and so do their filters."""
    if not columns.shape[1]:
        return words == 0
    starts = np.concatenate(([0], columns[KEY_FILE_END, :-1]))
    firsts = np.concatenate(([0], np.cumsum(columns[WORDS])))
    return bool(
        (columns[KEY_POSITION] == starts).all()
        and (columns[KEY_FILE_END] > columns[KEY_POSITION]).all()
        and (columns[WORDS] >= 0).all()
        and (columns[KEYS] >= 0).all()
        and (columns[FIRST] == firsts[:-1]).all()
        and firsts[-1] == words
    )


def _names(data: bytes, at: int, count: int) -> frozenset[bytes] | None:
    """None: too many, or not as many as there should be."""
    names = []
    for _ in range(count):
        if len(data) < at + _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(data, at)
        names.append(data[at + _LENGTH.size : at + _LENGTH.size + length])
        at += _LENGTH.size + length
    return None if count < 0 else frozenset(names)

"""The keys of segments on disk: a file per segment in the user's cache directory (see `cache_files`).

    8 bytes   KFSKEYS + version byte
    4 bytes   CRC-32C of everything after it
    4 bytes   length of the key
    ...       the key: which segment it is, JSON; zero bytes up to a multiple of eight
    64 bytes  size, mtime and ctime (-1: was not settled) of the segment's file; the two halves of the secret; numbers
              of blocks, of words and of names (-1: too many names)
    ...       the columns of KeyBlocks one after the other, int64, little-endian like all numbers here
    ...       the words of all filters, uint64
    ...       each name: its length (2 bytes) and the key

A file is believed if its checksum is right, it is of this segment, and each block begins with the batch that is there
now (base offset and CRC). Where the segment has its ctime of then, which nobody can set back, only some blocks are
compared: a read for each of a thousand would be half of what the first lookup takes. A segment that has only grown
since keeps its blocks but the last one.

Numbers are used where they lie in what was read, without a copy.
"""

from __future__ import annotations

import logging
import struct
import sys
import time
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from kafkafs.view_index.cache_files import LEAST_BYTES, file_key, is_header_of
from kafkafs.view_index.key_blocks import (
    BASE_OFFSET,
    COLUMNS,
    CRC,
    FILE_END,
    FIRST,
    KEYS,
    POSITION,
    WORDS,
    KeyBlocks,
)
from storage.errors import SegmentGone
from storage.files.cache_files import CacheFiles
from storage.files.file_mark import FileMark
from storage.format.batches import BATCH_HEADER_SIZE
from storage.format.checksum import crc32c
from storage.log.segment import Segment

_log = logging.getLogger(__name__)

# The last byte must be incremented with any change of the layout, of the hash, or of a filter's bits.
_MAGIC: Final = b"KFSKEYS\x02"
_HEAD: Final = struct.Struct("<8sII")
_SPAN: Final = struct.Struct("<qqqQQqqq")
_LENGTH: Final = struct.Struct("<H")
_SUFFIX: Final = ".keys"
_WHAT: Final = f"keys, {sys.byteorder}"  # hashes are made of words as the machine reads them
_COMPARED: Final = 16  # blocks of a segment that has not changed
_SETTLED_NS: Final = 2_100_000_000  # another change after this time has another ctime on every file system
_NOT_SETTLED: Final = -1


class KeyStore:
    """The keys of segments, by what identifies a segment's file. Thread-safe. Errors of its directory are never
    raised."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._files = CacheFiles(directory, _SUFFIX, max_bytes)

    def load(self, segment: Segment) -> KeyBlocks | None:
        """The blocks that were kept, as far as they are right for the segment as it is now. SegmentGone."""
        if segment.size < LEAST_BYTES:
            return None
        key = file_key(segment, _WHAT, grows=True)
        data = self._files.read(key)
        if data is None:
            return None
        status = segment.log.stat()
        found = _decode(data, key)
        if found is not None and _describes(found.blocks, segment, some=status.st_ctime_ns == found.ctime_ns):
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
            if mark.size < blocks.file_end or not _describes(blocks, segment):
                return True
            if not mark.still_shows(segment.log.stat()):
                return False
        except SegmentGone:
            return True
        is_settled = time.time_ns() - status.st_ctime_ns > _SETTLED_NS
        ctime_ns = status.st_ctime_ns if is_settled else _NOT_SETTLED
        self._files.write(key, _encode(key, blocks, mark.size, mark.mtime_ns, ctime_ns))
        return True

    def used_bytes(self) -> int:
        """The size of what is kept, as of the last change."""
        return self._files.used_bytes()


def _describes(blocks: KeyBlocks, segment: Segment, *, some: bool = False) -> bool:
    """Whether each block, or some of them, begins with the batch that is there now. SegmentGone."""
    columns = blocks.columns
    if some and len(blocks) > _COMPARED:
        columns = columns[:, np.linspace(0, len(blocks) - 1, _COMPARED).astype(np.intp)]
    heads = segment.log.read_each(columns[POSITION].tolist(), BATCH_HEADER_SIZE)
    batches = columns[BASE_OFFSET].tolist(), columns[CRC].tolist()
    return all(is_header_of(*batch) for batch in zip(heads, *batches, strict=True))


def _encode(key: bytes, blocks: KeyBlocks, size: int, mtime_ns: int, ctime_ns: int) -> bytes:
    names = b"".join(_LENGTH.pack(len(name)) + name for name in sorted(blocks.names or ()))
    count = -1 if blocks.names is None else len(blocks.names)
    span = _SPAN.pack(size, mtime_ns, ctime_ns, *blocks.secret, len(blocks), len(blocks.words), count)
    columns = np.ascontiguousarray(blocks.columns, dtype="<i8").tobytes()
    words = np.ascontiguousarray(blocks.words, dtype="<u8").tobytes()
    body = struct.pack("<I", len(key)) + key + bytes(-len(key) % 8) + span + columns + words + names
    return _MAGIC + struct.pack("<I", crc32c(body)) + body


class _Kept(NamedTuple):
    """What was kept of a segment, whose file had this size, mtime and ctime."""

    blocks: KeyBlocks
    size: int
    mtime_ns: int
    ctime_ns: int


def _decode(data: bytes, key: bytes) -> _Kept | None:
    """What is in a file; None if it is not what `_encode` has made."""
    at = _HEAD.size + len(key) + -len(key) % 8
    if len(data) < at + _SPAN.size:
        return None
    magic, crc, length = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc32c(memoryview(data)[12:]) != crc or data[_HEAD.size : _HEAD.size + length] != key:
        return None
    size, mtime_ns, ctime_ns, first, second, count, words_count, names_count = _SPAN.unpack_from(data, at)
    at += _SPAN.size
    if min(count, words_count) < 0 or len(data) < at + 8 * (count * COLUMNS + words_count):
        return None
    columns = np.frombuffer(data, "<i8", count * COLUMNS, at).astype(np.int64, copy=False).reshape(COLUMNS, count)
    at += columns.nbytes
    words = np.frombuffer(data, "<u8", words_count, at).astype(np.uint64, copy=False)
    names = _names(data, at + words.nbytes, names_count)
    if not _is_sound(columns, words_count) or (count and int(columns[FILE_END, -1]) > size):
        return None
    return _Kept(KeyBlocks(columns, words, names, (first, second)), size, mtime_ns, ctime_ns)


def _is_sound(columns: np.ndarray[tuple[int, int], np.dtype[np.int64]], words: int) -> bool:
    """Whether the blocks follow each other, and so do their filters."""
    if not columns.shape[1]:
        return words == 0
    starts = np.concatenate(([0], columns[FILE_END, :-1]))
    firsts = np.concatenate(([0], np.cumsum(columns[WORDS])))
    return bool(
        (columns[POSITION] == starts).all()
        and (columns[FILE_END] > columns[POSITION]).all()
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

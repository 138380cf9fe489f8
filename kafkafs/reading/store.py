"""The knowledge of segments, on disk: a small file for each in the user's cache directory, never in a log directory.

Like any cache, a file is only a hint: one that does not match the segment as it is now, or is unreadable, is ignored.
All may be removed at any time; if they cannot be written, segments are read again after the next start.

A file is an archive that `numpy.load` opens, with a CRC-32C of everything before it as its comment:

    about    JSON: which segment it is, its size, mtime and ctime (-1: was not settled); the secret; the renditions
    blocks   the columns of BlockTable
    words    all filters
    names    the keys, one after the other; `name_ends`: where each ends
    sizes_N  of the rendition N of `about`: the columns of PieceSizes

A file is used if its checksum is right, it belongs to this segment, and each block begins with the batch that the
segment has there now (base offset and CRC). If the segment still has the same ctime, which nobody can set back, only
some blocks are compared: comparing a thousand blocks would take half the time of the first lookup. A segment that has
only grown since keeps its blocks but the last one.
"""

from __future__ import annotations

import io
import json
import logging
import struct
import sys
import time
import zipfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.reading.blocks import BASE_OFFSET, COLUMNS, CRC, MOST_NAMES, POSITION, BlockTable, Int64s
from kafkafs.reading.pieces import PieceSizes
from storage.errors import SegmentGone
from storage.files.cache_files import CacheFiles, cache_directory
from storage.files.file_mark import FileMark
from storage.format.batches import BATCH_HEADER_SIZE, MAGIC_AT
from storage.format.checksum import crc32c
from storage.log.segment import Segment

_log = logging.getLogger(__name__)

LEAST_BYTES: Final = 1 << 20  # a smaller segment is read faster than its file here is found
# Must be changed with any change of the columns, of how blocks are cut, of the hash or a filter's bits, or of what a
# format renders. Hashes are made of words as the machine reads them.
_VERSION: Final = f"1, {sys.byteorder}"
_SUFFIX: Final = ".npz"
_CRC_DIGITS: Final = 8
_MOST_RENDITIONS: Final = 100
_MOST_HEADER: Final = 4096  # of an array; what numpy writes is shorter
_LENGTHS: Final = struct.Struct("<HH")  # of a member's name and extra field
_LENGTHS_AT: Final = 26
_COMPARED: Final = 16  # blocks of a segment that has not changed
_SETTLED_NS: Final = 2_100_000_000  # another change after this time has another ctime on every file system
_NOT_SETTLED: Final = -1
# The fields of a batch's header that are compared.
_BASE_AND_CRC: Final = struct.Struct(">q9xI")
_OLD_CRC: Final = struct.Struct(">12xI")
_LEAST_HEADER: Final = 21


def default_directory() -> Path:
    """The directory in which the files are kept."""
    return cache_directory("views")


class Marker(NamedTuple):
    """A transaction's marker, which may be in a later segment."""

    offset: int
    crc: int


NO_MARKER: Final = Marker(-1, -1)


class KeptSizes(NamedTuple):
    """The sizes of one rendition, and the marker that the log must still have for them to be right."""

    sizes: PieceSizes
    marker: Marker

    def until(self, table: BlockTable) -> KeptSizes:
        """The sizes of the whole blocks of a table."""
        return self._replace(sizes=self.sizes.until(table))


class Kept(NamedTuple):
    """The kept knowledge of a segment: its blocks, and by the lasting names of renditions their sizes."""

    table: BlockTable
    renditions: Mapping[str, KeptSizes]


class Store:
    """The kept knowledge of segments, by what identifies their files. Thread-safe. Errors of its directory are never
    raised."""

    def __init__(self, directory: Path, max_bytes: int) -> None:
        self._files = CacheFiles(directory, _SUFFIX, max_bytes)

    def load(self, segment: Segment) -> Kept | None:
        """The kept knowledge, as far as it is right for the segment as it is now. SegmentGone."""
        if segment.size < LEAST_BYTES:
            return None
        key = _key(segment)
        data = self._files.read(key)
        if data is None:
            return None
        status = segment.log.stat()
        decoded = _decode(data, key)
        if decoded is not None:
            (table, renditions), size, mtime_ns, ctime_ns = decoded
            if _describes(table, segment, some=status.st_ctime_ns == ctime_ns):
                if (status.st_size, status.st_mtime_ns) == (size, mtime_ns):
                    self._files.used(key)
                    return Kept(table, renditions)
                if status.st_size > size:
                    # The segment may have been cut within the last block and written again; a cut before the last block
                    # would give it another first batch.
                    self._files.used(key)
                    return _until(table, renditions, max(0, len(table) - 1))
        _log.info("%s is damaged or outdated: %s is read again", self._files.path(key), segment)
        return None

    def save(self, segment: Segment, kept: Kept) -> bool:
        """Keeps what is known of a segment; False if its file has changed too recently to be sure that it no longer
        changes.

        The blocks must belong to the file identity under which they are kept: they are compared with the file after the
        identity is read, and then the identity is compared again. Where times are whole seconds, a recently written
        file may be written again without a change of its times. What is known of a damaged segment is not kept: it may
        be repaired, and its mtime set back.
        """
        table = kept.table
        if table.is_damaged or table.file_end < LEAST_BYTES:
            return True
        try:
            status = segment.log.stat()
            mark = FileMark.of(status)
            key = _key(segment)
            if mark.size < table.file_end or not _describes(table, segment):
                return True
            if not mark.still_shows(segment.log.stat()):
                return False
        except SegmentGone:
            return True
        is_settled = time.time_ns() - status.st_ctime_ns > _SETTLED_NS
        ctime_ns = status.st_ctime_ns if is_settled else _NOT_SETTLED
        self._files.write(key, _encode(key, kept, mark.size, mark.mtime_ns, ctime_ns))
        return True

    def used_bytes(self) -> int:
        """The size of what is kept, as of the last change."""
        return self._files.used_bytes()


def _key(segment: Segment) -> bytes:
    """The identity of a segment's file. SegmentGone."""
    content, names = segment.content_key, {"version": _VERSION, "partition": segment.directory.name}
    if content is not None:
        return json.dumps(names | {"content": content, "size": segment.log.stat().st_size}).encode()
    status = segment.log.stat()
    head = segment.log.read(0, BATCH_HEADER_SIZE)
    facts = {"device": status.st_dev, "inode": status.st_ino, "first_batch": bytes(head).hex()}
    return json.dumps(names | facts).encode()


def _describes(table: BlockTable, segment: Segment, *, some: bool = False) -> bool:
    """Whether each block, or some of them, begins with the batch that is there now. SegmentGone.

    The size and times of a file are not enough: a topic that is made again may have segments of the same sizes.
    """
    if segment.content_key is not None:
        return True
    columns = table.columns
    if some and len(table) > _COMPARED:
        columns = columns[:, np.linspace(0, len(table) - 1, _COMPARED).astype(np.intp)]
    heads = segment.log.read_each(columns[POSITION].tolist(), BATCH_HEADER_SIZE)
    batches = columns[BASE_OFFSET].tolist(), columns[CRC].tolist()
    return all(_is_header_of(*batch) for batch in zip(heads, *batches, strict=True))


def _is_header_of(head: memoryview | bytes, base_offset: int, crc: int) -> bool:
    """Whether bytes begin with the header of the batch with this base offset and CRC."""
    if len(head) < _LEAST_HEADER:
        return False
    if head[MAGIC_AT] < 2:  # a compressed message's offset is its last one's
        return bool(_OLD_CRC.unpack_from(head)[0] == crc)
    return bool(_BASE_AND_CRC.unpack_from(head) == (base_offset, crc))


def _until(table: BlockTable, renditions: Mapping[str, KeptSizes], blocks: int) -> Kept:
    """The first blocks, and their sizes in each rendition."""
    table = table.until(blocks)
    return Kept(table, {name: kept.until(table) for name, kept in renditions.items()})


def _encode(key: bytes, kept: Kept, size: int, mtime_ns: int, ctime_ns: int) -> bytes:
    table = kept.table.compact()
    renditions = dict(list(kept.renditions.items())[-_MOST_RENDITIONS:])
    about = {
        "segment": key.decode(),
        "size": size,
        "mtime_ns": mtime_ns,
        "ctime_ns": ctime_ns,
        "secret": table.secret,
        "too_many_names": table.names is None,
        "renditions": [
            {"name": name, "file_end": sizes.file_end, "marker": marker} for name, (sizes, marker) in renditions.items()
        ],
    }
    names = sorted(table.names or ())
    arrays: dict[str, Any] = {f"sizes_{n}": np.stack(each.sizes[:3]) for n, each in enumerate(renditions.values())}
    archive = io.BytesIO()
    np.savez(
        archive,
        about=np.frombuffer(json.dumps(about).encode(), np.uint8),
        blocks=table.columns,
        words=table.words,
        names=np.frombuffer(b"".join(names), np.uint8),
        name_ends=np.cumsum([len(name) for name in names], dtype=np.int64),
        **arrays,
    )
    with zipfile.ZipFile(archive, "a") as changed:
        changed.comment = b"0" * _CRC_DIGITS
    data = archive.getvalue()[:-_CRC_DIGITS]
    return data + b"%08x" % crc32c(data)


class _Decoded(NamedTuple):
    """The kept knowledge of a segment, whose file had this size, mtime and ctime."""

    kept: Kept
    size: int
    mtime_ns: int
    ctime_ns: int


def _decode(data: bytes, key: bytes) -> _Decoded | None:
    """The content of a file; None if it is not what `_encode` has made."""
    end = len(data) - _CRC_DIGITS
    if end < 0 or data[end:] != b"%08x" % crc32c(memoryview(data)[:end]):
        return None
    try:
        arrays = _arrays(data)
        about = json.loads(arrays["about"].tobytes())
        if about["segment"] != key.decode():
            return None
        names = None if about["too_many_names"] else _names(arrays["names"], arrays["name_ends"])
        first, second = map(int, about["secret"])
        columns = arrays["blocks"].astype(np.int64, copy=False).reshape(COLUMNS, -1)
        table = BlockTable(columns, arrays["words"].astype(np.uint64, copy=False), names, (first, second))
        size, mtime_ns, ctime_ns = (int(about[name]) for name in ("size", "mtime_ns", "ctime_ns"))
        renditions = {}
        for number, rendition in enumerate(about["renditions"]):
            rows, sizes, skips = arrays[f"sizes_{number}"].astype(np.int64, copy=False).reshape(3, -1)
            of = PieceSizes(rows, sizes, skips, int(rendition["file_end"]))
            if not of.can_be(table):
                return None
            offset, crc = map(int, rendition["marker"])
            renditions[str(rendition["name"])] = KeptSizes(of, Marker(offset, crc))
    except (ValueError, KeyError, TypeError, EOFError, OverflowError, struct.error, zipfile.BadZipFile, RecursionError):
        return None
    if not table.can_be(size) or not all(0 <= half < 1 << 64 for half in table.secret):
        return None
    return _Decoded(Kept(table, renditions), size, mtime_ns, ctime_ns)


def _arrays(data: bytes) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an archive. None takes more memory than the archive does. ValueError, BadZipFile."""
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if sum(member.file_size for member in members) > len(data):
            raise ValueError("more than there is")
        for member in members:
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError("compressed")
            # As `archive.read(member)`, without the member's checksum: the checksum of the whole file has been
            # compared.
            at = member.header_offset
            name_bytes, extra_bytes = _LENGTHS.unpack_from(data, at + _LENGTHS_AT)
            at += _LENGTHS_AT + _LENGTHS.size + name_bytes + extra_bytes
            content = memoryview(data)[at : at + member.file_size]
            header = io.BytesIO(content[:_MOST_HEADER])
            if np.lib.format.read_magic(header) != (1, 0):
                raise ValueError("another version")
            shape, _, dtype = np.lib.format.read_array_header_1_0(header)
            if dtype.kind not in "iu":
                raise ValueError("no numbers")
            array = np.require(np.frombuffer(content, dtype, offset=header.tell()), requirements="A")
            arrays[member.filename.removesuffix(".npy")] = array.reshape(shape)
    return arrays


def _names(names: npt.NDArray[Any], ends: Int64s) -> frozenset[bytes]:
    data, edges = names.tobytes(), [0, *ends.tolist()]
    if len(ends) > MOST_NAMES or edges != sorted(edges) or edges[-1] != len(data):
        raise ValueError("other names")
    return frozenset(data[start:end] for start, end in pairwise(edges))

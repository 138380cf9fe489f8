"""Small files about segments in the user's cache directory (storage/files/cache_files.py), by what identifies the
segment's file.

Whoever reads one must compare it with the segment as it is now.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Final

from storage.files.cache_files import cache_directory
from storage.format.batches import BATCH_HEADER_SIZE, MAGIC_AT
from storage.log.segment import Segment

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

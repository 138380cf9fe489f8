"""The producer state snapshot (.snapshot): the state of each producer before an offset.

int16 version 1, uint32 CRC-32C of bytes 6 to the end, int32 count, then entries of 46 bytes in any order. A file that
was overwritten without truncation fails its CRC. See storage/FORMAT.md, "Producer snapshots". Sources: Kafka's
ProducerStateManager, ProducerSnapshot.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from storage.errors import CorruptCheckpoint
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.format.checksum import crc32c

VERSION = 1
ENTRY_SIZE = 46
_VERSION_AND_CRC = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_CRC_START = _VERSION_AND_CRC.size
_HEADER_SIZE = _CRC_START + _COUNT.size
_ENTRY = np.dtype(
    [
        ("producer_id", ">i8"),
        ("epoch", ">i2"),
        ("last_sequence", ">i4"),
        ("last_offset", ">i8"),
        ("offset_delta", ">i4"),
        ("timestamp", ">i8"),
        ("coordinator_epoch", ">i4"),
        ("current_txn_first_offset", ">i8"),
    ]
)
_fields = attrgetter(*_ENTRY.names or ())  # of a ProducerEntry, which has the same names
_ADVICE = "Producer state can be rebuilt from the log"


class ProducerEntry(NamedTuple):
    """A producer's last data batch and open transaction.

    `last_offset` -1: no batch is known (then sequence -1, delta 0). `current_txn_first_offset` -1: no transaction is
    open. `coordinator_epoch` -1: no marker was seen. `timestamp` in epoch ms. The batch's first sequence and offset are
    the last ones minus `offset_delta`.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1


class ProducerSnapshot:
    """A snapshot's entries, in the file's order; `table` is a structured array with the fields of ProducerEntry."""

    __slots__ = ("table",)

    def __init__(self, table: npt.NDArray[np.void]) -> None:
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def entries(self) -> list[ProducerEntry]:
        """All entries, as objects."""
        return [ProducerEntry(*entry) for entry in self.table.tolist()]


def parse(data: bytes, path: Path | None = None) -> ProducerSnapshot:
    """The producers in a snapshot's bytes. CorruptCheckpoint when Kafka would reject it (and try an older one)."""
    if len(data) < _HEADER_SIZE:
        raise _corrupt("snapshot is cut off", path, 0, f"at least {_HEADER_SIZE} bytes", len(data))
    version, crc = _VERSION_AND_CRC.unpack_from(data)
    if version != VERSION:
        raise _corrupt("snapshot has an unknown version", path, 0, VERSION, version)
    (count,) = _COUNT.unpack_from(data, _CRC_START)
    if count < 0 or _HEADER_SIZE + count * ENTRY_SIZE > len(data):
        room = (len(data) - _HEADER_SIZE) // ENTRY_SIZE
        raise _corrupt("snapshot's count does not fit its size", path, _CRC_START, f"0 to {room}", count)
    computed = crc32c(memoryview(data)[_CRC_START:])
    if computed != crc:
        raise _corrupt("snapshot fails its CRC", path, 2, f"{computed:08x} (computed)", f"{crc:08x}")
    return ProducerSnapshot(np.frombuffer(data, dtype=_ENTRY, count=count, offset=_HEADER_SIZE))


def _corrupt(what: str, path: Path | None, position: int, expected: object, found: object) -> CorruptCheckpoint:
    return CorruptCheckpoint(what, path=path, position=position, expected=expected, found=found, advice=_ADVICE)


def encode(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of a snapshot with these entries, in this order."""
    rows = [_fields(entry) for entry in entries]
    body = _COUNT.pack(len(rows)) + np.array(rows, dtype=_ENTRY).tobytes()
    return _VERSION_AND_CRC.pack(VERSION, crc32c(body)) + body


def read(path: Path) -> ProducerSnapshot | None:
    """Reads a snapshot; None when there is none. CorruptCheckpoint as `parse`; OSError when it cannot be read."""
    data = read_whole(path, MOST_ENTRIES_BYTES)
    return None if data is None else parse(data, path)

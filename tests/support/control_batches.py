"""Batches that end transactions, as a broker writes them. Source: `MemoryRecords.withEndTransactionMarker`;
storage/FORMAT.md, "Control records"."""

from __future__ import annotations

import struct

from storage.format.block import Record
from storage.format.control_records import ControlType
from storage.format.record_batch import NO_LEADER_EPOCH, BatchFields, encode_batch


def marker_batch(
    kind: ControlType,
    producer_id: int,
    *,
    base_offset: int,
    timestamp: int,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    marker = Record(struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch), (), timestamp)
    fields = BatchFields(leader_epoch, producer_id, producer_epoch, transactional=True, control=True)
    return encode_batch([marker], base_offset=base_offset, fields=fields)

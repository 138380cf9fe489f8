"""Numbers of columns. Kernels use the names without their classes; columns.pxd declares them with the same numbers."""

from __future__ import annotations

from enum import IntEnum


class Column(IntEnum):
    """Rows of `BatchTable.data`."""

    POSITION = 0
    SIZE = 1
    BASE_OFFSET = 2
    LAST_OFFSET = 3
    COUNT = 4
    MAGIC = 5
    ATTRIBUTES = 6
    BASE_TIMESTAMP = 7
    MAX_TIMESTAMP = 8
    PRODUCER_ID = 9
    PRODUCER_EPOCH = 10
    BASE_SEQUENCE = 11
    LEADER_EPOCH = 12
    CRC = 13


class RecordColumn(IntEnum):
    """Rows of `RecordFields.columns`."""

    OFFSET = 0
    TIMESTAMP = 1
    KEY_START = 2
    KEY_LENGTH = 3
    VALUE_START = 4
    VALUE_LENGTH = 5
    HEADERS_START = 6
    HEADERS_COUNT = 7
    BATCH = 8  # of a RecordBlock
    HEADERS_LENGTH = 8  # of RecordColumns


(
    POSITION, SIZE, BASE_OFFSET, LAST_OFFSET, COUNT, MAGIC, ATTRIBUTES, BASE_TIMESTAMP, MAX_TIMESTAMP, PRODUCER_ID,
    PRODUCER_EPOCH, BASE_SEQUENCE, LEADER_EPOCH, CRC,
) = Column  # fmt: skip
(
    OFFSET, TIMESTAMP, KEY_START, KEY_LENGTH, VALUE_START, VALUE_LENGTH, HEADERS_START, HEADERS_COUNT, BATCH,
) = RecordColumn  # fmt: skip
HEADERS_LENGTH = RecordColumn.HEADERS_LENGTH

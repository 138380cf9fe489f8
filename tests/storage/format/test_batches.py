"""Header scans and the table they fill."""

import struct

import pytest

from storage.format.batches import BatchTable, ScanStop, claimed_times, claimed_times_in, scan, times_of
from storage.format.columns import Column
from storage.types import TimestampType
from tests.storage.format.outcomes import exact
from tests.support.raw_batches import batch, message, record

INT64_MAX = 2**63 - 1
pytestmark = pytest.mark.usefixtures("both_forms")


def table_of(data, position=0):
    table = BatchTable.empty(100)
    assert scan(exact(data), position, table) == (len(data), ScanStop.END)
    return table


NAMES = (
    *("attributes", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "base_sequence"),
    *("count", "leader_epoch"),
)


def first_row(table):
    return {column.name.lower(): int(table.data[column, 0]) for column in Column}


def test_a_v2_header_becomes_a_row():
    data = batch([record(0), record(1)], 500, attributes=0x35, max_timestamp=-1, leader_epoch=9)
    known = {
        "position": 4096,
        "size": len(data),
        "base_offset": 500,
        "last_offset": 501,
        "crc": int.from_bytes(data[17:21], "big"),
    }
    numbers = (0x35, 1000, -1, 77, 3, 5, 2, 9)
    assert first_row(table_of(data, position=4096)) == known | {"magic": 2} | dict(zip(NAMES, numbers, strict=True))
    # All at their limits.
    crc, epoch, limits = 2**32 - 1, -(2**31), (-(2**63), INT64_MAX, -(2**63), -(2**15), 2**31 - 1, -(2**31))
    row = first_row(table_of(struct.pack(">qiibIhiqqqhii", 0, 49, epoch, 2, crc, -1, 2**31 - 1, *limits)))
    assert [row[name] for name in NAMES] == [0xFFFF, *limits, epoch]
    assert row["crc"] == crc


@pytest.mark.parametrize(("magic", "timestamp"), [(0, -1), (1, 1234)])
@pytest.mark.parametrize(("codec", "base", "count"), [(0, 7, 1), (1, -1, -1)])
def test_an_old_message_is_a_batch_of_one_a_wrapper_of_unknown_many(magic, timestamp, codec, base, count):
    data = message(7, b"value", magic=magic, attributes=codec, timestamp=1234)
    unknown = ("producer_id", "producer_epoch", "base_sequence", "leader_epoch")
    assert first_row(table_of(data)) == {
        "position": 0,
        "size": len(data),
        "base_offset": base,
        "last_offset": 7,
        "count": count,
        "magic": magic,
        "attributes": codec,
        "base_timestamp": timestamp,
        "max_timestamp": timestamp,
        "crc": int.from_bytes(data[12:16], "big"),
    } | dict.fromkeys(unknown, -1)


def test_flags():
    plain, control, horizon = batch([record()]), batch([record()], attributes=0x30), batch([record()], attributes=0x4A)
    unused = batch([record()], attributes=0x7F00)  # the second byte of attributes is kept and means nothing
    old = message(1, b"", magic=1, attributes=0x38) + message(2, b"", magic=0)
    table = table_of(plain + control + horizon + unused + old)
    assert table.attributes.tolist() == [0, 0x30, 0x4A, 0x7F00, 0x38, 0]
    assert table.is_control.tolist() == [False, True, False, False, False, False]
    assert table.is_transactional.tolist() == [False, True, False, False, False, False]
    assert table.has_delete_horizon.tolist() == [False, False, True, False, False, False]
    assert table.codec.tolist() == [0, 0, 2, 0, 0, 0]
    create, append, none = TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME, TimestampType.NO_TIMESTAMP_TYPE
    assert table.timestamp_type.tolist() == [create, create, append, create, append, none]


def test_the_times_of_a_header():
    for data, times, claimed in (
        (batch([record()]), (1000, 2000), (1000, 2000)),
        (batch([record()], base_timestamp=3000), (2000, 2000), (3000, 2000)),
        (batch([record()], base_timestamp=-1, max_timestamp=-1), (-1, -1), (-1, -1)),
        (batch([record()], attributes=0x08), (2000, 2000), (1000, 2000)),  # the time of the append
        (batch([record()], attributes=0x40), (2000, 2000), (1000, 2000)),  # the base timestamp is a delete horizon
        (message(7, b"v", timestamp=1234), (1234, 1234), (1234, 1234)),
    ):
        table = table_of(data)
        assert times_of(table, 0) == times
        assert claimed_times(table, 0) == claimed
        for length in (0, 1, 2**31 - 1):  # they need no more of the batch
            head = (data[:8] + struct.pack(">i", length) + data[12:])[: 61 if data[16] == 2 else 26]
            assert claimed_times_in(head) == claimed
            assert claimed_times_in(head[:-1]) is None
    assert claimed_times_in(message(7, b"value " * 20, magic=0)) is None  # of a format without times
    assert claimed_times_in(b"\0" * 16 + b"\x03" + b"\1" * 60) is None


def test_a_batch_that_is_cut_off_waits_for_more_bytes():
    first, second = batch([record()]), batch([record(value=b"v" * 40)], 1)
    for missing in (1, 43, 60, 80):
        table = BatchTable.empty(10)
        assert scan(exact(first + second[:-missing]), 0, table) == (len(first), ScanStop.END)
        assert len(table) == 1
        assert scan(exact(second), len(first), table) == (len(second), ScanStop.END)
        assert table.position.tolist() == [0, len(first)]
    # 17 zeros are too few to judge, 18 are corrupt.
    assert scan(exact(bytes(17)), 0, BatchTable.empty(1)) == (0, ScanStop.END)
    assert scan(exact(bytes(18)), 0, BatchTable.empty(1)) == (0, ScanStop.CORRUPT)


@pytest.mark.parametrize(
    ("magic", "length", "stop"),
    [
        (0, 13, ScanStop.CORRUPT),
        (0, 14, ScanStop.END),
        (1, 21, ScanStop.CORRUPT),
        (1, 22, ScanStop.END),
        (2, 48, ScanStop.CORRUPT),
        (2, 49, ScanStop.END),
        (2, 0, ScanStop.CORRUPT),
        (2, -1, ScanStop.CORRUPT),
        (2, -(2**31), ScanStop.CORRUPT),
        (2, 2**31 - 1, ScanStop.END),
        (3, 49, ScanStop.UNSUPPORTED),
        (255, 49, ScanStop.UNSUPPORTED),
        (9, 2**31 - 1, ScanStop.UNSUPPORTED),
    ],
)
def test_lengths_and_magics(magic, length, stop):
    header = bytearray(max(18, min(length + 12, 61)))
    header[8:12] = length.to_bytes(4, "big", signed=True)
    header[16] = magic
    whole = batch([record()])
    outcome = scan(exact(whole + header), 0, BatchTable.empty(10))
    assert outcome.stop is stop
    assert outcome.next_start == len(whole) + (length + 12 if 14 <= length <= 49 and stop is ScanStop.END else 0)


def test_a_last_offset_that_cannot_be_is_minus_one():
    for base, delta, last in (
        (0, 2**31 - 1, 2**31 - 1),
        (INT64_MAX, 0, INT64_MAX),
        (INT64_MAX - 1, 1, INT64_MAX),
        *((INT64_MAX - 1, 2, -1), (INT64_MAX, 2**31 - 1, -1), (5, -1, -1), (-1, 0, -1), (-(2**63), -(2**31), -1)),
    ):
        table = table_of(batch([record()], base, last_offset_delta=delta))
        assert (table.base_offset.tolist(), table.last_offset.tolist()) == ([base], [last])


def test_spans_and_room_bound_the_scan():
    parts = [batch([record()], offset) for offset in range(4)]
    data, size = b"".join(parts), len(parts[0])
    table = BatchTable.empty(10)
    assert scan(data, 1000, table, start=size, end=3 * size) == (3 * size, ScanStop.END)
    assert table.position.tolist() == [1000 + size, 1000 + 2 * size]
    assert table.end.tolist() == [1000 + 2 * size, 1000 + 3 * size]
    for start, end, position in ((-1, 5, 0), (0, len(data) + 1, 0), (0, 80, -1), (0, 80, INT64_MAX)):
        with pytest.raises(ValueError, match="outside"):
            scan(data, position, BatchTable.empty(10), start, end)
    full = BatchTable.empty(2)
    assert scan(data, 0, full) == (2 * size, ScanStop.FULL)
    assert full.base_offset.tolist() == [0, 1]
    full.clear()
    assert scan(data, 0, full, start=3 * size) == (len(data), ScanStop.END)
    assert full.base_offset.tolist() == [3]


def test_an_empty_table_has_the_room_asked_for():
    for capacity in (0, 1, 511, 512, 4096):
        table = BatchTable.empty(capacity)
        assert capacity <= table.capacity <= capacity + 8
        assert len(table) == 0
    nothing = BatchTable.empty(0)
    assert scan(b"", 0, nothing) == (0, ScanStop.END)
    assert scan(batch([record()]), 0, nothing).stop is ScanStop.FULL


def test_slices_are_views_copies_and_concatenations_are_not():
    table = table_of(b"".join(batch([record()], offset) for offset in range(5)))
    part = table.slice(1, 3)
    assert part.base_offset.tolist() == [1, 2]
    copy = part.copy()
    joined = BatchTable.concat([part, table])
    table.base_offset[1] = 99
    assert part.base_offset.tolist() == [99, 2]
    assert copy.base_offset.tolist() == [1, 2]
    assert joined.base_offset.tolist() == [1, 2, 0, 1, 2, 3, 4]
    assert joined.data.flags.c_contiguous
    assert len(BatchTable.concat([])) == 0

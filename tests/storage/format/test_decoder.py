"""Decoder and RecordBlock: what is left out, where damage and full arenas stop it, batches decompressed together."""

from __future__ import annotations

import random
import threading

import cramjam
import numpy as np
import pytest

from storage.append import batch_encoder
from storage.errors import CorruptBatch, UnsupportedFormat
from storage.format import block as block_module
from storage.format import compression, decode_kernel, decoder, inflate_kernel
from storage.format.batches import BatchTable
from storage.format.block import Record
from storage.format.compression import LZ4_MAGIC, Codec, CodecLibrary, compress
from storage.format.decoder import MOST_HEADERS, MOST_RECORDS, Decoder
from storage.types import is_compiled
from tests.storage.format.test_both_forms import read_all
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.raw_batches import batch, body, message, record, sized, varint
from tests.support.readers import table_of
from tests.support.uncompiled import uncompiled

# Decoder: what is left out, where damage and full arenas stop it, what it recycles.

CODECS = list(Codec)


def packed(codec, base_offset=0, count=1, *, value=b"v"):
    payload = b"".join(record(i, b"key", value) for i in range(count))
    if codec:
        payload = compress(codec, payload)
    return batch(payload, base_offset, count=count, attributes=codec)


def wrapper(codec, last_offset, count, *, magic=1, crc=None):
    base = 0 if magic == 1 else last_offset - count + 1
    content = b"".join(message(base + i, b"v", b"key", magic=magic, crc=crc) for i in range(count))
    return message(last_offset, compress(codec, content, magic), magic=magic, attributes=codec)


def all_of(decoder, data, table, **options):
    """Offsets, and the damage of batches stepped over; each block goes further than the last."""
    offsets = []
    errors = []
    row = 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0, **options)  # passed through
        offsets += block.offset.tolist()
        assert block.next_row > row or block.damage
        row = block.next_row
        if block.damage:
            errors.append(block.damage.error)
            row += 1
    return offsets, errors


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("verify_crc", [True, False])
def test_skipped_rows_and_control_batches_are_left_out(codec, verify_crc):
    control = batch([record(0, b"\0\0\0\1", b"")], 2, attributes=0x30)
    data = packed(codec, 0, 2) + control + packed(codec, 3) + message(4, b"v") + packed(codec, 5)
    table = table_of(data)
    decoder = Decoder(verify_crc=verify_crc)
    assert decoder.decode(data, table, origin=0).offset.tolist() == [0, 1, 3, 4, 5]
    assert decoder.decode(data, table, origin=0, control=True).offset.tolist() == [0, 1, 2, 3, 4, 5]
    skip = np.array([1, 0, 0, 1, 0], np.uint8)
    block = decoder.decode(data, table, origin=0, skip=skip)
    assert (block.offset.tolist(), block.batch.tolist(), block.next_row) == ([3, 5], [2, 4], 5)
    assert decoder.decode(data, table, 1, 4, origin=0, skip=skip, control=True).offset.tolist() == [2, 3]
    everything = np.ones(5, np.uint8)
    block = decoder.decode(data, table, origin=0, skip=everything)
    assert (len(block), block.next_row, block.damage) == (0, 5, None)


def test_the_checksum_of_a_skipped_batch_is_checked_its_records_are_not():
    data = packed(Codec.NONE) + batch(b"nonsense", 1, count=1)
    table = table_of(data)
    skip = np.array([0, 1], np.uint8)
    assert Decoder().decode(data, table, origin=0, skip=skip).damage is None
    hurt = data[:-1] + b"!"
    damage = Decoder().decode(hurt, table, origin=0, skip=skip).damage
    assert damage is not None
    assert damage.row == 1
    assert damage.error.what == "batch checksum differs"


def test_a_window_in_the_middle_of_a_file():
    parts = [packed(Codec.NONE, i) for i in range(4)]
    window, position = b"".join(parts[1:3]), 10_000
    table = table_of(window, position)
    block = Decoder().decode(memoryview(window), table, 1, origin=position)
    assert block.offset.tolist() == [2]
    assert block.buffer == window  # the columns index the caller's buffer
    assert block.value(0) == b"v"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_batches_outside_of_the_buffer_are_the_callers_mistake(codec):
    data = packed(codec)
    table = table_of(data, 500)
    for buffer, origin in ((data, 0), (data, 501), (data[:-1], 500), (b"", 500)):
        for verify_crc in (True, False):
            with pytest.raises(ValueError, match="outside"):
                Decoder(verify_crc=verify_crc).decode(buffer, table, origin=origin)
    for first, last in ((-1, 1), (0, 2), (1, 0)):
        with pytest.raises(ValueError, match="rows"):
            Decoder().decode(data, table, first, last, origin=500)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_comes_after_the_good_batches(codec):
    data = packed(codec, 0, 3) + packed(codec, 3) + packed(codec, 4)
    table = table_of(data, 700)
    hurt = bytearray(data)
    hurt[int(table.end[1]) - 700 - 1] ^= 0xFF
    block = Decoder().decode(hurt, table, origin=700)
    assert block.offset.tolist() == [0, 1, 2]
    assert block.damage is not None
    assert (block.next_row, block.damage.row, block.damage.position) == (1, 1, table.position[1])
    error = block.damage.error
    assert type(error) is CorruptBatch
    assert (error.position, error.offset, error.expected) == (table.position[1], 3, table.crc[1])
    assert Decoder().decode(hurt, table, 2, origin=700).offset.tolist() == [4]


def test_records_are_checked_before_the_checksum_of_a_later_batch_is_blamed():
    data = packed(Codec.NONE) + batch(b"nonsense", 1, count=1) + packed(Codec.NONE, 2)[:-1] + b"!"
    block = Decoder().decode(data, table_of(data), origin=0)
    assert block.damage is not None
    assert block.damage.row == 1
    assert "record" in block.damage.error.what


@pytest.mark.parametrize(("codec", "magic"), [(5, 2), (6, 2), (7, 2), (4, 1), (4, 0), (7, 1)])
def test_codecs_that_a_format_does_not_have(codec, magic):
    bad = batch(b"xyz", 1, attributes=codec, count=1) if magic == 2 else message(1, b"x", magic=magic, attributes=codec)
    data = packed(Codec.NONE) + bad + packed(Codec.GZIP, 2)
    offsets, errors = all_of(Decoder(), data, table_of(data))
    assert offsets == [0, 2]
    assert [(type(error), error.found) for error in errors] == [(UnsupportedFormat, codec)]


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_batch_may_name_a_codec(codec):
    data = batch([], 0, attributes=codec, last_offset_delta=4) + packed(codec, 5)
    assert all_of(Decoder(), data, table_of(data)) == ([5], [])


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize(("count", "ok"), [(2, False), (3, True), (4, False), (-1, False), (2**31 - 1, False)])
def test_counts_hold_for_compressed_batches_too(codec, count, ok):
    payload = compress(codec, b"".join(record(i) for i in range(3)))
    data = batch(payload, attributes=codec, count=count, last_offset_delta=2)
    offsets, errors = all_of(Decoder(), data, table_of(data))
    assert (offsets, [type(error) for error in errors]) == (([0, 1, 2], []) if ok else ([], [CorruptBatch]))


# The arena


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_block_ends_where_the_arena_is_full(codec):
    data = b"".join(packed(codec, 10 * i, 10, value=b"v" * 100) for i in range(100))
    table = table_of(data)
    decoder = Decoder(block_bytes=4096)
    rows = []
    row = 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0)
        assert len(block.buffer) <= 2 * 4096
        assert block.offset.tolist() == list(range(10 * row, 10 * block.next_row))
        assert all(block.value(i) == b"v" * 100 for i in range(len(block)))
        rows.append(block.next_row - row)
        row = block.next_row
    assert set(rows[:-1]) == {rows[0]}
    assert rows[0] > 1


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_larger_than_the_arena_gets_a_larger_one(codec):
    big = b"0123456789" * 30_000
    data = packed(Codec.LZ4, 0) + packed(codec, 1, 3, value=big) + packed(codec, 4)
    table = table_of(data)
    decoder = Decoder(block_bytes=4096)
    assert all_of(decoder, data, table) == ([0, 1, 2, 3, 4], [])
    block = decoder.decode(data, table, 1, 2, origin=0)
    assert [block.value(i) for i in range(3)] == [big] * 3


def test_one_block_has_one_buffer_whatever_its_batches_are():
    data = packed(Codec.NONE, 0) + packed(Codec.ZSTD, 1) + message(2, b"v", b"key") + wrapper(Codec.GZIP, 4, 2)
    data += packed(Codec.SNAPPY, 5, 2) + wrapper(Codec.LZ4, 8, 2, magic=0) + packed(Codec.NONE, 9)
    block = Decoder().decode(data, table_of(data), origin=0)
    assert block.offset.tolist() == list(range(10))
    assert block.batch.tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6]
    assert {block.key(i) for i in range(10)} == {b"key"}
    assert bytes(block.gather("value")[0]) == b"v" * 10


@pytest.mark.parametrize("block_bytes", [40, 100, 200, 500, 5000])
def test_formats_stay_apart_wherever_the_arena_ends(block_bytes):
    kinds = [
        lambda offset: packed(Codec.NONE, offset),
        lambda offset: packed(Codec.GZIP, offset),
        lambda offset: message(offset, b"v"),
        lambda offset: wrapper(Codec.SNAPPY, offset, 1),
    ]
    data = b"".join(kinds[(i * i // 3) % 4](i) for i in range(60))
    assert all_of(Decoder(block_bytes=block_bytes), data, table_of(data)) == (list(range(60)), [])


def test_a_longer_wanted_list_than_one_block_covers():
    data = b"".join(packed(Codec.LZ4, i) for i in range(200))
    skip = (np.arange(200) % 3 == 0).astype(np.uint8)
    offsets, errors = all_of(Decoder(block_bytes=256), data, table_of(data), skip=skip)
    assert (offsets, errors) == ([i for i in range(200) if i % 3], [])


# Wrappers


@pytest.mark.parametrize("magic", [0, 1])
def test_the_checksum_of_a_wrapped_message_is_checked(magic):
    data = wrapper(Codec.GZIP, 4, 3, magic=magic, crc=123)
    table = table_of(data)
    damage = Decoder().decode(data, table, origin=0).damage
    assert damage is not None
    assert damage.error.what == "checksum of a message within a wrapper differs (record 0 of the batch)"
    assert damage.error.expected == 123
    assert len(Decoder(verify_crc=False).decode(data, table, origin=0)) == 3


def test_wrappers_that_hold_nothing():
    null = message(1, None, attributes=Codec.GZIP)
    empty = message(2, compress(Codec.GZIP, b"", 1), attributes=Codec.GZIP)
    nothing = message(3, b"", attributes=Codec.GZIP)
    data = null + empty + nothing + message(4, b"v")
    offsets, errors = all_of(Decoder(), data, table_of(data))
    assert offsets == [4]
    assert [error.what for error in errors[:2]] == [
        "compressed wrapper has no value",
        "compressed wrapper holds no message",
    ]
    assert len(errors) == 3


@pytest.mark.parametrize(("field", "at"), [("key", 26), ("value", 30)])
def test_wrapper_lengths_are_checked(field, at):
    data = bytearray(wrapper(Codec.GZIP, 4, 3))
    data[at : at + 4] = b"\x7f\xff\xff\xff"
    damage = Decoder(verify_crc=False).decode(data, table_of(data), origin=0).damage
    assert damage is not None
    assert damage.error.what == f"{field} length does not fit the wrapper"


# Recycling and threads


def test_arrays_are_recycled_and_grow():
    decoder = Decoder()
    small, large = packed(Codec.NONE), packed(Codec.NONE, 0, 5000)
    first = decoder.decode(small, table_of(small), origin=0)
    assert decoder.decode(small, table_of(small), origin=0).columns.base is first.columns.base
    grown = decoder.decode(large, table_of(large), origin=0)
    assert grown.offset.tolist() == list(range(5000))
    assert decoder.decode(small, table_of(small), origin=0).columns.base is grown.columns.base
    assert first.offset.tolist() == [0]  # its memory is its own by now


def test_nothing_to_decode():
    table = BatchTable.empty(1)
    block = Decoder().decode(b"", table, origin=0)
    assert (len(block), block.next_row, block.damage) == (0, 0, None)
    assert len(block.gather("key", b"\n")[0]) == 0


def test_decoders_in_threads_do_not_disturb_each_other():
    data = b"".join(packed(codec, 20 * i, 20, value=b"%d" % i * 50) for i in range(40) for codec in [CODECS[i % 5]])
    table = table_of(data)
    expected = all_of(Decoder(), data, table)
    results = []

    def work():
        decoder = Decoder(block_bytes=2000)
        results.extend(all_of(decoder, data, table) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 40


def test_the_memory_of_an_older_block_stays():
    """A larger arena takes the place of the old one, whose bytes mean nothing by then but are there."""
    decoder = Decoder(block_bytes=1000)
    small, large = packed(Codec.LZ4), packed(Codec.LZ4, value=b"x" * 100_000)
    block = decoder.decode(small, table_of(small), origin=0)
    view = block.buffer
    decoder.decode(large, table_of(large), origin=0)
    assert len(bytes(view)) == len(record(0, b"key", b"v"))


# The most records and headers that are read of one batch: what compresses to almost nothing takes no memory for it.
#
# With the built kernels: plain Python would take minutes.

RECORD = sized(body(value=None))
HEADERS = sized(body(value=None)[:-1] + varint(MOST_HEADERS) + b"\0\1" * MOST_HEADERS)
TOO_MANY_RECORDS = "more records than are read of one batch"


def scanned(data):
    table = table_of(data)
    return data, table


def decode(data):
    return Decoder().decode(*scanned(data), origin=0)


def fault(data):
    damages = [decode(data).damage, Decoder().audit(*scanned(data), origin=0).damage]
    found = {(str(one.error.what), str(one.error.expected), str(one.error.found)) for one in damages if one}
    assert None not in damages
    return found.pop() if len(found) == 1 else ("", "", "")


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_the_most_records_and_headers_are_read():
    block = decode(batch(RECORD * (MOST_RECORDS - 1) + sized(body(MOST_RECORDS - 1)), count=MOST_RECORDS))
    assert (block.damage, len(block), int(block.offset[-1])) == (None, MOST_RECORDS, MOST_RECORDS - 1)
    block = decode(batch([HEADERS]))
    assert (block.damage, block.headers_count.tolist()) == (None, [MOST_HEADERS])
    assert block.headers_spans().shape == (4, MOST_HEADERS)


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
@pytest.mark.parametrize("value", [None, b"value"])  # an audit has a shorter way for records like the second
def test_a_batch_of_more_records_is_damage(value):
    number = MOST_RECORDS + 1
    found = fault(batch(sized(body(value=value)) * number, count=number))
    assert found == (TOO_MANY_RECORDS, f"at most {MOST_RECORDS}", str(number))


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_a_batch_of_more_headers_is_damage():
    found = fault(batch([HEADERS, sized(body(1, headers=[(b"", None)]))]))
    what = "more headers than are read of one batch (record 1 of the batch)"
    assert found == (what, f"at most {MOST_HEADERS}", str(MOST_HEADERS + 1))


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_a_wrapper_of_more_messages_is_damage():
    message = batch_encoder.encode([Record(None, None, (), 0)], 0)
    table = scanned(batch_encoder.encode([Record(None, b"", (), 0)], 0, codec=Codec.GZIP))[1]

    def wrong(messages):
        content = message * messages
        columns, fault = np.empty((9, MOST_RECORDS + 1), np.int64), np.zeros(4, np.int64)
        spans = np.array([0, len(content)], np.int64)
        decode_kernel.decode(
            content, table.data, 0, 1, 0, spans[:1], spans[1:], np.empty(0, np.uint8), False, columns, 0, fault
        )
        return decode_kernel.FAULTS[fault[0]][0]

    assert (wrong(MOST_RECORDS), wrong(MOST_RECORDS + 1)) == ("", TOO_MANY_RECORDS)


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_no_room_is_made_for_records_that_are_not_read():
    data, table = scanned(batch(RECORD * (MOST_RECORDS + 1), count=MOST_RECORDS + 1))
    assert decode_kernel.survey(table.data, 0, 1, 0, len(data), np.empty(0, np.uint8), True) == (MOST_RECORDS, 0, 0)


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_memory_of_a_large_batch_is_given_back():
    small = batch([sized(body())])
    payload = compress(Codec.ZSTD, sized(body(value=bytes(decoder.LARGE_BYTES))))
    large = batch(payload, count=1, attributes=Codec.ZSTD)
    damaged = batch(payload, count=2, attributes=Codec.ZSTD)
    one = Decoder()
    assert len(one.decode(*scanned(large), origin=0)) == 1
    assert len(one._arena) > decoder.LARGE_BYTES
    one.decode(*scanned(small), origin=0)
    assert len(one._arena) == 0
    assert one.decode(*scanned(damaged), origin=0).damage is not None
    assert len(one._arena) == 0
    one.audit(*scanned(large), origin=0)
    assert len(one._arena) == 0
    one.decode(*scanned(batch(RECORD * MOST_RECORDS, count=MOST_RECORDS)), origin=0)
    assert one._columns.shape[1] >= MOST_RECORDS
    one.decode(*scanned(small), origin=0)
    assert one._columns.shape[1] <= 4096 | 8


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_few_decoders_have_large_memory_at_a_time(monkeypatch):
    large = scanned(batch(RECORD * (decoder.LARGE_RECORDS + 1), count=decoder.LARGE_RECORDS + 1))
    small = scanned(batch([RECORD]))
    monkeypatch.setattr(decoder, "_large", threading.BoundedSemaphore(2))
    monkeypatch.setattr(decoder, "PATIENCE_SECONDS", 0)
    first, second, third = Decoder(), Decoder(), Decoder()
    for one in (first, second, third):
        assert one.decode(*large, origin=0).damage is None
    assert (first._is_counted, second._is_counted, third._is_counted) == (True, True, False)
    first.decode(*small, origin=0)
    third.decode(*large, origin=0)
    assert (first._is_counted, third._is_counted) == (False, True)
    del one, second, third
    assert decoder._large.acquire(blocking=False)
    assert decoder._large.acquire(blocking=False)


@pytest.mark.skipif(not is_compiled(decode_kernel), reason="plain Python takes minutes")
def test_a_decoder_waits_for_another_ones_memory(monkeypatch):
    large = scanned(batch(RECORD * (decoder.LARGE_RECORDS + 1), count=decoder.LARGE_RECORDS + 1))
    waited = []

    class Taken:
        def acquire(self, timeout):
            waited.append(timeout)
            return False

    monkeypatch.setattr(decoder, "_large", Taken())
    assert Decoder().decode(*large, origin=0).damage is None
    assert waited == [decoder.PATIENCE_SECONDS]


# RecordBlock: choosing, gathering, and bytes at API edges.

BLOCK_HEADERS = [(b"a", b"1"), (b"a", None), (b"", b"x" * 200)]
RECORDS = [
    record(0, b"k0", b"v0"),
    record(1, None, b""),
    record(2, b"", None),
    record(3, b"k3", b"v" * 300, BLOCK_HEADERS),
]
KEYS = [b"k0", None, b"", b"k3"]
VALUES = [b"v0", b"", None, b"v" * 300]


def a_block():
    data = batch(RECORDS[:3], 10) + batch(RECORDS[3:], 10)
    table = table_of(data)
    return Decoder().decode(data, table, origin=0)


@pytest.mark.parametrize(
    ("rows", "offsets"),
    [
        (np.array([True, False, False, True]), [10, 13]),
        (np.array([3, 0, 0]), [13, 10, 10]),
        (np.array([], np.int64), []),
        (slice(1, 3), [11, 12]),
        (slice(None, None, -1), [13, 12, 11, 10]),
    ],
)
def test_select(rows, offsets):
    block = a_block()
    part = block.select(rows)
    assert part.offset.tolist() == offsets
    assert [part.key(i) for i in range(len(part))] == [KEYS[offset - 10] for offset in offsets]
    assert (part.buffer, part.table, part.next_row, part.damage) == (block.buffer, block.table, 2, None)
    part.columns[:] = -7
    assert block.offset.tolist() == [10, 11, 12, 13]
    assert all(column.flags.c_contiguous for column in part.columns)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("separator", [None, b"\n", b"", b"\r\n--"])
def test_gather(separator, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(block_module, "decode_kernel", uncompiled("storage.format.decode_kernel"))
    block = a_block()
    gap = separator or b""
    for column, expected in ("key", KEYS), ("value", VALUES):
        data, ends = block.gather(column, separator)  # a loop over both literals
        assert data == b"".join((item or b"") + gap for item in expected)
        starts = [0, *(ends[:-1] + len(gap)).tolist()]
        assert [data[a:b] for a, b in zip(starts, ends.tolist(), strict=True)] == [item or b"" for item in expected]
    assert (block.select(slice(0)).gather("key")[0], len(block.select(slice(0)).gather("key")[1])) == (b"", 0)


def test_headers_of_foreign_columns_raise():
    block = a_block()
    block.headers_start[3] = len(block.buffer) - 1
    with pytest.raises(CorruptBatch):
        block.headers(3)


def test_the_buffer_is_read_only():
    assert a_block().buffer.readonly


# Batches decompressed many at a time: the same records and errors as one by one, whatever the frames are.

INFLATE_CODECS = [Codec.LZ4, Codec.ZSTD]
CONTENT = b"".join(record(i, b"key", b"value" * 40) for i in range(30))


def frame(payload, codec, base_offset=0):
    """A batch of the 30 records of CONTENT whose stored bytes are `payload`."""
    return batch(payload, base_offset, count=30, last_offset_delta=29, attributes=codec)


def lz4_frame(flags, descriptor=0x40, *, checksum=None):
    """A frame of CONTENT in one stored block, with this first header byte."""
    plain = compress(Codec.LZ4, CONTENT)
    head = LZ4_MAGIC + bytes([flags, descriptor, plain[6] if checksum is None else checksum])
    return head + plain[7:]


def without_libraries(data, patch, **options):
    with patch.context() as inner:
        inner.setattr(compression, "_zstd", lambda: None)
        inner.setattr(compression, "_lz4", lambda: None)
        return read_all(data, **options)


def taken(data):
    """How many batches from the first on the kernel takes."""
    table = table_of(data)
    spans = np.zeros((2, table.rows), np.int64)
    arena, rows = np.empty(1 << 20, np.uint8), np.arange(table.rows, dtype=np.int64)
    library = CodecLibrary()
    headers = np.ascontiguousarray(table.data)
    index, _ = inflate_kernel.inflate(
        data, headers, 0, 0, rows, 0, arena, 0, 1 << 20, 1 << 20, spans[0], spans[1], library.addresses
    )
    return index


def test_the_libraries_of_this_machine_are_used():
    if not is_compiled(inflate_kernel) or set(compression.versions()) != {"libzstd", "liblz4"}:
        pytest.skip("kernel not built, or libzstd or liblz4 not there")
    for codec in INFLATE_CODECS:
        assert taken(frame(compress(codec, CONTENT), codec) * 3) == 3
    assert taken(frame(compress(Codec.GZIP, CONTENT), Codec.GZIP)) == 0


@pytest.mark.parametrize("codec", INFLATE_CODECS)
def test_damage_behind_a_right_checksum(codec, monkeypatch):
    dice = random.Random(codec)
    payload = compress(codec, CONTENT)
    found = more = 0
    for _ in range(500):
        parts = [frame(payload, codec), frame(damaged(payload, dice), codec, 30), frame(payload, codec, 60)]
        data = with_right_checksums(b"".join(parts))
        outcome, other = read_all(data), without_libraries(data, monkeypatch)
        if outcome != other:
            # cramjam's libzstd is younger than the system's may be, and finds some damage that the older one does not.
            assert [damage[0] for damage in other.damages] == [1]
            assert not outcome.damages
            assert [r for r in outcome.records if r.row != 1] == list(other.records)
            more += 1
        found += bool(outcome.damages)
    assert more <= found // 100
    assert found > 50


def test_codecs_that_change_from_batch_to_batch(monkeypatch):
    dice = random.Random(7)
    codecs = [dice.choice((*INFLATE_CODECS, Codec.GZIP, Codec.SNAPPY, Codec.NONE)) for _ in range(60)]
    parts = [
        frame(CONTENT if codec is Codec.NONE else compress(codec, CONTENT), codec, 30 * i)
        for i, codec in enumerate(codecs)
    ]
    outcome = read_all(b"".join(parts))
    assert len(outcome.records) == 60 * 30
    assert outcome == without_libraries(b"".join(parts), monkeypatch)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(bytes(cramjam.lz4.compress(CONTENT)), id="lz4-linked-or-checked"),
        pytest.param(lz4_frame(0x40), id="lz4-linked"),
        pytest.param(lz4_frame(0x60, checksum=0), id="lz4-wrong-header-checksum"),
        pytest.param(lz4_frame(0x60, 0x30), id="lz4-block-size-unknown"),
        pytest.param(compress(Codec.LZ4, CONTENT) + b"behind", id="lz4-bytes-behind"),
        pytest.param(compress(Codec.LZ4, CONTENT) * 2, id="lz4-two-frames"),
        pytest.param(b"\x50\x2a\x4d\x18\x01\0\0\0x" + compress(Codec.LZ4, CONTENT), id="lz4-skippable-frame"),
        pytest.param(compress(Codec.LZ4, CONTENT)[:-4], id="lz4-no-end-mark"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_frames_that_kafka_has_rules_for(payload, monkeypatch):
    data = frame(payload, Codec.LZ4) + frame(compress(Codec.LZ4, CONTENT), Codec.LZ4, 30)
    outcome = read_all(data)
    assert outcome == without_libraries(data, monkeypatch)
    assert {r.offset for r in outcome.records} >= set(range(30, 60))


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(compress(Codec.ZSTD, CONTENT) + b"behind", id="bytes-behind"),
        pytest.param(compress(Codec.ZSTD, CONTENT[:100]) + compress(Codec.ZSTD, CONTENT[100:]), id="two-frames"),
        pytest.param(b"\x50\x2a\x4d\x18\x01\0\0\0x" + compress(Codec.ZSTD, CONTENT), id="skippable-frame"),
        pytest.param(compress(Codec.ZSTD, CONTENT)[:-1], id="cut"),
        pytest.param(b"\x28\xb5\x2f\xfd\x00\xff" + compress(Codec.ZSTD, CONTENT)[6:], id="huge-window"),
        pytest.param(b"\x28\xb5\x2f\xfd", id="magic-alone"),
    ],
)
def test_zstd_streams_of_all_kinds(payload, monkeypatch):
    data = frame(payload, Codec.ZSTD) + frame(compress(Codec.ZSTD, CONTENT), Codec.ZSTD, 30)
    outcome = read_all(data)
    assert outcome == without_libraries(data, monkeypatch)
    assert {r.offset for r in outcome.records} >= set(range(30, 60))


@pytest.mark.parametrize("plain", [False, True])
def test_gather_trusts_no_column(plain, monkeypatch):
    if plain:
        monkeypatch.setattr(block_module, "decode_kernel", uncompiled("storage.format.decode_kernel"))
    size = len(a_block().buffer)
    for start, length in ((-1, 3), (size, 1), (size + 5, 1), (size - 1, 2), (2**63 - 1, 3), (-(2**63), 3)):
        block = a_block()
        block.key_start[3], block.key_length[3] = start, length
        with pytest.raises(ValueError, match="outside"):
            block.gather("key")
    decode_kernel = block_module.decode_kernel
    start, length = np.zeros(1, np.int64), np.array([4])
    with pytest.raises(ValueError, match="outside"):
        decode_kernel.gather(b"abcd", start, length, b"", np.empty(3, np.uint8), np.empty(1, np.int64))
    with pytest.raises(ValueError, match="outside"):
        decode_kernel.gather(b"abcd", start, length, b"\n", np.empty(4, np.uint8), np.empty(1, np.int64))
    with pytest.raises(ValueError, match="lengths"):
        decode_kernel.gather(b"abcd", start, length[:0], b"", np.empty(4, np.uint8), np.empty(1, np.int64))
    with pytest.raises(ValueError, match="lengths"):
        decode_kernel.gather(b"abcd", start, length, b"", np.empty(4, np.uint8), np.empty(0, np.int64))

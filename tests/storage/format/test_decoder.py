"""Decoder: what is left out, where damage and full arenas stop it, what it recycles."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from storage.errors import CorruptBatch, StorageError, UnsupportedFormat
from storage.format.batches import BatchTable, scan
from storage.format.block import RecordBlock
from storage.format.compression import Codec, compress
from storage.format.decoder import Decoder
from tests.support.raw_batches import batch, message, record

CODECS = list(Codec)


def table_of(data: bytes, position: int = 0) -> BatchTable:
    table = BatchTable.empty(1000)
    scan(data, position, table)
    return table


def packed(codec: Codec, base_offset: int = 0, count: int = 1, *, attributes: int = 0, value: bytes = b"v") -> bytes:
    payload = b"".join(record(i, b"key", value) for i in range(count))
    if codec:
        payload = compress(codec, payload)
    return batch(payload, base_offset, count=count, attributes=attributes | codec)


def wrapper(codec: Codec, last_offset: int, count: int, *, magic: int = 1, crc: int | None = None) -> bytes:
    base = 0 if magic == 1 else last_offset - count + 1
    content = b"".join(message(base + i, b"v", b"key", magic=magic, crc=crc) for i in range(count))
    return message(last_offset, compress(codec, content, magic), magic=magic, attributes=codec)


def all_of(decoder: Decoder, data: bytes, table: BatchTable, **options: object) -> tuple[list[int], list[StorageError]]:
    """Offsets, and the damage of batches stepped over; each block goes further than the last."""
    offsets: list[int] = []
    errors = []
    row = 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0, **options)  # type: ignore[arg-type] # passed through
        offsets += block.offset.tolist()
        assert block.next_row > row or block.damage
        row = block.next_row
        if block.damage:
            errors.append(block.damage.error)
            row += 1
    return offsets, errors


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("verify_crc", [True, False])
def test_skipped_rows_and_control_batches_are_left_out(codec: Codec, verify_crc: bool) -> None:
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


def test_the_checksum_of_a_skipped_batch_is_checked_its_records_are_not() -> None:
    data = packed(Codec.NONE) + batch(b"nonsense", 1, count=1)
    table = table_of(data)
    skip = np.array([0, 1], np.uint8)
    assert Decoder().decode(data, table, origin=0, skip=skip).damage is None
    hurt = data[:-1] + b"!"
    damage = Decoder().decode(hurt, table, origin=0, skip=skip).damage
    assert damage is not None
    assert damage.row == 1
    assert damage.error.what == "batch checksum differs"


def test_a_window_in_the_middle_of_a_file() -> None:
    parts = [packed(Codec.NONE, i) for i in range(4)]
    window, position = b"".join(parts[1:3]), 10_000
    table = table_of(window, position)
    block = Decoder().decode(memoryview(window), table, 1, origin=position)
    assert block.offset.tolist() == [2]
    assert block.buffer == window  # the columns index the caller's buffer
    assert block.value(0) == b"v"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_batches_outside_of_the_buffer_are_the_callers_mistake(codec: Codec) -> None:
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
def test_damage_comes_after_the_good_batches(codec: Codec) -> None:
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


def test_records_are_checked_before_the_checksum_of_a_later_batch_is_blamed() -> None:
    data = packed(Codec.NONE) + batch(b"nonsense", 1, count=1) + packed(Codec.NONE, 2)[:-1] + b"!"
    block = Decoder().decode(data, table_of(data), origin=0)
    assert block.damage is not None
    assert block.damage.row == 1
    assert "record" in block.damage.error.what


@pytest.mark.parametrize(("codec", "magic"), [(5, 2), (6, 2), (7, 2), (4, 1), (4, 0), (7, 1)])
def test_codecs_that_a_format_does_not_have(codec: int, magic: int) -> None:
    bad = batch(b"xyz", 1, attributes=codec, count=1) if magic == 2 else message(1, b"x", magic=magic, attributes=codec)
    data = packed(Codec.NONE) + bad + packed(Codec.GZIP, 2)
    offsets, errors = all_of(Decoder(), data, table_of(data))
    assert offsets == [0, 2]
    assert [(type(error), error.found) for error in errors] == [(UnsupportedFormat, codec)]


@pytest.mark.parametrize("codec", CODECS)
def test_an_empty_batch_may_name_a_codec(codec: Codec) -> None:
    data = batch([], 0, attributes=codec, last_offset_delta=4) + packed(codec, 5)
    assert all_of(Decoder(), data, table_of(data)) == ([5], [])


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize(("count", "ok"), [(2, False), (3, True), (4, False), (-1, False), (2**31 - 1, False)])
def test_counts_hold_for_compressed_batches_too(codec: Codec, count: int, ok: bool) -> None:
    payload = compress(codec, b"".join(record(i) for i in range(3)))
    data = batch(payload, attributes=codec, count=count, last_offset_delta=2)
    offsets, errors = all_of(Decoder(), data, table_of(data))
    assert (offsets, [type(error) for error in errors]) == (([0, 1, 2], []) if ok else ([], [CorruptBatch]))


# The arena


@pytest.mark.parametrize("codec", CODECS[1:])
def test_the_block_ends_where_the_arena_is_full(codec: Codec) -> None:
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
def test_a_batch_larger_than_the_arena_gets_a_larger_one(codec: Codec) -> None:
    big = b"0123456789" * 30_000
    data = packed(Codec.LZ4, 0) + packed(codec, 1, 3, value=big) + packed(codec, 4)
    table = table_of(data)
    decoder = Decoder(block_bytes=4096)
    assert all_of(decoder, data, table) == ([0, 1, 2, 3, 4], [])
    block = decoder.decode(data, table, 1, 2, origin=0)
    assert [block.value(i) for i in range(3)] == [big] * 3


def test_one_block_has_one_buffer_whatever_its_batches_are() -> None:
    data = packed(Codec.NONE, 0) + packed(Codec.ZSTD, 1) + message(2, b"v", b"key") + wrapper(Codec.GZIP, 4, 2)
    data += packed(Codec.SNAPPY, 5, 2) + wrapper(Codec.LZ4, 8, 2, magic=0) + packed(Codec.NONE, 9)
    block = Decoder().decode(data, table_of(data), origin=0)
    assert block.offset.tolist() == list(range(10))
    assert block.batch.tolist() == [0, 1, 2, 3, 3, 4, 4, 5, 5, 6]
    assert {block.key(i) for i in range(10)} == {b"key"}
    assert bytes(block.gather("value")[0]) == b"v" * 10


@pytest.mark.parametrize("block_bytes", [40, 100, 200, 500, 5000])
def test_formats_stay_apart_wherever_the_arena_ends(block_bytes: int) -> None:
    kinds = [
        lambda offset: packed(Codec.NONE, offset),
        lambda offset: packed(Codec.GZIP, offset),
        lambda offset: message(offset, b"v"),
        lambda offset: wrapper(Codec.SNAPPY, offset, 1),
    ]
    data = b"".join(kinds[(i * i // 3) % 4](i) for i in range(60))
    assert all_of(Decoder(block_bytes=block_bytes), data, table_of(data)) == (list(range(60)), [])


def test_a_longer_wanted_list_than_one_block_covers() -> None:
    data = b"".join(packed(Codec.LZ4, i) for i in range(200))
    skip = (np.arange(200) % 3 == 0).astype(np.uint8)
    offsets, errors = all_of(Decoder(block_bytes=256), data, table_of(data), skip=skip)
    assert (offsets, errors) == ([i for i in range(200) if i % 3], [])


# Wrappers


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_wrappers(magic: int, codec: Codec) -> None:
    data = wrapper(codec, 104, 5, magic=magic)
    block = Decoder().decode(data, table_of(data), origin=0)
    assert block.damage is None
    assert block.offset.tolist() == [100, 101, 102, 103, 104]
    assert block.timestamp.tolist() == [-1 if magic == 0 else 1000] * 5


@pytest.mark.parametrize("magic", [0, 1])
def test_the_checksum_of_a_wrapped_message_is_checked(magic: int) -> None:
    data = wrapper(Codec.GZIP, 4, 3, magic=magic, crc=123)
    table = table_of(data)
    damage = Decoder().decode(data, table, origin=0).damage
    assert damage is not None
    assert damage.error.what == "checksum of a message within a wrapper differs (record 0 of the batch)"
    assert damage.error.expected == 123
    assert len(Decoder(verify_crc=False).decode(data, table, origin=0)) == 3


def test_wrappers_that_hold_nothing() -> None:
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
def test_wrapper_lengths_are_checked(field: str, at: int) -> None:
    data = bytearray(wrapper(Codec.GZIP, 4, 3))
    data[at : at + 4] = b"\x7f\xff\xff\xff"
    damage = Decoder(verify_crc=False).decode(data, table_of(data), origin=0).damage
    assert damage is not None
    assert damage.error.what == f"{field} length does not fit the wrapper"


def test_a_wrapper_with_a_key() -> None:
    content = compress(Codec.GZIP, message(0, b"v"), 1)
    data = message(0, content, b"some key", attributes=Codec.GZIP)
    assert Decoder().decode(data, table_of(data), origin=0).offset.tolist() == [0]


# Recycling and threads


def test_arrays_are_recycled_and_grow() -> None:
    decoder = Decoder()
    small, large = packed(Codec.NONE), packed(Codec.NONE, 0, 5000)
    first = decoder.decode(small, table_of(small), origin=0)
    assert decoder.decode(small, table_of(small), origin=0).columns.base is first.columns.base
    grown = decoder.decode(large, table_of(large), origin=0)
    assert grown.offset.tolist() == list(range(5000))
    assert decoder.decode(small, table_of(small), origin=0).columns.base is grown.columns.base
    assert first.offset.tolist() == [0]  # its memory is its own by now


def test_nothing_to_decode() -> None:
    table = BatchTable.empty(1)
    block = Decoder().decode(b"", table, origin=0)
    assert (len(block), block.next_row, block.damage) == (0, 0, None)
    assert len(block.gather("key", b"\n")[0]) == 0


def test_decoders_in_threads_do_not_disturb_each_other() -> None:
    data = b"".join(packed(codec, 20 * i, 20, value=b"%d" % i * 50) for i in range(40) for codec in [CODECS[i % 5]])
    table = table_of(data)
    expected = all_of(Decoder(), data, table)
    results: list[object] = []

    def work() -> None:
        decoder = Decoder(block_bytes=2000)
        results.extend(all_of(decoder, data, table) for _ in range(10))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 40


def test_the_memory_of_an_older_block_stays() -> None:
    """A larger arena takes the place of the old one, whose bytes mean nothing by then but are there."""
    decoder = Decoder(block_bytes=1000)
    small, large = packed(Codec.LZ4), packed(Codec.LZ4, value=b"x" * 100_000)
    block: RecordBlock = decoder.decode(small, table_of(small), origin=0)
    view = block.buffer
    decoder.decode(large, table_of(large), origin=0)
    assert len(bytes(view)) == len(record(0, b"key", b"v"))

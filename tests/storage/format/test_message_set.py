from __future__ import annotations

import struct
import zlib

import cramjam
import pytest
from aiokafka.record.legacy_records import LegacyRecordBatch

from storage.append import batch_encoder
from storage.errors import InvalidRecord, UnsupportedFormat
from storage.format.block import Record
from storage.format.compression import Codec
from tests.support.fixtures import FIXTURES, read_golden, requires_fixtures
from tests.support.record_headers import batches

OLD_CODECS = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
SOME = [
    Record(b"k", b"value", (), 1000),
    Record(None, None, (), 3000),
    Record(b"", b"", (), 2000),
    Record(b"key" * 50, b"v" * 100_000, (), 0),
]


def read_back(data: bytes, magic: int) -> list[tuple[int, int | None, bytes | None, bytes | None]]:
    """(offset, timestamp, key, value) by aiokafka's reader, its CRC check included."""
    found = []
    if magic == 0 and data[17] == Codec.LZ4:  # which it does not read: v0's wrong header checksum
        assert zlib.crc32(data[16:]) == struct.unpack_from(">I", data, 12)[0]
        frame = bytearray(data[26:])
        assert frame[6] == 0x1A
        frame[6] = 0x82
        data = bytes(cramjam.lz4.decompress(frame))
    for batch in batches(data):
        reader = LegacyRecordBatch(bytearray(batch), magic)
        assert reader.validate_crc()
        found += [(r.offset, r.timestamp, r.key, r.value) for r in reader]
    return found


@requires_fixtures
@pytest.mark.parametrize("magic", [0, 1])
def test_bytes_equal_the_brokers(magic: int) -> None:
    """Plain messages as Kafka 3.9.1 wrote them, converting down (partition 0) and from an old client (partition 1)."""
    seen = 0
    for partition in (0, 1):
        fixture = FIXTURES / f"v{magic}"
        golden = read_golden(fixture / "golden" / f"v{magic}-none-{partition}.jsonl.gz")
        stored = [
            batch
            for log in sorted((fixture / "log" / f"v{magic}-none-{partition}").glob("*.log"))
            for batch in batches(log.read_bytes())
        ]
        assert len(stored) == len(golden)
        for record, batch in zip(golden, stored, strict=True):
            ours = batch_encoder.encode(
                [Record(record.key, record.value, (), record.timestamp)], magic, base_offset=record.offset
            )
            assert ours == batch
            seen += 1
    assert seen > 100


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [Codec.NONE, *OLD_CODECS])
def test_another_reader_reads_what_was_encoded(magic: int, codec: Codec) -> None:
    data = batch_encoder.encode(SOME, magic, base_offset=1 << 40, codec=codec)
    assert len(list(batches(data))) == (len(SOME) if codec == Codec.NONE else 1)
    assert read_back(data, magic) == [
        ((1 << 40) + i, r.timestamp if magic else None, r.key, r.value) for i, r in enumerate(SOME)
    ]


@pytest.mark.parametrize("codec", OLD_CODECS)
def test_a_wrapper_has_its_last_messages_offset_and_the_greatest_timestamp(codec: Codec) -> None:
    for magic in (0, 1):
        data = batch_encoder.encode(SOME, magic, base_offset=50, codec=codec)
        offset, size, crc, stored_magic, attributes = struct.unpack_from(">qiIbb", data)
        assert (offset, size, stored_magic, attributes) == (53, len(data) - 12, magic, codec)
        assert crc == zlib.crc32(data[16:])
        if magic:
            assert struct.unpack_from(">q", data, 18) == (3000,)
        key_at = 26 if magic else 18
        assert struct.unpack_from(">i", data, key_at) == (-1,)


def test_gaps_between_offsets_are_kept() -> None:
    offsets = [100, 103, 104, 110]
    for magic in (0, 1):
        for codec in (Codec.NONE, *OLD_CODECS):
            data = batch_encoder.encode(SOME, magic, base_offset=100, offsets=offsets, codec=codec)
            assert [r[0] for r in read_back(data, magic)] == offsets
    inner = zlib.decompress(batch_encoder.encode(SOME, 1, base_offset=100, offsets=offsets, codec=Codec.GZIP)[34:], 31)
    assert [struct.unpack_from(">q", m)[0] for m in batches(inner)] == [0, 3, 4, 10]
    inner = zlib.decompress(batch_encoder.encode(SOME, 0, base_offset=100, offsets=offsets, codec=Codec.GZIP)[26:], 31)
    assert [struct.unpack_from(">q", m)[0] for m in batches(inner)] == offsets


@pytest.mark.parametrize("codec", [Codec.NONE, *OLD_CODECS])
def test_log_append_time_holds_for_every_message(codec: Codec) -> None:
    data = batch_encoder.encode(SOME, 1, codec=codec, log_append_time_ms=777)
    assert all(batch[17] == codec | 8 for batch in batches(data))
    assert [r[1] for r in read_back(data, 1)] == [777] * len(SOME)


def test_v0s_lz4_header_checksum_is_the_wrong_one() -> None:
    frames = [batch_encoder.encode(SOME, magic, codec=Codec.LZ4)[26 + 8 * magic :] for magic in (0, 1)]
    assert [frame[:7].hex() for frame in frames] == ["04224d1860401a", "04224d18604082"]


def test_what_the_old_formats_lack_is_refused() -> None:
    with pytest.raises(InvalidRecord):
        batch_encoder.encode([Record(None, b"", ((b"h", b""),))], 1)
    with pytest.raises(UnsupportedFormat):
        batch_encoder.encode(SOME, 1, codec=Codec.ZSTD)
    with pytest.raises(UnsupportedFormat):
        batch_encoder.encode(SOME, 2)
    with pytest.raises(UnsupportedFormat):
        batch_encoder.encode(SOME, 0, log_append_time_ms=1)
    with pytest.raises(ValueError, match="without"):
        batch_encoder.encode([], 1)

"""Batches decompressed many at a time: the same records and errors as one by one, whatever the frames are."""

from __future__ import annotations

import random
from collections.abc import Iterator

import cramjam
import numpy as np
import pytest

from storage.format import compression, inflate_kernel
from storage.format.batches import BatchTable, scan
from storage.format.compression import LZ4_MAGIC, Codec, CodecLibrary, compress
from storage.format.decoder import Decoder
from tests.storage.format.outcomes import Outcome, read_all
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.raw_batches import batch, record

CODECS = [Codec.LZ4, Codec.ZSTD]
CONTENT = b"".join(record(i, b"key", b"value" * 40) for i in range(30))


def frame(payload: bytes, codec: int, base_offset: int = 0) -> bytes:
    """A batch of the 30 records of CONTENT whose stored bytes are `payload`."""
    return batch(payload, base_offset, count=30, last_offset_delta=29, attributes=codec)


def lz4_frame(flags: int, descriptor: int = 0x40, *, checksum: int | None = None) -> bytes:
    """A frame of CONTENT in one stored block, with this first header byte."""
    plain = compress(Codec.LZ4, CONTENT)
    head = LZ4_MAGIC + bytes([flags, descriptor, plain[6] if checksum is None else checksum])
    return head + plain[7:]


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        yield patch


def without_libraries(data: bytes, patch: pytest.MonkeyPatch, **options: bool) -> Outcome:
    with patch.context() as inner:
        inner.setattr(compression, "_zstd", lambda: None)
        inner.setattr(compression, "_lz4", lambda: None)
        return read_all(data, **options)


def taken(data: bytes) -> int:
    """How many batches from the first on the kernel takes."""
    table = BatchTable.empty(100)
    scan(data, 0, table)
    spans = np.zeros((2, table.rows), np.int64)
    arena, rows = np.empty(1 << 20, np.uint8), np.arange(table.rows, dtype=np.int64)
    library = CodecLibrary()
    headers = np.ascontiguousarray(table.data)
    index, _ = inflate_kernel.inflate(
        data, headers, 0, 0, rows, 0, arena, 0, 1 << 20, 1 << 20, spans[0], spans[1], library.addresses
    )
    return index


def test_the_libraries_of_this_machine_are_used() -> None:
    if not inflate_kernel.is_compiled() or set(compression.versions()) != {"libzstd", "liblz4"}:
        pytest.skip("kernel not built, or libzstd or liblz4 not there")
    for codec in CODECS:
        assert taken(frame(compress(codec, CONTENT), codec) * 3) == 3
    assert taken(frame(compress(Codec.GZIP, CONTENT), Codec.GZIP)) == 0


@pytest.mark.parametrize("codec", CODECS)
def test_equal_to_one_by_one(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = compress(codec, CONTENT)
    data = b"".join(frame(payload, codec, 30 * i) for i in range(40))
    outcome = read_all(data)
    assert len(outcome.records) == 40 * 30
    assert outcome == without_libraries(data, monkeypatch)


@pytest.mark.parametrize("codec", CODECS)
def test_damage_behind_a_right_checksum(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(codec)
    payload = compress(codec, CONTENT)
    found = more = 0
    for _ in range(1500):
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
    assert found > 100


def test_codecs_that_change_from_batch_to_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(7)
    codecs = [dice.choice((*CODECS, Codec.GZIP, Codec.SNAPPY, Codec.NONE)) for _ in range(60)]
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
def test_frames_that_kafka_has_rules_for(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_zstd_streams_of_all_kinds(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    data = frame(payload, Codec.ZSTD) + frame(compress(Codec.ZSTD, CONTENT), Codec.ZSTD, 30)
    outcome = read_all(data)
    assert outcome == without_libraries(data, monkeypatch)
    assert {r.offset for r in outcome.records} >= set(range(30, 60))


@pytest.mark.parametrize("codec", CODECS)
def test_the_cap_holds(codec: Codec) -> None:
    bomb = compress(codec, bytes(1 << 20))
    table = BatchTable.empty(4)
    data = frame(bomb, codec)
    scan(data, 0, table)
    block = Decoder(max_decompressed_bytes=1000, block_bytes=500).decode(data, table, origin=0)
    assert block.damage is not None
    assert "cap" in str(block.damage.error)


def test_rows_outside_are_refused() -> None:
    if not inflate_kernel.is_compiled():
        pytest.skip("kernel not built")
    data = frame(compress(Codec.ZSTD, CONTENT), Codec.ZSTD)
    table = BatchTable.empty(1)
    scan(data, 0, table)
    spans = np.zeros((2, 1), np.int64)
    library = CodecLibrary().addresses
    for rows in ([1], [-1], [2**40]):
        with pytest.raises(ValueError, match="outside"):
            inflate_kernel.inflate(
                data, table.data, 0, 0, np.array(rows), 0, np.empty(100, np.uint8), 0, 99, 99, *spans, library
            )

"""decode(encode(x)) is x, for any records in every format and codec; any bytes decode or are damage, never more."""

from __future__ import annotations

import random
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.append import batch_encoder
from storage.format import batches, block, decoder
from storage.format.batches import ScanStop
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import BatchFields, encode_batch
from tests.storage.format.outcomes import Outcome, ReadRecord, read_all
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.uncompiled import plain_kernels

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TIMESTAMPS = st.sampled_from([-1, 0, 1, 2**63 - 1, -(2**63), 1_700_000_000_000]) | INT64
BYTES = st.binary(max_size=40) | st.sampled_from([b"", b"\n", b"x" * 63, b"y" * 64, b"z" * 8191, b"\x00" * 70_000])
NULLABLE = st.none() | BYTES
HEADERS = st.lists(st.tuples(st.text(max_size=20).map(str.encode) | BYTES, NULLABLE), max_size=4).map(tuple)
RECORDS = st.lists(st.builds(Record, NULLABLE, NULLABLE, HEADERS, TIMESTAMPS), min_size=1, max_size=12)
PLAIN_RECORDS = st.lists(st.builds(Record, NULLABLE, NULLABLE, st.just(()), TIMESTAMPS), min_size=1, max_size=12)
OFFSETS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**63 - 100]) | st.integers(0, 2**63 - 100)
FIELDS = st.builds(
    BatchFields,
    leader_epoch=INT32,
    producer_id=INT64,
    producer_epoch=INT16,
    base_sequence=INT32,
    transactional=st.booleans(),
    control=st.booleans(),
    log_append_time_ms=st.none() | TIMESTAMPS,
    delete_horizon_ms=st.none() | TIMESTAMPS,
    base_timestamp=st.none() | TIMESTAMPS,
)


def expected(records: list[Record], base_offset: int, timestamps: list[int]) -> list[ReadRecord]:
    return [
        ReadRecord(base_offset + i, timestamp, r.key, r.value, tuple(r.headers), 0)
        for i, (r, timestamp) in enumerate(zip(records, timestamps, strict=True))
    ]


def whole(outcome: Outcome, size: int) -> Outcome:
    assert outcome.damages == []
    assert (outcome.stop, outcome.stop_at) == (ScanStop.END, size)
    return outcome


@given(RECORDS, OFFSETS, st.sampled_from(Codec), FIELDS)
def test_format_v2(records: list[Record], base_offset: int, codec: Codec, fields: BatchFields) -> None:
    data = encode_batch(records, base_offset=base_offset, codec=codec, fields=fields)
    outcome = whole(read_all(data), len(data))
    append_time = fields.log_append_time_ms
    timestamps = [r.timestamp if append_time is None else append_time for r in records]
    assert outcome.records == expected(records, base_offset, timestamps)
    (header,) = outcome.batches
    assert header[:6] == [0, len(data), base_offset, base_offset + len(records) - 1, len(records), 2]
    assert header[9:13] == [fields.producer_id, fields.producer_epoch, fields.base_sequence, fields.leader_epoch]
    assert header[6] == fields.attributes(codec)


@pytest.mark.parametrize("magic", [0, 1])
@given(
    records=PLAIN_RECORDS,
    base_offset=OFFSETS,
    codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]),
    append_time=st.none() | TIMESTAMPS,
)
def test_formats_v0_and_v1(
    magic: int, records: list[Record], base_offset: int, codec: Codec, append_time: int | None
) -> None:
    if magic == 0:
        append_time = None
    data = batch_encoder.encode(records, magic, base_offset=base_offset, codec=codec, log_append_time_ms=append_time)
    outcome = whole(read_all(data), len(data))
    timestamps = [-1 if magic == 0 else r.timestamp if append_time is None else append_time for r in records]
    rows = range(len(records)) if codec == Codec.NONE else [0] * len(records)
    assert outcome.records == [
        record._replace(row=row) for record, row in zip(expected(records, base_offset, timestamps), rows, strict=True)
    ]


@given(st.lists(st.tuples(PLAIN_RECORDS, st.integers(0, 2), st.sampled_from(Codec)), min_size=1, max_size=6))
def test_a_log_of_mixed_formats(parts: list[tuple[list[Record], int, Codec]]) -> None:
    log = bytearray()
    values = []
    offset = 1000
    for records, magic, codec in parts:
        if magic == 2:
            log += encode_batch(records, base_offset=offset, codec=codec)
        else:
            codec = Codec.LZ4 if codec == Codec.ZSTD else codec
            log += batch_encoder.encode(records, magic, base_offset=offset, codec=codec)
        values += [(offset + i, r.key, r.value) for i, r in enumerate(records)]
        offset += len(records)
    outcome = whole(read_all(bytes(log), position=12345), len(log))
    assert [(r.offset, r.key, r.value) for r in outcome.records] == values


@settings(max_examples=30)
@given(RECORDS, st.sampled_from(Codec), FIELDS, PLAIN_RECORDS, st.sampled_from([0, 1]))
def test_the_plain_kernels_read_the_same(
    records: list[Record], codec: Codec, fields: BatchFields, old: list[Record], magic: int
) -> None:
    records = [r._replace(value=r.value and r.value[:300], key=r.key and r.key[:300]) for r in records]
    data = encode_batch(records, codec=codec, fields=fields)
    old = [r._replace(value=r.value and r.value[:300], key=r.key and r.key[:300]) for r in old]
    data += batch_encoder.encode(old, magic, base_offset=len(records), codec=Codec.NONE)
    compiled = read_all(data)
    with plain_kernels():
        assert read_all(data) == compiled
    assert len(whole(compiled, len(data)).records) == len(records) + len(old)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_are_damage(data: bytes, verify_crc: bool) -> None:
    read_all(data, verify_crc=verify_crc)


@given(
    RECORDS,
    PLAIN_RECORDS,
    st.sampled_from(Codec),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_damaged_batches_are_read_or_are_damage(
    records: list[Record],
    old: list[Record],
    codec: Codec,
    magic: int,
    dice: random.Random,
    fit: bool,
) -> None:
    if magic == 2:
        data = encode_batch(records, base_offset=7, codec=codec)
    else:
        data = batch_encoder.encode(old, magic, codec=Codec.LZ4 if codec == Codec.ZSTD else codec)
    hurt = damaged(data, dice)
    read_all(with_right_checksums(hurt) if fit else hurt)
    read_all(hurt, verify_crc=False)


def test_plain_kernels_take_the_place_of_compiled_ones() -> None:
    def kernels() -> tuple[ModuleType, ...]:
        decoding = (decoder.decode_kernel, decoder.checksum_kernel, decoder.inflate_kernel)
        return (batches.decode_kernel, block.decode_kernel, *decoding)

    used = kernels()
    with plain_kernels():
        assert not any(kernel.is_compiled() for kernel in kernels())
    assert used == kernels()

"""The most records and headers that are read of one batch: what compresses to almost nothing takes no memory for it.

With the built kernels: plain Python would take minutes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from storage.append import batch_encoder
from storage.format import decode_kernel, decoder
from storage.format.batches import BatchTable, scan
from storage.format.block import Record, RecordBlock
from storage.format.compression import Codec, compress
from storage.format.decoder import MOST_HEADERS, MOST_RECORDS, Decoder
from tests.support.raw_batches import batch, body, sized, varint

pytestmark = pytest.mark.skipif(not decode_kernel.is_compiled(), reason="plain Python takes minutes")

RECORD = sized(body(value=None))
HEADERS = sized(body(value=None)[:-1] + varint(MOST_HEADERS) + b"\0\1" * MOST_HEADERS)
TOO_MANY_RECORDS = "more records than are read of one batch"


def scanned(data: bytes) -> tuple[bytes, BatchTable]:
    table = BatchTable.empty(1)
    scan(data, 0, table)
    return data, table


def decode(data: bytes) -> RecordBlock:
    return Decoder().decode(*scanned(data), origin=0)


def fault(data: bytes) -> tuple[str, str, str]:
    damages = [decode(data).damage, Decoder().audit(*scanned(data), origin=0).damage]
    found = {(str(one.error.what), str(one.error.expected), str(one.error.found)) for one in damages if one}
    assert None not in damages
    return found.pop() if len(found) == 1 else ("", "", "")


def test_the_most_records_and_headers_are_read() -> None:
    block = decode(batch(RECORD * (MOST_RECORDS - 1) + sized(body(MOST_RECORDS - 1)), count=MOST_RECORDS))
    assert (block.damage, len(block), int(block.offset[-1])) == (None, MOST_RECORDS, MOST_RECORDS - 1)
    block = decode(batch([HEADERS]))
    assert (block.damage, block.headers_count.tolist()) == (None, [MOST_HEADERS])
    assert block.headers_spans().shape == (4, MOST_HEADERS)


@pytest.mark.parametrize("value", [None, b"value"])  # an audit has a shorter way for records like the second
def test_a_batch_of_more_records_is_damage(value: bytes | None) -> None:
    number = MOST_RECORDS + 1
    found = fault(batch(sized(body(value=value)) * number, count=number))
    assert found == (TOO_MANY_RECORDS, f"at most {MOST_RECORDS}", str(number))


def test_a_batch_of_more_headers_is_damage() -> None:
    found = fault(batch([HEADERS, sized(body(1, headers=[(b"", None)]))]))
    what = "more headers than are read of one batch (record 1 of the batch)"
    assert found == (what, f"at most {MOST_HEADERS}", str(MOST_HEADERS + 1))


def test_a_wrapper_of_more_messages_is_damage() -> None:
    message = batch_encoder.encode([Record(None, None, (), 0)], 0)
    table = scanned(batch_encoder.encode([Record(None, b"", (), 0)], 0, codec=Codec.GZIP))[1]

    def wrong(messages: int) -> str:
        content = message * messages
        columns, fault = np.empty((9, MOST_RECORDS + 1), np.int64), np.zeros(4, np.int64)
        spans = np.array([0, len(content)], np.int64)
        decode_kernel.decode(
            content, table.data, 0, 1, 0, spans[:1], spans[1:], np.empty(0, np.uint8), False, columns, 0, fault
        )
        return decode_kernel.FAULTS[fault[0]][0]

    assert (wrong(MOST_RECORDS), wrong(MOST_RECORDS + 1)) == ("", TOO_MANY_RECORDS)


def test_no_room_is_made_for_records_that_are_not_read() -> None:
    data, table = scanned(batch(RECORD * (MOST_RECORDS + 1), count=MOST_RECORDS + 1))
    assert decode_kernel.survey(table.data, 0, 1, 0, len(data), np.empty(0, np.uint8), True) == (MOST_RECORDS, 0, 0)


def test_memory_of_a_large_batch_is_given_back() -> None:
    small = batch([sized(body())])
    payload = compress(Codec.ZSTD, sized(body(value=bytes(decoder._KEPT_BYTES))))
    large = batch(payload, count=1, attributes=Codec.ZSTD)
    damaged = batch(payload, count=2, attributes=Codec.ZSTD)
    one = Decoder()
    assert len(one.decode(*scanned(large), origin=0)) == 1
    assert len(one._arena) > decoder._KEPT_BYTES
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


def test_few_decoders_have_large_memory_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    large = scanned(batch(RECORD * (decoder._KEPT_RECORDS + 1), count=decoder._KEPT_RECORDS + 1))
    small = scanned(batch([RECORD]))
    monkeypatch.setattr(decoder, "_large", threading.BoundedSemaphore(2))
    monkeypatch.setattr(decoder, "_PATIENCE_SECONDS", 0)
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


def test_a_decoder_waits_for_another_ones_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    large = scanned(batch(RECORD * (decoder._KEPT_RECORDS + 1), count=decoder._KEPT_RECORDS + 1))
    waited: list[float] = []

    class Taken:
        def acquire(self, timeout: float) -> bool:
            waited.append(timeout)
            return False

    monkeypatch.setattr(decoder, "_large", Taken())
    assert Decoder().decode(*large, origin=0).damage is None
    assert waited == [decoder._PATIENCE_SECONDS]

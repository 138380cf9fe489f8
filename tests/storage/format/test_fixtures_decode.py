"""Every log in the fixtures, scanned and decoded segment by segment, is what a real consumer read of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import CorruptBatch
from storage.format.batches import BatchTable, ScanOutcome, ScanStop, scan
from storage.format.block import RecordBlock
from storage.format.decoder import Decoder
from storage.types import TimestampType
from tests.support.fixtures import READ_UNCOMMITTED, Golden, GoldenCase, case_params, golden_cases, requires_fixtures

# The broker kept these as they are, and its consumer stopped at the damage: a magic value of 9, a flipped byte.
STOPS = {
    "rec-c4-flip-magic": ScanStop.UNSUPPORTED,
    "rec-m-flip-below-recovery-point": CorruptBatch,
}
TIMESTAMP_TYPES = {
    TimestampType.NO_TIMESTAMP_TYPE: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}


def log_start_offset(case: GoldenCase) -> int:
    lines = (case.log_dir / "log-start-offset-checkpoint").read_text().splitlines()[2:]
    entries = {tuple(line.split()[:2]): int(line.split()[2]) for line in lines}
    return entries.get((case.topic, str(case.partition)), 0)


def records_of(block: RecordBlock) -> Iterator[Golden]:
    types = block.table.timestamp_type
    for index in range(len(block)):
        yield Golden(
            int(block.offset[index]),
            int(block.timestamp[index]),
            TIMESTAMP_TYPES[TimestampType(int(types[block.batch[index]]))],
            block.key(index),
            block.value(index),
            tuple(block.headers(index)),
        )


def scanned(data: bytes) -> tuple[BatchTable, ScanOutcome]:
    table = BatchTable.empty(len(data) // 26 + 1)
    return table, scan(data, 0, table)


def decoded(decoder: Decoder, data: bytes, table: BatchTable) -> Iterator[RecordBlock]:
    """Blocks until the end of the table or damage, which the last block has."""
    row = 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0)
        yield block
        if block.damage:
            return
        assert block.next_row > row
        row = block.next_row


def segments(case: GoldenCase) -> list[Path]:
    return sorted(case.partition_dir.glob("*.log"))


@requires_fixtures
@pytest.mark.parametrize("verify_crc", [True, False], ids=["crc", "no-crc"])
@pytest.mark.parametrize("case", case_params(c for c in golden_cases() if c.isolation == READ_UNCOMMITTED))
def test_records_equal_golden(case: GoldenCase, verify_crc: bool) -> None:
    decoder = Decoder(verify_crc=verify_crc, block_bytes=4096)
    start = log_start_offset(case)
    found: list[Golden] = []
    stop: object = None
    for path in segments(case):
        data = path.read_bytes()
        table, outcome = scanned(data)
        for block in decoded(decoder, data, table):
            found += [record for record in records_of(block) if record.offset >= start]
            if block.damage:
                assert block.damage.position == table.position[block.next_row]
                stop = type(block.damage.error)
        if outcome.stop is not ScanStop.END:
            stop = outcome.stop
        else:
            assert outcome.next_start == len(data)
        if stop:
            break
    if not verify_crc and case.topic == "rec-m-flip-below-recovery-point":
        assert len(found) > len(case.records())  # the flip lies in a value: only the checksum tells
        return
    assert found == case.records()
    assert stop == STOPS.get(case.topic)

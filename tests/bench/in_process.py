"""Decoding without a mount: our columns, and aiokafka's record objects."""

from aiokafka.record import MemoryRecords

from storage.format.batches import BatchTable, scan
from storage.format.decoder import Decoder
from storage.log.scanning import WINDOW_BYTES
from tests.bench.measure import Row, call_seconds


def segment_bytes(log_dir, partition):
    (log,) = (log_dir / partition).glob("*.log")
    return log.read_bytes()


def tables(data):
    """Header tables of windows of `data`, as a reader makes them."""
    view = memoryview(data)
    table = BatchTable.empty(8192)
    start = 0
    while start < len(data):
        table.clear()
        start = scan(view, 0, table, start, min(start + WINDOW_BYTES, len(data))).next_start
        yield table


def decode_all(data, *, verify_crc):
    """Scan and decode everything; the number of records."""
    decoder = Decoder(verify_crc=verify_crc)
    records = 0
    for table in tables(data):
        row = 0
        while row < table.rows:
            block = decoder.decode(data, table, row, origin=0)
            if block.damage is not None:
                raise block.damage.error
            records += len(block)
            row = block.next_row
    return records


def decode_aiokafka(data):
    """The same with aiokafka's parser (its compiled one), which makes an object per record and checks no CRC."""
    records = MemoryRecords(data)
    count = 0
    while (batch := records.next_batch()) is not None:
        for _record in batch:
            count += 1
    return count


def measure(context):
    report, log_dir, messages, runs = context.report, context.log_dir, context.messages, context.runs
    plain, single = segment_bytes(log_dir, "plain-0"), segment_bytes(log_dir, "single-0")
    expected = {decode_all(plain, verify_crc=True), decode_all(single, verify_crc=True)}
    if expected != {messages}:
        raise AssertionError(f"decoded {expected}, not {messages}")
    for _ in range(runs):
        for name, data, verify in (
            ("decode, no CRC", plain, False),
            ("decode, CRC", plain, True),
            ("decode one-record batches, CRC", single, True),
        ):
            row = Row(name, bytes=len(data), messages=messages, note="one thread, scan included", compare=("aiokafka",))
            report.add(row, call_seconds(lambda data=data, verify=verify: decode_all(data, verify_crc=verify)))
        row = Row("aiokafka", bytes=len(plain), messages=messages, note="record objects, no CRC")
        report.add(row, call_seconds(lambda: decode_aiokafka(plain)))
        row = Row("aiokafka, one-record batches", bytes=len(single), messages=messages, note="no CRC")
        report.add(row, call_seconds(lambda: decode_aiokafka(single)))

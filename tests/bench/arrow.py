"""Arrow batches in Python, beside decoding alone."""

import time

import kafkafs
from tests.bench import data
from tests.bench.measure import Row

FLOOR = "decoding alone, CPU"


def cpu_seconds(call):
    """Of all threads: rates are for one core, whatever else the machine does."""
    start = time.process_time()
    call()
    return time.process_time() - start


def read(scan):
    for batch in scan:
        assert batch.num_rows


def decode(scan):
    for _, block in scan.blocks():
        assert len(block)


def measure(context):
    """CPU seconds of scans with all columns and with values alone."""
    count, size = context.messages, context.size
    log, keyed = (kafkafs.open(data.make(partition, count)) for partition in ("plain-0", data.KEYED))
    cases = [
        (FLOOR, lambda: decode(log["plain"].scan())),
        ("to Arrow, all columns", lambda: read(log["plain"].scan())),
        ("to Arrow, value alone", lambda: read(log["plain"].scan(columns="value"))),
        ("to Arrow, all columns, keys", lambda: read(keyed["keyed"].scan())),
    ]
    for _ in range(context.runs):
        for name, call in cases:
            row = Row(
                name,
                "for batch in scan",
                bytes=size,
                messages=count,
                note="CPU",
                compare=() if name == FLOOR else (FLOOR,),
            )
            context.report.add(row, cpu_seconds(call))

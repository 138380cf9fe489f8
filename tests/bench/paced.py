"""Lines appended at a set pace while a follower reads them, as tail -f would without its second, and retention runs."""

from __future__ import annotations

import bisect
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.case import Context
from tests.bench.data import VALUE_BYTES
from tests.bench.measure import Row
from tests.bench.writing import appendable

BYTES_A_SECOND = 100_000_000
WRITE_BYTES = (128 << 10) // (VALUE_BYTES + 1) * (VALUE_BYTES + 1)
SECONDS = 20
SETTINGS = ("segment.bytes=67108864", "retention.bytes=268435456", "file.delete.delay.ms=1000")
RETAINING = "log.retention.check.interval.ms=1000\nlog.initial.task.delay.ms=1000\n"
_POLL_S = 0.002


@dataclass(slots=True)
class Marks:
    """How far somebody was at which moments: bytes and seconds, both ascending."""

    bytes: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def add(self, total: int) -> None:
        self.bytes.append(total)
        self.seconds.append(time.perf_counter())


def write_paced(file: Path, total: int, marks: Marks) -> None:
    """Lines to an open file, `BYTES_A_SECOND` on average; after a pause it catches up."""
    data = (b"%0*d\n" % (VALUE_BYTES, 7)) * (WRITE_BYTES // (VALUE_BYTES + 1))
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    try:
        start, written = time.perf_counter(), 0
        while written < total:
            ahead = written / BYTES_A_SECOND - (time.perf_counter() - start)
            if ahead > 0:
                time.sleep(ahead)
            written += os.write(descriptor, data)
            marks.add(written)
    finally:
        os.close(descriptor)


def follow(file: Path, total: int, marks: Marks) -> None:
    """Reads a growing file from its beginning until so many bytes were read."""
    descriptor, read = os.open(file, os.O_RDONLY), 0
    try:
        while read < total:
            part = len(os.pread(descriptor, 1 << 20, read))
            read += part
            marks.add(read)
            if not part:
                time.sleep(_POLL_S)
    finally:
        os.close(descriptor)


def lags(written: Marks, read: Marks) -> list[float]:
    """For each write, the seconds until the follower had all of it."""
    found = []
    for size, moment in zip(written.bytes, written.seconds, strict=True):
        found.append(read.seconds[bisect.bisect_left(read.bytes, size)] - moment)
    return sorted(found)


def measure(context: Context) -> None:
    """One run of 20 s, or of as many bytes as `messages` lines if that is less."""
    total = min(SECONDS * BYTES_A_SECOND, 4 * context.size) // WRITE_BYTES * WRITE_BYTES
    with appendable(SETTINGS, RETAINING) as (point, log_dir):
        partition = point / "t/0"
        written, read = Marks(), Marks()
        reader = threading.Thread(target=follow, args=(partition / "messages.txt", total, read), daemon=True)
        reader.start()
        start = time.perf_counter()
        write_paced(partition / "@append", total, written)
        seconds = time.perf_counter() - start
        reader.join(timeout=60)
        if reader.is_alive():
            raise AssertionError(f"the follower stays at {read.bytes[-1] if read.bytes else 0} of {total} bytes")
        first = min(int(file.stem) for file in (log_dir / "t-0").glob("*.log"))
    delays = lags(written, read)
    note = (
        f"wanted {total / BYTES_A_SECOND:.2f} s; follower behind by {delays[len(delays) // 2] * 1e3:.0f} ms (median),"
        f" {delays[-1] * 1e3:.0f} ms (worst); log begins at {first:,}"
    )
    row = Row("paced at 100 MB/s", "writes of 128 KiB, a reader, retention.bytes=256 MiB", bytes=total, note=note)
    context.report.add(row, seconds)

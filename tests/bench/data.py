"""The benchmarks' data: a seeded generator of log directories, kept in a cache directory outside the project.

Messages are log lines of exactly 100 bytes, a millisecond apart, without keys: each differs, and they compress as such
lines do. Partitions, all with the same messages unless it says otherwise:

    plain-0     uncompressed, batches of up to 16 KiB, one segment (as a broker's default of 1 GiB gives)
    sealed-0    the same in segments of 128 MiB, or five of them if that is less: all but the last are sealed
    lz4-0 zstd-0   batches of 16 KiB before compression
    single-0    one record a batch
    keyed-0     as plain-0, with a key of 12 bytes each: one of a fifth as many keys as there are messages
"""

import os
import shutil
from pathlib import Path

import crc32c
import numpy as np

from storage.format.block import RecordColumns
from storage.format.compression import Codec
from storage.format.record_batch import encode_into

MESSAGES = 5_000_000
VALUE_BYTES = 100
BATCH_BYTES = 16_384
START_MS = 1_795_046_400_000  # 2026-11-19T00:00:00Z
SEED = 20_261_121
GIB = 1 << 30
INDEX_INTERVAL_BYTES = 4096
CHUNK = 100_000  # messages made at a time

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kafkafs" / "bench"
TEMPLATE = b"2026-11-19 service=######## #### user=###### trace=######## path=/orders/######## code=### ms=#####s"
SEALED = "sealed-0"
PARTITIONS = ("plain-0", SEALED, "lz4-0", "zstd-0", "single-0")
KEYED = "keyed-0"
KEY_BYTES = 12
MESSAGES_PER_KEY = 5


def values(count):
    """The messages' values in order, as arrays of (up to CHUNK, 100) bytes."""
    rng = np.random.default_rng(SEED)
    template = np.frombuffer(TEMPLATE, np.uint8)
    assert len(template) == VALUE_BYTES
    services = _words("checkout billing_ shipping catalog_ accounts search__ frontend payments")
    levels = _words("INFO INFO INFO INFO WARN INFO FAIL INFO")
    status = _words("200 200 200 201 404 200 500 200")
    at = [index for index in range(VALUE_BYTES) if TEMPLATE[index : index + 1] == b"#"]
    for first in range(0, count, CHUNK):
        rows = min(CHUNK, count - first)
        chunk = np.repeat(template[None, :], rows, axis=0)
        fields = (
            services[rng.integers(0, 8, rows)],
            levels[rng.integers(0, 8, rows)],
            _digits(rng.integers(0, 20_000, rows), 6),
            _digits(rng.integers(0, 10**8, rows), 8),
            _digits(np.arange(first, first + rows), 8),
            status[rng.integers(0, 8, rows)],
            _digits(rng.integers(0, 3_000, rows), 5),
        )
        chunk[:, at] = np.concatenate(fields, axis=1)
        yield chunk


def _words(text):
    return np.array([list(word.encode()) for word in text.split()], np.uint8)


def _digits(numbers, width):
    powers = 10 ** np.arange(width - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


class SegmentWriter:
    """Writes whole batches to segments of at most `segment_bytes`, with Kafka's index arithmetic."""

    def __init__(self, directory, segment_bytes=GIB):
        self._directory = directory
        self._segment_bytes = segment_bytes
        directory.mkdir(parents=True)
        self._base = 0
        self._entries = []
        self._since_entry = 0
        self._last = (0, 0)
        self._log = self._name(".log").open("wb")

    def _name(self, suffix):
        return self._directory / f"{self._base:020}{suffix}"

    def append(self, batch, base_offset, last_offset, max_timestamp):
        if self._log.tell() + len(batch) > self._segment_bytes:
            self._finish()
            self._base, self._entries, self._since_entry = base_offset, [], 0
            self._log = self._name(".log").open("wb")
        if self._since_entry > INDEX_INTERVAL_BYTES:
            self._entries.append((last_offset - self._base, self._log.tell(), max_timestamp))
            self._since_entry = 0
        self._log.write(batch)
        self._since_entry += len(batch)
        self._last = (last_offset - self._base, max_timestamp)

    def append_records(self, columns, rows, base_offset, room, codec=Codec.NONE):
        """Appends records, a millisecond apart, in batches of `room` if they are not compressed."""
        row = 0
        while row < rows:
            last = rows if codec is Codec.NONE else min(rows, row + BATCH_BYTES // (VALUE_BYTES + 9))
            first = base_offset + row
            row, end, _ = encode_into(room, 0, columns, row, last, base_offset=first, codec=codec)
            self.append(room[:end], first, base_offset + row - 1, START_MS + base_offset + row - 1)

    def _finish(self):
        self._log.close()
        index = np.array(self._entries, np.int64).reshape(-1, 3)
        self._name(".index").write_bytes(index[:, :2].astype(">i4").tobytes())
        entries = [(timestamp, offset) for offset, _, timestamp in self._entries]
        if not entries or self._last[1] > entries[-1][0]:
            entries.append((self._last[1], self._last[0]))
        times = np.array(entries, np.dtype([("timestamp", ">i8"), ("offset", ">i4")]))
        self._name(".timeindex").write_bytes(times.tobytes())

    def close(self):
        self._finish()
        (self._directory / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")


def key(number):
    """One of the keys of `keyed-0`."""
    return b"user-%07d" % number


def _keys(rng, rows, count):
    """The keys of so many messages, of `count`; shape (rows, KEY_BYTES)."""
    keys = np.repeat(np.frombuffer(key(0), np.uint8)[None, :], rows, axis=0)
    keys[:, -7:] = _digits(rng.integers(0, count, rows), 7)
    return keys


def _batched(directory, count, codec, segment_bytes, *, keyed=False):
    rng, keys = np.random.default_rng(SEED), max(1, count // MESSAGES_PER_KEY)
    writer = SegmentWriter(directory, segment_bytes)
    out = bytearray(BATCH_BYTES * 2)
    target = memoryview(out)[:BATCH_BYTES] if codec is Codec.NONE else memoryview(out)
    offset = 0
    for chunk in values(count):
        rows = len(chunk)
        width = VALUE_BYTES
        if keyed:
            chunk = np.hstack([chunk, _keys(rng, rows, keys)])
            width += KEY_BYTES
        starts = np.arange(rows, dtype=np.int64) * width
        columns = RecordColumns(
            buffer=chunk.tobytes(),
            value_start=starts,
            value_length=np.full(1, VALUE_BYTES, np.int64),
            timestamp=np.arange(START_MS + offset, START_MS + offset + rows, dtype=np.int64),
            key_start=starts + VALUE_BYTES if keyed else 0,
            key_length=KEY_BYTES if keyed else -1,
        )
        writer.append_records(columns, rows, offset, target, codec)
        offset += rows
    writer.close()


def _single(directory, count):
    """One-record batches: all of one length, so a matrix of them is filled at once; only the CRC is a call each."""
    writer = SegmentWriter(directory)
    out = bytearray(1024)
    offset = 0
    for chunk in values(count):
        rows = len(chunk)
        columns = RecordColumns(
            buffer=chunk[:1].tobytes(),
            value_start=np.zeros(1, np.int64),
            value_length=np.full(1, VALUE_BYTES, np.int64),
            timestamp=np.full(1, START_MS, np.int64),
        )
        end = encode_into(out, 0, columns).end
        matrix = np.repeat(np.frombuffer(out[:end], np.uint8)[None, :], rows, axis=0)
        offsets = np.arange(offset, offset + rows)
        times = (START_MS + offsets).astype(">i8").view(np.uint8).reshape(rows, 8)
        matrix[:, 0:8] = offsets.astype(">i8").view(np.uint8).reshape(rows, 8)
        matrix[:, 27:35] = matrix[:, 35:43] = times
        value_at = end - 1 - VALUE_BYTES  # behind it only the number of headers
        matrix[:, value_at : end - 1] = chunk
        flat = memoryview(matrix.tobytes())
        starts = range(0, rows * end, end)
        sums = np.fromiter((crc32c.crc32c(flat[at + 21 : at + end]) for at in starts), np.uint32, rows)
        matrix[:, 17:21] = sums.astype(">u4").view(np.uint8).reshape(rows, 4)
        whole = memoryview(matrix.tobytes())
        for row in range(rows):
            at, number = row * end, offset + row
            writer.append(whole[at : at + end], number, number, START_MS + number)
        offset += rows
    writer.close()


def _log_dir(count):
    return CACHE / f"messages-{count}"


def made(partition, count=MESSAGES):
    """Whether `make` has nothing left to do."""
    there = _log_dir(count) / partition
    return there.exists() and (partition != SEALED or sealed_end(count) > 0)


def sealed_end(count=MESSAGES):
    """The offset at which the active segment of `sealed-0` begins."""
    return max(int(path.stem) for path in (_log_dir(count) / SEALED).glob("*.log"))


def make(partition, count=MESSAGES):
    """The log directory that holds `partition`; made if it is not there yet."""
    log_dir = _log_dir(count)
    target = log_dir / partition
    if made(partition, count):
        return log_dir
    partial = CACHE / f"partial-{os.getpid()}" / partition
    shutil.rmtree(partial.parent, ignore_errors=True)
    if partition == "single-0":
        _single(partial, count)
    else:
        codec = {"lz4-0": Codec.LZ4, "zstd-0": Codec.ZSTD}.get(partition, Codec.NONE)
        segment_bytes = min(128 << 20, 27 * count) if partition == SEALED else GIB
        _batched(partial, count, codec, segment_bytes, keyed=partition == KEYED)
    shutil.rmtree(target, ignore_errors=True)
    log_dir.mkdir(parents=True, exist_ok=True)
    partial.rename(target)
    partial.parent.rmdir()
    return log_dir


def keyed_lines(count=MESSAGES):
    """A text file of the messages of `keyed-0`, key, colon and value a line: what a producer is fed."""
    rng, keys = np.random.default_rng(SEED), max(1, count // MESSAGES_PER_KEY)
    made = (np.hstack([_keys(rng, len(chunk), keys), _column(b":", len(chunk)), chunk]) for chunk in values(count))
    return _kept_lines(f"keyed-{count}.txt", made)


def lines(count=MESSAGES):
    """A text file of the messages, one a line: what a producer is fed, and what `messages.txt` must hold."""
    return _kept_lines(f"messages-{count}.txt", values(count))


def _kept_lines(name, rows):
    """The file in the cache directory, made of these rows, each with a newline, if it is not there yet."""
    target = CACHE / name
    if not target.exists():
        partial = target.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as out:
            for chunk in rows:
                out.write(np.hstack([chunk, _column(b"\n", len(chunk))]).tobytes())
        partial.rename(target)
    return target


def _column(byte, rows):
    return np.full((rows, 1), ord(byte), np.uint8)

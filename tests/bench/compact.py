"""Compaction: our cleaner beside the real broker's on the same log, without a throttle.

The log: messages of 100 bytes with keys of 10 bytes, ten messages to a key, uncompressed batches of 16 KiB, segments
of 128 MiB below an empty active one. The broker's figures are those of its cleaner's own log.
"""

import os
import re
import shutil
import time
from dataclasses import dataclass

import numpy as np

from storage.compaction.partition_compaction import compact_partition
from storage.config import BrokerConfig
from storage.directory.owned_dir import Opening, OwnedDir
from storage.format.block import RecordColumns
from storage.format.record_batch import encode_into
from storage.types import TopicPartition
from tests.bench import data
from tests.bench.case import say
from tests.bench.measure import Row, greatest_rss
from tests.interop.client import Client
from tests.interop.kafka import HAVE_KAFKA, Broker

TP = TopicPartition("compacted", 0)
SEGMENT_BYTES = 128 << 20
KEY_BYTES = 10
SETTINGS = {
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "log.cleaner.io.max.bytes.per.second": "1e15",
    "log.cleaner.threads": "1",
    "log.retention.ms": "-1",
}
_CLEANED = re.compile(
    r"Log cleaner thread 0 cleaned log compacted-0 .*? in ([\d,.]+) seconds.*?"
    r"Indexed ([\d,.]+) MB in ([\d,.]+) seconds.*?Cleaned ([\d,.]+) MB in ([\d,.]+) seconds",
    re.DOTALL,
)


def _fill(log, messages):
    keys = np.random.default_rng(data.SEED)
    out = bytearray(8 << 20)
    offset = 0
    for chunk in data.values(messages):
        rows = len(chunk)
        numbers = keys.integers(0, max(messages // 10, 1), rows)
        digits = numbers[:, None] // 10 ** np.arange(KEY_BYTES - 1, -1, -1) % 10 + ord("0")
        columns = RecordColumns(
            buffer=digits.astype(np.uint8).tobytes() + chunk.tobytes(),
            key_start=np.arange(rows) * KEY_BYTES,
            key_length=np.full(1, KEY_BYTES),
            value_start=np.arange(rows) * data.VALUE_BYTES + rows * KEY_BYTES,
            value_length=np.full(1, data.VALUE_BYTES),
            timestamp=np.arange(data.START_MS + offset, data.START_MS + offset + rows),
        )
        row = used = 0
        while row < rows:
            target = memoryview(out)[used : used + data.BATCH_BYTES]
            encoded = encode_into(target, 0, columns, row, rows, base_offset=offset + row)
            row, used = encoded.next_row, used + encoded.end
            if row == rows or used > len(out) - data.BATCH_BYTES:
                log.append_batches(memoryview(out)[:used])
                used = 0
        offset += rows
    log.roll()


def made_log(messages):
    """The directory of a stopped broker (of none, where there is no Kafka) with the log; kept for the next time."""
    directory = data.CACHE / f"compact-{messages}"
    if (directory / "made").exists():
        return directory
    shutil.rmtree(directory, ignore_errors=True)
    config = {"cleanup.policy": "compact", "segment.bytes": str(SEGMENT_BYTES), "segment.ms": "315360000000"}
    if HAVE_KAFKA:
        broker = Broker(directory, {**SETTINGS, "log.cleaner.enable": "false"})
        client = Client(broker.start().address)
        client.create_topic(TP.topic, 1, config)
        broker.stop()
    owned = OwnedDir.open(directory / "log", Opening(create=True))
    if not HAVE_KAFKA:
        owned.create_topic(TP.topic, 1, config)
    _fill(owned.log(TP), messages)
    assert owned.close().clean
    (directory / "made").touch()
    return directory


@dataclass(slots=True)
class _Times:
    total: float
    index_mb: float
    index: float
    copy: float


def _theirs(source, place):
    """The broker's cleaner, from its log."""
    shutil.copytree(source, place)
    broker = Broker(place, {**SETTINGS, "log.cleaner.enable": "true"}, quick_jvm=False)
    try:
        broker.start()
        deadline = time.monotonic() + 300
        while (found := _CLEANED.search(broker.log_text())) is None:
            if time.monotonic() > deadline:
                raise AssertionError(f"the broker's cleaner did nothing: {broker.log_text()[-2000:]}")
            time.sleep(0.2)
        broker.stop()
    finally:
        broker.kill()
        shutil.rmtree(place)
    total, index_mb, index, _, copy = (float(text.replace(",", "")) for text in found.groups())
    return _Times(total, index_mb, index, copy)


def our_pass(source, place):
    """Our pass, and by how many bytes the process grew meanwhile."""
    shutil.copytree(source / "log", place)
    owned = OwnedDir.open(place, config=BrokerConfig.from_values(SETTINGS))
    try:
        owned.log(TP)
        with greatest_rss(os.getpid()) as greatest:
            before = greatest()
            result = compact_partition(owned, TP)
            return result, greatest() - before
    finally:
        owned.close()
        shutil.rmtree(place)


def measure(context):
    """Rows of both cleaners, whole and by halves."""
    report, messages = context.report, context.messages
    if not (data.CACHE / f"compact-{messages}" / "made").exists():
        say("data: compacted")
    source = made_log(messages)
    place = data.CACHE / "compact-run"
    shutil.rmtree(place, ignore_errors=True)
    for _ in range(context.runs):
        result, grown = our_pass(source, place)
        size = result.counts.bytes_read
        compare = ("broker's cleaner",)
        note = f"grew by {grown / 2**20:.0f} MiB, the map may take 128"
        row = Row("our cleaner", "", bytes=size, messages=messages, note=note, compare=compare)
        report.add(row, result.seconds)
        row = Row("- mapping keys", bytes=result.map_bytes_read, compare=("- broker's indexing",))
        report.add(row, result.map_seconds)
        rest = result.seconds - result.map_seconds
        report.add(Row("- copying", bytes=size, compare=("- broker's copying",)), rest)
        if HAVE_KAFKA:
            theirs = _theirs(source, place)
            report.add(Row("broker's cleaner", "its own log", bytes=size, messages=messages), theirs.total)
            report.add(Row("- broker's indexing", bytes=size), theirs.index)
            report.add(Row("- broker's copying", bytes=size), theirs.copy)

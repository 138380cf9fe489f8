"""Kafka's own topics decoded: `dump` and `cat` beside kafka-dump-log, for 100 MB of `__consumer_offsets`."""

import random
import struct
import tempfile
from functools import partial
from pathlib import Path

from storage.format.block import Record
from storage.format.messages import messages
from storage.format.record_batch import encode_batch
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.types import TopicPartition
from tests.bench.case import say
from tests.bench.data import CACHE
from tests.bench.measure import Row, call_seconds, run_seconds
from tests.interop.kafka import HAVE_KAFKA, java
from tests.support.builders import build_log_dir
from tests.support.mounts import KAFKAFS

_BYTES = 100 << 20
_PARTITIONS = 12  # that a consumer commits at once
_TP = TopicPartition("__consumer_offsets", 0)


def _commits(path):
    """A log of OffsetCommit records as 4.3 writes them, a batch a commit; how many."""
    dice, offset = random.Random(1), 0
    with path.open("wb") as file:
        while file.tell() < _BYTES:
            group, topic = b"group-%03d" % dice.randrange(300), b"orders-%02d" % dice.randrange(20)
            topic_id, now = topic.ljust(16, b"x"), 1_795_418_869_353 + offset
            head = b"\0\1" + struct.pack(">h", len(group)) + group + struct.pack(">h", len(topic)) + topic
            tail = struct.pack(">i", 3) + b"\1" + struct.pack(">q", now) + b"\1\0\x10" + topic_id
            records = [
                Record(
                    head + struct.pack(">i", number),
                    b"\0\4" + struct.pack(">q", dice.randrange(10**9)) + tail,
                    (),
                    now,
                )
                for number in range(_PARTITIONS)
            ]
            file.write(encode_batch(records, base_offset=offset))
            offset += len(records)
    return offset


def measure(context):
    """Whole commands, start included; and the decoder alone, of records in memory."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="own-") as name:
        log_dir = Path(name) / "log"
        log = build_log_dir(log_dir, {_TP.topic: [[]]})[_TP.topic, 0].path / f"{0:020d}.log"
        say("data: __consumer_offsets")
        count = _commits(log)
        theirs = "kafka-dump-log"
        for _ in range(context.runs):
            if HAVE_KAFKA:
                row = Row(theirs, "kafka-dump-log.sh --offsets-decoder --files FILE", bytes=log.stat().st_size)
                tool = java("org.apache.kafka.tools.DumpLogSegments", "--offsets-decoder", "--files", log)
                context.report.add(row, run_seconds(list(tool)))
            for what, arguments in (
                ("dump", ["dump", str(log)]),
                ("cat decoded", ["cat", str(log_dir), str(_TP), "--format", "decoded"]),
            ):
                row = Row(what, f"kafkafs {what}", messages=count, bytes=log.stat().st_size, compare=(theirs,))
                context.report.add(row, run_seconds([*KAFKAFS, *arguments]))
            blocks = list(read_range(LogDir.open_read_only(log_dir).log(_TP).snapshot(), 0, 200_000))
            row = Row("objects", "Messages.objects", messages=sum(map(len, blocks)), note="Python objects, in process")
            context.report.add(row, call_seconds(partial(_objects, blocks)))


def _objects(blocks):
    reader = messages(_TP.topic)
    return sum(1 for block in blocks for _ in reader.objects(block))

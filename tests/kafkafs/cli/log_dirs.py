"""The log directories of transcripts. A line `% NAME PATH` of a transcript writes what has that name here to a path."""

import json
import os
import shutil
from pathlib import Path

from storage.append.appender import Appender
from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import GroupOffsets
from storage.coordinators.transaction_records import TransactionMetadata, TransactionState
from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.format.block import Record
from storage.format.compression import Codec
from storage.types import TopicPartition
from tests.storage.coordinators.test_transactions import state_topic
from tests.support.builders import (
    ROLL,
    START_MS,
    Batch,
    Partition,
    abort,
    build_log_dir,
    commit,
    many,
    metadata_records,
    topic_id,
)
from tests.support.fixtures import FIXTURES, ROOT, copy_log_dir
from tests.support.owned_dirs import NOW_MS, append, opened
from tests.support.schema_logs import LONG, avro_string, framed, other_record, schema_record
from tests.support.tiers import TIERS, copied

T0 = TopicPartition("t", 0)
SIX = many(6, keys=3)
TIME = 1_763_683_200_000

ABORTED = [Batch(many(5)), Batch(many(3), producer_id=1, transactional=True), abort(1), ROLL, Batch(many(4))]
EVERY_KIND = [
    Batch(many(3, headers=[(b"h", b"\xff")])),
    Batch(many(2), producer_id=7, producer_epoch=1, transactional=True),
    abort(7, 1),
    Batch(many(1), producer_id=7, producer_epoch=1, transactional=True),
    commit(7, 1),
    Batch(many(1), magic=1),
    Batch(many(1), magic=0),
    Batch(many(1), log_append_time_ms=1234),
]
SCHEMAS = [
    schema_record("t-value", 1, 7),
    schema_record("gone", 1, 8, LONG, deleted=True),
    other_record("CONFIG", None, {"compatibilityLevel": "FULL"}),
]
FRAMED = (framed(7, avro_string("first")), framed(9, b"x"), b"plain")


def at_minute(minute, count):
    return Batch([Record(None, b"message", (), 1_700_000_040_000 + minute * 60_000)] * count)


# Directories that a broker, or kafkafs, has written: topics with the partitions of each.
OF_A_BROKER = {
    # orders/0 has an aborted transaction, two segments and a log start offset.
    "orders": {"orders": [Partition(ABORTED, log_start_offset=2), [b"a"]], "empty": [[]]},
    "letters": {
        "orders": [[b"a0", b"a1", b"a2"], [b"b0"], [b"c0", b"c1"]],
        "payments": [Partition([b"line %d" % i for i in range(10)], log_start_offset=2)],
    },
    "replicated": {"t": [[b"old"]], "__cluster_metadata": [metadata_records("t", 1, replicas=[1, 2, 3])]},
    "rolled": {"t": [[b"a", b"b", ROLL, b"c"], [b"d"]]},
    # Two segments and another partition; the same with one message that differs, one more, and without t/1; and the
    # first nine messages, compressed.
    "source": {"t": [[Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5))], [Batch(many(3))]]},
    "edited": {"t": [[Batch(many(5)), Batch([*many(4), many(1, 70, keys=1)[0]]), ROLL, Batch(many(6))]]},
    "zstd": {"t": [[Batch(many(5), Codec.ZSTD), Batch(many(4), Codec.ZSTD)]]},
    # Six messages of three keys; what compaction leaves of them; and that without the last.
    "whole": {"t": [[Batch(SIX)]]},
    "compacted": {"t": [[Batch(SIX[3:], base_offset=3)]]},
    "lost": {"t": [[Batch(SIX[3:5], base_offset=3)]]},
    # Batches of every kind, and an index entry for each.
    "dumped": {"t": [Partition(EVERY_KIND, index_interval_bytes=0, preallocated=True)]},
    "compressed": {"t": [[*(Batch(many(2), codec) for codec in Codec), Batch(many(2), Codec.GZIP, magic=1)]]},
    # A large batch and a small one, later offsets, and nothing.
    "fetched": {
        "t": [[Batch(many(1, 5000)), Batch(many(2))], Partition([Batch(many(2))], start_offset=10)],
        "u": [[]],
    },
    # One message per minute, but twenty in the third.
    "minutes": {"t": [[at_minute(minute, count) for minute, count in enumerate([1, 1, 20, 1])]], "empty": [[]]},
    # Messages from years ago, also in a topic of Kafka's own, and no configuration.
    "old_messages": {topic: [[b"one", ROLL, b"two", ROLL, b"three"]] for topic in ("t", "__consumer_offsets")},
    "remains": {"t": [[Batch(many(10)), ROLL, Batch(many(10))], [b"one"]], "u": [[b"x"]]},
    "last_producer": {"t": [[Batch(many(1), producer_id=2**63 - 1)]]},
    # Three batches with garbage after them.
    "broken": {"t": [Partition([Batch(many(3))] * 3, tail=b"garbage"), [b"x"]]},
    "four_segments": {topic: [[Batch(many(5)), ROLL] * 3 + [Batch(many(5))]] for topic in ("t", "compacted")},
    # Two schemas; messages with one of them, with one that is unknown, and with none. And a message without schemas.
    "schemas": {"_schemas": [[Batch(SCHEMAS)]], "t": [[Record(b"k", data, (), START_MS) for data in FRAMED]]},
    "bare": {"t": [[framed(7, avro_string("here"))]]},
    "one_transaction": {"t": [[Batch(many(1), producer_id=1, transactional=True)]]},
}
PAYMENTS = TransactionMetadata(6, 6, 60_000, TransactionState.PREPARE_COMMIT, (T0,), START_MS + 9, START_MS)
IDLE = PAYMENTS._replace(producer_id=9, partitions=())
OF_KAFKAFS = {
    "topics": {"orders": [[Record(b"k", b"one"), b"two"], [b"three"]], "order-items": [[b"x"]], "t": [[b"y"]]},
    # Three open transactions in t/0, of which the coordinator will end one; a producer without one in t/1.
    "open_transactions": {
        "t": [
            [Batch(many(2), producer_id=n, producer_epoch=n, transactional=True) for n in (5, 6, 7)],
            [Batch(many(1), producer_id=9)],
        ],
        "__transaction_state": state_topic(("payments", PAYMENTS), ("idle", IDLE)),
    },
    # Values that are no text, no JSON, or null.
    "odd_values": {
        "t": [[Record(None, value) for value in (b'{"a":1}', None, b"\xff\x00", b"oops", "größe".encode())]],
        "empty": [[]],
    },
    # Timestamps in milliseconds, microseconds and nanoseconds, and none.
    "odd_times": {"t": [[Record(None, b"x", (), timestamp) for timestamp in (TIME, TIME * 10**3, TIME * 10**6, -1)]]},
    "cases": {"orders": [[b"small"]], "Orders": [[b"large"]]},
}


def make(name, *arguments):
    """Make what a line `% NAME ARGUMENT…` of a transcript says."""
    if name in OF_A_BROKER or name in OF_KAFKAFS:
        (path,) = arguments
        build_log_dir(Path(path), OF_A_BROKER.get(name) or OF_KAFKAFS[name], broker=name in OF_A_BROKER)
    else:
        globals()[name](*arguments)
    # Where messages have no timestamps, the time of their file takes its place.
    for file in Path().rglob("*"):
        os.utime(file, (START_MS // 1000, START_MS // 1000), follow_symlinks=False)


def fixture(*names):
    """Copies of fixtures, or of parts of them."""
    for name in names:
        copy_log_dir(FIXTURES / name, Path(name))


def example(name):
    """A copy of an example."""
    copy_log_dir(ROOT / "examples" / name, Path(name))


def keyed(path):
    """The compacted topic t, five messages for each of twenty keys, one of them deleted; and the topic other."""
    owned = opened(Path(path))
    owned.create_topic("t", 2, {"cleanup.policy": "compact", "segment.bytes": "1500", "delete.retention.ms": "0"})
    owned.create_topic("other", 1)
    log = owned.log(T0)
    for n in range(100):
        record = Record(b"key %d" % (n % 20), None if n == 67 else b"value %d" % n)
        assert Appender(log, clock=owned.clock).append([record]).error is None
    append(owned.log(TopicPartition("other", 0)), [b"x"])
    log.roll()
    assert owned.close().clean


def grouped(path):
    """orders/0, messages 2 to 9 of which are left, an hour apart; orders/1; and one committed offset."""
    owned = opened(Path(path))
    owned.create_topic("orders", 2)
    log = owned.log(TopicPartition("orders", 0))
    for n in range(10):
        records = [Record(None, b"%d" % n, (), NOW_MS + (n - 10) * 3_600_000)]
        assert Appender(log, clock=owned.clock).append(records).error is None
    log.increment_log_start_offset(2)
    # One partition instead of fifty, which is quicker.
    GroupCommitter(owned, GroupOffsets(owned.log_dir), partitions=1).commit("other", {TopicPartition("x", 0): 1})
    assert owned.close().clean


def overtaken(path):
    """orders/0, of which message 9 is left, and groups that have committed offsets around it."""
    owned = opened(Path(path))
    owned.create_topic("orders", 1)
    log = owned.log(TopicPartition("orders", 0))
    append(log, [b"%d" % n for n in range(10)])
    log.increment_log_start_offset(9)
    for offset in (0, 7, 9, 10, 12):
        committer = GroupCommitter(owned, GroupOffsets(owned.log_dir), partitions=1)
        committer.commit(f"at {offset}", {TopicPartition("orders", 0): offset})
    assert owned.close().clean


def small_segments(path):
    """80 messages in t/0, which may have 1000 bytes, and in other/0, which has no limit."""
    owned = opened(Path(path))
    owned.create_topic("t", 1, {"segment.bytes": "600", "retention.bytes": "1000"})
    owned.create_topic("other", 1, {"segment.bytes": "600"})
    for n in range(0, 80, 4):
        for topic in ("t", "other"):
            append(owned.log(TopicPartition(topic, 0)), [b"message %04d" % m for m in range(n, n + 4)])
    assert owned.close().clean


def waiting_writes(path):
    """A write to t/0 whose staged file is missing, and one whose messages are in the log."""
    owned = opened(Path(path))
    owned.create_topic("t", 2, {"index.interval.bytes": "50"})
    for n in range(10):
        append(owned.log(T0), [b"value %d" % n])
    owned.close()
    stuck, done = (
        PendingCommit(WriteId(name, 3), (PendingPart(T0, 10, records, (_staged(f"{name}.3.{'0' * 32}.staged"),)),))
        for name, records in (("stuck", 0), ("done", 1))
    )
    Path(path, names.COMMITS).write_bytes(commit_ledger.encode(Ledger(pending=(stuck, done))))


def _staged(name):
    return StagedBatchFile(T0, name, 9, 1)


def torn(path):
    """As after a crash: t/0 ends in zeros, and its indexes are not trimmed."""
    build_log_dir(Path(path), {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]}, clean=False)


def torn_tier(path, tier):
    """A tier whose 30 segments lack their indexes."""
    build_log_dir(Path(path), {"t": [[b"x"]]})
    directory = Path(tier, f"t-0-{topic_id('t')}")
    directory.mkdir(parents=True)
    for number in range(30):
        for suffix in (".log", ".snapshot", ".leader_epoch_checkpoint"):
            (directory / f"{number:020}-{number:021}A{suffix}").touch()


def orphans(path, tier):
    """Segments in a tier of a topic that is deleted, and more of two/0 than the broker knows; part/0 is not here."""
    copied(TIERS / "tier-local", Path(tier))
    (directory,) = Path(tier).glob("two-0-*")
    shutil.copytree(directory, Path(tier, f"deleted-0-{'B' * 21}w"))
    for number in range(12):
        for suffix, size in ((".log", 100), (".snapshot", 7)):
            (directory / f"{number:020}-{number:021}A{suffix}").write_bytes(bytes(size))
    copied(TIERS / "log", Path(path))
    shutil.rmtree(Path(path, "part-0"))  # another broker has it: what it has uploaded is not orphaned


EVIL = "\x1b]0;evil\x07\x1b[2J\x9b\u202e"


def evil(path):
    """An escape sequence wherever a log directory can have a text."""
    state = TransactionMetadata(6, 6, 60_000, TransactionState.ONGOING, (T0,), START_MS, START_MS)
    schemas = [
        schema_record(f"{EVIL}subject", 1, 1),
        schema_record("t-value", 1, 2, f"{EVIL}schema"),
        schema_record("t-key", 1, 3, json.dumps({"type": "record", "name": f"{EVIL}name", "fields": []})),
    ]
    topics = {
        "t": [[Batch(many(2), producer_id=6, producer_epoch=6, transactional=True)]],
        "__transaction_state": state_topic((f"{EVIL}transaction", state)),
        "_schemas": [[Batch(schemas)]],
        "u": [[framed(2, b"x")]],
    }
    build_log_dir(Path(path), topics, broker=False)
    owned = opened(Path(path))
    GroupCommitter(owned, GroupOffsets(owned.log_dir), partitions=1).commit(f"{EVIL}group", {T0: 0})
    assert owned.close().clean
    for name, content in (
        (f"{EVIL}-0.{'0' * 32}-delete/x", ""),
        (f"t-0/{EVIL}.log", EVIL),
        ("t-0/topic.properties", f"retention.ms={EVIL}\n{EVIL}=1\ncleanup.policy={EVIL}\n"),
        ("meta.properties", f"version=1\nnode.id=1\ncluster.id={EVIL}\n{EVIL}={EVIL}\n"),
        ("recovery-point-offset-checkpoint", f"0\n1\n{EVIL} 0 1\n"),
    ):
        file = Path(path, name)
        file.parent.mkdir(exist_ok=True)
        file.write_text(content)

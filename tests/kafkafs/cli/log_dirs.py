"""The log directories of transcripts: each function writes what its docstring says at the paths that it is given."""

from __future__ import annotations

import shutil
from pathlib import Path

from storage.append.appender import Appender
from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import GroupOffsets
from storage.coordinators.transactions import TransactionMetadata, TransactionState
from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.format.block import Record
from storage.format.compression import Codec
from storage.log.reader import find_batch
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
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, ROOT
from tests.support.owned_dirs import NOW_MS, append, opened
from tests.support.schema_logs import LONG, avro_string, framed, other_record, schema_record
from tests.support.tiers import TIERS, copied

T0 = TopicPartition("t", 0)


def fixture(name):
    """A link to the fixture; read it only, or copy it."""
    Path(name).symlink_to(FIXTURES / name)


def example(name):
    """A link to the example; read it only, or copy it."""
    Path(name).symlink_to(ROOT / "examples" / name)


def orders(path):
    """orders/0 with an aborted transaction, two segments and a log start offset; orders/1, empty/0; hidden ones."""
    items = [Batch(many(5)), Batch(many(3), producer_id=1, transactional=True), abort(1), ROLL, Batch(many(4))]
    topics = {"orders": [Partition(items, log_start_offset=2), [b"a"]], "empty": [Partition([])]}
    extra = {f"gone-0.{'a' * 32}-stray/{0:020d}.log": b"xyz", "lost+found/": b""}
    build_log_dir(Path(path), topics, extra=extra)


def replicated(path):
    """The topic t, which has three replicas."""
    metadata = metadata_records("t", 1, replicas=[1, 2, 3])
    build_log_dir(Path(path), {"t": [[b"old"]], "__cluster_metadata": [metadata]})


def source(path):
    """t/0 in two segments, and t/1."""
    items = [Batch(many(5)), Batch(many(5)), ROLL, Batch(many(5))]
    build_log_dir(Path(path), {"t": [items, Partition([Batch(many(3))])]})


def edited(path):
    """As `source`, but one message of t/0 differs, one is added, and t/1 is missing."""
    items = [Batch(many(5)), Batch([*many(4), many(1, 70, keys=1)[0]]), ROLL, Batch(many(6))]
    build_log_dir(Path(path), {"t": [items]})


def zstd(path):
    """The first nine messages of `source`, compressed."""
    build_log_dir(Path(path), {"t": [[Batch(many(5), Codec.ZSTD), Batch(many(4), Codec.ZSTD)]]})


def compacted(whole, compacted, lost):
    """Six messages of three keys; what compaction leaves of them; and that without the last."""
    messages = many(6, keys=3)
    build_log_dir(Path(whole), {"t": [[Batch(messages)]]})
    build_log_dir(Path(compacted), {"t": [[Batch(messages[3:], base_offset=3)]]})
    build_log_dir(Path(lost), {"t": [[Batch(messages[3:5], base_offset=3)]]})


def letters(path):
    """orders/0, orders/1, orders/10 and payments/0, which begins at offset 2."""
    lines = Partition([b"line %d" % i for i in range(10)], log_start_offset=2)
    topics = {"orders": [[b"a0", b"a1", b"a2"], [b"b0"], [b"c0", b"c1"]], "payments": [lines]}
    build_log_dir(Path(path), topics)
    Path(path, "orders-2").rename(Path(path, "orders-10"))


def gaps(path):
    """t/0 and compacted/0, each without the third of their four segments."""
    items = [item for n in range(4) for item in (Batch(many(5), base_offset=n * 5), ROLL)][:-1]
    built = build_log_dir(Path(path), {"t": [Partition(items)], "compacted": [Partition(items)]})
    Path(path, "compacted-0", "topic.properties").write_text("cleanup.policy=compact\n")
    for partition in built.partitions.values():
        for file in partition.path.glob(f"{partition.segments[2]:020d}.*"):
            file.unlink()


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


def rolled(path):
    """t/0 with two segments, and t/1."""
    build_log_dir(Path(path), {"t": [[b"a", b"b", ROLL, b"c"], [b"d"]]})


def dumped(path):
    """t/0 with batches of every kind, and an index entry for each."""
    items = [
        Batch(many(3, headers=[(b"h", b"\xff")])),
        Batch(many(2), producer_id=7, producer_epoch=1, transactional=True),
        abort(7, 1),
        Batch(many(1), producer_id=7, producer_epoch=1, transactional=True),
        commit(7, 1),
        Batch(many(1), magic=1),
        Batch(many(1), magic=0),
        Batch(many(1), log_append_time_ms=1234),
    ]
    build_log_dir(Path(path), {"t": [Partition(items, index_interval_bytes=0, preallocated=True)]})


def compressed(path):
    """t/0 with a batch of each codec, and one in the format of old brokers."""
    items = [*(Batch(many(2), codec) for codec in Codec), Batch(many(2), Codec.GZIP, magic=1)]
    build_log_dir(Path(path), {"t": [items]})


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


def topics(path):
    """Several topics whose names are alike, some with two partitions."""
    named = {"orders": [[Record(b"k", b"one"), b"two"], [b"three"]], "order-items": [[b"x"]], "t": [[b"y"]]}
    build_log_dir(Path(path), named, broker=False)


def minutes(path):
    """One message per minute in t/0, but twenty in the third; and empty/0."""
    items = [
        Batch([Record(None, b"message", (), 1_700_000_040_000 + minute * 60_000)] * count)
        for minute, count in enumerate([1, 1, 20, 1])
    ]
    build_log_dir(Path(path), {"t": [Partition(items)], "empty": [Partition([])]})


def small_segments(path):
    """80 messages in t/0, which may have 1000 bytes, and in other/0, which has no limit."""
    owned = opened(Path(path))
    owned.create_topic("t", 1, {"segment.bytes": "600", "retention.bytes": "1000"})
    owned.create_topic("other", 1, {"segment.bytes": "600"})
    for n in range(0, 80, 4):
        for topic in ("t", "other"):
            append(owned.log(TopicPartition(topic, 0)), [b"message %04d" % m for m in range(n, n + 4)])
    assert owned.close().clean


def old_messages(path):
    """A broker's directory with messages from years ago and no configuration; also in a topic of Kafka's own."""
    items = [b"one", ROLL, b"two", ROLL, b"three"]
    build_log_dir(Path(path), {"t": [Partition(items)], "__consumer_offsets": [Partition(items)]})


def broken(path):
    """t/0 of three batches, the second of them damaged, with garbage at the end; t/1, which is sound."""
    built = build_log_dir(Path(path), {"t": [Partition([Batch(many(3))] * 3, tail=b"garbage"), Partition([b"x"])]})
    batch = built["t", 0].batches[1]
    flip(built["t", 0].log(), batch.position + batch.size // 2)


def torn(path):
    """As after a crash: t/0 ends in zeros, and its indexes are not trimmed."""
    build_log_dir(Path(path), {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]}, clean=False)


def remains(path):
    """t/0 in two segments, t/1 and u/0 of a broker."""
    build_log_dir(Path(path), {"t": [[Batch(many(10)), ROLL, Batch(many(10))], [b"one"]], "u": [[b"x"]]})


def schemas(path):
    """Two schemas, and messages in t of which the first has one of them, the second one that is unknown."""
    records = [
        schema_record("t-value", 1, 7, timestamp=START_MS),
        schema_record("gone", 1, 8, LONG, deleted=True),
        other_record("CONFIG", None, {"compatibilityLevel": "FULL"}),
    ]
    values = [framed(7, avro_string("first")), framed(9, b"x"), b"plain"]
    messages = [[Record(b"k", value, (), START_MS) for value in values]]
    build_log_dir(Path(path), {"_schemas": [records], "t": messages})


def bare(path):
    """A message in the wire format, without schemas."""
    build_log_dir(Path(path), {"t": [[framed(7, avro_string("here"))]]})


def open_transactions(path):
    """Three open transactions in t/0, of which the coordinator will end one; a producer without one in t/1."""
    items = [Batch(many(2), producer_id=n, producer_epoch=n, transactional=True) for n in (5, 6, 7)]
    state = TransactionMetadata(
        6, 6, 60_000, TransactionState.PREPARE_COMMIT, (TopicPartition("t", 0),), START_MS + 9, START_MS
    )
    ids = state_topic(("payments", state), ("idle", state._replace(producer_id=9, partitions=())))
    done = Partition([Batch(many(1), producer_id=9)])
    build_log_dir(Path(path), {"t": [Partition(items), done], "__transaction_state": ids}, broker=False)


def one_transaction(path):
    """An open transaction, and nothing about its transactional id."""
    build_log_dir(Path(path), {"t": [Partition([Batch(many(1), producer_id=1, transactional=True)])]})


def waiting_writes(path):
    """A write to t/0 whose staged file is missing, and one whose messages are in the log."""
    owned = opened(Path(path))
    owned.create_topic("t", 2, {"index.interval.bytes": "50"})
    for n in range(10):
        append(owned.log(T0), [b"value %d" % n])
    last = find_batch(owned.log(T0).snapshot(), 9)
    crc = int(last.segment.batch_at(last.position, last.segment.size).crc[0])
    owned.close()
    stuck, done = (
        PendingCommit(
            WriteId(name, 3),
            0,
            (PendingPart(T0, base, base, crc, (StagedBatchFile(T0, f"{name}.3.{'0' * 32}.staged", 9, 1),)),),
        )
        for name, base, crc in (("stuck", 10, 0), ("done", 9, crc))
    )
    Path(path, names.COMMITS).write_bytes(commit_ledger.encode(Ledger(pending=(stuck, done))))


def last_producer(path):
    """A message of the producer with the greatest id."""
    build_log_dir(Path(path), {"t": [Partition([Batch(many(1), producer_id=2**63 - 1)])]})


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


def odd_values(path):
    """Values in t that are no text, no JSON, or null."""
    values = [b'{"a":1}', None, b"\xff\x00", b"oops", "größe".encode()]
    build_log_dir(Path(path), {"t": [[Batch([Record(None, value)]) for value in values]], "empty": [[]]}, broker=False)


def odd_times(path):
    """Timestamps in milliseconds, microseconds and nanoseconds, and none."""
    times = [1_763_683_200_000, 1_763_683_200_000_000, 1_763_683_200_000_000_000, -1]
    batches = [Batch([Record(None, b"x", timestamp=timestamp)]) for timestamp in times]
    build_log_dir(Path(path), {"t": [batches]}, broker=False)


def cases(path):
    """Two topics whose names differ in case."""
    build_log_dir(Path(path), {"orders": [[b"small"]], "Orders": [[b"large"]]}, broker=False)


def fetched(path):
    """t/0 with a large batch and a small one, t/1 from offset 10 on, and the empty u/0."""
    large = Partition([Batch(many(1, 5000)), Batch(many(2))])
    later = Partition([Batch(many(2))], start_offset=10)
    build_log_dir(Path(path), {"t": [large, later], "u": [[]]})

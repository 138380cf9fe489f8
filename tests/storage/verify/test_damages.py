"""Damages, one by one, to copies of log directories that real brokers closed: `verify` finds each by name, and nothing
in what recovery repaired."""

import shutil
import struct
from functools import partial
from typing import NamedTuple

import pytest

from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.files.names import FileKind, StagedName
from storage.format.compression import Codec, compress
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Severity
from storage.verify.verify import verify_log_dir
from tests.support.damaged_bytes import with_right_checksums
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.raw_batches import batch, message, record
from tests.support.readers import copy_partition
from tests.support.record_headers import batches

pytestmark = requires_fixtures

_INDEX, _TIME, _ABORTS = struct.Struct(">ii"), struct.Struct(">qi"), struct.Struct(">hqqqq")
_STAGED = StagedName("write", 0, "0" * 32)


def segments(directory):
    return sorted(directory.glob("*.log"))


def sealed(directory):
    """A .log in the middle, with an .index and a .txnindex of several entries."""
    return segments(directory)[1] if len(segments(directory)) > 2 else segments(directory)[0]


def snapshot(directory, number=1):
    return sorted(directory.glob("*.snapshot"))[number]


def edit(path, change):
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def put(form, at, value):
    return lambda data: struct.pack_into(form, data, at, value)


def add(form, at, amount):
    return lambda data: struct.pack_into(form, data, at, struct.unpack_from(form, data, at)[0] + amount)


def flip(at):
    return lambda data: data.__setitem__(at, data[at] ^ 0xFF)


def cut(start, end=None):
    return lambda data: data.__setitem__(slice(None), data[start:end])


def more(data):
    return lambda before: before.extend(data)


def last(directory):
    return segments(directory)[-1]


def in_file(suffix, change, of=sealed):
    return lambda directory: edit(of(directory).with_suffix(suffix), change)


in_log, in_last = partial(in_file, ".log"), partial(in_file, ".log", of=last)
in_index, in_time_index, in_txn_index = (partial(in_file, f".{kind}") for kind in ("index", "timeindex", "txnindex"))


def without(kind):
    return lambda directory: sealed(directory).with_suffix(kind.value).unlink()


def file(name, content=b""):
    """A file of the partition; `../NAME`: of the log directory."""
    data = content if isinstance(content, bytes) else content.encode()
    return lambda directory: (directory / name).write_bytes(data)


def in_batch(number, change, *, checksum=True, of=sealed):
    """Changes the batch `number` of a .log, whose CRC is made to fit unless said otherwise."""

    def make(directory):
        path = of(directory)
        parts = list(batches(path.read_bytes()))
        changed = bytearray(parts[number])
        change(changed)
        parts[number] = with_right_checksums(bytes(changed)) if checksum else bytes(changed)
        path.write_bytes(b"".join(parts))

    return make


def in_header(number, change):
    """What no CRC covers, or is to be wrong."""
    return in_batch(number, change, checksum=False)


def shorter(data):
    """A v2 batch that ends nine bytes earlier, and says so."""
    del data[-9:]
    struct.pack_into(">i", data, 8, len(data) - 12)


def long_value(data):
    struct.pack_into(">i", data, 30 + max(struct.unpack_from(">i", data, 26)[0], 0), 100_000)


def wrong_inner_message(data):
    offset, timestamp = (struct.unpack_from(">q", data, at)[0] for at in (0, 18))
    inner = compress(Codec.GZIP, message(0, b"value", timestamp=timestamp, crc=12345), 1)
    data[:] = message(offset, inner, attributes=Codec.GZIP, timestamp=timestamp)


def same_offsets(data):
    (base,), (count,) = struct.unpack_from(">q", data), struct.unpack_from(">i", data, 23)
    records = [record(min(number, 1)) for number in range(count + 1)]
    data[:] = batch(records, base, base_timestamp=5, max_timestamp=5)


def wrong_marker(directory):
    # A marker's key begins behind length, attributes, two deltas and the key's own length: version, then type.
    number = next(i for i, part in enumerate(batches(sealed(directory).read_bytes())) if part[22] & 0x20)
    in_batch(number, put(">h", 61 + 5, -1))(directory)


def index_floor(directory):
    log = segments(directory)[0]
    lasts, position = {}, 0
    for part in batches(log.read_bytes()):
        lasts[position] = struct.unpack_from(">q", part)[0] - 1  # that of the batch before this one
        position += len(part)
    index = log.with_suffix(".index")
    entries = list(_INDEX.iter_unpack(index.read_bytes()))
    slot = next(slot for slot in range(1, len(entries)) if lasts[entries[slot][1]] > entries[slot - 1][0])
    edit(index, put(">i", slot * 8, lasts[entries[slot][1]]))


def index_offset(directory):
    log = sealed(directory)
    base, parts = int(log.stem), batches(log.read_bytes())
    lasts = {struct.unpack_from(">q", part)[0] + struct.unpack_from(">i", part, 23)[0] - base for part in parts}
    offsets = [offset for offset, _ in _INDEX.iter_unpack(log.with_suffix(".index").read_bytes())]
    following = [*offsets[1:], 1 << 31]
    slot = next(i for i, offset in enumerate(offsets) if offset + 1 not in lasts and following[i] > offset + 1)
    in_index(add(">i", slot * 8, 1))(directory)


def renamed(number, by):
    def make(directory):
        log = segments(directory)[number]
        log.rename(log.with_name(names.segment_file(int(log.stem) + by, FileKind.LOG)))

    return make


def remove(*patterns):
    """Files; `{second}`: the name of the second segment, without its kind."""

    def make(directory):
        second = segments(directory)[1].stem
        for path in [path for pattern in patterns for path in directory.glob(pattern.format(second=second))]:
            path.unlink()

    return make


def pending(directory):
    """A write that was staged, a message, to be appended beyond the end; its staged file is not made."""
    topic, _, number = directory.name.rpartition("-")
    tp = TopicPartition(topic, int(number))
    files = (StagedBatchFile(tp, str(_STAGED), len(batch([record(0)])), 1),)
    commit = PendingCommit(WriteId("write", None), (PendingPart(tp, 10**6, 0, files),))
    (directory.parent / names.COMMITS).write_bytes(commit_ledger.encode(Ledger(pending=(commit,))))


staged = file(str(_STAGED), batch([record(0)]))


class Damage(NamedTuple):
    """`make` is given a partition's directory in a copy of the fixture."""

    name: str
    kind: FaultKind
    make: object
    partition: str = "tx-aborts-0"
    fixture: str = "transactions"


K = FaultKind
NONE = ("c-none-0", "codecs")
EPOCHS, TOPIC_ID, CONFIG = names.LEADER_EPOCH_CHECKPOINT, names.PARTITION_METADATA, names.TOPIC_PROPERTIES

DAMAGES = (
    # Batches
    Damage("a flipped byte", K.BATCH_CRC, in_log(flip(100))),
    Damage("a flipped byte in an old message", K.BATCH_CRC, in_log(flip(40)), "v1-none-0", "v1"),
    Damage("a torn tail", K.BATCH_CUT_OFF, in_last(cut(0, -7))),
    Damage("a torn header", K.BATCH_CUT_OFF, in_last(more(b"\0\0\0\0\0\0\0\x90\0"))),
    Damage("a length beyond the file", K.BATCH_CUT_OFF, in_header(2, put(">i", 8, 10_000_000))),
    Damage("a length of nothing", K.BATCH_LENGTH, in_header(2, put(">i", 8, 5))),
    Damage("zeros at the end", K.LOG_ZEROS, in_last(more(bytes(4096)))),
    Damage("garbage at the end", K.LOG_GARBAGE, in_last(more(b"\x1e\x5b" * 300))),
    Damage("an unknown magic", K.BATCH_MAGIC, in_header(1, put(">b", 16, 9))),
    Damage("a base offset that is too low", K.BATCH_ORDER, in_header(8, add(">q", 0, -10))),
    Damage("a base offset that is too high", K.BATCH_ORDER, in_header(3, add(">q", 0, 8))),
    Damage("a batch twice", K.BATCH_TWICE, in_batch(1, lambda data: data.extend(data), checksum=False)),
    Damage("an offset beyond 31 bits", K.SEGMENT_SPAN, in_batch(1, put(">q", 0, 1 << 40), checksum=False, of=last)),
    Damage("a batch that overlaps", K.BATCH_OVERLAP, in_header(2, add(">q", 0, -1)), *NONE),
    Damage("an end before the beginning", K.BATCH_RANGE, in_batch(-1, put(">i", 23, -1), of=last)),
    Damage("more records than offsets", K.BATCH_COUNT, in_batch(1, add(">i", 57, 5)), *NONE),
    Damage("a wrong max timestamp", K.BATCH_MAX_TIMESTAMP, in_batch(1, add(">q", 35, 1)), "c-zstd-0", "codecs"),
    Damage("a wrong time of a wrapper", K.BATCH_MAX_TIMESTAMP, in_batch(1, add(">q", 18, 1)), "v1-gzip-0", "v1"),
    Damage("a transaction without a producer", K.BATCH_PRODUCER, in_batch(1, put(">q", 43, -1))),
    Damage("a leader epoch that falls", K.BATCH_EPOCH, in_header(2, put(">i", 12, 7))),
    # What is in them
    Damage("gzip that is none", K.COMPRESSION, in_batch(1, flip(61)), "c-gzip-0", "codecs"),
    Damage("snappy that is cut off", K.COMPRESSION, in_batch(1, shorter), "c-snappy-0", "codecs"),
    Damage("lz4 with another header checksum", K.COMPRESSION, in_batch(1, flip(61 + 6)), "c-lz4-0", "codecs"),
    Damage("zstd that is cut off", K.COMPRESSION, in_batch(1, shorter), "c-zstd-0", "codecs"),
    Damage("an unknown codec", K.CODEC, in_batch(1, put(">h", 21, 6)), *NONE),
    Damage("a record count that is too small", K.RECORDS, in_batch(1, add(">i", 57, -1)), *NONE),
    Damage("a record length that lies", K.RECORDS, in_batch(1, add(">B", 61, 4)), *NONE),
    Damage("an old key length that lies", K.RECORDS, in_batch(1, put(">i", 18, 100_000)), "v0-none-0", "v0"),
    Damage("an old value length that lies", K.RECORDS, in_batch(1, long_value), "v1-none-0", "v1"),
    Damage("a wrong CRC within a wrapper", K.RECORDS, in_batch(1, wrong_inner_message), "v1-none-0", "v1"),
    Damage("records with the same offset", K.RECORD_OFFSET, in_batch(2, same_offsets), *NONE),
    Damage("a marker of no version", K.MARKER, wrong_marker),
    # Indexes
    Damage("no index", K.INDEX_MISSING, without(FileKind.OFFSET_INDEX)),
    Damage("half an index entry", K.INDEX_SIZE, in_index(more(b"\1\2\3"))),
    Damage("index entries that fall", K.INDEX_ORDER, in_index(put(">i", 8, 1))),
    Damage("an index of garbage", K.INDEX_ORDER, in_index(lambda data: data.__setitem__(slice(16), b"\x91" * 16))),
    Damage("an index entry beyond the log", K.INDEX_BEYOND_LOG, in_index(more(_INDEX.pack(100, 1 << 30)))),
    Damage("an index with zeros behind", K.INDEX_NOT_TRIMMED, in_index(more(bytes(80)))),
    Damage("an index entry into a batch", K.INDEX_POSITION, in_index(add(">i", 12, 3))),
    Damage("an index entry behind its offset", K.INDEX_FLOOR, index_floor, *NONE),
    Damage("an index offset in the middle", K.INDEX_OFFSET, index_offset),
    Damage("half a time index entry", K.TIME_INDEX_SIZE, in_time_index(more(b"\1\2\3"))),
    Damage("time index entries that fall", K.TIME_INDEX_ORDER, in_time_index(put(">q", 12, 1))),
    Damage("a time beyond the log", K.TIME_INDEX_BEYOND_LOG, in_time_index(more(_TIME.pack(1 << 42, 100_000)))),
    Damage("a time index with zeros behind", K.TIME_INDEX_NOT_TRIMMED, in_time_index(more(bytes(120)))),
    Damage("a time index entry that lies", K.TIME_INDEX_UNTRUE, in_time_index(add(">q", 12, 1))),
    Damage("the last time gone", K.TIME_INDEX_INCOMPLETE, in_time_index(cut(0, -12))),
    Damage("no time index", K.TIME_INDEX_INCOMPLETE, without(FileKind.TIME_INDEX)),
    Damage("a transaction index of another version", K.TXN_INDEX_CORRUPT, in_txn_index(put(">h", 0, 3))),
    Damage("half a transaction index entry", K.TXN_INDEX_CORRUPT, in_txn_index(cut(0, -5))),
    Damage("an abort of another producer", K.TXN_INDEX_INVENTED, in_txn_index(add(">q", 2, 40))),
    Damage("an abort that is not indexed", K.TXN_INDEX_INCOMPLETE, in_txn_index(cut(_ABORTS.size))),
    Damage("no transaction index", K.TXN_INDEX_INCOMPLETE, without(FileKind.TRANSACTION_INDEX)),
    # Snapshots, epochs, names
    Damage("a flipped byte in a snapshot", K.SNAPSHOT_CORRUPT, lambda path: edit(snapshot(path), flip(20))),
    Damage("a snapshot cut off", K.SNAPSHOT_CORRUPT, lambda path: edit(snapshot(path), cut(0, -1))),
    Damage("stale bytes behind a snapshot", K.SNAPSHOT_CORRUPT, lambda path: edit(snapshot(path), more(bytes(46)))),
    Damage(
        "the snapshot of another offset", K.SNAPSHOT_UNTRUE,
        lambda path: shutil.copy(snapshot(path, 0), snapshot(path, 2)),
    ),
    Damage(
        "a snapshot beyond the log", K.SNAPSHOT_BEYOND_LOG,
        lambda path: shutil.copy(snapshot(path), path / names.segment_file(10_000, FileKind.PRODUCER_SNAPSHOT)),
    ),
    Damage("other leader epochs", K.EPOCHS_UNTRUE, file(EPOCHS, "0\n1\n4 0\n")),
    Damage("a leader epoch beyond the log", K.EPOCHS_BEYOND_LOG, file(EPOCHS, "0\n2\n0 0\n5 99999\n")),
    Damage("leader epochs that do not parse", K.EPOCHS_CORRUPT, file(EPOCHS, "0\n1\nnought\n")),
    Damage("segments that overlap", K.SEGMENT_OVERLAP, renamed(2, -3)),
    Damage("a segment of a later name", K.BATCH_RANGE, renamed(1, 1)),
    Damage("a segment gone", K.INDEX_WITHOUT_LOG, remove("{second}.log")),
    Damage("a segment gone with its indexes", K.SEGMENT_GAP, remove("{second}.*")),
    Damage("no segment at all", K.PARTITION_EMPTY, remove("*.log")),
    Damage("a segment without an offset", K.FILE_MISNAMED, file("copy.log")),
    Damage("a replacement left over", K.FILE_LEFT_OVER, file("00000000000000000018.log.swap")),
    Damage("a removed segment left over", K.FILE_LEFT_OVER, file("00000000000000000018.log.deleted")),
    # The directory and its topics
    Damage("a directory of another kind", K.DIR_UNPARSABLE, lambda path: (path.parent / "lost+found").mkdir()),
    Damage(
        "a partition that awaits removal", K.DIR_AWAITS_REMOVAL,
        lambda path: (path.parent / names.deleted_dir(TopicPartition("gone", 0))).mkdir(),
    ),
    Damage(
        "meta.properties of another version", K.META_PROPERTIES,
        file(f"../{names.META_PROPERTIES}", "version=7\nnode.id=1\ncluster.id=c\n"),
    ),
    Damage(
        "a checkpoint with another count", K.CHECKPOINT_CORRUPT,
        file(f"../{names.LOG_START_CHECKPOINT}", "0\n5\ntx-aborts 0 1\n"),
    ),
    Damage(
        "a high watermark beyond the log", K.CHECKPOINT_BEYOND_LOG,
        file(f"../{names.REPLICATION_CHECKPOINT}", "0\n1\ntx-aborts 0 99999\n"),
    ),
    Damage(
        "a log start below nought", K.CHECKPOINT_BEYOND_LOG,
        file(f"../{names.LOG_START_CHECKPOINT}", "0\n1\ntx-aborts 0 -5\n"),
    ),
    Damage(
        "a checkpoint half written", K.CHECKPOINT_UNFINISHED,
        file(f"../{names.RECOVERY_POINT_CHECKPOINT}.tmp", "0\n"),
    ),
    Damage("leader epochs half written", K.CHECKPOINT_UNFINISHED, file(f"{EPOCHS}.tmp", "0\n")),
    Damage("a ledger that does not parse", K.WRITES_CORRUPT, file(f"../{names.COMMITS}", "{}")),
    Damage("a staged file of a task that died", K.STAGED_ORPHAN, staged),
    Damage("a write that is pending", K.WRITE_PENDING, lambda path: (pending(path), staged(path))),
    Damage("a write without its staged file", K.WRITE_STUCK, pending),
    Damage("a topic id that does not parse", K.TOPIC_ID_CORRUPT, file(TOPIC_ID, "version: 9\n")),
    Damage("no topic id", K.TOPIC_ID_MISSING, lambda path: (path / TOPIC_ID).unlink(), "tx-basic-1"),
    Damage(
        "another topic id", K.TOPIC_ID_DIFFERS, file(TOPIC_ID, "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ"),
        "tx-basic-1",
    ),
    Damage(
        "the topic id of another topic", K.TOPIC_ID_SHARED,
        lambda path: shutil.copy(path.parent / "tx-aborts-0" / TOPIC_ID, path / TOPIC_ID), "tx-open-0",
    ),
    Damage("another configuration", K.TOPIC_CONFIG_DIFFERS, file(CONFIG, "retention.ms=5\n"), "tx-basic-1"),
    Damage("a bad configuration", K.TOPIC_CONFIG_CORRUPT, file(CONFIG, "retention.ms=\\u12\n"), "tx-basic-1"),
)  # fmt: skip

# All but these can be made in a file; they are found all the same where a disk or a program fails so, or where a whole
# partition is not there (tests/spark/test_log_dirs.py). Those that need a manifest are in test_manifest_audit.py, and
# messages in tiered storage are no damage (tests/kafkafs/cli/transcripts/tiered.txt).
NOT_MADE = {
    K.UNREADABLE, K.SEGMENT_TOO_LARGE, K.LOG_CUT_OFF, K.PARTITION_ABSENT, K.MANIFEST_MISSING, K.MANIFEST_DIFFERS,
    K.NOT_PERMITTED, K.REMOTE_SEGMENTS, K.REMOTE_SEGMENT, K.REMOTE_PARTS, K.REMOTE_ORPHANS,
}  # fmt: skip
NOTES = {
    K.DIR_AWAITS_REMOVAL, K.CHECKPOINT_UNFINISHED, K.WRITE_PENDING, K.STAGED_ORPHAN, K.SEGMENT_GAP, K.SEGMENT_SPAN,
    K.BATCH_TWICE,
}  # fmt: skip


def test_there_is_a_damage_of_every_kind():
    assert {one.kind for one in DAMAGES} == set(FaultKind) - NOT_MADE


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda one: one.name)
def test_each_damage_is_found_by_name(tmp_path, damage):
    topic, _, number = damage.partition.rpartition("-")
    logs = tmp_path / "logs"
    logs.mkdir()
    for source in (FIXTURES / damage.fixture / "log").iterdir():
        if source.is_file():
            shutil.copyfile(source, logs / source.name)
        elif source.name.rpartition("-")[0] in (topic, "tx-aborts"):
            copy_partition(source, logs / source.name)
    damage.make(logs / damage.partition)

    def stats():
        return {file: (file.stat().st_mtime_ns, file.stat().st_size) for file in [logs, *logs.rglob("*")]}

    before = stats()
    found = verify_log_dir(logs, [TopicPartition(topic, int(number))])
    assert damage.kind in {one.kind for one in found}, [str(one) for one in found]
    assert all(one.recovery for one in found)
    assert all(one.repair for one in found if one.kind not in (K.META_PROPERTIES, K.TOPIC_ID_CORRUPT))
    made = [one for one in found if one.kind is damage.kind]
    is_note = damage.kind in NOTES or damage.name == "a removed segment left over"
    assert {one.severity for one in made} == {Severity.NOTE if is_note else Severity.FINDING}
    assert stats() == before


def test_the_order_of_work_does_not_matter():
    logs = FIXTURES / "recovery" / "before"
    assert verify_log_dir(logs, workers=1) == verify_log_dir(logs, workers=5)

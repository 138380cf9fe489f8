"""Damages, one by one, to copies of log directories that real brokers closed: what `verify` must find, by name."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, PendingCommit, PendingPart, StagedBatchFile, WriteId
from storage.files.names import FileKind, StagedName
from storage.types import TopicPartition
from storage.verify.findings import FaultKind
from tests.support.damaged_bytes import with_right_checksums
from tests.support.raw_batches import batch, message, record
from tests.support.record_headers import batches

_INDEX, _TIME, _ABORTS = struct.Struct(">ii"), struct.Struct(">qi"), struct.Struct(">hqqqq")


@dataclass(frozen=True, slots=True)
class Damage:
    """`make` is given a partition's directory in a copy of the fixture."""

    fixture: str
    partition: str
    kind: FaultKind
    make: Callable[[Path], None]

    @property
    def tp(self) -> TopicPartition:
        topic, _, number = self.partition.rpartition("-")
        return TopicPartition(topic, int(number))


DAMAGES: dict[str, Damage] = {}


def damage(kind: FaultKind, partition: str = "tx-aborts-0", fixture: str = "transactions") -> Callable[..., None]:
    """Enters a function under its own name."""

    def enter(make: Callable[[Path], None]) -> None:
        DAMAGES[make.__name__.replace("_", " ").strip()] = Damage(fixture, partition, kind, make)

    return enter


def segments(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.log"))


def sealed(directory: Path) -> Path:
    """A .log in the middle, with an .index and a .txnindex of several entries."""
    return segments(directory)[1] if len(segments(directory)) > 2 else segments(directory)[0]


def edit(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


def edit_batch(path: Path, number: int, change: Callable[[bytearray], None], *, checksum: bool = True) -> None:
    """Changes the batch `number` of a .log, whose CRC is made to fit unless said otherwise."""
    parts = list(batches(path.read_bytes()))
    changed = bytearray(parts[number])
    change(changed)
    parts[number] = with_right_checksums(bytes(changed)) if checksum else bytes(changed)
    path.write_bytes(b"".join(parts))


def put(form: str, at: int, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(form, data, at, value)


def add(form: str, at: int, amount: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(form, data, at, struct.unpack_from(form, data, at)[0] + amount)


def flip(at: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[at] ^= 0xFF

    return change


def index_of(log: Path, kind: FileKind) -> Path:
    return log.with_suffix(kind.value)


def replaced(path: Path, number: int, new: bytes) -> None:
    """Another batch, of any size, in the place of one."""
    parts = list(batches(path.read_bytes()))
    parts[number] = new
    path.write_bytes(b"".join(parts))


def with_records(path: Path, number: int, payload: bytes, *, grown: int = 0) -> None:
    """The batch `number` with other records, its header otherwise as it was."""
    parts = list(batches(path.read_bytes()))
    head = bytearray(parts[number][:61])
    struct.pack_into(">i", head, 8, 49 + len(payload) + grown)
    parts[number] = with_right_checksums(bytes(head) + payload)
    path.write_bytes(b"".join(parts))


# Batches


@damage(FaultKind.BATCH_CRC)
def _a_flipped_byte(directory: Path) -> None:
    edit(sealed(directory), flip(100))


@damage(FaultKind.BATCH_CRC, "v1-none-0", "v1")
def _a_flipped_byte_in_an_old_message(directory: Path) -> None:
    edit(sealed(directory), flip(40))


@damage(FaultKind.BATCH_CUT_OFF)
def _a_torn_tail(directory: Path) -> None:
    last = segments(directory)[-1]
    last.write_bytes(last.read_bytes()[:-7])


@damage(FaultKind.BATCH_CUT_OFF)
def _a_torn_header(directory: Path) -> None:
    last = segments(directory)[-1]
    last.write_bytes(last.read_bytes() + b"\0\0\0\0\0\0\0\x90\0")


@damage(FaultKind.BATCH_CUT_OFF)
def _a_length_beyond_the_file(directory: Path) -> None:
    edit_batch(sealed(directory), 2, put(">i", 8, 10_000_000), checksum=False)


@damage(FaultKind.BATCH_LENGTH)
def _a_length_of_nothing(directory: Path) -> None:
    edit_batch(sealed(directory), 2, put(">i", 8, 5), checksum=False)


@damage(FaultKind.LOG_ZEROS)
def _zeros_at_the_end(directory: Path) -> None:
    edit(segments(directory)[-1], lambda data: data.extend(bytes(4096)))


@damage(FaultKind.LOG_GARBAGE)
def _garbage_at_the_end(directory: Path) -> None:
    edit(segments(directory)[-1], lambda data: data.extend(b"\x1e\x5b" * 300))


@damage(FaultKind.BATCH_MAGIC)
def _an_unknown_magic(directory: Path) -> None:
    edit_batch(sealed(directory), 1, put(">b", 16, 9), checksum=False)


@damage(FaultKind.BATCH_ORDER)
def _a_base_offset_that_is_too_low(directory: Path) -> None:
    edit_batch(sealed(directory), 8, add(">q", 0, -10), checksum=False)


@damage(FaultKind.BATCH_ORDER)
def _a_base_offset_that_is_too_high(directory: Path) -> None:
    edit_batch(sealed(directory), 3, add(">q", 0, 8), checksum=False)


@damage(FaultKind.BATCH_RANGE)
def _a_base_offset_of_another_segment(directory: Path) -> None:
    edit_batch(segments(directory)[-1], 1, put(">q", 0, 1 << 40), checksum=False)


@damage(FaultKind.BATCH_OVERLAP, "c-none-0", "codecs")
def _a_batch_that_overlaps(directory: Path) -> None:
    edit_batch(sealed(directory), 2, add(">q", 0, -1), checksum=False)


@damage(FaultKind.BATCH_RANGE)
def _a_batch_that_ends_before_it_begins(directory: Path) -> None:
    edit_batch(segments(directory)[-1], -1, put(">i", 23, -1))


@damage(FaultKind.BATCH_COUNT, "c-none-0", "codecs")
def _more_records_than_offsets(directory: Path) -> None:
    edit_batch(sealed(directory), 1, lambda data: add(">i", 57, 5)(data))


@damage(FaultKind.BATCH_MAX_TIMESTAMP, "c-zstd-0", "codecs")
def _a_wrong_max_timestamp(directory: Path) -> None:
    edit_batch(sealed(directory), 1, add(">q", 35, 1))


@damage(FaultKind.BATCH_MAX_TIMESTAMP, "v1-gzip-0", "v1")
def _a_wrong_timestamp_of_a_wrapper(directory: Path) -> None:
    edit_batch(sealed(directory), 1, add(">q", 18, 1))


@damage(FaultKind.BATCH_PRODUCER)
def _a_transaction_without_a_producer(directory: Path) -> None:
    edit_batch(sealed(directory), 1, put(">q", 43, -1))


@damage(FaultKind.BATCH_EPOCH)
def _a_leader_epoch_that_falls(directory: Path) -> None:
    edit_batch(sealed(directory), 2, put(">i", 12, 7), checksum=False)


# What is in them


@damage(FaultKind.COMPRESSION, "c-gzip-0", "codecs")
def _gzip_that_is_none(directory: Path) -> None:
    edit_batch(sealed(directory), 1, flip(61))


@damage(FaultKind.COMPRESSION, "c-snappy-0", "codecs")
def _snappy_that_is_cut_off(directory: Path) -> None:
    part = list(batches(sealed(directory).read_bytes()))[1]
    with_records(sealed(directory), 1, part[61:-9])


@damage(FaultKind.COMPRESSION, "c-lz4-0", "codecs")
def _lz4_with_another_header_checksum(directory: Path) -> None:
    edit_batch(sealed(directory), 1, flip(61 + 6))


@damage(FaultKind.COMPRESSION, "c-zstd-0", "codecs")
def _zstd_that_is_cut_off(directory: Path) -> None:
    part = list(batches(sealed(directory).read_bytes()))[1]
    with_records(sealed(directory), 1, part[61:-9])


@damage(FaultKind.CODEC, "c-none-0", "codecs")
def _an_unknown_codec(directory: Path) -> None:
    edit_batch(sealed(directory), 1, put(">h", 21, 6))


@damage(FaultKind.RECORDS, "c-none-0", "codecs")
def _a_record_count_that_is_too_small(directory: Path) -> None:
    edit_batch(sealed(directory), 1, add(">i", 57, -1))


@damage(FaultKind.RECORDS, "c-none-0", "codecs")
def _a_record_length_that_lies(directory: Path) -> None:
    edit_batch(sealed(directory), 1, lambda data: add(">B", 61, 4)(data))


@damage(FaultKind.RECORDS, "v0-none-0", "v0")
def _a_key_length_of_an_old_message_that_lies(directory: Path) -> None:
    edit_batch(sealed(directory), 1, put(">i", 18, 100_000))


@damage(FaultKind.RECORDS, "v1-none-0", "v1")
def _a_value_length_of_an_old_message_that_lies(directory: Path) -> None:
    def change(data: bytearray) -> None:
        key = struct.unpack_from(">i", data, 26)[0]
        struct.pack_into(">i", data, 30 + max(key, 0), 100_000)

    edit_batch(sealed(directory), 1, change)


@damage(FaultKind.RECORDS, "v1-none-0", "v1")
def _a_message_within_a_wrapper_that_fails_its_crc(directory: Path) -> None:
    from storage.format.compression import Codec, compress

    parts = list(batches(sealed(directory).read_bytes()))
    offset, timestamp = (struct.unpack_from(">q", parts[1], at)[0] for at in (0, 18))
    inner = message(0, b"value", timestamp=timestamp, crc=12345)
    replaced(
        sealed(directory),
        1,
        message(offset, compress(Codec.GZIP, inner, 1), attributes=Codec.GZIP, timestamp=timestamp),
    )


@damage(FaultKind.RECORD_OFFSET, "c-none-0", "codecs")
def _records_with_the_same_offset(directory: Path) -> None:
    part = list(batches(sealed(directory).read_bytes()))[2]
    base, last = (struct.unpack_from(form, part, at)[0] for form, at in ((">q", 0), (">i", 23)))
    records = [record(min(number, 1)) for number in range(last + 1)]
    replaced(sealed(directory), 2, batch(records, base, base_timestamp=5, max_timestamp=5))


@damage(FaultKind.MARKER)
def _a_marker_of_no_version(directory: Path) -> None:
    # A marker's key begins behind length, attributes, two deltas and the key's own length: version, then type.
    parts = list(batches(sealed(directory).read_bytes()))
    number = next(i for i, part in enumerate(parts) if part[22] & 0x20)
    edit_batch(sealed(directory), number, put(">h", 61 + 5, -1))


# Indexes


@damage(FaultKind.INDEX_MISSING)
def _no_index(directory: Path) -> None:
    index_of(sealed(directory), FileKind.OFFSET_INDEX).unlink()


@damage(FaultKind.INDEX_SIZE)
def _half_an_index_entry(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.OFFSET_INDEX), lambda data: data.extend(b"\1\2\3"))


@damage(FaultKind.INDEX_ORDER)
def _index_entries_that_fall(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.OFFSET_INDEX), put(">i", 8, 1))


@damage(FaultKind.INDEX_ORDER)
def _an_index_of_garbage(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.OFFSET_INDEX), lambda data: data.__setitem__(slice(0, 16), b"\x91" * 16))


@damage(FaultKind.INDEX_BEYOND_LOG)
def _an_index_entry_beyond_the_log(directory: Path) -> None:
    log = sealed(directory)
    edit(index_of(log, FileKind.OFFSET_INDEX), lambda data: data.extend(_INDEX.pack(100, log.stat().st_size + 9)))


@damage(FaultKind.INDEX_NOT_TRIMMED)
def _an_index_with_zeros_behind(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.OFFSET_INDEX), lambda data: data.extend(bytes(80)))


@damage(FaultKind.INDEX_POSITION)
def _an_index_entry_into_a_batch(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.OFFSET_INDEX), add(">i", 12, 3))


@damage(FaultKind.INDEX_FLOOR, "c-none-0", "codecs")
def _an_index_entry_behind_its_offset(directory: Path) -> None:
    log = segments(directory)[0]
    lasts, position = {}, 0
    for part in batches(log.read_bytes()):
        lasts[position] = struct.unpack_from(">q", part)[0] - 1  # that of the batch before this one
        position += len(part)
    index = index_of(log, FileKind.OFFSET_INDEX)
    entries = list(_INDEX.iter_unpack(index.read_bytes()))
    slot = next(slot for slot in range(1, len(entries)) if lasts[entries[slot][1]] > entries[slot - 1][0])
    edit(index, put(">i", slot * 8, lasts[entries[slot][1]]))


@damage(FaultKind.INDEX_OFFSET)
def _an_index_entry_with_an_offset_in_the_middle(directory: Path) -> None:
    log = sealed(directory)
    parts = list(batches(log.read_bytes()))
    base = int(log.stem)
    lasts = {struct.unpack_from(">q", part)[0] + struct.unpack_from(">i", part, 23)[0] - base for part in parts}
    index = index_of(log, FileKind.OFFSET_INDEX)
    entries = list(_INDEX.iter_unpack(index.read_bytes()))
    slot, offset = next(
        (slot, entry[0] + 1)
        for slot, entry in enumerate(entries)
        if entry[0] + 1 not in lasts and (slot + 1 == len(entries) or entries[slot + 1][0] > entry[0] + 1)
    )
    edit(index, put(">i", slot * 8, offset))


@damage(FaultKind.TIME_INDEX_SIZE)
def _half_a_time_index_entry(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TIME_INDEX), lambda data: data.extend(b"\1\2\3"))


@damage(FaultKind.TIME_INDEX_ORDER)
def _time_index_entries_that_fall(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TIME_INDEX), put(">q", 12, 1))


@damage(FaultKind.TIME_INDEX_BEYOND_LOG)
def _a_time_index_entry_beyond_the_log(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TIME_INDEX), lambda data: data.extend(_TIME.pack(1 << 42, 100_000)))


@damage(FaultKind.TIME_INDEX_NOT_TRIMMED)
def _a_time_index_with_zeros_behind(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TIME_INDEX), lambda data: data.extend(bytes(120)))


@damage(FaultKind.TIME_INDEX_UNTRUE)
def _a_time_index_entry_that_lies(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TIME_INDEX), add(">q", 12, 1))


@damage(FaultKind.TIME_INDEX_INCOMPLETE)
def _the_last_time_index_entry_gone(directory: Path) -> None:
    path = index_of(sealed(directory), FileKind.TIME_INDEX)
    path.write_bytes(path.read_bytes()[:-12])


@damage(FaultKind.TIME_INDEX_INCOMPLETE)
def _no_time_index(directory: Path) -> None:
    index_of(sealed(directory), FileKind.TIME_INDEX).unlink()


@damage(FaultKind.TXN_INDEX_CORRUPT)
def _a_transaction_index_of_another_version(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TRANSACTION_INDEX), put(">h", 0, 3))


@damage(FaultKind.TXN_INDEX_CORRUPT)
def _half_a_transaction_index_entry(directory: Path) -> None:
    path = index_of(sealed(directory), FileKind.TRANSACTION_INDEX)
    path.write_bytes(path.read_bytes()[:-5])


@damage(FaultKind.TXN_INDEX_INVENTED)
def _an_abort_of_another_producer(directory: Path) -> None:
    edit(index_of(sealed(directory), FileKind.TRANSACTION_INDEX), add(">q", 2, 40))


@damage(FaultKind.TXN_INDEX_INCOMPLETE)
def _an_abort_that_is_not_indexed(directory: Path) -> None:
    path = index_of(sealed(directory), FileKind.TRANSACTION_INDEX)
    path.write_bytes(path.read_bytes()[_ABORTS.size :])


@damage(FaultKind.TXN_INDEX_INCOMPLETE)
def _no_transaction_index(directory: Path) -> None:
    index_of(sealed(directory), FileKind.TRANSACTION_INDEX).unlink()


# Snapshots, epochs, names


def _snapshot(directory: Path, number: int = 1) -> Path:
    return sorted(directory.glob("*.snapshot"))[number]


@damage(FaultKind.SNAPSHOT_CORRUPT)
def _a_snapshot_with_a_flipped_byte(directory: Path) -> None:
    edit(_snapshot(directory), flip(20))


@damage(FaultKind.SNAPSHOT_CORRUPT)
def _a_snapshot_cut_off(directory: Path) -> None:
    _snapshot(directory).write_bytes(_snapshot(directory).read_bytes()[:-1])


@damage(FaultKind.SNAPSHOT_CORRUPT)
def _a_snapshot_with_stale_bytes_behind(directory: Path) -> None:
    edit(_snapshot(directory), lambda data: data.extend(bytes(46)))


@damage(FaultKind.SNAPSHOT_UNTRUE)
def _the_snapshot_of_another_offset(directory: Path) -> None:
    _snapshot(directory, 2).write_bytes(_snapshot(directory, 0).read_bytes())


@damage(FaultKind.SNAPSHOT_BEYOND_LOG)
def _a_snapshot_beyond_the_log(directory: Path) -> None:
    path = directory / names.segment_file(10_000, FileKind.PRODUCER_SNAPSHOT)
    path.write_bytes(_snapshot(directory).read_bytes())


@damage(FaultKind.EPOCHS_UNTRUE)
def _other_leader_epochs(directory: Path) -> None:
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n4 0\n")


@damage(FaultKind.EPOCHS_BEYOND_LOG)
def _a_leader_epoch_beyond_the_log(directory: Path) -> None:
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n2\n0 0\n5 99999\n")


@damage(FaultKind.EPOCHS_CORRUPT)
def _leader_epochs_that_do_not_parse(directory: Path) -> None:
    (directory / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\nnought\n")


@damage(FaultKind.SEGMENT_OVERLAP)
def _segments_that_overlap(directory: Path) -> None:
    log = segments(directory)[2]
    log.rename(log.with_name(names.segment_file(int(log.stem) - 3, FileKind.LOG)))


@damage(FaultKind.BATCH_RANGE)
def _a_segment_of_a_later_name(directory: Path) -> None:
    log = segments(directory)[1]
    log.rename(log.with_name(names.segment_file(int(log.stem) + 1, FileKind.LOG)))


@damage(FaultKind.INDEX_WITHOUT_LOG)
def _a_segment_gone(directory: Path) -> None:
    segments(directory)[1].unlink()


@damage(FaultKind.SEGMENT_GAP)
def _a_segment_gone_with_its_indexes(directory: Path) -> None:
    for path in directory.glob(f"{segments(directory)[1].stem}.*"):
        path.unlink()


@damage(FaultKind.PARTITION_EMPTY)
def _no_segment_at_all(directory: Path) -> None:
    for log in segments(directory):
        log.unlink()


@damage(FaultKind.FILE_MISNAMED)
def _a_segment_without_an_offset(directory: Path) -> None:
    (directory / "copy.log").write_bytes(b"")


@damage(FaultKind.FILE_LEFT_OVER)
def _a_replacement_left_over(directory: Path) -> None:
    (directory / "00000000000000000018.log.swap").write_bytes(b"")


@damage(FaultKind.FILE_LEFT_OVER)
def _a_removed_segment_left_over(directory: Path) -> None:
    (directory / "00000000000000000018.log.deleted").write_bytes(b"")


# The directory and its topics


@damage(FaultKind.DIR_UNPARSABLE)
def _a_directory_of_another_kind(directory: Path) -> None:
    (directory.parent / "lost+found").mkdir()


@damage(FaultKind.DIR_AWAITS_REMOVAL)
def _a_partition_that_awaits_removal(directory: Path) -> None:
    (directory.parent / names.deleted_dir(TopicPartition("gone", 0))).mkdir()


@damage(FaultKind.META_PROPERTIES)
def _meta_properties_of_another_version(directory: Path) -> None:
    (directory.parent / names.META_PROPERTIES).write_text("version=7\nnode.id=1\ncluster.id=c\n")


@damage(FaultKind.CHECKPOINT_CORRUPT)
def _a_checkpoint_with_another_count(directory: Path) -> None:
    (directory.parent / names.LOG_START_CHECKPOINT).write_text("0\n5\ntx-aborts 0 1\n")


@damage(FaultKind.CHECKPOINT_BEYOND_LOG)
def _a_high_watermark_beyond_the_log(directory: Path) -> None:
    (directory.parent / names.REPLICATION_CHECKPOINT).write_text("0\n1\ntx-aborts 0 99999\n")


@damage(FaultKind.CHECKPOINT_BEYOND_LOG)
def _a_log_start_below_nought(directory: Path) -> None:
    (directory.parent / names.LOG_START_CHECKPOINT).write_text("0\n1\ntx-aborts 0 -5\n")


@damage(FaultKind.CHECKPOINT_UNFINISHED)
def _a_checkpoint_half_written(directory: Path) -> None:
    (directory.parent / (names.RECOVERY_POINT_CHECKPOINT + ".tmp")).write_text("0\n")


@damage(FaultKind.WRITES_CORRUPT)
def _a_ledger_of_writes_that_does_not_parse(directory: Path) -> None:
    (directory.parent / names.COMMITS).write_text("{}")


_STAGED = StagedName("write", 0, "0" * 32)


def _pend(directory: Path, offset: int) -> None:
    """Makes a write pending that was staged, a message, to be appended at an offset."""
    topic, _, number = directory.name.rpartition("-")
    tp = TopicPartition(topic, int(number))
    files = (StagedBatchFile(tp, str(_STAGED), len(batch([record(0)])), 1),)
    pending = PendingCommit(WriteId("write", None), 0, (PendingPart(tp, offset, offset, 0, files),))
    (directory.parent / names.COMMITS).write_bytes(commit_ledger.encode(Ledger(pending=(pending,))))


@damage(FaultKind.STAGED_ORPHAN)
def _a_staged_file_of_a_task_that_died(directory: Path) -> None:
    (directory / str(_STAGED)).write_bytes(batch([record(0)]))


@damage(FaultKind.WRITE_PENDING)
def _a_write_that_is_pending(directory: Path) -> None:
    _pend(directory, 10**6)
    (directory / str(_STAGED)).write_bytes(batch([record(0)]))


@damage(FaultKind.WRITE_STUCK)
def _a_write_that_is_pending_without_its_staged_file(directory: Path) -> None:
    _pend(directory, 10**6)


@damage(FaultKind.TOPIC_ID_CORRUPT)
def _a_topic_id_that_does_not_parse(directory: Path) -> None:
    (directory / names.PARTITION_METADATA).write_text("version: 9\n")


@damage(FaultKind.TOPIC_ID_MISSING, "tx-basic-1")
def _no_topic_id(directory: Path) -> None:
    (directory / names.PARTITION_METADATA).unlink()


@damage(FaultKind.TOPIC_ID_DIFFERS, "tx-basic-1")
def _another_topic_id(directory: Path) -> None:
    (directory / names.PARTITION_METADATA).write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")


@damage(FaultKind.TOPIC_ID_SHARED, "tx-open-0")
def _the_topic_id_of_another_topic(directory: Path) -> None:
    other = directory.parent / "tx-aborts-0" / names.PARTITION_METADATA
    (directory / names.PARTITION_METADATA).write_bytes(other.read_bytes())


@damage(FaultKind.TOPIC_CONFIG_DIFFERS, "tx-basic-1")
def _another_configuration(directory: Path) -> None:
    (directory / names.TOPIC_PROPERTIES).write_text("retention.ms=5\n")


@damage(FaultKind.TOPIC_CONFIG_CORRUPT, "tx-basic-1")
def _a_configuration_that_does_not_parse(directory: Path) -> None:
    (directory / names.TOPIC_PROPERTIES).write_bytes(b"retention.ms=\\u12\n")

"""Predictions about loading one log: whether a broker can, what it cuts, and where the log ends then.

Recovery itself, run on a copy of the small files, shows what is cut (`recovery/rehearsal.py`); this module has the rest
of the broker's behaviour. Sources: Kafka's LogLoader, LogSegment, TransactionIndex.
"""

from __future__ import annotations

import re
import stat
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from storage.diagnosis.predictions import Prediction, Reaction
from storage.directory.directory_checkpoints import PartitionOffsets
from storage.errors import CorruptCheckpoint
from storage.files import leader_epochs, names, producer_state
from storage.files.listing import paths_in
from storage.files.names import FileKind, FileState
from storage.files.opening import exists, is_directory
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.files.transaction_index import VERSION, stops_at
from storage.format.batches import LOG_OVERHEAD
from storage.log import tail
from storage.log.segment import Segment
from storage.log.segments import live_offsets
from storage.recovery.overflow_split import highest_offset
from storage.recovery.recovery import Cut, RecoveryReport
from storage.types import MAX_OFFSET, TopicPartition

SALVAGE = "`kafkafs salvage` copies what is intact around the damage, before the broker starts"
REINDEX = "`kafkafs reindex` rebuilds it"
_RECOVER = f"Without {names.CLEAN_SHUTDOWN} it recovers the log first"
_PUT_BACK = "Put the segment files that are missing back; other replicas may have them"
_NUMBER = re.compile(r"[+-]?[0-9]+")  # as Long.parseLong
_INDEX_ENTRY = struct.Struct(">ii")  # offset - base offset, position
_BATCH_HEAD = struct.Struct(">qi4xb")  # offset, length, magic
_DELTA_POSITION = 23  # of the last offset delta
_OLD_ATTRIBUTES, _CODEC = 17, 7  # position of a message's attributes before v2, and the bits of its codec
_OPENED_LATER = {
    FileKind.OFFSET_INDEX: "with a read in its segment",
    FileKind.TIME_INDEX: "retention of all logs ends there, and with a lookup by time",
}
LEAST_LENGTH = 14  # LegacyRecord.RECORD_OVERHEAD_V0


def check_files(
    directory: Path, tp: TopicPartition, *, clean: bool = False, recovery_point: int = 0, is_rehearsed: bool = False
) -> Iterator[Prediction]:
    """Check for files on which loading fails. `clean`: the log directory was shut down cleanly; otherwise, if recovery
    is rehearsed, `of_recovery` predicts what becomes of snapshots that cannot be written. `recovery_point`: as
    checkpointed, 0 if that is not known."""
    used = _newest_snapshot(directory) if clean else MAX_OFFSET if is_rehearsed else -1
    bases = live_offsets(directory, FileKind.LOG)
    first_opened = max((base for base in bases if clean or base <= recovery_point), default=-1)
    for path in paths_in(directory):
        mode = path.lstat().st_mode
        if _is_read(path.name, used) and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            yield _is_no_file(path, tp, first_opened)
        elif stat.S_ISDIR(mode):
            continue
        elif (number := _NUMBER.fullmatch(path.stem)) and names.is_misnamed(path.name) and _is_long(number[0]):
            if path.suffix == FileKind.LOG.value:
                start, last = int(number[0]), max(live_offsets(directory, FileKind.LOG), default=-1)
                broker = f"makes an empty segment from offset {start} on"
                broker += ", and goes on there: later messages are hidden" if start > last else (
                    ": messages from there to the next segment are hidden, and what is in this file"
                )  # fmt: skip
                yield Prediction(
                    "file-misnamed", Reaction.CUTS, path, "a segment file's name without exactly 20 digits", broker,
                    "Move the file elsewhere", tp, start if start > last else None,
                )  # fmt: skip
        elif names.is_misnamed(path.name):
            yield Prediction(
                "file-misnamed", Reaction.REFUSES, path, "a segment file's name without an offset",
                "does not start: it cannot parse the name", "Move the file elsewhere", tp,
            )  # fmt: skip
        elif _is_checked(path) and stops_at(path):
            yield Prediction(
                "txn-index-version", Reaction.REFUSES, path, f"an entry has a version other than {VERSION}",
                "does not start; before Kafka 4.4 it starts with versions below 256", REINDEX, tp,
            )  # fmt: skip
    try:
        leader_epochs.read(directory / names.LEADER_EPOCH_CHECKPOINT)
    except CorruptCheckpoint as error:
        yield Prediction(
            "epochs-corrupt", Reaction.OFFLINE, error.path or directory, error.what,
            "takes the log directory offline; without another one it stops",
            "Remove the file: `kafkafs recover` rebuilds it from the log", tp,
        )  # fmt: skip
    except OSError:
        pass  # not a regular file: reported above


def _is_no_file(path: Path, tp: TopicPartition, first_opened: int) -> Prediction:
    """The prediction for a directory, or the like, in place of a file that a broker opens when it starts, or later:
    indexes of segments before `first_opened`, which it does not recover (LazyIndex)."""
    broker, reaction = "takes the log directory offline; without another one it stops", Reaction.OFFLINE
    parsed = names.parse_segment_file(path.name)
    if parsed is not None and parsed.offset < first_opened and parsed.kind in _OPENED_LATER:
        broker = f"does not open it when it starts; {_OPENED_LATER[parsed.kind]} it {broker}"
        reaction = Reaction.UNNOTICED
    return Prediction("no-regular-file", reaction, path, "is no regular file", broker, "Move it elsewhere", tp)


def _is_long(number: str) -> bool:
    return -MAX_OFFSET - 1 <= int(number) <= MAX_OFFSET


def _is_read(name: str, snapshot: int) -> bool:
    """Whether a broker reads or writes a file of this name. It ignores a directory with a segment's name, or with the
    suffix of an operation that was interrupted. With a snapshot's name, a directory makes it fail when it writes that
    file; it writes files after `snapshot`."""
    parsed = names.parse_segment_file(name)
    if parsed is None:
        return name in (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT)
    if parsed.state is not FileState.LIVE:
        return False
    if parsed.kind is FileKind.PRODUCER_SNAPSHOT:
        return parsed.offset > snapshot
    return parsed.kind is not FileKind.LOG


def _newest_snapshot(directory: Path) -> int:
    """The offset of the newest producer snapshot that can be read; -1 if there is none."""
    offsets = reversed(live_offsets(directory, FileKind.PRODUCER_SNAPSHOT))
    return next((offset for offset in offsets if _is_snapshot(directory, offset)), -1)


def _is_snapshot(directory: Path, offset: int) -> bool:
    """Whether the producer snapshot at an offset can be read."""
    with suppress(CorruptCheckpoint, OSError):
        return producer_state.read(directory / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT)) is not None
    return False


def _is_checked(path: Path) -> bool:
    """Whether a file is the transaction index of a segment: a broker removes it if the .log is missing."""
    return path.suffix == FileKind.TRANSACTION_INDEX.value and exists(path.with_suffix(FileKind.LOG.value))


def of_recovery(
    report: RecoveryReport, directory: Path, known: PartitionOffsets, *, clean: bool
) -> Iterator[Prediction]:
    """The batches that loading the log removes. `report`: of recovery, also after a clean shutdown; `known`: the
    checkpoints."""
    tp = report.tp
    blocked = None if clean else _of_blocked_snapshots(report, directory)
    if blocked is not None:
        yield blocked
        return
    cuts = [cut for cut in report.cuts if cut.base_offset in report.recovered_segments]
    for base in report.misordered_segments:
        path = directory / names.segment_file(base, FileKind.LOG)
        what = "offsets that do not ascend, where an index entry is due"
        if clean or not exists(path.with_suffix(FileKind.OFFSET_INDEX.value)):
            broker = "does not start: InvalidOffsetException, when it rebuilds the segment's index"
            yield Prediction("batch-order", Reaction.REFUSES, path, what, broker, SALVAGE, tp)
        else:
            broker = f"empties the segment, removes those after it, and goes on at {base}"
            yield Prediction("batch-order", Reaction.CUTS, path, what, broker, SALVAGE, tp, base)
        return
    if not clean:  # otherwise the findings of `verify` report them
        known_end = max(known.recovery_point or 0, known.high_watermark or 0)
        yield from (_of_cut(cut, report, directory, known_end) for cut in cuts)
    if cuts and report.log_end_offset == cuts[-1].next_offset:
        return
    if report.removed_segments and not cuts:
        yield Prediction(
            "log-start-beyond-end",
            Reaction.CUTS,
            directory,
            f"the log ends below its checkpointed start {report.log_start_offset}",
            f"removes all its segments, and begins anew at {report.log_start_offset}",
            f"Correct its line in {names.LOG_START_CHECKPOINT} first",
            tp,
            report.log_start_offset,
        )
        return
    misread = _misread_end(tp, directory) if clean else _falling_end(report, directory)
    if misread is not None:
        yield misread
        return
    yield from _lost_ends(report, directory, known, clean=clean)


def blocked_snapshots(directory: Path) -> dict[int, Path]:
    """The directories with the name of a producer snapshot, by its offset: a broker cannot write that snapshot."""
    parsed = ((path, names.parse_segment_file(path.name)) for path in paths_in(directory))
    return {
        name.offset: path
        for path, name in parsed
        if name is not None
        and (name.kind, name.state) == (FileKind.PRODUCER_SNAPSHOT, FileState.LIVE)
        and is_directory(path)
    }


def _of_blocked_snapshots(report: RecoveryReport, directory: Path) -> Prediction | None:
    """The reaction of recovery to a directory with the name of a producer snapshot that it writes: at the beginning of
    a segment, unless the log begins there, or at its end. It then takes the segment for damaged (LogLoader.recoverLog).
    """
    blocked = blocked_snapshots(directory)
    for base in report.recovered_segments if blocked else ():
        end = report.last_batch_ends[base]
        again = base in blocked and base > report.log_start_offset
        if not (again or (end in blocked and end > base)) or not Segment.at(directory, base).size:
            continue
        path, what = blocked[base if again else end], "is no regular file, and has the name of a producer snapshot"
        broker = f"removes all messages from offset {base} on, because it cannot write the snapshot"
        if again:
            broker += "; it then takes the log directory offline; without another one it stops"
        broker += " (Kafka 3.9 removes nothing, and takes the directory offline)"
        reaction, left = (Reaction.OFFLINE, None) if again else (Reaction.CUTS, base)
        return Prediction("no-regular-file", reaction, path, what, broker, "Move it elsewhere", report.tp, left)
    return None


def of_out_of_range(log: Path, tp: TopicPartition, *, clean: bool) -> Iterator[Prediction]:
    """The reaction to a batch whose offsets are below its segment, or too far above. A broker that recovers the segment
    splits it if the last batch is too far above, and otherwise does not start (LogSegment.hasOverflow)."""
    aborts = log.with_suffix(FileKind.TRANSACTION_INDEX.value)
    if clean and exists(log.with_suffix(FileKind.OFFSET_INDEX.value)) and stops_at(aborts) is None:
        misread = _misread_end(tp, log.parent)
        yield from () if misread is None else (misread,)
        return
    segment = Segment.at(log.parent, int(log.stem))
    what = "a batch's offsets are below those of its segment, which is recovered, or too far above"
    end = _end_from(segment, 0, segment.base_offset)
    if end is None or end - 1 <= highest_offset(segment.base_offset):
        broker = "does not start: it takes that for offsets that are too far apart, and cannot split the segment"
        yield Prediction("batch-range", Reaction.REFUSES, log, what, broker, SALVAGE, tp)
        return
    broker = f"splits the segment; messages that follow get offsets from {end} on"
    yield Prediction("batch-range", Reaction.UNNOTICED, log, what, broker, SALVAGE, tp)


def _of_cut(cut: Cut, report: RecoveryReport, directory: Path, known_end: int) -> Prediction:
    """The prediction for a cut. `known_end`: the offset up to which the log is known to have been written."""
    path = directory / names.segment_file(cut.base_offset, FileKind.LOG)
    segment = Segment.at(directory, cut.base_offset)
    later = f", and removes {len(report.removed_segments)} later segments" if report.removed_segments else ""
    is_last = cut.next_offset == report.log_end_offset
    nothing_behind = is_last and not report.removed_segments and cut.intact is None
    begins_with = segment.log.read(cut.position, min(LOG_OVERHEAD, cut.lost_bytes))
    are_zeros = len(begins_with) == LOG_OVERHEAD and not any(begins_with)
    if nothing_behind and are_zeros and cut.next_offset >= known_end:
        what, broker = f"{cut.lost_bytes} bytes at the end that were never written", "cuts them off"
        return Prediction("preallocated-tail", Reaction.REPAIRS, path, what, broker, "", report.tp)
    behind = "" if cut.intact is None else f", with {cut.intact}"
    return Prediction(
        "torn-tail" if nothing_behind and cut.next_offset >= known_end else "damage",
        Reaction.CUTS,
        path,
        f"no sound batch from position {cut.position} on: {cut.lost_bytes} bytes{behind}",
        f"cuts the {'log' if is_last else 'segment'} at offset {cut.next_offset}{later}",
        SALVAGE,
        report.tp,
        report.log_end_offset,
    )


def _lost_ends(
    report: RecoveryReport, directory: Path, known: PartitionOffsets, *, clean: bool
) -> Iterator[Prediction]:
    """Messages that no segment has, though another file knows of them: a segment's log is made before its indexes, and
    checkpoints, epochs and producer snapshots are written after the messages. OSError."""
    tp, end = report.tp, report.log_end_offset
    bases = live_offsets(directory, FileKind.LOG)
    bases = [base for base in bases if not is_directory(directory / names.segment_file(base, FileKind.LOG))]
    epochs = _epoch_starts(directory)
    reached = {
        names.RECOVERY_POINT_CHECKPOINT: known.recovery_point or 0,
        names.REPLICATION_CHECKPOINT: known.high_watermark or 0,
        names.LEADER_EPOCH_CHECKPOINT: max(epochs, default=0),
        "a snapshot of producers": max(live_offsets(directory, FileKind.PRODUCER_SNAPSHOT), default=0),
    }
    name, flushed = max(reached.items(), key=lambda item: item[1])
    kinds = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    orphan = max((base for kind in kinds for base in live_offsets(directory, kind) if base not in bases), default=-1)
    what = ""
    if end < flushed:
        what = f"was written up to {flushed} ({name})"
    elif orphan >= max(end, bases[-1] + 1 if bases else 0):
        what = f"had a segment from {orphan} on, whose indexes are there"
    elif not bases and (clean or known.log_start or epochs):
        what = "has no segment"
    if what:
        rest = f"{end} to {flushed - 1}" if end < flushed else f"from {end} on"
        yield Prediction(
            "log-end-lost", Reaction.CUTS, directory, f"the log ends at offset {end}, and {what}",
            f"goes on at {end}: offsets {rest} are given to other messages", _PUT_BACK, tp, end,
        )  # fmt: skip
    # After a crash the epochs may be from before retention removed segments.
    start = max(known.log_start or 0, min(epochs, default=0))
    is_tiered = bool(bases) and report.log_start_offset < bases[0]
    if clean and bases and epochs and start < bases[0] and start == min(epochs) and not is_tiered:
        yield Prediction(
            "log-start-lost", Reaction.UNNOTICED, directory,
            f"the first segment begins at {bases[0]}, and the log at {start} ({names.LEADER_EPOCH_CHECKPOINT})",
            f"begins the log at {bases[0]}: offsets {start} to {bases[0] - 1} are in no segment", _PUT_BACK, tp,
        )  # fmt: skip


def _epoch_starts(directory: Path) -> list[int]:
    try:
        epochs = leader_epochs.read(directory / names.LEADER_EPOCH_CHECKPOINT)
    except (CorruptCheckpoint, OSError):
        return []
    return [entry.start_offset for entry in epochs.entries] if epochs else []


def _misread_end(tp: TopicPartition, directory: Path) -> Prediction | None:
    """The wrong end that a broker finds after a clean shutdown: it searches from the last entry of the last index on,
    and trusts that only batches follow. OSError."""
    bases = live_offsets(directory, FileKind.LOG)
    if not bases or is_directory(directory / names.segment_file(bases[-1], FileKind.LOG)):
        return None
    last = Segment.at(directory, bases[-1])
    path = directory / names.segment_file(last.base_offset, FileKind.OFFSET_INDEX)
    data = None if is_directory(path) else read_whole(path, MOST_ENTRIES_BYTES)
    if data is None or len(data) % _INDEX_ENTRY.size:
        return None  # the broker recovers the segment
    relative_offset, position = _INDEX_ENTRY.unpack(data[-_INDEX_ENTRY.size :]) if data else (0, 0)
    if relative_offset < 0:
        return None  # the broker recovers the segment
    end = tail.measure(last, last.size).next_offset
    seen = _end_from(last, position, last.base_offset + relative_offset)
    what = f"from position {position} on, which its index names last, is something else than batches"
    if seen is None:
        broker = "does not start: it looks for the end of the log there"
        return Prediction("log-end-misread", Reaction.REFUSES, last.log.path, what, broker, _RECOVER, tp)
    if _looks_for(directory, seen):
        entries = ((last.base_offset + offset, at) for offset, at in _INDEX_ENTRY.iter_unpack(data))
        position = max((at for offset, at in entries if offset <= seen), default=0)
        if _end_from(last, position, seen) is None:
            what = f"from position {position} on there is something else than batches"
            broker = f"does not start: it looks for offset {seen} there, as no producer snapshot is from the log's end"
            return Prediction("log-end-misread", Reaction.REFUSES, last.log.path, what, broker, _RECOVER, tp)
    if seen != end:
        broker = f"takes {seen} for the end of the log, which is {end}, and goes on there"
        return Prediction("log-end-misread", Reaction.CUTS, last.log.path, what, broker, _RECOVER, tp, seen)
    return None


def of_high_watermark(
    report: RecoveryReport, directory: Path, known: PartitionOffsets, *, leads: bool
) -> Prediction | None:
    """The reaction of a broker that is to lead a partition, and looks up its high watermark in a log that goes on
    after it, as it does where the checkpoint is lost (Partition.makeLeader, UnifiedLog.fetchHighWatermarkMetadata).
    `leads`: nobody else can lead it. OSError."""
    offset = max(known.high_watermark or 0, report.log_start_offset)
    bases = [base for base in live_offsets(directory, FileKind.LOG) if base not in report.removed_segments]
    below = [base for base in bases if base <= offset]
    if offset >= report.log_end_offset or not below:
        return None
    for base in bases[len(below) - 1 :]:
        segment = Segment.at(directory, base)
        path = segment.path_of(FileKind.OFFSET_INDEX)
        if is_directory(path):
            if not leads:
                return None
            broker = f"starts; looks up the high watermark {offset} there, and takes the log directory offline"
            what = "is no regular file"
            return Prediction("no-regular-file", Reaction.OFFLINE, path, what, broker, "Move it elsewhere", report.tp)
        if base in report.recovered_segments:
            return None  # it was checked
        data = read_whole(path, MOST_ENTRIES_BYTES) or b""
        entries = _INDEX_ENTRY.iter_unpack(data[: len(data) // _INDEX_ENTRY.size * _INDEX_ENTRY.size])
        position = max((at for relative, at in entries if base + relative <= offset), default=0)
        is_found = _is_found(segment, position, offset)
        if is_found:
            return None
        if is_found is None:
            return Prediction(
                "high-watermark-unreadable", Reaction.UNNOTICED, segment.log.path,
                f"from position {position} on, where the high watermark {offset} is, is something else than batches",
                f"starts; does not lead {report.tp}, nor perhaps other partitions: it cannot look that offset up",
                SALVAGE,
            )  # fmt: skip
    return None


def _looks_for(directory: Path, end: int) -> bool:
    """Whether a broker that takes `end` for the end of a log reads messages before it to know the producers: there are
    snapshots, but none that it can read is from there (UnifiedLog.rebuildProducerState)."""
    snapshots = live_offsets(directory, FileKind.PRODUCER_SNAPSHOT)
    return bool(snapshots) and not (end in snapshots and _is_snapshot(directory, end))


def _falling_end(report: RecoveryReport, directory: Path) -> Prediction | None:
    """The wrong end that a broker finds after recovery if the last batch does not have the greatest offset."""
    last = max(live_offsets(directory, FileKind.LOG), default=0)
    if last not in report.fallen_segments:
        return None
    end, seen = report.log_end_offset, report.last_batch_ends[last]
    if seen == end:
        return None
    what = f"its last batch ends at offset {seen}, below earlier ones"
    broker = f"takes {seen} for the end of the log, which is {end}, and goes on there"
    path = directory / names.segment_file(last, FileKind.LOG)
    return Prediction("log-end-misread", Reaction.CUTS, path, what, broker, SALVAGE, report.tp, seen)


def _end_from(segment: Segment, position: int, offset: int) -> int | None:
    """The end of a log that a broker sees when it searches for `offset` from a position on; None if that fails. It
    checks neither CRCs nor offsets (LogSegment.readNextOffset)."""
    end = None
    for batch in _batches_from(segment, position):
        if batch is None or (end is None and not batch.is_readable):
            return None
        if end is not None or batch.last_offset >= offset:
            end = batch.last_offset + 1
    return segment.base_offset if end is None else end


def _is_found(segment: Segment, position: int, offset: int) -> bool | None:
    """Whether a broker that searches for `offset` from a position on finds a batch from there on; None if that fails
    (FileRecords.searchForOffsetFromPosition)."""
    last_offset = -1
    for batch in _batches_from(segment, position):
        if batch is None or not batch.is_readable:
            return None
        if batch.base_offset >= offset:
            return True
        last_offset = batch.last_offset
    return last_offset >= offset


class _Batch(NamedTuple):
    """A batch as a broker sees it that steps over it. `is_readable`: whether it can decompress it for its first
    offset, which only old compressed sets need; `base_offset` is the last one then."""

    base_offset: int
    last_offset: int
    is_readable: bool


def _batches_from(segment: Segment, position: int) -> Iterator[_Batch | None]:
    """The batches that a broker steps over from a position on; None where it fails (FileLogInputStream.nextBatch)."""
    size = segment.size
    if position < 0:
        yield None
        return
    while position < size - _BATCH_HEAD.size:
        base, length, magic = _BATCH_HEAD.unpack(segment.log.read(position, _BATCH_HEAD.size))
        if length < LEAST_LENGTH:
            yield None
            return
        if position + LOG_OVERHEAD + length > size:
            return
        is_old_set = magic < 2 and segment.log.read(position + _OLD_ATTRIBUTES, 1)[0] & _CODEC
        readable = not is_old_set or segment.batch_at(position, size, any_offset=True) is not None
        delta = 0 if magic < 2 else int.from_bytes(segment.log.read(position + _DELTA_POSITION, 4), "big", signed=True)
        yield _Batch(base, base + delta, readable)
        position += LOG_OVERHEAD + length

"""What a broker makes of the partitions: which it sets aside, what recovery removes, what it does not notice.

What recovery does comes from recovery itself, run on a copy of the small files (recovery/recovery.py); what is
damaged comes from `verify`. Sources: Kafka's LogManager.isStrayKraftReplica, LogLoader, LogSegment.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from storage.diagnosis.broker_properties import BrokerProperties
from storage.diagnosis.directory_checks import (
    REVIVE,
    LogDirState,
    not_a_file,
)
from storage.diagnosis.predictions import Prediction, Reaction
from storage.errors import CorruptCheckpoint
from storage.files import names, partition_metadata
from storage.files.listing import paths_in
from storage.files.metadata_replay import ClusterMetadata
from storage.files.names import FileKind
from storage.files.opening import exists, is_directory
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.files.transaction_index import ENTRY_SIZE, VERSION
from storage.format.batches import LOG_OVERHEAD
from storage.log import tail
from storage.log.log_dir import LogDir
from storage.log.segment import Segment
from storage.log.segments import live_offsets
from storage.recovery.recovery import RecoveryReport
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Finding, Severity

_SALVAGE = "`kafkafs salvage` copies what is intact around the damage, before the broker starts"
_REINDEX = "`kafkafs reindex` rebuilds it"
_RECOVER = f"Without {names.CLEAN_SHUTDOWN} it recovers the log first"
_NUMBER = re.compile(r"[0-9]{1,19}")
_INDEX_ENTRY = struct.Struct(">ii")  # offset - base offset, position
_TXN_INDEX_ENTRY = struct.Struct(">h16xq8x")  # version, last offset
_BATCH_HEAD = struct.Struct(">qi4xb")  # offset, length, magic
_DELTA_POSITION = 23  # of the last offset delta
_LEAST_LENGTH = 14  # LegacyRecord.RECORD_OVERHEAD_V0

# Faults of batches: recovery looks for them from the recovery point on.
_OF_BATCHES = frozenset(
    {
        FaultKind.LOG_CUT_OFF, FaultKind.BATCH_CRC, FaultKind.BATCH_CUT_OFF, FaultKind.BATCH_LENGTH,
        FaultKind.LOG_ZEROS, FaultKind.LOG_GARBAGE, FaultKind.BATCH_ORDER, FaultKind.BATCH_RANGE,
        FaultKind.SEGMENT_OVERLAP, FaultKind.BATCH_MAGIC, FaultKind.BATCH_OVERLAP, FaultKind.BATCH_COUNT,
        FaultKind.COMPRESSION, FaultKind.CODEC, FaultKind.RECORDS, FaultKind.RECORD_OFFSET, FaultKind.MARKER,
    }
)  # fmt: skip
# What becomes of them in consumers, which look at fewer fields than `verify`; the others make them fail at this place.
_READ_LATER = {
    **dict.fromkeys(
        (FaultKind.BATCH_CUT_OFF, FaultKind.LOG_CUT_OFF),
        "consumers are not given what follows in this segment, and do not fail",
    ),
    **dict.fromkeys(
        (
            FaultKind.BATCH_ORDER,
            FaultKind.BATCH_RANGE,
            FaultKind.SEGMENT_OVERLAP,
            FaultKind.BATCH_OVERLAP,
            FaultKind.RECORD_OFFSET,
        ),
        "consumers are given messages at other offsets, or not at all, and do not fail",
    ),
    **dict.fromkeys(
        (FaultKind.BATCH_COUNT, FaultKind.RECORDS),
        "consumers fail at this place, or are not given some messages",
    ),
    FaultKind.MARKER: "consumers of committed messages fail at this place",
}
# Those at which a broker cuts off the rest when it recovers a segment, as it always does where the index is missing.
_CUT_OFF = frozenset(
    {
        FaultKind.LOG_CUT_OFF, FaultKind.BATCH_CRC, FaultKind.BATCH_CUT_OFF, FaultKind.BATCH_LENGTH,
        FaultKind.LOG_ZEROS, FaultKind.LOG_GARBAGE,
    }
)  # fmt: skip
_BELOW = "a batch's offsets are below those of its segment, which is recovered"
_CANNOT_SPLIT = "does not start: it takes that for offsets that are too far apart, and cannot split the segment"
_ABORTED = "consumers of committed messages are given aborted ones"
# Index files whose contents a broker rebuilds with the segment, and otherwise does not look at when it starts.
_OF_INDEXES = frozenset(
    {
        FaultKind.INDEX_SIZE, FaultKind.INDEX_ORDER, FaultKind.INDEX_BEYOND_LOG, FaultKind.INDEX_POSITION,
        FaultKind.INDEX_FLOOR, FaultKind.INDEX_OFFSET, FaultKind.TIME_INDEX_ORDER,
        FaultKind.TIME_INDEX_BEYOND_LOG, FaultKind.TIME_INDEX_UNTRUE, FaultKind.TXN_INDEX_INVENTED,
        FaultKind.TXN_INDEX_INCOMPLETE,
    }
)  # fmt: skip
_REBUILT = frozenset(
    {FaultKind.INDEX_MISSING, FaultKind.SNAPSHOT_CORRUPT, FaultKind.SNAPSHOT_BEYOND_LOG, FaultKind.EPOCHS_BEYOND_LOG}
)


def check_topics(one: LogDirState, metadata: ClusterMetadata | None, node_id: int | None) -> Iterator[Prediction]:
    """Which partitions become strays: those that the metadata does not know under their id on this node."""
    if metadata is None:
        if one.partitions:
            yield Prediction(
                "metadata-lost",
                Reaction.STRAY,
                one.metadata_log,
                f"there is no metadata log, and {len(one.partitions)} partitions",
                "renames every partition to a stray (-stray), and has no topics",
                f"Do not start it. {REVIVE}",
            )
        return
    by_id = {topic.topic_id: topic for topic in metadata.topics.values()}
    for tp in one.partitions:
        path = one.path / tp.dir_name / names.PARTITION_METADATA
        described = metadata.topics.get(tp.topic)
        try:
            topic_id = partition_metadata.read(path)
        except CorruptCheckpoint as error:
            yield Prediction(
                "topic-id-corrupt", Reaction.REFUSES, path, error.what, "does not start", _id_advice(described), tp
            )
            continue
        except OSError as error:
            not_a_file(path, error)  # check_files tells
            continue
        if topic_id is None:
            what = "partition.metadata is missing"
            yield _stray("topic-id-missing", path, what, tp, described is not None, _id_advice(described))
            continue
        if topic_id not in by_id:
            if described is not None:
                what = f"topic id {topic_id}; the cluster's topic of that name has {described.topic_id}"
                yield _stray("topic-id-differs", path, what, tp, True, f"These are data of an older topic. {REVIVE}")
            else:
                what = f"the metadata knows no topic with the id {topic_id}"
                yield _stray("topic-unknown", path, what, tp, False, f"Move it elsewhere. {REVIVE}")
            continue
        known = by_id[topic_id].partitions.get(tp.partition)
        if node_id is not None and (known is None or node_id not in known.replicas):
            assigned = "nothing" if known is None else f"nodes {', '.join(map(str, known.replicas))}"
            what = f"the metadata assigns it to {assigned}, not to node {node_id}"
            yield _stray("not-assigned", path.parent, what, tp, False, f"Move it elsewhere. {REVIVE}")


def _id_advice(described: object) -> str:
    topic_id = getattr(described, "topic_id", None)
    if topic_id is None:
        return REVIVE
    return f"If these are data of that topic, write a partition.metadata with its id {topic_id}"


def _stray(name: str, path: Path, what: str, tp: TopicPartition, replaced: bool, advice: str) -> Prediction:
    broker = "renames the directory to a stray (-stray)"
    broker += ", and creates an empty partition in its place" if replaced else ""
    return Prediction(name, Reaction.STRAY, path, what, broker, advice, tp)


def check_absent(
    dirs: Mapping[TopicPartition, Path], metadata: ClusterMetadata | None, node_id: int | None, place: Path
) -> Iterator[Prediction]:
    """Partitions that the metadata assigns to this node and that are in none of its directories."""
    for topic in () if metadata is None else metadata.topics.values():
        for number, known in topic.partitions.items():
            tp = TopicPartition(topic.name, number)
            if node_id in known.replicas and tp not in dirs:
                if os.path.lexists(place / tp.dir_name):  # no directory, or a link to none
                    yield Prediction(
                        "partition-absent", Reaction.OFFLINE, place / tp.dir_name,
                        "the metadata assigns this partition to the node, and what has its name is no directory",
                        "cannot create it, and takes the log directory offline; without another one it stops",
                        "Move it elsewhere, and put the directory back", tp,
                    )  # fmt: skip
                    continue
                others = [str(node) for node in known.replicas if node != node_id]
                filled = f"; node {' or '.join(others)} fills it again" if others else ""
                yield Prediction(
                    "partition-absent",
                    Reaction.REPAIRS if others else Reaction.CREATES_EMPTY,
                    place / tp.dir_name,
                    "the metadata assigns this partition to the node, and no directory has it",
                    f"creates it, empty{filled}",
                    "" if others else "Name all of the broker's log.dirs, or put the directory back",
                    tp,
                )


def check_files(directory: Path, tp: TopicPartition) -> Iterator[Prediction]:
    """Files on which loading fails."""
    for path in paths_in(directory):
        mode = path.lstat().st_mode
        if _is_read(path.name) and not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
            yield Prediction(
                "no-regular-file", Reaction.OFFLINE, path, "is no regular file",
                "takes the log directory offline; without another one it stops", "Move it elsewhere", tp,
            )  # fmt: skip
        elif (number := _NUMBER.fullmatch(path.stem)) and names.is_misnamed(path.name):
            if path.suffix == FileKind.LOG.value:
                end = int(number[0])
                yield Prediction(
                    "file-misnamed", Reaction.CUTS, path, "a segment file's name with too few digits",
                    f"makes an empty segment from offset {end} on, and goes on there: later messages are hidden",
                    "Move the file elsewhere", tp, end,
                )  # fmt: skip
        elif names.is_misnamed(path.name):
            yield Prediction(
                "file-misnamed", Reaction.REFUSES, path, "a segment file's name without an offset",
                "does not start: it cannot parse the name", "Move the file elsewhere", tp,
            )  # fmt: skip
        elif path.name.endswith(FileKind.TRANSACTION_INDEX.value) and _stops_at(path):
            yield Prediction(
                "txn-index-version", Reaction.REFUSES, path, f"an entry has a version other than {VERSION}",
                "does not start; before Kafka 4.4 it starts with versions below 256", _REINDEX, tp,
            )  # fmt: skip


def _is_read(name: str) -> bool:
    """Whether a broker reads a file of this name. A directory with a segment's name is no segment to it."""
    parsed = names.parse_segment_file(name)
    of_partition = (names.PARTITION_METADATA, names.LEADER_EPOCH_CHECKPOINT)
    return name in of_partition or (parsed is not None and parsed.kind is not FileKind.LOG)


def check_end(tp: TopicPartition, directory: Path, flushed: int) -> Iterator[Prediction]:
    """A log that ends below its recovery point has lost segments: what is below was on the disk. So has one that ends
    where indexes without a log go on, since a segment's log is made first. OSError."""
    bases = live_offsets(directory, FileKind.LOG)
    segments = [Segment.at(directory, base) for base in bases]
    last = next((segment for segment in reversed(segments) if not is_directory(segment.log.path)), None)
    end = 0 if last is None else tail.measure(last, last.size).next_offset
    kinds = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX)
    orphan = max((base for kind in kinds for base in live_offsets(directory, kind) if base not in bases), default=-1)
    if end < flushed or orphan >= max(end, 0 if last is None else last.base_offset + 1):
        why = f"was on the disk up to {flushed} ({names.RECOVERY_POINT_CHECKPOINT})"
        yield Prediction(
            "log-end-lost",
            Reaction.CUTS,
            directory,
            f"the log ends at offset {end}, and "
            + (why if end < flushed else f"had a segment from {orphan} on, whose indexes are there"),
            f"goes on at {end}: offsets "
            + (f"{end} to {flushed - 1}" if end < flushed else f"from {end} on")
            + " are given to other messages",
            "Put the segment files that are missing back; other replicas may have them",
            tp,
            end,
        )


def check_last_index_entry(tp: TopicPartition, directory: Path) -> Iterator[Prediction]:
    """After a clean shutdown a broker looks for the end of a log from the last entry of its last index on, and trusts
    that there are batches and nothing else. OSError."""
    bases = live_offsets(directory, FileKind.LOG)
    if not bases or is_directory(directory / names.segment_file(bases[-1], FileKind.LOG)):
        return
    last = Segment.at(directory, bases[-1])
    path = directory / names.segment_file(last.base_offset, FileKind.OFFSET_INDEX)
    data = None if is_directory(path) else read_whole(path, MOST_ENTRIES_BYTES)
    if data is None or len(data) % _INDEX_ENTRY.size:
        return  # it recovers the segment
    relative_offset, position = _INDEX_ENTRY.unpack(data[-_INDEX_ENTRY.size :]) if data else (0, 0)
    if relative_offset < 0:
        return  # the same
    end = tail.measure(last, last.size).next_offset
    seen = _end_from(last, position, last.base_offset + relative_offset)
    what = f"from position {position} on, which its index names last, is something else than batches"
    if seen is None:
        broker = "does not start: it looks for the end of the log there"
        yield Prediction("log-end-misread", Reaction.REFUSES, last.log.path, what, broker, _RECOVER, tp)
    elif seen != end:
        broker = f"takes {seen} for the end of the log, which is {end}, and goes on there"
        yield Prediction("log-end-misread", Reaction.CUTS, last.log.path, what, broker, _RECOVER, tp, seen)


def _end_from(segment: Segment, position: int, offset: int) -> int | None:
    """The end of a log that a broker sees when it looks for `offset` from a position on; None when that fails. It tests
    neither CRCs nor offsets (LogSegment.readNextOffset, FileLogInputStream.nextBatch)."""
    size, found = segment.size, None
    if position < 0:
        return None
    while position < size - _BATCH_HEAD.size:
        base, length, magic = _BATCH_HEAD.unpack(segment.log.read(position, _BATCH_HEAD.size))
        if length < _LEAST_LENGTH:
            return None
        if position + LOG_OVERHEAD + length > size:
            break
        delta = 0 if magic < 2 else int.from_bytes(segment.log.read(position + _DELTA_POSITION, 4), "big", signed=True)
        if found is not None or base + delta >= offset:
            found = base + delta + 1
        position += LOG_OVERHEAD + length
    return segment.base_offset if found is None else found


def _stops_at(path: Path) -> int | None:
    """The version of the entry of a transaction index at which a broker stops loading the segment: if it is VERSION,
    it recovers the segment. None without such an entry (TransactionIndex.sanityCheck)."""
    try:
        data = read_whole(path, MOST_ENTRIES_BYTES) or b""
    except OSError:
        return VERSION  # which `verify` reports
    entries = _TXN_INDEX_ENTRY.iter_unpack(data[: len(data) - len(data) % ENTRY_SIZE])
    return next((version for version, last in entries if version != VERSION or last < int(path.stem)), None)


def _is_below_segment(directory: Path, base_offset: int, position: int) -> bool:
    """Whether an intact batch begins there that ends below its segment."""
    segment = Segment.at(directory, base_offset)
    batch = segment.batch_at(position, segment.size, any_offset=True)
    return batch is not None and int(batch.last_offset[0]) < base_offset


def check_remote(
    log_dir: LogDir, partitions: Iterable[TopicPartition], properties: BrokerProperties | None
) -> Iterator[Prediction]:
    """Partitions that begin in tiered storage. OSError."""
    loses = properties is not None and not properties.is_tiered
    for tp in partitions:
        bases = live_offsets(log_dir.path / tp.dir_name, FileKind.LOG)
        remote = log_dir.remote_offsets(tp, bases[0]) if bases else None
        if remote is not None:
            yield Prediction(
                FaultKind.REMOTE_SEGMENTS.name_in_reports,
                Reaction.FORGETS if loses else Reaction.FETCHES,
                log_dir.path / tp.dir_name,
                f"offsets {remote.start} to {remote.end - 1} are in tiered storage, not in this directory",
                "begins after them, and removes the log start from its checkpoint: tiered storage is not configured"
                if loses
                else "reads them from there if that is configured as before; otherwise it forgets them",
                "Set remote.log.storage.system.enable=true, and the rest as before, in its configuration"
                if loses
                else "Keep the tiered storage: a copy of this directory does not have these messages",
                tp,
            )


def of_remote(one: Finding) -> Prediction:
    """What a broker makes of a finding in a tier."""
    reaction, broker = {
        FaultKind.REMOTE_PARTS: (Reaction.UNNOTICED, "consumers, or new followers, that need them get no further"),
        FaultKind.REMOTE_ORPHANS: (Reaction.IGNORES, "leaves them where they are"),
    }.get(one.kind, (Reaction.UNNOTICED, "consumers get no further there, without an error"))
    if reaction.is_finding:
        broker = f"does not look there when it starts; {broker}"
    tp = names.parse_dir(one.path.name).partition
    what = f"{one.what}; and {one.more} more like this" if one.more else one.what
    return Prediction(one.name, reaction, one.path, what, broker, (one.repair or "").capitalize(), tp)


def of_recovery(report: RecoveryReport, directory: Path, known_end: int | None) -> Iterator[Prediction]:
    """What recovery removes. `known_end`: where the log ended when it was last flushed, if that is known."""
    if report.cut is not None:
        cut = report.cut
        path = directory / names.segment_file(cut.base_offset, FileKind.LOG)
        if _is_below_segment(directory, cut.base_offset, cut.position):
            yield Prediction("batch-range", Reaction.REFUSES, path, _BELOW, _CANNOT_SPLIT, _SALVAGE, report.tp)
            return
        later = f", and removes {len(report.removed_segments)} later segments" if report.removed_segments else ""
        whole_head = cut.lost_bytes >= LOG_OVERHEAD  # otherwise there is no length that could be zero
        nothing_behind = not report.removed_segments and cut.intact is None
        if nothing_behind and whole_head and cut.unfinished:
            yield Prediction(
                "preallocated-tail",
                Reaction.REPAIRS,
                path,
                f"{cut.lost_bytes} bytes at the end that were never written",
                "cuts them off",
                "",
                report.tp,
            )
            return
        torn = nothing_behind and (known_end is None or cut.next_offset >= known_end)
        behind = "" if cut.intact is None else f", with {cut.intact}"
        what = f"no sound batch from position {cut.position} on: {cut.lost_bytes} bytes{behind}"
        yield Prediction(
            "torn-tail" if torn else "damage",
            Reaction.CUTS,
            path,
            what,
            f"cuts the log at offset {cut.next_offset}{later}",
            _SALVAGE,
            report.tp,
            report.log_end_offset,
        )
    elif report.removed_segments:
        yield _restart(report.tp, directory, report.log_start_offset)


def check_log_start(tp: TopicPartition, directory: Path, log_start: int) -> Iterator[Prediction]:
    """A log that ends below its start is restarted, after a clean shutdown too. OSError."""
    bases = live_offsets(directory, FileKind.LOG)
    if bases and log_start > bases[-1]:
        last = Segment.at(directory, bases[-1])
        if tail.measure(last, last.size).next_offset < log_start:
            yield _restart(tp, directory, log_start)


def _restart(tp: TopicPartition, directory: Path, log_start: int) -> Prediction:
    return Prediction(
        "log-start-beyond-end",
        Reaction.CUTS,
        directory,
        f"the log ends below its checkpointed start {log_start}",
        f"removes all its segments, and begins anew at {log_start}",
        f"Correct its line in {names.LOG_START_CHECKPOINT} first",
        tp,
        log_start,
    )


def of_finding(one: Finding, tp: TopicPartition, report: RecoveryReport | None, directory: Path) -> Prediction | None:
    """What a broker makes of a finding of `verify` in a partition; None for what is said elsewhere. `report`: of the
    recovery that it will do; None after a clean shutdown."""
    parsed = names.parse_segment_file(one.path.name)
    cut = None if report is None else report.cut
    if cut is not None and parsed is not None:
        beyond = parsed.offset > cut.base_offset
        at_cut = parsed.offset == cut.base_offset and one.position is not None and one.position >= cut.position
        if beyond or (at_cut and one.kind in _OF_BATCHES):
            return None
    recovered = report is not None and parsed is not None and parsed.offset in report.recovered_segments
    if one.kind in _OF_BATCHES:
        if report is None and parsed is not None and not exists(one.path.with_suffix(FileKind.OFFSET_INDEX.value)):
            if one.position is not None and _is_below_segment(directory, parsed.offset, one.position):
                return Prediction("batch-range", Reaction.REFUSES, one.path, _BELOW, _CANNOT_SPLIT, _SALVAGE, tp)
            if one.kind in _CUT_OFF:
                broker = "recovers the segment, whose index is missing, and cuts it off there"
                return Prediction(one.name, Reaction.CUTS, one.path, one.what, broker, _SALVAGE, tp)
        later = _READ_LATER.get(one.kind, "consumers and followers fail at this place")
        broker = f"does not look there when it starts; {later}"
        return Prediction(one.name, Reaction.UNNOTICED, one.path, one.what, broker, _SALVAGE, tp)
    if one.kind in _REBUILT or (recovered and one.kind in _OF_INDEXES):
        return Prediction(one.name, Reaction.REPAIRS, one.path, one.what, "rebuilds it from the log", "", tp)
    if one.kind in _OF_INDEXES and one.severity is Severity.FINDING:
        of_aborts = one.kind in (FaultKind.TXN_INDEX_INVENTED, FaultKind.TXN_INDEX_INCOMPLETE)
        broker = f"does not look into it when it starts; {_ABORTED if of_aborts else 'reads may miss messages'}"
        return Prediction(one.name, Reaction.UNNOTICED, one.path, one.what, broker, _REINDEX, tp)
    if one.kind is FaultKind.EPOCHS_CORRUPT:
        broker = "takes the log directory offline; without another one it stops"
        advice = "Remove the file: `kafkafs recover` rebuilds it from the log"
        return Prediction(one.name, Reaction.OFFLINE, one.path, one.what, broker, advice, tp)
    if one.kind is FaultKind.TXN_INDEX_CORRUPT:
        stop = _stops_at(one.path)
        if stop is not None and stop != VERSION:
            return None  # check_files tells
        if stop is None and not recovered:
            broker = f"does not look at that; {_ABORTED}"
            return Prediction(one.name, Reaction.UNNOTICED, one.path, one.what, broker, _REINDEX, tp)
        return Prediction(one.name, Reaction.REPAIRS, one.path, one.what, "recovers the segment", "", tp)
    if one.kind in (FaultKind.FILE_LEFT_OVER, FaultKind.INDEX_WITHOUT_LOG):
        return Prediction(one.name, Reaction.REMOVES, one.path, one.what, "removes or completes it", "", tp)
    return None

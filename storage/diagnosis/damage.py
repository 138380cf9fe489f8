"""What becomes of damage that `verify` finds: whether a broker notices it when it starts, and what consumers get later.

A finding of `verify` that nothing here says otherwise of is one that a broker does not notice.
"""

from __future__ import annotations

from storage.diagnosis.log_loading import REINDEX, SALVAGE, stops_at
from storage.diagnosis.predictions import Prediction, Reaction
from storage.files import names
from storage.files.opening import is_directory
from storage.files.transaction_index import VERSION
from storage.recovery.recovery import RecoveryReport
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Finding, Severity

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
_ABORTED = "consumers of committed messages are given aborted ones"
_LOOKUPS = "reads may miss messages"
# What a broker rebuilds, replaces or leaves as soon as it has loaded the log.
_REBUILT = frozenset(
    {FaultKind.INDEX_MISSING, FaultKind.SNAPSHOT_CORRUPT, FaultKind.SNAPSHOT_BEYOND_LOG, FaultKind.EPOCHS_BEYOND_LOG}
)
# Files of a segment that a broker rebuilds with it, and otherwise does not look into when it starts; and what then
# becomes of it.
_OF_INDEXES = {
    **dict.fromkeys(
        (
            FaultKind.INDEX_SIZE, FaultKind.INDEX_ORDER, FaultKind.INDEX_BEYOND_LOG, FaultKind.INDEX_POSITION,
            FaultKind.INDEX_FLOOR, FaultKind.INDEX_OFFSET, FaultKind.TIME_INDEX_ORDER,
            FaultKind.TIME_INDEX_BEYOND_LOG, FaultKind.TIME_INDEX_UNTRUE,
        ),
        _LOOKUPS,
    ),
    **dict.fromkeys((FaultKind.TXN_INDEX_INVENTED, FaultKind.TXN_INDEX_INCOMPLETE), _ABORTED),
    FaultKind.INDEX_NOT_TRIMMED: "it is full: the next append begins a new segment",
    FaultKind.TIME_INDEX_NOT_TRIMMED: "it takes the last entry, of 1970, for the segment's latest time",
}  # fmt: skip
_PREALLOCATED = (FaultKind.INDEX_NOT_TRIMMED, FaultKind.TIME_INDEX_NOT_TRIMMED)
# Said elsewhere (log_loading.py, partition_checks.py), or nothing to a broker.
_ELSEWHERE = frozenset(
    {
        FaultKind.FILE_MISNAMED, FaultKind.EPOCHS_CORRUPT, FaultKind.PARTITION_EMPTY, FaultKind.REMOTE_SEGMENTS,
        FaultKind.TOPIC_ID_CORRUPT, FaultKind.TOPIC_ID_MISSING, FaultKind.TOPIC_ID_DIFFERS, FaultKind.TOPIC_ID_SHARED,
        FaultKind.TOPIC_CONFIG_CORRUPT, FaultKind.TOPIC_CONFIG_DIFFERS, FaultKind.CHECKPOINT_UNFINISHED,
        FaultKind.TIME_INDEX_SIZE,
    }
)  # fmt: skip
_LATER = {
    FaultKind.SEGMENT_GAP: "consumers are not given these offsets, and do not fail",
    FaultKind.SNAPSHOT_UNTRUE: "a producer may be refused, or a message dropped as one that came twice",
}


def of_finding(one: Finding, tp: TopicPartition, report: RecoveryReport | None, *, clean: bool) -> Prediction | None:
    """What a broker makes of a finding of `verify` in a partition; None for what is said elsewhere. `report`: of
    recovery, as far as a broker does it after a shutdown that was clean or not; None where it cannot be known."""
    parsed = names.parse_segment_file(one.path.name)
    recovered = report is not None and parsed is not None and parsed.offset in report.recovered_segments
    if report is not None and parsed is not None:
        if parsed.offset in report.removed_segments or parsed.offset in report.misordered_segments:
            return None
        cut = next((cut for cut in report.cuts if recovered and cut.base_offset == parsed.offset), None)
        if cut is not None and one.kind in _OF_BATCHES and one.position is not None and one.position >= cut.position:
            if not clean or one.position > cut.position or one.kind is FaultKind.BATCH_RANGE:
                return None
            broker = "recovers the segment, whose index is missing, and cuts it off there"
            return Prediction(one.name, Reaction.CUTS, one.path, one.what, broker, SALVAGE, tp)
    if one.kind in _ELSEWHERE or (one.kind is FaultKind.UNREADABLE and is_directory(one.path)):
        return None
    if one.kind is FaultKind.TXN_INDEX_CORRUPT:
        stop = stops_at(one.path)
        if stop is not None and stop != VERSION:
            return None  # check_files tells
        if stop is None and (clean or not recovered):
            broker = f"does not look at that; {_ABORTED}"
            return Prediction(one.name, Reaction.UNNOTICED, one.path, one.what, broker, REINDEX, tp)
        return Prediction(one.name, Reaction.REPAIRS, one.path, one.what, "recovers the segment", "", tp)
    if one.kind in (FaultKind.FILE_LEFT_OVER, FaultKind.INDEX_WITHOUT_LOG):
        return Prediction(one.name, Reaction.REMOVES, one.path, one.what, "removes or completes it", "", tp)
    if one.kind in _PREALLOCATED and one.severity is Severity.NOTE:
        return None
    if one.kind is FaultKind.EPOCHS_UNTRUE:
        broker = "goes by it: followers and consumers may go on at a wrong offset after a change of leader"
        return Prediction(one.name, Reaction.IGNORES, one.path, one.what, broker, _advice(one), tp)
    if one.kind is FaultKind.TIME_INDEX_INCOMPLETE:  # first_retention.py says if that costs messages
        broker = "takes the last entry for the segment's latest time: lookups by time may skip messages"
        return Prediction(one.name, Reaction.IGNORES, one.path, one.what, broker, REINDEX, tp)
    if one.kind in _REBUILT or (recovered and one.kind in _OF_INDEXES):
        return Prediction(one.name, Reaction.REPAIRS, one.path, one.what, "rebuilds it from the log", "", tp)
    if one.severity is not Severity.FINDING and one.kind is not FaultKind.SEGMENT_GAP:
        return None
    if one.kind in _OF_INDEXES:
        broker = f"does not look into it when it starts; {_OF_INDEXES[one.kind]}"
        return Prediction(one.name, Reaction.UNNOTICED, one.path, one.what, broker, REINDEX, tp)
    later = {**_READ_LATER, **_LATER}.get(one.kind, "consumers and followers fail at this place")
    advice = SALVAGE if one.kind in _OF_BATCHES else _advice(one)
    broker = f"does not look there when it starts; {later}"
    return Prediction(one.name, Reaction.UNNOTICED, one.path, one.what, broker, advice, tp)


def _advice(one: Finding) -> str:
    """The repair as the beginning of a sentence; "" if there is none."""
    repair = one.repair or ""
    return f"`{repair}` repairs it" if repair.startswith("kafkafs ") else repair[:1].upper() + repair[1:]


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
    return Prediction(one.name, reaction, one.path, what, broker, _advice(one), tp)

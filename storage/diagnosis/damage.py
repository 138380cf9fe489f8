"""The consequences of damage that `verify` finds: whether a starting broker notices it, and what consumers get later.

A broker does not notice a finding of `verify` unless this module says otherwise.
"""

from __future__ import annotations

from pathlib import Path

from storage.diagnosis.log_loading import REINDEX, SALVAGE
from storage.diagnosis.predictions import Prediction, Reaction
from storage.files import names
from storage.files.opening import is_directory
from storage.files.transaction_index import VERSION, stops_at
from storage.recovery.recovery import RecoveryReport
from storage.types import TopicPartition
from storage.verify.findings import FaultKind, Finding, Severity

# Faults of batches, for which recovery looks from the recovery point on.
_OF_BATCHES = frozenset(
    {
        FaultKind.LOG_CUT_OFF, FaultKind.BATCH_CRC, FaultKind.BATCH_CUT_OFF, FaultKind.BATCH_LENGTH,
        FaultKind.LOG_ZEROS, FaultKind.LOG_GARBAGE, FaultKind.BATCH_ORDER, FaultKind.BATCH_TWICE,
        FaultKind.BATCH_RANGE,
        FaultKind.SEGMENT_OVERLAP, FaultKind.BATCH_MAGIC, FaultKind.BATCH_OVERLAP, FaultKind.BATCH_COUNT,
        FaultKind.COMPRESSION, FaultKind.CODEC, FaultKind.RECORDS, FaultKind.RECORD_OFFSET, FaultKind.MARKER,
    }
)  # fmt: skip
# Their consequences for consumers, which check fewer fields than `verify`; other faults make consumers fail there.
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
# Faults that a broker repairs as soon as it has loaded the log.
_REBUILT = frozenset(
    {FaultKind.INDEX_MISSING, FaultKind.SNAPSHOT_CORRUPT, FaultKind.SNAPSHOT_BEYOND_LOG, FaultKind.EPOCHS_BEYOND_LOG}
)
# Faults of a segment's files that a broker rebuilds with the segment, and otherwise does not read when it starts; and
# the consequences in that case.
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
# Predicted in other modules (log_loading.py, partition_checks.py), or without consequences for a broker.
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


def of_finding(
    finding: Finding, tp: TopicPartition, report: RecoveryReport | None, *, clean: bool
) -> Prediction | None:
    """The prediction for a finding of `verify` in a partition; None if another module predicts it. `report`: of
    recovery, as far as a broker runs it after a shutdown that was clean or not; None if that is unknown."""
    if finding.kind is FaultKind.NOT_PERMITTED:
        return _not_permitted(finding)
    parsed = names.parse_segment_file(finding.path.name)
    recovered = report is not None and parsed is not None and parsed.offset in report.recovered_segments
    if report is not None and parsed is not None:
        if parsed.offset in report.removed_segments or parsed.offset in report.misordered_segments:
            return None
        cut = next((cut for cut in report.cuts if recovered and cut.base_offset == parsed.offset), None)
        if (
            cut is not None
            and finding.kind in _OF_BATCHES
            and finding.position is not None
            and finding.position >= cut.position
        ):
            if not clean or finding.position > cut.position or finding.kind is FaultKind.BATCH_RANGE:
                return None
            broker = "recovers the segment, whose index is missing, and cuts it off there"
            return Prediction(finding.name, Reaction.CUTS, finding.path, finding.what, broker, SALVAGE, tp)
    if finding.kind in _ELSEWHERE or (finding.kind is FaultKind.UNREADABLE and is_directory(finding.path)):
        return None
    if finding.kind is FaultKind.TXN_INDEX_CORRUPT:
        stop = stops_at(finding.path)
        if stop is not None and stop != VERSION:
            return None  # check_files reports it
        if stop is None and (clean or not recovered):
            broker = f"does not look at that; {_ABORTED}"
            return Prediction(finding.name, Reaction.UNNOTICED, finding.path, finding.what, broker, REINDEX, tp)
        return Prediction(finding.name, Reaction.REPAIRS, finding.path, finding.what, "recovers the segment", "", tp)
    if finding.kind in (FaultKind.FILE_LEFT_OVER, FaultKind.INDEX_WITHOUT_LOG):
        return Prediction(finding.name, Reaction.REMOVES, finding.path, finding.what, "removes or completes it", "", tp)
    if finding.kind in _PREALLOCATED and finding.severity is Severity.NOTE:
        return None
    if finding.kind is FaultKind.EPOCHS_UNTRUE:
        broker = "goes by it: followers and consumers may go on at a wrong offset after a change of leader"
        return Prediction(finding.name, Reaction.IGNORES, finding.path, finding.what, broker, _advice(finding), tp)
    if finding.kind is FaultKind.TIME_INDEX_INCOMPLETE:  # first_retention.py says whether that loses messages
        broker = "takes the last entry for the segment's latest time: lookups by time may skip messages"
        return Prediction(finding.name, Reaction.IGNORES, finding.path, finding.what, broker, REINDEX, tp)
    if finding.kind in _REBUILT or (recovered and finding.kind in _OF_INDEXES):
        return Prediction(
            finding.name, Reaction.REPAIRS, finding.path, finding.what, "rebuilds it from the log", "", tp
        )
    if finding.kind is FaultKind.BATCH_TWICE:
        broker = "keeps both, and serves both: Java's consumers skip the second one, others get it again"
        return Prediction(finding.name, Reaction.IGNORES, finding.path, finding.what, broker, "", tp)
    if finding.severity is not Severity.FINDING and finding.kind is not FaultKind.SEGMENT_GAP:
        return None
    if finding.kind in _OF_INDEXES:
        broker = f"does not look into it when it starts; {_OF_INDEXES[finding.kind]}"
        return Prediction(finding.name, Reaction.UNNOTICED, finding.path, finding.what, broker, REINDEX, tp)
    later = {**_READ_LATER, **_LATER}.get(finding.kind, "consumers and followers fail at this place")
    advice = SALVAGE if finding.kind in _OF_BATCHES else _advice(finding)
    keeps = recovered and finding.kind is FaultKind.BATCH_ORDER
    broker = f"{'keeps it' if keeps else 'does not look there when it starts'}; {later}"
    return Prediction(finding.name, Reaction.UNNOTICED, finding.path, finding.what, broker, advice, tp)


def _advice(finding: Finding) -> str:
    """The repair as the beginning of a sentence; "" if there is none."""
    repair = finding.repair or ""
    return f"`{repair}` repairs it" if repair.startswith("kafkafs ") else repair[:1].upper() + repair[1:]


def of_denied(error: PermissionError, place: Path) -> Prediction:
    """The prediction about a file that this user may not read: `place` unless the error names another."""
    return _not_permitted(Finding.of_error(FaultKind.NOT_PERMITTED, error, place))


def _not_permitted(finding: Finding) -> Prediction:
    directories = (finding.path, finding.path.parent)
    tp = next((tp for path in directories if (tp := names.parse_dir(path.name).partition)), None)
    broker = "is not known: the user that it runs as may read it"
    return Prediction(finding.name, Reaction.UNKNOWN, finding.path, finding.what, broker, _advice(finding), tp)


def of_remote(finding: Finding) -> Prediction:
    """The prediction for a finding in a tier."""
    reaction, broker = {
        FaultKind.REMOTE_PARTS: (Reaction.UNNOTICED, "consumers, or new followers, that need them get no further"),
        FaultKind.REMOTE_ORPHANS: (Reaction.IGNORES, "leaves them where they are"),
    }.get(finding.kind, (Reaction.UNNOTICED, "consumers get no further there, without an error"))
    if reaction.is_finding:
        broker = f"does not look there when it starts; {broker}"
    tp = names.parse_dir(finding.path.name).partition
    what = f"{finding.what}; and {finding.more} more like this" if finding.more else finding.what
    return Prediction(finding.name, reaction, finding.path, what, broker, _advice(finding), tp)

"""Predictions about retention in the first minute after a broker's start.

A broker trusts the last entry of a time index as the greatest timestamp of the segment: if it is wrong, the broker
removes messages that are not old. Recovery comes first: it makes a `.timeindex.swap` the time index. Sources: Kafka's
LogSegment.largestTimestamp, UnifiedLog.deleteOldSegments.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from storage.config import LogConfig
from storage.diagnosis.predictions import Prediction, Reaction
from storage.files import names
from storage.files.log_file import open_quietly
from storage.files.names import FileKind
from storage.files.opening import is_directory
from storage.files.time_index import ENTRY_SIZE
from storage.log.greatest_timestamp import retention_timestamp_ms
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.recovery.recovery import RecoveryReport
from storage.upkeep.retention import first_pass

_TIMESTAMP = struct.Struct(">q")


def check_retention(
    snapshot: LogSnapshot, config: LogConfig, now_ms: int, report: RecoveryReport
) -> Iterator[Prediction]:
    """Check what retention will remove of a log. `config`: the topic's; `report`: of the recovery before. OSError."""

    def timestamp_of(of: LogSnapshot, segment: Segment) -> int:
        if segment.base_offset in report.recovered_segments:
            return retention_timestamp_ms(of, segment)
        path = _time_index(segment, report)
        if path is not None and is_directory(path):
            directories.append(path)
        timestamp = _last_entry(path)
        return timestamp if timestamp >= 0 else segment.mtime_ms()

    directories: list[Path] = []
    removed = first_pass(snapshot, config, now_ms, timestamp_of)
    if directories:
        return  # the pass ends with an error, which log_loading.py reports
    if not removed:
        return
    due = first_pass(snapshot, config, now_ms, retention_timestamp_ms)
    end = removed[-1].next_offset
    what = f"{len(removed)} segments up to offset {end} exceed {removed[-1].reason}"
    if len(removed) <= len(due):
        broker = "removes them in the first minutes, as always"
        advice = "Set retention.ms=-1 of the topic first, if these messages are still needed"
        yield Prediction("retention", Reaction.REMOVES, snapshot.segments[0].log.path, what, broker, advice, report.tp)
        return
    early = snapshot.segments[len(due)]
    path = _time_index(early, report) or early.log.path
    broker = "removes them in the first minutes: it takes the last entry of a time index for the segment's latest time"
    advice = "Rebuild the indexes: `kafkafs reindex`"
    if end >= snapshot.log_end_offset:
        what = f"all {what}"
    what += f", of which {len(removed) - len(due)} do not by the times in the log"
    yield Prediction("retention-early", Reaction.CUTS, path, what, broker, advice, report.tp)


def unless_it_ends(predictions: list[Prediction]) -> list[Prediction]:
    """Return the predictions; those of retention say it if a time index that is no file ends the pass over all logs. In
    which order a broker takes the logs is not known (LogManager.cleanupLogs)."""
    blocking = (
        prediction.path
        for prediction in predictions
        if (prediction.name, prediction.reaction) == ("no-regular-file", Reaction.UNNOTICED)
        and prediction.path.suffix == FileKind.TIME_INDEX.value
    )
    path = next(blocking, None)
    if path is None:
        return predictions
    return [
        replace(prediction, broker=f"{prediction.broker}, unless it meets {path} first")
        if prediction.name.startswith("retention")
        else prediction
        for prediction in predictions
    ]


def _time_index(segment: Segment, report: RecoveryReport) -> Path | None:
    """The file that is a segment's time index after recovery; None if recovery removes it."""
    source = report.leftovers.source_of(names.segment_file(segment.base_offset, FileKind.TIME_INDEX))
    return None if source is None else segment.directory / source


def _last_entry(time_index: Path | None) -> int:
    """The last timestamp in a time index, by its size; -1 if it has no entry."""
    if time_index is None:
        return -1
    try:
        with open(time_index, "rb", buffering=0, opener=open_quietly) as file:
            entries = os.fstat(file.fileno()).st_size // ENTRY_SIZE
            last = os.pread(file.fileno(), ENTRY_SIZE, (entries - 1) * ENTRY_SIZE) if entries else b""
    except OSError:
        return -1
    return int(_TIMESTAMP.unpack_from(last)[0]) if len(last) == ENTRY_SIZE else -1

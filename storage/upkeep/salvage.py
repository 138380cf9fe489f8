"""Salvage: copies every intact batch of a log in any state into a new log.

`storage.log.batch_choice` decides which batches count, and what the log's other copies supply.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from storage.append.partition_log import PartitionLog
from storage.errors import InvalidRecord
from storage.log.batch_choice import BatchChoice, FilledOffsets, LogCopy, LostOffsets, choose_batches
from storage.log.snapshot import LogSnapshot
from storage.progress import NoProgress, Progress, working
from storage.types import TopicPartition


@dataclass(slots=True)
class Salvaged:
    """The copied messages, from `first_offset` to below `log_end_offset`; the magic of `repaired` batches was
    corrected."""

    tp: TopicPartition
    first_offset: int
    log_end_offset: int
    batches: int = 0
    size_bytes: int = 0
    repaired: int = 0
    lost: list[LostOffsets] = field(default_factory=list)
    filled: list[FilledOffsets] = field(default_factory=list)


def salvage(
    snapshot: LogSnapshot,
    target: PartitionLog,
    *,
    compacted: bool,
    progress: Progress | None = None,
) -> Salvaged:
    """Copies everything that is intact in the files of `snapshot` into `target`, which must hold no messages.

    `compacted`: offsets may be missing between segments without being lost. Errors as `copy_chosen`.
    """
    report = progress or NoProgress()
    with working(
        report, f"salvage {snapshot.tp}", 2 * sum(segment.log.stat().st_size for segment in snapshot.segments)
    ):
        choice = choose_batches([LogCopy(snapshot)], compacted=compacted, progress=report)
        return copy_chosen(choice, snapshot, target, report)


def copy_chosen(choice: BatchChoice, snapshot: LogSnapshot, target: PartitionLog, progress: Progress) -> Salvaged:
    """Appends the batches that were chosen for the log of `snapshot`. InvalidRecord when `target` holds messages;
    errors of its `append_batches`, including that for a batch above its segment.bytes."""
    if target.snapshot().size_bytes:
        raise InvalidRecord(
            "the log to salvage into already holds messages", path=target.path, advice="Salvage into another directory"
        )
    if target.log_end_offset < choice.base_offset:
        target.restart_at(choice.base_offset)
    result = Salvaged(snapshot.tp, target.log_end_offset, target.log_end_offset, lost=choice.lost, filled=choice.filled)
    for part, run in choice.runs():
        target.append_batches(*part.read(run))
        progress.advance(run.size_bytes)
        result.batches += run.last - run.first
        result.size_bytes += run.size_bytes
        result.repaired += int(part.repaired[run.first : run.last].sum())
    result.log_end_offset = target.log_end_offset
    target.increment_log_start_offset(min(choice.log_start_offset, target.log_end_offset))
    return result

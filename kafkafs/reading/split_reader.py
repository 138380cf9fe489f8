"""Reading without a mount: the records in a range of offsets of one log, even if the log changes meanwhile.

Retention, compaction or truncation, by this process or another one, may have changed the log since the range was
chosen. Files that are gone are looked up again in a newer snapshot; the rest of the range is read; lost offsets and
damage are reported to the caller, which decides whether they are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kafkafs.reading.selection import RecordFilter, start_of_time
from storage.errors import OffsetOutOfRange, SegmentGone, UnknownTopicOrPartition
from storage.log.lineage import kept_end
from storage.log.reader import read_range
from storage.log.rereads import Rereads
from storage.types import Isolation, OffsetRange

if TYPE_CHECKING:
    from kafkafs.reading.selection import ChosenOffsets
    from storage.files.dir_identity import DirIdentity
    from storage.format.block import BatchDamage, RecordBlock
    from storage.format.decoder import Decoder
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import LogSnapshot
    from storage.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets of a partition from `start_offset` (included) to `end_offset` (excluded).

    `size_bytes`: approximately, in the log's files. `identity`: of the log, because in a topic that was deleted and
    created again other messages have the same offsets.
    """

    tp: TopicPartition
    start_offset: int
    end_offset: int
    size_bytes: int = 0
    identity: DirIdentity | None = field(default=None, compare=False)


OnLoss = Callable[["TopicPartition", OffsetRange, str], None]
OnDamage = Callable[["TopicPartition", "BatchDamage"], None]

ALL: Final = RecordFilter()


def read_split(
    log_dir: LogDir,
    split: Split,
    decoder: Decoder,
    *,
    on_loss: OnLoss,
    on_damage: OnDamage,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    record_filter: RecordFilter = ALL,
    latest: ChosenOffsets | None = None,
) -> Iterator[RecordBlock]:
    """`read_offsets` of a log of this directory, also after a broker has moved the directory's logs."""

    def current() -> LogSnapshot:
        log_dir.refresh()
        return log_dir.log(split.tp).snapshot()

    return read_offsets(
        current,
        split,
        decoder,
        on_loss=on_loss,
        on_damage=on_damage,
        isolation=isolation,
        record_filter=record_filter,
        latest=latest,
    )


def read_offsets(
    current: Callable[[], LogSnapshot],
    split: Split,
    decoder: Decoder,
    *,
    on_loss: OnLoss,
    on_damage: OnDamage,
    isolation: Isolation,
    record_filter: RecordFilter = ALL,
    latest: ChosenOffsets | None = None,
) -> Iterator[RecordBlock]:
    """Yield the split's records as a consumer sees them, in offset order; each block is valid until the next is
    requested.

    `current`: returns the log in its present state, or raises UnknownTopicOrPartition. `record_filter`: parts are
    skipped if the indexes show that no message there has its times or its key; other messages come too, and must be
    filtered.
    `latest`: only these messages; OffsetOutOfRange if some were removed.

    `on_loss(tp, offsets, why)`: these offsets are no longer in the log. `on_damage(tp, damage)`: a batch, or bytes that
    are not a batch, could not be read. Both may raise; otherwise reading continues after that. Other StorageErrors are
    raised.
    """
    tp, position, end, rereads = split.tp, split.start_offset, split.end_offset, Rereads()
    before: LogSnapshot | None = None
    missing = 0 if latest is None else latest.count(position, end)
    while position < end:
        try:
            snapshot = current()
        except UnknownTopicOrPartition:
            on_loss(tp, OffsetRange(position, end), "the partition was removed")
            return
        planned, present = split.identity, snapshot.identity
        if planned is not None and present is not None and not planned.may_be_seen_elsewhere_as(present):
            on_loss(tp, OffsetRange(position, end), "the topic was deleted and created again after planning")
            return
        if before is not None and position > split.start_offset and kept_end(before, snapshot, position) != position:
            on_loss(tp, OffsetRange(position, end), "the log was truncated while it was read")
            return
        before = snapshot
        if position < snapshot.log_start_offset:
            lost = OffsetRange(position, min(snapshot.log_start_offset, end))
            on_loss(tp, lost, snapshot.why_not_earlier)
            position = lost.end
        if position < end and snapshot.log_end_offset < end:
            lost = OffsetRange(max(position, snapshot.log_end_offset), end)
            on_loss(tp, lost, f"the log ends at {snapshot.log_end_offset}")
            end = lost.start
        try:
            for start, stop in _stretches(snapshot, position, end, record_filter, latest):
                blocks = _blocks(snapshot, start, stop, record_filter.key, isolation, decoder)
                for block in blocks:
                    if len(block):
                        following = int(block.offset[-1]) + 1
                        chosen = block if latest is None else latest.apply(block)
                        if len(chosen):
                            yield chosen
                        position, missing = following, missing - len(chosen)
                    if block.damage is not None:
                        if current().generation != snapshot.generation:  # truncated while it was read
                            raise SegmentGone(f"{tp} was truncated")
                        on_damage(tp, block.damage)
            break
        except SegmentGone:
            if rereads.are_exhausted(position):
                raise
    if latest is not None and missing > 0:
        raise OffsetOutOfRange(f"{missing} of the latest messages of {tp} were removed unread", advice="Run it again")


def _blocks(
    snapshot: LogSnapshot, start: int, end: int, key: bytes | None, isolation: Isolation, decoder: Decoder
) -> Iterator[RecordBlock]:
    """The records of a part of these offsets, without some that lack the key."""
    if key is None:
        return read_range(snapshot, start, end, isolation=isolation, decoder=decoder)
    from kafkafs.reading.stretches import read_with_key  # importing takes a while

    return read_with_key(snapshot, start, end, key, isolation=isolation, decoder=decoder)


def _stretches(
    snapshot: LogSnapshot, start: int, end: int, record_filter: RecordFilter, latest: ChosenOffsets | None
) -> Iterator[tuple[int, int]]:
    """The parts of these offsets to read."""
    if latest is not None:
        for first, behind in latest.spans(snapshot, start):
            if first < end:
                yield first, min(behind, end)
        return
    times = record_filter.times
    if times is not None and times.start_ms is not None:
        start = max(start, start_of_time(snapshot, times.start_ms))
    if times is not None and times.end_ms is not None:
        from kafkafs.reading.stretches import time_stretches  # importing takes a while

        for part in time_stretches(snapshot, OffsetRange(start, end), times):
            yield part.start, part.end
    elif start < end:
        yield start, end

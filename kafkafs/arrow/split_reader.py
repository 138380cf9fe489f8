"""Reading a split: the records in a range of offsets that another process planned earlier.

Retention, compaction or truncation may have changed the log since. What is left of the range is read; lost offsets and
damage are reported to the caller, which decides whether they are errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kafkafs.reading.unmounted import read_with_key
from storage.errors import SegmentGone, UnknownTopicOrPartition
from storage.log.lineage import kept_end
from storage.log.rereads import Rereads
from storage.types import Isolation, OffsetRange

if TYPE_CHECKING:
    from kafkafs.reading.key_index import KeyIndex
    from storage.files.dir_identity import DirIdentity
    from storage.format.block import BatchDamage, RecordBlock
    from storage.format.decoder import Decoder
    from storage.log.log_dir import LogDir
    from storage.log.snapshot import LogSnapshot
    from storage.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Split:
    """Offsets of a partition from `start_offset` (included) to `end_offset` (excluded).

    `size_bytes`: approximately, in the log's files. `identity`: of the log; in a topic that was deleted and created
    again, the same offsets are other messages.
    """

    tp: TopicPartition
    start_offset: int
    end_offset: int
    size_bytes: int
    identity: DirIdentity | None = field(default=None, compare=False)


OnLoss = Callable[["TopicPartition", OffsetRange, str], None]
OnDamage = Callable[["TopicPartition", "BatchDamage"], None]


def read_split(
    log_dir: LogDir,
    split: Split,
    decoder: Decoder,
    *,
    on_loss: OnLoss,
    on_damage: OnDamage,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    keys: KeyIndex | None = None,
    key: bytes | None = None,
) -> Iterator[RecordBlock]:
    """The split's records as a consumer sees them, in offset order; each block is valid until the next is requested.
    With a key index and a key, records that are shown not to have that key may be left out.

    `on_loss(tp, offsets, why)`: these offsets are no longer in the log. `on_damage(tp, damage)`: a batch, or bytes that
    are not a batch, could not be read. Both may raise; otherwise reading continues after that. Other StorageErrors are
    raised.
    """
    position, end, rereads = split.start_offset, split.end_offset, Rereads()
    before: LogSnapshot | None = None
    while position < end:
        log_dir.refresh()
        try:
            log = log_dir.log(split.tp)
            snapshot = log.snapshot()
        except UnknownTopicOrPartition:
            on_loss(split.tp, OffsetRange(position, end), "the partition was removed")
            return
        planned, found = split.identity, snapshot.identity
        if planned is not None and found is not None and not planned.may_be_seen_elsewhere_as(found):
            on_loss(split.tp, OffsetRange(position, end), "the topic was deleted and created again after planning")
            return
        if before is not None and position > split.start_offset and kept_end(before, snapshot, position) != position:
            on_loss(split.tp, OffsetRange(position, end), "the log was truncated while it was read")
            return
        before = snapshot
        if position < snapshot.log_start_offset:
            lost = OffsetRange(position, min(snapshot.log_start_offset, end))
            on_loss(split.tp, lost, snapshot.why_not_earlier)
            position = lost.end
        if position < end and snapshot.log_end_offset < end:
            lost = OffsetRange(max(position, snapshot.log_end_offset), end)
            on_loss(split.tp, lost, f"the log ends at {snapshot.log_end_offset}")
            end = lost.start
        if position >= end:
            return
        try:
            for block in read_with_key(
                snapshot, position, end, isolation=isolation, decoder=decoder, keys=keys, key=key
            ):
                if len(block):
                    following = int(block.offset[-1]) + 1
                    yield block
                    position = following
                if block.damage is not None:
                    if log.snapshot().generation != snapshot.generation:  # it was truncated while it was read
                        raise SegmentGone("log was truncated", path=log.path)
                    on_damage(split.tp, block.damage)
            return
        except SegmentGone:
            if rereads.are_exhausted(position):
                raise

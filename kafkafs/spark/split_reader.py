"""Reading a split: the records in a range of offsets that was planned a while ago, in another process.

Retention, compaction or truncation may have changed the log since. What is left of the range is read; what is lost of
it, or does not read, is told to the caller, who decides whether that is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from storage.errors import SegmentGone, UnknownTopicOrPartition
from storage.log.reader import read_range
from storage.types import Isolation, OffsetRange

if TYPE_CHECKING:
    from kafkafs.spark.planning import Split
    from storage.format.block import BatchDamage, RecordBlock
    from storage.format.decoder import Decoder
    from storage.log.log_dir import LogDir
    from storage.types import TopicPartition

_TRIES: Final = 20  # to find again what vanished, before giving up

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
) -> Iterator[RecordBlock]:
    """The split's records as a consumer sees them, in offset order; a block is valid until the next is taken.

    `on_loss(tp, offsets, why)`: these offsets are not in the log any more. `on_damage(tp, damage)`: a batch, or bytes
    that are none, did not read. Both may raise; otherwise reading goes on behind. Other StorageErrors are raised.
    """
    position, end, tries = split.start_offset, split.end_offset, 0
    while position < end:
        log_dir.refresh()
        try:
            snapshot = log_dir.log(split.tp).snapshot()
        except UnknownTopicOrPartition:
            on_loss(split.tp, OffsetRange(position, end), "the partition was removed")
            return
        planned, found = split.identity, snapshot.identity
        if planned is not None and found is not None and not planned.may_be_seen_elsewhere_as(found):
            on_loss(split.tp, OffsetRange(position, end), "the topic was deleted and made again since it was planned")
            return
        if position < snapshot.log_start_offset:
            lost = OffsetRange(position, min(snapshot.log_start_offset, end))
            on_loss(split.tp, lost, f"the log begins at {snapshot.log_start_offset}")
            position = lost.end
        if position < end and snapshot.log_end_offset < end:
            lost = OffsetRange(max(position, snapshot.log_end_offset), end)
            on_loss(split.tp, lost, f"the log ends at {snapshot.log_end_offset}")
            end = lost.start
        if position >= end:
            return
        before = position
        try:
            for block in read_range(snapshot, position, end, isolation=isolation, decoder=decoder):
                if len(block):
                    behind = int(block.offset[-1]) + 1
                    yield block
                    position = behind
                if block.damage is not None:
                    on_damage(split.tp, block.damage)
            return
        except SegmentGone:
            tries = 0 if position > before else tries + 1
            if tries > _TRIES:
                raise

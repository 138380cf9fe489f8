"""Background compaction: chooses the next partition of a directory, and limits the speed.

Sources: LogCleanerManager.grabFilthiestCompactedLog, LogCleaner.CleanerThread.cleanFilthiestLog, Throttler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from storage.clock import Clock
from storage.compaction.compaction import (
    CompactionResult,
    DirtyRange,
)
from storage.compaction.partition_compaction import compact_partition, dirty_range_of
from storage.directory.owned_dir import OwnedDir
from storage.errors import (
    CorruptData,
    SegmentGone,
    StorageError,
    UnknownTopicOrPartition,
    UnsupportedFormat,
)
from storage.types import TopicPartition

_LOG = logging.getLogger(__name__)

# At most this much idle time is credited.
_CREDIT_MS: Final = 300


# No wait is longer, so that every wait is a finite number of milliseconds.
_LONGEST_MS: Final = 365 * 24 * 3600 * 1000


class CompactionStopped(Exception):
    """A pass was ended on purpose; groups already replaced stay replaced, and the next pass starts over."""


class Throttle:
    """Limits a rate to `bytes_per_second`, above 0, averaged over a few windows."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free_ms = float(clock.now_ms())

    def wait_ms(self, size_bytes: int) -> int:
        """How long to wait after `size_bytes` more bytes."""
        now_ms = self._clock.now_ms()
        free_ms = max(self._free_ms, now_ms - _CREDIT_MS) + size_bytes * 1000 / self._rate
        self._free_ms = min(free_ms, now_ms + _LONGEST_MS)  # infinite for the smallest rates
        return max(int(self._free_ms - now_ms), 0)


class Cleaner:
    """Compacts one directory's partitions, the dirtiest first. Not thread-safe: for one thread.

    `pause` is called after each window with the milliseconds to wait, which may be 0; it may raise CompactionStopped. A
    damaged partition is not tried again, as in a broker until its restart. Any other error (a full disk, or a bug) may
    be temporary: the partition is tried again in the next round. `errors`: both kinds, as long as the partition is due.
    `unlink_later` gets the `.deleted` files of each pass, however it ends. With a limit of 0 bytes per second nothing
    is compacted: a broker's cleaner would wait forever.
    """

    def __init__(
        self,
        owned: OwnedDir,
        pause: Callable[[int], None],
        unlink_later: Callable[[TopicPartition, Sequence[Path]], None],
    ) -> None:
        self.errors: dict[TopicPartition, Exception] = {}
        self.dirty: dict[TopicPartition, DirtyRange] = {}
        self._uncleanable: set[TopicPartition] = set()
        # Partitions that failed in this round, which ends when nothing is due.
        self._failed: set[TopicPartition] = set()
        self._owned = owned
        self._pause = pause
        self._unlink_later = unlink_later
        self._rate = owned.log_dir.broker_config().cleaner_io_max_bytes_per_second

    def clean_dirtiest(self) -> CompactionResult | None:
        """Run a pass over the dirtiest partition that is due; None when none is, which ends a round. Errors of a
        partition are kept in `errors`.

        CompactionStopped.
        """
        self.dirty = self._look()
        if not self._rate > 0:
            return None
        due = {}
        for tp in self.dirty.keys() - self._failed:
            try:
                is_due = self.dirty[tp].is_due(self._owned.log(tp).config)
            except (StorageError, OSError):
                continue  # it was just removed or closed
            if is_due:
                due[tp] = self.dirty[tp]
            else:
                self.errors.pop(tp, None)
        while due:
            tp = max(sorted(due), key=lambda partition: due[partition].ratio)
            try:
                del due[tp]
                result = self._clean(tp)
            except (SegmentGone, UnknownTopicOrPartition) as error:
                _LOG.info("compaction of %s ended early: %s", tp, error)  # retention or a deletion came first
            except CompactionStopped:
                raise
            except Exception as error:  # noqa: BLE001 - any error; the other partitions are still compacted
                self._fail(tp, error)
            else:
                self.errors.pop(tp, None)
                return result
        self._failed.clear()
        return None

    def _clean(self, tp: TopicPartition) -> CompactionResult:
        throttle = Throttle(self._rate, self._owned.clock)
        result = compact_partition(
            self._owned,
            tp,
            pace=lambda size: self._pause(throttle.wait_ms(size)),
            ended_early=lambda files: self._unlink_later(tp, files),
        )
        self._unlink_later(tp, result.files)
        return result

    def _fail(self, tp: TopicPartition, error: Exception) -> None:
        if not isinstance(error, StorageError | OSError) and repr(error) != repr(self.errors.get(tp)):
            _LOG.warning("compaction of %s met a bug", tp, exc_info=error)
        self.errors[tp] = error
        (self._uncleanable if isinstance(error, CorruptData | UnsupportedFormat) else self._failed).add(tp)

    def _look(self) -> dict[TopicPartition, DirtyRange]:
        """The dirty part of each partition that may be compacted."""
        ranges = {}
        offline = self._owned.failures()
        partitions = self._owned.partitions()
        for gone in self.errors.keys() - set(partitions):
            del self.errors[gone]
            self._uncleanable.discard(gone)
        for tp in partitions:
            if tp in offline or tp in self._uncleanable:
                continue
            try:
                if self._owned.may_compact(tp.topic):
                    ranges[tp] = dirty_range_of(self._owned, tp)
                else:
                    self.errors.pop(tp, None)
            except (SegmentGone, UnknownTopicOrPartition):
                continue  # retention or a deletion came first
            except Exception as error:  # noqa: BLE001 - as above
                self._fail(tp, error)
        return ranges

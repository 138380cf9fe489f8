"""Which partition of a directory is compacted next, and how fast: what runs in the background.

Sources: LogCleanerManager.grabFilthiestCompactedLog, LogCleaner.CleanerThread.cleanFilthiestLog, Throttler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from storage.clock import Clock
from storage.errors import SegmentGone, StorageError, UnknownTopicOrPartition
from storage.log.owned_dir import OwnedDir
from storage.types import TopicPartition
from storage.upkeep.compaction import CompactionResult, DirtyRange
from storage.upkeep.directory_compaction import compact_partition, dirty_range_of

_LOG = logging.getLogger(__name__)

# Rest that was not used up cannot be saved for longer than this.
_CREDIT_MS: Final = 300


class CompactionStopped(Exception):
    """A pass was ended on purpose; what it had put in place stays, and the next one begins anew."""


class Throttle:
    """At most `bytes_per_second`, over times of a few windows."""

    def __init__(self, bytes_per_second: float, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._free_ms = float(clock.now_ms())

    def wait_ms(self, size_bytes: int) -> int:
        """How long to wait after so many bytes."""
        now_ms = self._clock.now_ms()
        self._free_ms = max(self._free_ms, now_ms - _CREDIT_MS) + size_bytes * 1000 / self._rate
        return max(int(self._free_ms - now_ms), 0)


class Cleaner:
    """Compacts one directory's partitions, the dirtiest first. Not thread-safe: one thread's.

    `pause` is called with the milliseconds to wait, 0 too, after each window; it may raise CompactionStopped. A
    partition that is damaged is left alone from then on (`uncleanable`), as a broker does until it is started again.
    """

    def __init__(self, owned: OwnedDir, pause: Callable[[int], None]) -> None:
        self.uncleanable: dict[TopicPartition, Exception] = {}
        self.dirty: dict[TopicPartition, DirtyRange] = {}
        self._owned = owned
        self._pause = pause
        self._rate = owned.log_dir.broker_config().cleaner_io_max_bytes_per_second

    def clean_dirtiest(self) -> CompactionResult | None:
        """One pass over the partition that has it most due; None when none has. Errors of a partition are kept.

        CompactionStopped. Its files that are renamed to `.deleted` are the caller's to unlink.
        """
        self.dirty = self._look()
        due = {tp: dirty for tp, dirty in self.dirty.items() if dirty.is_due(self._owned.log(tp).config)}
        if not due:
            return None
        tp = max(due, key=lambda partition: due[partition].ratio)
        throttle = Throttle(self._rate, self._owned.clock)
        try:
            return compact_partition(
                self._owned, tp, dirty=due[tp], pace=lambda size: self._pause(throttle.wait_ms(size))
            )
        except (SegmentGone, UnknownTopicOrPartition) as error:
            _LOG.info("compaction of %s ended early: %s", tp, error)  # retention or a deletion came between
        except (StorageError, OSError) as error:
            self.uncleanable[tp] = error
        return None

    def _look(self) -> dict[TopicPartition, DirtyRange]:
        """What of each partition that may be compacted is dirty."""
        found = {}
        failed = self._owned.failures()
        for tp in self._owned.partitions():
            if tp in failed or tp in self.uncleanable:
                continue
            try:
                if self._owned.may_compact(tp.topic):
                    found[tp] = dirty_range_of(self._owned, tp)
            except (SegmentGone, UnknownTopicOrPartition):
                continue  # retention or a deletion came between
            except (StorageError, OSError) as error:
                self.uncleanable[tp] = error
        return found

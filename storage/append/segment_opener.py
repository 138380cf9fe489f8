"""Segments being created, reopened, and followed by the next one.

Nothing here locks: the PartitionLog that owns it holds its lock. Source: LocalLog.roll.
"""

from __future__ import annotations

from pathlib import Path

from storage.append.active_segment import ActiveSegment
from storage.append.health import Health
from storage.append.partition_files import PartitionFiles
from storage.clock import Clock
from storage.config import LogConfig
from storage.files.disk_protocol import Disk
from storage.log.segment import Segment


class SegmentOpener:
    """Opens segments of one partition for writing, as its configuration requires. Errors: OSError."""

    def __init__(self, disk: Disk, directory: Path, files: PartitionFiles, health: Health, clock: Clock) -> None:
        self._disk = disk
        self._directory = directory
        self._files = files
        self._health = health
        self._clock = clock
        self._leftover: int | None = None  # the base offset of a segment that could not be created as a whole

    def check(self) -> None:
        """Called before the log grows. As Health.check; OSError while files of a segment that could not be created
        still have to be removed durably.

        If the log grew beyond their offset, and a crash left them or brought them back, recovery would take them for
        the active segment, and the log would end before messages that it holds.
        """
        self._health.check()
        if self._leftover is not None:
            with self._health.failing(lambda: False):
                self._remove_leftover()

    def _remove_leftover(self) -> None:
        if self._leftover is not None:
            self._files.remove_named(self._leftover)
            self._disk.sync_dir(self._directory)
            self._leftover = None

    def reopen(self, segment: Segment, config: LogConfig) -> ActiveSegment:
        """Continues a segment all of whose bytes are messages."""
        interval_bytes, now_ms = config.index_interval_bytes, self._clock.now_ms()
        return ActiveSegment.reopen(self._disk, segment, segment.size, interval_bytes=interval_bytes, now_ms=now_ms)

    def create(self, base_offset: int, config: LogConfig) -> ActiveSegment:
        """A new, empty segment."""
        self._remove_leftover()  # it may have this very name
        segment = ActiveSegment.create(
            self._disk,
            self._directory,
            base_offset,
            interval_bytes=config.index_interval_bytes,
            now_ms=self._clock.now_ms(),
            preallocate=config.segment_bytes if config.preallocate else 0,
        )
        self._files.wrote(segment.paths(), new=True)
        return segment

    def follow(self, old: ActiveSegment, base_offset: int, config: LogConfig) -> ActiveSegment:
        """Ends the segment `old` and creates the one after it. Crash-safe:

        1. remove leftover files with the new name  → the old segment is the last
        2. write the old segment's final time entry, cut its .log; if it was cut, sync it → as before
        3. create the new segment's files           → an empty last segment, or index files that recovery removes
        If step 3 fails, its new files are removed, and the log does not grow before the removal is on disk (`check`).
        The next flush syncs all this. Until then the recovery point is at most at the end of the old segment; where it
        is exactly there, recovery checks the final time entry (storage.recovery.recovery).
        """
        self._files.remove_named(base_offset)
        self.finish(old)
        old.sync_cut()
        try:
            new = self.create(base_offset, config)
        except OSError:
            self._leftover = base_offset
            self._files.remove_named(base_offset)
            raise
        old.close()
        old.segment.sealed = True
        return new

    def finish(self, active: ActiveSegment) -> None:
        """Brings the last segment to its end: its final time entry, and nothing after its messages."""
        self._remove_leftover()
        active.finish()
        self._files.wrote(active.paths())

"""PartitionLog: one log that this process owns. It appends, rolls, flushes, and provides snapshots.

Locks: `_flushing`, then `_lock`; the comments in PartitionLog say which of them guards each field. `_lock` is not held
while records are encoded or a flush syncs files; readers take a snapshot and need no lock. Neither is held while room
is made for the files of the active segment, because that flushes other logs (storage.append.open_logs). Sources:
Kafka's UnifiedLog, LocalLog.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from storage.append import swap
from storage.append.append_values import BytesAt, LoadedLog
from storage.append.batch_checks import assigned_epochs, check_continues, check_size, first_offset, scanned
from storage.append.flushing import Flushing
from storage.append.health import Health
from storage.append.open_logs import OpenLogs
from storage.append.partition_files import PartitionFiles
from storage.append.producer_snapshots import ProducerSnapshots
from storage.append.producer_table import ProducerChanges
from storage.append.rolling_rules import (
    RollLimits,
    batch_fits,
    new_jitter_ms,
    rows_that_fit,
)
from storage.append.segment_opener import SegmentOpener
from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import OffsetOutOfRange, SegmentGone, StorageError
from storage.files.disk_protocol import Disk
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.files.producer_state import ProducerEntry
from storage.format.batches import BatchTable
from storage.format.record_batch import NewBatch
from storage.log.isolation import Transactions
from storage.log.segment import LargeBatch, Segment, check_crcs
from storage.log.segments import slot_of
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition


class PartitionLog:
    """A partition's log, open for writing. Thread-safe.

    After a failure that leaves its files in doubt the log is offline: every call raises PartitionOffline. `open_logs`:
    shared by the logs of a directory, so that their open files do not exceed the process's limit.
    """

    def __init__(
        self,
        tp: TopicPartition,
        path: Path,
        config: LogConfig,
        loaded: LoadedLog,
        *,
        disk: Disk,
        clock: Clock,
        open_logs: OpenLogs | None = None,
    ) -> None:
        # Constant after construction.
        self.tp = tp
        self.path = path
        self._disk = disk
        self._clock = clock
        self._producer_expiration_ms = loaded.producer_expiration_ms
        # Has its own locking.
        self._transactions = Transactions(path)
        self._open_logs = OpenLogs() if open_logs is None else open_logs
        # Guarded by the lock. Single values may be read without it.
        self._lock = Lock()
        self._config = config
        self._next_offset = loaded.next_offset
        self._log_start_offset, self._remote_offsets = loaded.log_start_offset, loaded.remote_offsets
        self._producers, self._epochs = loaded.producers, loaded.epochs
        self._jitter_ms = new_jitter_ms(config)
        self._limits = RollLimits.of(config, self._jitter_ms)
        self._snapshot: LogSnapshot | None = None
        self._segments: tuple[Segment, ...] = ()  # of the last snapshot
        self._health = Health(path)
        # Additions (a roll's segment, names of written files) need the lock alone. To take anything away (segments,
        # files to be synced), to rename or remove files, and to move the recovery point, `_flushing` must be held as
        # well, and taken first: see Flushing.
        self._files = PartitionFiles(disk, path)
        self._files.opened_with(loaded.segments, loaded.recovery_point, clock.now_ms())
        self._flushing = Flushing(self._lock, self._files, self._health, clock)
        self._opener = SegmentOpener(disk, path, self._files, self._health, clock)
        self._sealed: tuple[Segment, ...] = tuple(loaded.segments[:-1])
        for segment in self._sealed:
            segment.sealed = True
        self._active = self._opener.reopen(loaded.segments[-1], config)

    # State

    @property
    def config(self) -> LogConfig:
        return self._config

    def reconfigure(self, config: LogConfig) -> None:
        """Applies another configuration from the next append on; index interval and jitter from the next segment on."""
        with self._lock:
            self._config = config
            self._limits = RollLimits.of(config, self._jitter_ms)

    @property
    def log_end_offset(self) -> int:
        return self._next_offset

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def recovery_point(self) -> int:
        """All messages below this offset are durable."""
        return self._files.recovery_point

    @property
    def last_flush_ms(self) -> int:
        """When everything was last synced, epoch milliseconds."""
        return self._files.last_flush_ms

    @property
    def has_unsynced_sealed(self) -> bool:
        """True when segments before the active one were written to since they were last synced."""
        return self._files.unsynced_below(self._active.base_offset)

    @property
    def failure(self) -> Exception | None:
        """The error that took the log offline; None while it works."""
        return self._health.failure

    def check(self) -> None:
        """PartitionOffline unless the log is open and works."""
        self._health.check()

    @property
    def is_empty(self) -> bool:
        """True when there is no message left to read, here or in tiered storage."""
        with self._lock:
            return self._is_empty_locked()

    def _is_empty_locked(self) -> bool:
        nothing_here = self._log_start_offset >= self._next_offset or not (self._sealed or self._active.size)
        return nothing_here and self._remote_offsets is None

    def snapshot(self) -> LogSnapshot:
        """The log as it is now; the same object as before when nothing has changed."""
        with self._lock:
            return self._snapshot_locked()

    def _snapshot_locked(self) -> LogSnapshot:
        if self._snapshot is None:
            if (segments := (*self._sealed, self._active.segment)) != self._segments:
                self._segments = segments  # otherwise shared with the last snapshot
            self._snapshot = LogSnapshot(
                tp=self.tp, segments=self._segments,
                log_start_offset=self._log_start_offset, log_end_offset=self._next_offset,
                active_end=self._active.size, active_size=self._active.size, remote_offsets=self._remote_offsets,
                generation=0, transactions=self._transactions, epochs=self._epochs,
            )  # fmt: skip
        return self._snapshot

    # Open files

    def rest(self) -> None:
        """Flushes everything, then closes the files of the active segment until the log grows. Does nothing while the
        log is being written to. Errors take the log offline, as in `flush`, and are not raised."""
        with contextlib.suppress(StorageError, OSError):
            self.flush()
        with self._lock:
            if self._health.closed:
                return
            if not self._files.all_synced and self._health.failure is None:
                self._open_logs.add(self)
                return
            with contextlib.suppress(OSError), self._health.failing():
                self._active.rest()

    def _make_room(self) -> None:
        if self._active.at_rest:
            self._open_logs.make_room()

    def _wake_locked(self) -> None:
        """Called before the log grows or ends a segment, after `_make_room`. Errors as SegmentOpener.check; a file that
        somebody else has changed takes the log offline."""
        self._opener.check()
        if self._active.at_rest:
            with self._health.failing(lambda: False):
                self._active.wake()
            self._open_logs.add(self)

    # Appending

    def append(self, place: BytesAt) -> int:
        """Appends as a leader does; returns the base offset. `place` returns the bytes for the offset, under the lock.

        RecordTooLarge above segment.bytes, PartitionOffline, OSError (a full disk, say): nothing is appended. But when
        the flush that flush.messages requires fails, everything is appended and the log is offline.
        """
        self._make_room()
        with self._lock:
            self._wake_locked()
            base_offset, epoch = self._next_offset, self._epochs.latest_epoch
            data = memoryview(place(base_offset, 0 if epoch is None else epoch))
            self._append_locked(data, scanned(data, self.path))
            end_offset = self._next_offset
        self._flush_if_due(end_offset)
        return base_offset

    def append_batch(self, batch: NewBatch, now_ms: int) -> int:
        """`append` of one finished batch, which is not checked. Returns its base offset."""
        self._make_room()
        with self._lock:
            self._wake_locked()
            base_offset, epoch = self._next_offset, self._epochs.latest_epoch
            batch.place(base_offset, 0 if epoch is None else epoch)
            data, offsets, max_timestamp = batch
            last_offset = base_offset + offsets - 1
            if not batch_fits(len(data), last_offset, max_timestamp, self._active.fill, self._limits, now_ms):
                check_size(len(data), self._limits.segment_bytes)
                self._roll_locked(base_offset)
            if epoch is None:
                self._replace_epochs_locked(self._epochs.assign(EpochEntry(0, base_offset)))
            try:
                self._active.append_batch(data, last_offset, max_timestamp)
            except OSError as error:
                self._health.failed(error, in_doubt=self._active.broken)
                raise
            self._appended_locked(last_offset + 1, None)
        self._flush_if_due(last_offset + 1)
        return base_offset

    def append_batches(self, data: memoryview | LargeBatch, headers: BatchTable | None = None) -> None:
        """A follower's append: whole batches of another log, byte for byte, each as a separate append. `headers`: the
        batches' headers, if known, with positions counted from 0; the positions are changed. A LargeBatch needs them;
        its CRC has been checked already.

        CorruptBatch when a CRC fails or the bytes are not whole batches; InvalidRecord when offsets do not ascend from
        the log end on (gaps are fine); RecordTooLarge for a batch above segment.bytes. Nothing is appended then.
        """
        if isinstance(data, LargeBatch):
            assert headers is not None
            table = headers
        else:
            table = scanned(data, self.path) if headers is None else headers
        check_crcs(data, table, 0)
        self._make_room()
        with self._lock:
            self._wake_locked()
            check_continues(table, self._next_offset, self.path)
            self._append_locked(data, table)
            end_offset = self._next_offset
        self._flush_if_due(end_offset)

    def _append_locked(self, data: memoryview | LargeBatch, table: BatchTable) -> None:
        """Appends all rows, rolling where Kafka would if each batch arrived separately."""
        limits = self._limits
        check_size(int(table.size.max()), limits.segment_bytes)
        starts = table.position.copy()
        ends = table.end.copy()
        row = 0
        while row < table.rows:
            count = rows_that_fit(table, row, self._active.fill, limits, self._clock.now_ms())
            if count == 0:
                # Assign the epoch before rolling. Otherwise, after a roll beyond a gap, an epoch that a failed append
                # left behind would be inside the log.
                self._assign_epochs_locked(table, row, row + 1)
                self._roll_locked(max(self._next_offset, first_offset(table, row)))
                count = max(1, rows_that_fit(table, row, self._active.fill, limits, self._clock.now_ms()))
            stop = self._active.rows_until_full(table, row, row + count, limits)
            part = data if isinstance(data, LargeBatch) else data[int(starts[row]) : int(ends[stop - 1])]
            self._append_rows_locked(part, table, row, stop)
            row = stop

    def _append_rows_locked(self, part: memoryview | LargeBatch, table: BatchTable, first: int, last: int) -> None:
        data = part.head() if isinstance(part, LargeBatch) else part
        changes = self._producers.changes(data, table, first, last, int(table.position[first]))
        self._assign_epochs_locked(table, first, last)
        with self._health.failing(lambda: self._active.broken):
            self._active.append(part, table, first, last)
        self._appended_locked(int(table.last_offset[last - 1]) + 1, changes)
        if changes is not None and changes.aborted:
            # The marker is in the log already. A failure from here on cannot be undone, but recovery rebuilds the
            # entry.
            with self._health.failing():
                self._files.append_aborted(self._active.base_offset, changes.aborted)

    def _appended_locked(self, end_offset: int, changes: ProducerChanges | None) -> None:
        self._files.wrote(self._active.paths())
        self._next_offset = end_offset
        self._snapshot = None
        self._producers.commit(changes, end_offset)

    def _assign_epochs_locked(self, table: BatchTable, first: int, last: int) -> None:
        """Writes the leader epochs that begin with these batches, before the batches are written
        (UnifiedLog.append)."""
        epochs = assigned_epochs(self._epochs, table, first, last, self._next_offset)
        if epochs != self._epochs:
            # Otherwise a power loss may bring back batches of a failed append, and they would belong to the new epoch.
            with self._health.failing(lambda: self._active.broken):
                self._active.sync_cut()
            self._replace_epochs_locked(epochs)

    def _replace_epochs_locked(self, epochs: LeaderEpochs) -> None:
        if epochs != self._epochs:
            self._files.write_epochs(epochs)
            self._epochs = epochs

    # Rolling

    def roll(self) -> None:
        """Begins a new segment at the log end, unless the active one is empty."""
        self._make_room()
        with self._lock:
            self._health.check()
            if self._active.size:
                self._wake_locked()
                self._roll_locked(self._next_offset)

    def _roll_locked(self, base_offset: int) -> None:
        """Ends the active segment and begins another at `base_offset`. Steps 1 to 3: SegmentOpener.follow.

        4. write `<base>.snapshot` → done; recovery does not depend on the snapshot"""
        old = self._active
        if old.size == 0 and old.base_offset == base_offset:
            # An empty segment is full if its index has no room for a single entry: a new one then takes one batch.
            old.close()
            self._active = self._opener.create(base_offset, self._config)
            self._snapshot = None
            return
        with self._health.failing(lambda: self._active.broken):
            self._active = self._opener.follow(old, base_offset, self._config)
            self._sealed = (*self._sealed, old.segment)
            # After a gap (a follower's) the log ends where the segment begins, even if the append fails.
            self._next_offset = max(self._next_offset, base_offset)
            self._jitter_ms = new_jitter_ms(self._config)
            self._limits = RollLimits.of(self._config, self._jitter_ms)
            self._snapshot = None
            self._files.write_producer_snapshot(base_offset, self._producers.snapshot())

    # Making durable

    def flush(self, *, only_sealed: bool = False) -> int:
        """Syncs everything that was appended before the call, and the names of new files; returns the new recovery
        point. `only_sealed`: leave out the active segment, as Kafka does after a roll.

        The lock is not held meanwhile. A failed sync takes the log offline: there is no way to know what it lost
        (fsync(2)).
        """
        if only_sealed:
            return self._flushing.flush(lambda: self._active.base_offset, only_sealed=True)
        return self._flushing.flush(lambda: self._next_offset)

    def _flush_if_due(self, end_offset: int) -> None:
        """For flush.messages: called after an append up to `end_offset`, without the lock. The writer waits until that
        is on disk. Others append meanwhile, and one flush covers all of them."""
        if end_offset - self._files.recovery_point >= self._config.flush_messages:
            self._flushing.flush_up_to(end_offset, lambda: self._next_offset)

    # Shortening

    def increment_log_start_offset(self, offset: int) -> None:
        """Messages below `offset` can no longer be read; the next retention removes their segments (DeleteRecords)."""
        with self._lock:
            self._health.check()
            if offset > self._next_offset:
                raise OffsetOutOfRange("log start offset beyond the log end", path=self.path, offset=offset)
            if offset > self._log_start_offset:
                self._log_start_offset, self._remote_offsets = offset, None
                self._snapshot = None

    def remove_segments(self, segments: Sequence[Segment]) -> list[Path]:
        """Removes the oldest segments from the log; returns their files, renamed to `.deleted`, to unlink later.

        `segments` must be the log's first ones, without the active one (roll first). SegmentGone when they are not,
        because others were removed or replaced meanwhile: then nothing has changed. Crash-safe:

        1. the log start offset moves to the first segment that stays (in memory; the checkpoint comes later)
        2. sync the directory if it has new names             → a segment that was just begun keeps the log end
        3. oldest first, each segment's files are renamed     → what is left is a shorter log, complete in itself
        4. sync the directory
        5. the caller unlinks them after file.delete.delay.ms → recovery removes `.deleted` files
        """
        with self._flushing, self._lock:
            self._health.check()
            if tuple(segments) != self._sealed[: len(segments)]:
                raise SegmentGone("segments to be removed are no longer the oldest sealed ones", path=self.path)
            if not segments:
                return []
            self._sealed = self._sealed[len(segments) :]
            first = self._sealed[0] if self._sealed else self._active.segment
            self._log_start_offset = max(self._log_start_offset, first.base_offset)
            self._snapshot = None
            with self._health.failing():
                removed = self._files.rename_deleted(segments)
                # Not up to a log start within that segment: a crash may come before its checkpoint is written.
                self._replace_epochs_locked(self._epochs.truncate_from_start(first.base_offset))
            return removed

    def replace_segments(self, sources: Sequence[Segment]) -> list[Path]:
        """Replaces consecutive segments by the finished `.cleaned` one with the first one's base offset
        (storage.append.swap); returns the sources' `.deleted` files. SegmentGone when a source is no longer in the log:
        then nothing has changed.
        """
        with self._flushing:
            with self._lock:
                self._health.check()
                slot_of(sources, self._sealed)
            try:
                swap.make_ready(self._disk, self.path, sources[0].base_offset)
            except OSError as error:
                with self._lock:
                    self._health.fail(error)
                raise
            with self._lock, self._health.failing():
                self._sealed, removed = swap.replace(self._disk, self.path, sources, self._sealed)
                self._snapshot = None
                return removed

    def active_producers(self) -> list[ProducerEntry]:
        """The producers that wrote to the log and have not expired (ProducerStateManager.activeProducers)."""
        with self._lock:
            return self._producers.active(self._clock.now_ms(), self._producer_expiration_ms)

    def restart_at(self, offset: int) -> None:
        """Makes a log without messages begin at a later offset (UnifiedLog.truncateFullyAndStartAt). Crash-safe:

        1. create the new segment's files → two empty segments; the log ends where the second begins
        2. remove the old ones
        ValueError when the log holds messages, or ends beyond `offset`.
        """
        self._make_room()
        with self._flushing, self._lock:
            self._wake_locked()
            before = self._snapshot_locked()
            if before.size_bytes or offset < self._next_offset:
                raise ValueError("only a log without messages can begin at a later offset")
            if offset == before.segments[0].base_offset and len(before.segments) == 1:
                return
            with self._health.failing(lambda: self._active.broken):
                new = self._opener.create(offset, self._config)
                self._active.close()
                self._sealed, self._active = (), new
                self._log_start_offset, self._remote_offsets, self._next_offset = offset, None, offset
                self._snapshot = None
                for segment in before.segments:
                    if segment.base_offset != offset:
                        self._files.remove_named(segment.base_offset)
                self._replace_epochs_locked(LeaderEpochs())
                snapshots = ProducerSnapshots(
                    self._disk, self.path, clock=self._clock, expiration_ms=self._producer_expiration_ms
                )
                self._producers = snapshots.reload(offset, offset)

    # Ending

    def close(self) -> None:
        """A clean end: the final time entry, a producer snapshot at the log end, everything synced. Safe to call twice.

        PartitionOffline or OSError when that failed; the log directory is then not cleanly shut down.
        """
        with self._flushing, self._lock:
            if self._health.closed:
                return
            self._health.closed = True
            try:
                self._health.check_online()
                with self._health.failing():
                    self._active.wake()
                    self._opener.finish(self._active)
                    # An append that failed may have left the epoch that its batch would have begun.
                    self._replace_epochs_locked(self._epochs.truncate_from_end(self._next_offset + 1))
                    self._files.write_producer_snapshot(self._next_offset, self._producers.snapshot())
                    self._files.sync(self._files.take_unsynced())
                self._files.synced(self._next_offset, self._clock.now_ms())
            finally:
                self._end_locked()

    def abandon(self, *, only_empty: bool = False) -> bool:
        """Closes the descriptors and leaves the files as they are, to be recovered when the log is next opened.

        `only_empty`: only if the log holds no message. Returns True when the log is closed.
        """
        with self._flushing, self._lock:
            if only_empty and not self._health.closed and not self._is_empty_locked():
                return False
            if not self._health.closed:
                self._health.closed = True
                self._end_locked()
            return True

    def _end_locked(self) -> None:
        self._open_logs.remove(self)
        self._active.close()

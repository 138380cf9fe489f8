"""A partition's log that is only read, while another process, perhaps a running broker, writes it.

Nothing is locked, written or kept open. Each `snapshot` checks for changes:

- the directory's mtime shows that files were added, removed or renamed (a roll, retention, compaction, truncation);
  then the sealed segments' sizes and mtimes show which of them were cut and rewritten since the last look;
- the size and mtime of the active segment's .log show appends;
- the log start offset comes from the log directory's checkpoint.

A log is one directory of one topic (DirIdentity). When the topic is deleted and created again, another ReadOnlyLog
follows the new one (LogDir.refresh), and this one raises UnknownTopicOrPartition from then on: its users must not get
messages of another topic. Every cache about a log depends on this object, its Segments, or `generation`:

- a Segment means the same bytes for as long as it exists; caches by Segment (indexes, timestamps, transaction markers,
  the view index) are never stale, but must not outlive the object;
- `generation` grows when messages were removed or overwritten; everything that was derived from several segments (the
  last stable offset, open views, committed offsets) is then derived again. `lineage` says how a truncation is detected:
  each listing reads leader-epoch-checkpoint too, because a broker replaces that file by a rename.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import Final

from storage.errors import CorruptCheckpoint, SegmentGone, UnknownTopicOrPartition
from storage.files import leader_epochs, names
from storage.files.dir_identity import DirIdentity
from storage.files.file_mark import NEVER, FileMark
from storage.files.leader_epochs import LeaderEpochs
from storage.files.log_file import FileIdentity, LogFile
from storage.log import lineage, tail
from storage.log import segments as segment_list
from storage.log.isolation import Transactions
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot
from storage.log.tail import Tail
from storage.types import OffsetRange, TopicPartition

_LISTING_TRIES: Final = 20


class ReadOnlyLog:
    """A `Log` that changes nothing and follows what other processes write."""

    def __init__(
        self,
        tp: TopicPartition,
        path: Path,
        log_start: Callable[[], int | None] = lambda: None,
        recovery_point: Callable[[], int] = lambda: 0,
        remote: Callable[[int], OffsetRange | None] = lambda _first_offset: None,
    ) -> None:
        """`log_start`, `recovery_point`: return these offsets from the checkpoints, None and 0 if they have none.
        `remote`: the offsets in tiered storage before the first segment's; asked when the first segment or the
        checkpointed log start has changed.
        """
        # Constant after construction.
        self.tp = tp
        self.path = path
        self._log_start = log_start
        self._recovery_point = recovery_point
        self._remote = remote
        self._place = os.fspath(path)
        # Locks itself.
        self._transactions = Transactions(path)
        # Guarded by the lock.
        self._lock = Lock()
        self._snapshot: LogSnapshot | None = None
        self._identity: DirIdentity | None = None  # as first seen
        self._dir_mark = NEVER  # readers set it to NEVER without the lock, to have the directory listed again
        self._active_mark = NEVER
        self._tail = Tail(0, 0)
        self._checkpointed: int | None = None  # the log start with which the snapshot was made
        self._epochs_mark = NEVER
        self._epochs = LeaderEpochs()
        self._last_epochs = LeaderEpochs()  # the last epochs before the checkpoint was empty or missing

    def snapshot(self) -> LogSnapshot:
        """The log in its present state; the same object as before if nothing has changed.

        UnknownTopicOrPartition if the partition's directory was removed, or now belongs to another topic.
        """
        with self._lock:
            before = self._snapshot
            if before is not None and self._dir_mark.matches(self._dir_status()):
                try:
                    if self._is_current_locked(before):
                        return before
                    snapshot = self._look_locked(before, list(before.segments), before.epochs)
                    if snapshot is not None:
                        return snapshot
                except SegmentGone:
                    pass  # The active segment was removed just now: the listing shows what replaced it.
            return self._list_locked(before)

    def is_replaced(self) -> bool:
        """Whether the directory of this name is now another one, or another topic's; takes no lock."""
        identity = self._identity
        try:
            return identity is not None and not identity.may_be(DirIdentity.of(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _look_again(self) -> None:
        self._dir_mark = NEVER

    def _is_current_locked(self, before: LogSnapshot) -> bool:
        """Whether the log start and the active segment are unchanged; does not check the list of files."""
        active = before.active
        if self._log_start() != self._checkpointed:
            return False
        return active is None or self._active_mark.matches(active.log.stat())

    def _list_locked(self, before: LogSnapshot | None) -> LogSnapshot:
        held = () if before is None else before.segments
        unlike = None  # epochs that contradicted the messages at the last try
        for _ in range(_LISTING_TRIES):
            mark = FileMark.of(self._dir_status())
            try:
                self._identity = self._identify_locked()
                listed = segment_list.load(self.path, segment_list.list_logs(self.path), held, self._look_again)
                if FileMark.of(self._dir_status()) != mark:
                    continue  # It may have been listed in the middle of a replacement.
                snapshot = self._look_locked(before, listed, None, unlike)
                if snapshot is None:
                    unlike = self._epochs
                    continue
            except (FileNotFoundError, SegmentGone):
                continue  # Renamed or removed since the listing.
            self._dir_mark = mark
            return snapshot
        raise SegmentGone("the directory changes faster than it can be listed", path=self.path, advice="Try again")

    def _identify_locked(self) -> DirIdentity:
        """The directory's identity, as far as it is known by now. UnknownTopicOrPartition if it has changed."""
        now, before = DirIdentity.of(self.path), self._identity
        if before is None or self._snapshot is None:
            return now
        if not before.may_be(now):
            raise UnknownTopicOrPartition(
                "partition's directory was replaced: its topic was deleted and created again",
                path=self.path,
                advice="Open it again",
            )
        return before.with_known(now)

    def _look_locked(
        self,
        before: LogSnapshot | None,
        listed: list[Segment],
        epochs: LeaderEpochs | None,
        unlike: LeaderEpochs | None = None,
    ) -> LogSnapshot | None:
        """Measure the active segment's end and build the snapshot. SegmentGone if a file was removed meanwhile, or
        the segment that was active was truncated: what was measured may be partly of what came after.

        `epochs`: those known; None: read them, after the messages, so that they are not older. If they belong to other
        messages than were measured, the log is being truncated: return None, for another look. If they equal `unlike`,
        another look has found the same: then the epochs are wrong.
        """
        was_active = None if before is None else before.active
        kept = self._replace_truncated_locked(was_active, listed)
        for segment in listed[:-1]:
            segment.sealed = True
            if segment.log.fixed is None:
                segment.log.fix(segment.log.stat(), self._look_again)
        active_size = 0
        end = Tail(0, 0)
        mark = NEVER
        if listed:
            status = listed[-1].log.stat()
            active_size, mark = status.st_size, FileMark.of(status)
            if listed[-1] is not was_active:
                end = tail.measure(listed[-1], active_size, self._recovery_point())
            elif self._active_mark.matches(status):
                end = self._tail
            else:
                end = tail.extend(listed[-1], self._tail, active_size, self._recovery_point())
            listed[-1].size = active_size
        checkpointed = self._log_start()
        log_start = max(checkpointed or 0, listed[0].base_offset if listed else 0)
        if epochs is None:
            epochs = self._read_epochs_locked()
        if kept is not None and end is not self._tail and not tail.still_holds(kept, self._tail):
            raise SegmentGone("segment was truncated while it was measured", path=kept.log.path, advice="Try again")
        if end.epoch >= 0 and epochs.epoch_at(end.next_offset - 1) not in (None, end.epoch) and epochs != unlike:
            return None
        segments = tuple(listed)
        snapshot = LogSnapshot(
            tp=self.tp,
            # Snapshots share their list if it has not changed: closed files keep thousands of snapshots.
            segments=before.segments if before is not None and before.segments == segments else segments,
            log_start_offset=log_start,
            # A log that ends below its start holds nothing: a broker would restart it there (LogLoader.load).
            log_end_offset=max(end.next_offset, log_start),
            active_end=end.end,
            active_size=active_size,
            generation=0 if before is None else before.generation,
            transactions=self._transactions,
            identity=self._identity,
            epochs=epochs,
            remote_offsets=self._remote_locked(before, checkpointed, listed),
        )
        if before is not None:
            # A broker that rebuilds a replica empties the checkpoint before it writes another lineage.
            known = before if before.epochs.entries else replace(before, epochs=self._last_epochs)
            if lineage.was_truncated(known, snapshot):
                snapshot = replace(snapshot, generation=before.generation + 1)
        if epochs.entries:
            self._last_epochs = epochs
        self._tail, self._active_mark, self._checkpointed = end, mark, checkpointed
        if before == snapshot and before.epochs == epochs:
            return before
        self._snapshot = snapshot
        return snapshot

    def _remote_locked(
        self, before: LogSnapshot | None, checkpointed: int | None, found: list[Segment]
    ) -> OffsetRange | None:
        if not found:
            return None
        first = found[0].base_offset
        if before is not None and before.segments and (before.segments[0].base_offset, self._checkpointed) == (
            first, checkpointed,
        ):  # fmt: skip
            return before.remote_offsets
        return self._remote(first)

    def _read_epochs_locked(self) -> LeaderEpochs:
        """The epochs in the checkpoint; none if it is missing or cannot be read."""
        path = self.path / names.LEADER_EPOCH_CHECKPOINT
        try:
            status = path.lstat()
            if not self._epochs_mark.matches(status):
                self._epochs_mark = NEVER
                self._epochs = leader_epochs.read(path)
                self._epochs_mark = FileMark.of(status)
        except (CorruptCheckpoint, OSError):
            self._epochs = LeaderEpochs()
        return self._epochs

    def _replace_truncated_locked(self, was_active: Segment | None, listed: list[Segment]) -> Segment | None:
        """Replace the segment that was active by a new one in `listed`, if its file has lost messages that were
        read; return it if it is kept."""
        if was_active is None:
            return None
        for slot in range(len(listed) - 1, -1, -1):
            if listed[slot] is was_active:
                status = was_active.log.stat()
                if self._active_mark.matches(status):
                    return was_active
                if status.st_size >= self._tail.end and tail.still_holds(was_active, self._tail):
                    was_active.size = status.st_size
                    return was_active
                file = LogFile(was_active.log.path, FileIdentity.of(status))
                listed[slot] = Segment(self.path, was_active.base_offset, file, status.st_size)
        return None

    def _dir_status(self) -> os.stat_result:
        try:
            return os.stat(self._place)  # noqa: PTH116 - a third of the time of Path.stat
        except (FileNotFoundError, NotADirectoryError):
            raise UnknownTopicOrPartition("partition's directory was removed", path=self.path) from None

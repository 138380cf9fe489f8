"""Builds one partition's directory in the new log directory from a replica.

Segments are copied whole, except that the last one ends where the log ends or is cut. Then recovery, as after a crash,
checks every batch, and rebuilds indexes, leader epochs and producer snapshots; and the log is closed. So the result
depends on no index or checkpoint of the source.

Linked segments (`link`) are not read. They are trusted from the log's start if it was shut down cleanly, otherwise up
to the source's recovery point; if some segments are remote, all are read. Only sealed segments are linked, and only
their `.log`: a broker appends to the last segment, and writes to indexes. A broker's later recovery changes a linked
segment in place only if it is damaged.

If anything fails, the whole directory is abandoned, so a crash here needs no care.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage.append.partition_log import PartitionLog
from storage.clock import Clock
from storage.config import LogConfig
from storage.errors import CorruptBatch, CorruptCheckpoint, PartitionOffline
from storage.files import leader_epochs, names, partition_metadata, producer_state
from storage.files.disk import opened, replace_file
from storage.files.disk_protocol import Disk
from storage.files.listing import paths_in
from storage.files.log_file import open_quietly
from storage.files.names import FileKind
from storage.files.opening import exists
from storage.files.producer_state import ProducerEntry
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.format.block import Record
from storage.format.control_records import ControlType
from storage.format.record_batch import BatchFields, encode_batch
from storage.log.batch_choice import BatchChoice
from storage.log.scanning import scan_batches
from storage.log.segment import Segment
from storage.log.segment_check import check_segment, ignore_batches
from storage.log.segments import live_offsets
from storage.log.snapshot import LogSnapshot
from storage.progress import Progress
from storage.recovery.recovery import Recovery, RecoveryPlan, RecoveryReport
from storage.revival.log_cut import LogCut
from storage.revival.sources import Replica
from storage.types import TopicPartition
from storage.upkeep.salvage import copy_chosen

_COPIED_INDEXES = (FileKind.OFFSET_INDEX, FileKind.TIME_INDEX, FileKind.TRANSACTION_INDEX)
_CANNOT_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)
_REMOTE_BYTES = 4 << 20
_ADVICE = "`kafkafs salvage` copies what is intact; --salvage does that here"
_UNREADABLE = "a batch of an undefined magic, or that begins before the previous one ends"
_MARKER_KEY = struct.Struct(">hh")  # version, type
_MARKER = struct.Struct(">hi")  # version, coordinator epoch

Ending = Callable[[TopicPartition, ProducerEntry], ControlType | None]


@dataclass(frozen=True, slots=True)
class BuildPlan:
    """How to build a partition: from which replica, to where, up to where. `chosen`: the batches of all replicas, if
    the replica is not taken unchanged."""

    replica: Replica
    directory: Path
    config: LogConfig
    topic_id: str
    cut: LogCut
    link: bool = False
    chosen: BatchChoice | None = None


@dataclass(slots=True)
class Built:
    """A partition that was built. `linked_bytes` are among `size_bytes`. `last_epoch`: the last leader's, -1 if none.

    `greatest_producer_id`: in the batches that were read and in the producer state. `open_transactions`: those without
    a marker at the end of the source; `aborted`, `committed`: those of them that got a marker. `producers`: all that a
    broker knows.
    """

    tp: TopicPartition
    log_start_offset: int
    log_end_offset: int
    size_bytes: int
    linked_bytes: int
    last_epoch: int
    greatest_producer_id: int
    open_transactions: tuple[ProducerEntry, ...]
    aborted: tuple[ProducerEntry, ...]
    committed: tuple[ProducerEntry, ...]
    producers: tuple[ProducerEntry, ...]


@dataclass(slots=True)
class Building:
    """Builds partitions one after the other, with one disk and clock."""

    disk: Disk
    clock: Clock
    progress: Progress

    def build(self, plan: BuildPlan, ending: Ending) -> Built:
        """Make the directory. `ending` decides which marker open transactions get, if any.

        CorruptBatch or another StorageError if the replica is damaged; OSError.
        """
        if plan.chosen is not None:
            return self._finish(plan, self._put_together(plan, plan.chosen), 0, ending)
        return self._finish(plan, *self._copied(plan), ending)

    def _copied(self, plan: BuildPlan) -> tuple[PartitionLog, int]:
        replica, directory = plan.replica, plan.directory
        snapshot, end_offset = replica.snapshot, plan.cut.end_offset
        kept = _kept(snapshot, end_offset)
        self._make(directory)
        linked = 0
        for segment in kept[:-1]:
            linked += self._copy_segment(segment, directory, link=plan.link)
        if kept:
            self._copy_log(kept[-1], directory, _position_of(snapshot, kept[-1], end_offset))
        for offset in live_offsets(replica.path, FileKind.PRODUCER_SNAPSHOT):
            if offset <= end_offset:
                self._copy_small(replica.path, directory, names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT))
        if replica.epochs is not None:
            entries = replica.epochs.truncate_from_end(end_offset).entries
            replace_file(self.disk, directory / names.LEADER_EPOCH_CHECKPOINT, leader_epochs.encode(entries))
        recovery_point = _recovery_point(plan, kept)
        log, report = self._recovered(plan, recovery_point, snapshot.log_start_offset)
        expected = max(end_offset, snapshot.log_start_offset)
        if report.cut is not None or report.log_end_offset != expected:
            log.abandon()
            cut = report.cut
            paths = [
                kept_segment.log.path
                for kept_segment in kept
                if cut is not None and kept_segment.base_offset == cut.base_offset
            ]
            position = cut.position if cut is not None and paths else None
            raise damaged(replica, paths[0] if paths else replica.path, position, expected, report.log_end_offset)
        for base_offset, position in report.unreadable_segments.items():
            log.abandon()
            path = replica.path / names.segment_file(base_offset, FileKind.LOG)
            raise damaged(replica, path, position, expected, _UNREADABLE)
        return log, linked

    def _recovered(
        self, plan: BuildPlan, recovery_point: int, log_start_offset: int
    ) -> tuple[PartitionLog, RecoveryReport]:
        recovery = Recovery(
            RecoveryPlan(
                plan.replica.tp,
                plan.directory,
                plan.config,
                clean=False,
                recovery_point=recovery_point,
                log_start_offset=log_start_offset,
                gentle=True,
            ),
            disk=self.disk,
            clock=self.clock,
            progress=self.progress,
        )
        try:
            loaded = recovery.run()
        except PartitionOffline as error:
            where = "" if error.path is None else error.path.name
            paths = [segment.log.path for segment in plan.replica.snapshot.segments if segment.log.path.name == where]
            raise CorruptBatch(
                f"{plan.replica.tp} is damaged before intact messages",
                path=paths[0] if paths else plan.replica.path,
                position=error.position,
                offset=error.offset,
                found=error.found,
                advice=_ADVICE,
            ) from None
        log = PartitionLog(plan.replica.tp, plan.directory, plan.config, loaded, disk=self.disk, clock=self.clock)
        return log, recovery.report

    def _put_together(self, plan: BuildPlan, chosen: BatchChoice) -> PartitionLog:
        self._make(plan.directory)
        log, _ = self._recovered(plan, 0, chosen.base_offset)
        copy_chosen(chosen, plan.replica.snapshot, log, self.progress)
        return log

    def _finish(self, plan: BuildPlan, log: PartitionLog, linked: int, ending: Ending) -> Built:
        """Append markers, close the log, write the directory's other files."""
        disk, directory, replica = self.disk, plan.directory, plan.replica
        producers = log.active_producers()
        unfinished = [entry for entry in producers if entry.current_txn_first_offset >= 0]
        endings = [(entry, kind) for entry in unfinished if (kind := ending(replica.tp, entry)) is not None]
        epoch = max(_last_epoch_of(directory), replica.last_epoch, 0)
        for entry, kind in endings:
            log.append_batches(memoryview(self._marker(entry, kind, log.log_end_offset, epoch)))
        log.close()
        replace_file(disk, directory / names.PARTITION_METADATA, partition_metadata.encode(plan.topic_id))
        snapshot = log.snapshot()
        segments = [segment for segment in replica.snapshot.segments if not segment.is_remote]
        times = {segment.base_offset: segment.log.stat().st_mtime_ns for segment in segments}
        for segment in snapshot.segments:
            if segment.base_offset in times and segment.log.stat().st_nlink == 1:
                # Retention uses it if messages carry no timestamps.
                disk.set_mtime(segment.log.path, times[segment.base_offset])
        disk.sync_dir(directory)
        return Built(
            tp=replica.tp,
            log_start_offset=snapshot.log_start_offset,
            log_end_offset=snapshot.log_end_offset,
            size_bytes=snapshot.size_bytes,
            linked_bytes=linked,
            last_epoch=max(_last_epoch_of(directory), replica.last_epoch),
            greatest_producer_id=_greatest_producer_id(replica.path, snapshot),
            open_transactions=tuple(unfinished),
            aborted=tuple(entry for entry, kind in endings if kind is ControlType.ABORT),
            committed=tuple(entry for entry, kind in endings if kind is ControlType.COMMIT),
            producers=tuple(producers),
        )

    def _marker(self, entry: ProducerEntry, kind: ControlType, offset: int, leader_epoch: int) -> bytes:
        """The batch that ends a producer's open transaction (MemoryRecords.withEndTransactionMarker)."""
        fields = BatchFields(
            leader_epoch=leader_epoch,
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            transactional=True,
            control=True,
        )
        key = _MARKER_KEY.pack(0, kind)
        value = _MARKER.pack(0, max(entry.coordinator_epoch, 0))
        return encode_batch([Record(key, value, (), self.clock.now_ms())], base_offset=offset, fields=fields)

    def _copy_segment(self, segment: Segment, directory: Path, *, link: bool) -> int:
        """Link or copy a sealed segment; return the bytes that were linked."""
        target = directory / names.segment_file(segment.base_offset, FileKind.LOG)
        linked = link and not segment.is_remote and self._linked(segment.log.path, target)
        if not linked:
            self._copy_log(segment, directory, segment.size)
        if segment.is_remote:
            return 0  # recovery makes its indexes, like all indexes
        for kind in _COPIED_INDEXES:
            path = segment.path_of(kind)
            if exists(path):
                self._copy_file(path, directory / names.segment_file(segment.base_offset, kind), path.lstat().st_size)
        return segment.size if linked else 0

    def _linked(self, source: Path, target: Path) -> bool:
        try:
            self.disk.link(source, target)
        except OSError as error:
            if error.errno not in _CANNOT_LINK:
                raise
            return False
        return True

    def _copy_log(self, segment: Segment, directory: Path, size_bytes: int) -> None:
        """Copy the first bytes of a segment's .log, from a directory or a tier."""
        target = directory / names.segment_file(segment.base_offset, FileKind.LOG)
        if not segment.is_remote:
            self._copy_file(segment.log.path, target, size_bytes)
            return
        with opened(self.disk, target, create=True) as file:
            for position in range(0, size_bytes, _REMOTE_BYTES):
                data = segment.read(position, min(_REMOTE_BYTES, size_bytes - position))
                file.write_at(position, data)
                self.progress.advance(len(data))
            file.sync()

    def _copy_file(self, source: Path, target: Path, size_bytes: int) -> None:
        fd = open_quietly(source)
        try:
            copied = self.disk.copy(fd, target, size_bytes)
        finally:
            os.close(fd)
        if copied < size_bytes:
            raise OSError(errno.EIO, "the file became shorter while it was copied", str(source))
        with opened(self.disk, target) as file:
            file.sync()
        self.progress.advance(size_bytes)

    def _copy_small(self, source: Path, target: Path, name: str) -> None:
        content = read_whole(source / name, MOST_ENTRIES_BYTES)
        if content is not None:
            with opened(self.disk, target / name, create=True) as file:
                file.write_at(0, content)
                file.sync()

    def _make(self, directory: Path) -> None:
        """Make a partition's directory, anew after an attempt that failed."""
        if exists(directory):
            for path in paths_in(directory):
                self.disk.unlink(path)
        else:
            self.disk.mkdir(directory)


def check(plan: BuildPlan) -> None:
    """Read what `Building.build` would copy, and check it. CorruptBatch if the build would fail; OSError."""
    replica, end_offset = plan.replica, plan.cut.end_offset
    snapshot = replica.snapshot
    kept = _kept(snapshot, end_offset)
    recovery_point = _recovery_point(plan, kept)
    found = 0
    for segment in kept:
        is_last = segment is kept[-1]
        if not is_last and kept[kept.index(segment) + 1].base_offset <= recovery_point:
            continue
        size = _position_of(snapshot, segment, end_offset) if is_last else segment.size
        checked = check_segment(segment.log, segment.base_offset, size, ignore_batches, repeats=segment.repeats)
        found = max(checked.next_offset, segment.base_offset)
        if checked.invalid_bytes:
            raise damaged(replica, segment.log.path, checked.end, end_offset, found)
        if checked.unreadable is not None:
            raise damaged(replica, segment.log.path, checked.unreadable, end_offset, _UNREADABLE)
    found, expected = max(found, snapshot.log_start_offset), max(end_offset, snapshot.log_start_offset)
    if found != expected:
        raise damaged(replica, replica.path, None, expected, found)


def _kept(snapshot: LogSnapshot, end_offset: int) -> list[Segment]:
    return [
        segment
        for segment in snapshot.segments
        # Also an empty last segment: the log may end beyond the last batch.
        if segment.base_offset < end_offset or segment.base_offset == end_offset == snapshot.log_end_offset
    ]


def _recovery_point(plan: BuildPlan, kept: Sequence[Segment]) -> int:
    """The offset below which the source's owner had synced everything, so that segments can be linked."""
    replica = plan.replica
    if not plan.link or not kept or replica.epochs is None or any(segment.is_remote for segment in kept):
        return 0
    trusted = plan.cut.end_offset if replica.source.clean else replica.recovery_point
    return min(trusted, kept[-1].base_offset)


def damaged(replica: Replica, path: Path, position: int | None, expected: int, found: object) -> CorruptBatch:
    """The error for a replica that should have messages up to `expected`, but is readable only up to `found`."""
    return CorruptBatch(
        f"{replica.tp} is damaged",
        path=path if exists(path) else replica.path,  # a remote segment has no local file
        position=position,
        expected=f"messages up to offset {expected}",
        found=f"up to {found}" if isinstance(found, int) else found,
        advice=_ADVICE,
    )


def _position_of(snapshot: LogSnapshot, segment: Segment, end_offset: int) -> int:
    """The position after the last batch below `end_offset`."""
    end = snapshot.end_position(segment)
    if end_offset >= snapshot.log_end_offset or not end:
        return end
    position = segment.floor(end_offset - 1, end)
    for window in scan_batches(snapshot, segment, position):
        if window.damage is not None:
            break
        kept = int(window.table.last_offset.searchsorted(end_offset))
        if kept:
            position = int(window.table.end[kept - 1])
        if kept < window.table.rows:
            break
    return position


def _greatest_producer_id(source: Path, built: LogSnapshot) -> int:
    """The greatest in the batches of a log, and in all producer snapshots of its source; -1 if there is none.

    Linked segments are not read: the snapshots have their producers, except producers that had expired by then.
    """
    greatest = -1
    for offset in live_offsets(source, FileKind.PRODUCER_SNAPSHOT):
        with suppress(CorruptCheckpoint):
            read = producer_state.read(source / names.segment_file(offset, FileKind.PRODUCER_SNAPSHOT))
            if read is not None and len(read):
                greatest = max(greatest, int(read.table["producer_id"].max()))
    for segment in built.segments:
        if segment.log.stat().st_nlink == 1:
            for window in scan_batches(built, segment, 0):
                if window.table.rows:
                    greatest = max(greatest, int(window.table.producer_id.max()))
    return greatest


def _last_epoch_of(directory: Path) -> int:
    latest = leader_epochs.read(directory / names.LEADER_EPOCH_CHECKPOINT).latest_epoch
    return -1 if latest is None else latest

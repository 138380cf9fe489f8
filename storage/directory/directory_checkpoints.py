"""The offset checkpoints of a log directory that this process owns: what was in them, and what is written back.

Lines of partitions that were not opened are kept as they are. Sources: Kafka's LogManager
(checkpointRecoveryOffsetsInDir, checkpointLogStartOffsetsInDir), ReplicaManager (checkpointHighWatermarks).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Final

from storage.errors import CorruptCheckpoint
from storage.files import checkpoints, names
from storage.files.disk import replace_file
from storage.files.disk_protocol import Disk
from storage.files.small_files import read_whole
from storage.types import TopicPartition

RECOVERY_POINT = names.RECOVERY_POINT_CHECKPOINT
LOG_START = names.LOG_START_CHECKPOINT
HIGH_WATERMARK = names.REPLICATION_CHECKPOINT
CLEANER = names.CLEANER_CHECKPOINT
CHECKPOINTS = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)
_UNKNOWN: Final = b"unknown"  # no content that is ever written


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The checkpointed offsets of a partition; None: no line."""

    recovery_point: int | None
    log_start: int | None
    high_watermark: int | None


class DirectoryCheckpoints:
    """The checkpoint files of one log directory, the cleaner's included. Thread-safe. Errors: OSError.

    A file that does not parse counts as empty, as it does to a broker, and is in `problems`; it is replaced with the
    first write.
    """

    def __init__(self, disk: Disk, directory: Path) -> None:
        # Constant after construction.
        self._disk = disk
        self._directory = directory
        self.problems: list[CorruptCheckpoint] = []
        # Guarded by the lock.
        self._lock = Lock()
        self._lines: dict[str, dict[TopicPartition, int]] = {}
        self._written: dict[str, bytes | None] = {}
        for name in CHECKPOINTS:
            data = read_whole(directory / name)
            self._written[name] = data
            try:
                self._lines[name] = {} if data is None else checkpoints.parse(data, directory / name)
            except CorruptCheckpoint as error:
                self.problems.append(error)
                self._lines[name] = {}

    def of(self, tp: TopicPartition) -> PartitionOffsets:
        """The offsets of a partition."""
        with self._lock:
            return PartitionOffsets(
                self._lines[RECOVERY_POINT].get(tp), self._lines[LOG_START].get(tp), self._lines[HIGH_WATERMARK].get(tp)
            )

    def set(self, tp: TopicPartition, offsets: PartitionOffsets) -> None:
        """Sets what the next write stores for a partition; the cleaner's line is not affected."""
        with self._lock:
            for name, value in (
                (RECOVERY_POINT, offsets.recovery_point),
                (LOG_START, offsets.log_start),
                (HIGH_WATERMARK, offsets.high_watermark),
            ):
                if value is None:
                    self._lines[name].pop(tp, None)
                else:
                    self._lines[name][tp] = value

    def cleaner_offset(self, tp: TopicPartition) -> int | None:
        """The first offset that was not compacted yet."""
        with self._lock:
            return self._lines[CLEANER].get(tp)

    def set_cleaner_offset(self, tp: TopicPartition, offset: int) -> None:
        """Writes the cleaner's line of a partition."""
        with self._lock:
            self._lines[CLEANER][tp] = offset
            self._write_locked(CLEANER)

    def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """Removes all lines of these partitions, durably, so that they do not apply to later partitions of those
        names."""
        gone = set(partitions)
        with self._lock:
            for name in CHECKPOINTS:
                self._lines[name] = {tp: offset for tp, offset in self._lines[name].items() if tp not in gone}
                # Write even if no line was removed here: the file may still have a line that `set` dropped, or whose
                # removal could not be written.
                self._write_locked(name)

    def write(self) -> None:
        """Writes the files that changed, each as a whole; recovery points first.

        A log start offset is written after the recovery points and so may be too low after a crash: deleted messages
        are then there again, until the next retention. It is never too high.
        """
        with self._lock:
            for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK):
                self._write_locked(name)

    def _write_locked(self, name: str) -> None:
        data = checkpoints.encode(self._lines[name])
        before = self._written[name]
        # A file of 0 bytes means the same as one without lines: a broker leaves such files.
        if data == before or (not self._lines[name] and not before):
            return
        self._written[name] = _UNKNOWN  # if syncing the directory fails the file may have been replaced, or not
        replace_file(self._disk, self._directory / name, data)
        self._written[name] = data

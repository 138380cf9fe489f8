"""The leader epochs of a partition (leader-epoch-checkpoint): which leader wrote from which offset.

A checkpoint with lines `<epoch> <start offset>`, both ascending. Sources: Kafka's LeaderEpochCheckpointFile,
LeaderEpochFileCache.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from storage.files.checkpoints import encode_frame, malformed, parse_frame, parse_integer
from storage.files.small_files import read_whole
from storage.types import MAX_OFFSET

_MAX_INT32 = 2**31 - 1


class EpochEntry(NamedTuple):
    """The leader of `epoch` wrote the offsets from `start_offset` on."""

    epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class LeaderEpochs:
    """Entries, ascending in epoch and in start offset. Immutable: changes return a new object."""

    entries: tuple[EpochEntry, ...] = ()

    @property
    def latest_epoch(self) -> int | None:
        """The last leader's epoch; None when none is known."""
        return self.entries[-1].epoch if self.entries else None

    def epoch_at(self, offset: int) -> int | None:
        """The epoch of the leader that wrote `offset`; None below the first entry."""
        slot = bisect_right(self.entries, offset, key=lambda entry: entry.start_offset)
        return self.entries[slot - 1].epoch if slot else None

    def assign(self, entry: EpochEntry) -> LeaderEpochs:
        """The epochs with this entry at the end, without entries that it contradicts (LeaderEpochFileCache.assign)."""
        if self.entries:
            last = self.entries[-1]
            if entry.epoch == last.epoch and entry.start_offset >= last.start_offset:
                return self
        kept = self.entries
        while kept and (kept[-1].epoch >= entry.epoch or kept[-1].start_offset >= entry.start_offset):
            kept = kept[:-1]
        return LeaderEpochs((*kept, entry))

    def insert(self, entry: EpochEntry) -> LeaderEpochs:
        """The epochs with this entry inserted, if its epoch lies between the known epochs around its offset; an entry
        of the same epoch moves to this offset."""
        slot = bisect_right(self.entries, entry.start_offset, key=lambda entry: entry.start_offset)
        earlier = self.entries[slot - 1].epoch if slot else -1
        if slot == len(self.entries) or not earlier < entry.epoch <= self.entries[slot].epoch:
            return self
        slot += self.entries[slot].epoch == entry.epoch
        kept = bisect_left(self.entries, entry.start_offset, key=lambda entry: entry.start_offset)
        return LeaderEpochs((*self.entries[:kept], entry, *self.entries[slot:]))

    def truncate_from_end(self, end_offset: int) -> LeaderEpochs:
        """The epochs without the entries that start at or beyond `end_offset`
        (LeaderEpochFileCache.truncateFromEnd)."""
        return LeaderEpochs(tuple(entry for entry in self.entries if entry.start_offset < end_offset))

    def truncate_from_start(self, start_offset: int) -> LeaderEpochs:
        """The epochs from `start_offset` on: of the entries at or below it, only the last stays, moved there (as
        truncateFromStart does)."""
        slot = bisect_right(self.entries, start_offset, key=lambda entry: entry.start_offset)
        if not slot:
            return self
        return LeaderEpochs((EpochEntry(self.entries[slot - 1].epoch, start_offset), *self.entries[slot:]))


def parse(data: bytes, path: Path | None = None) -> LeaderEpochs:
    """The epochs in a checkpoint's bytes. As in a broker, where lines contradict each other the later one counts."""
    epochs = LeaderEpochs()
    for epoch, offset in parse_frame(data, 2, path):
        line = f"{epoch} {offset}"
        entry = EpochEntry(parse_integer(epoch, _MAX_INT32, line, path), parse_integer(offset, MAX_OFFSET, line, path))
        if entry.epoch < 0 or entry.start_offset < 0:
            raise malformed(line, path)
        epochs = epochs.assign(entry)
    return epochs


def encode(entries: Iterable[EpochEntry]) -> bytes:
    """The bytes of a leader epoch checkpoint."""
    return encode_frame(f"{entry.epoch} {entry.start_offset}" for entry in entries)


def read(path: Path) -> LeaderEpochs:
    """Reads a leader epoch checkpoint; empty when there is no file. CorruptCheckpoint as `parse`, or OSError."""
    data = read_whole(path)
    return LeaderEpochs() if data is None else parse(data, path)

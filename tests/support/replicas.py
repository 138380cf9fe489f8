"""A follower's partition: messages of leaders, with the epochs that a broker keeps of them, and truncations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from storage.files.leader_epochs import EpochEntry, LeaderEpochs, encode
from storage.format.block import Record
from storage.format.record_batch import BatchFields, encode_batch
from tests.support.live_log import START_MS, LiveLog


class Replica(LiveLog):
    """Partition 0 of the topic t in `log_dir`. Each message says its offset and the epoch of its leader, and ends as
    all others do. All have the key k.

    `checkpoint`: whether there is a leader-epoch-checkpoint. `spaces`: how many the next message has.
    """

    def __init__(self, log_dir: Path, *, checkpoint: bool = True, spaces: Callable[[], int] = lambda: 300) -> None:
        self.epoch = 1
        self.epochs = LeaderEpochs()
        self._checkpoint = checkpoint
        self._spaces = spaces
        super().__init__(log_dir, key_of=lambda _offset: b"k")

    def append(self, count: int) -> None:  # type: ignore[override]
        """Appends batches of one message each, written by the leader that there is."""
        self.epochs = self.epochs.assign(EpochEntry(self.epoch, self.next_offset))
        self._write_epochs()
        with self.log(self.segments[-1]).open("ab") as file:
            for offset in range(self.next_offset, self.next_offset + count):
                value = b"<%03d of %03d>" % (offset, self.epoch) + b" " * self._spaces() + b"</>"
                record = Record(b"k", value, ((b"constant", b"h" * 300),), START_MS)
                file.write(encode_batch([record], base_offset=offset, fields=BatchFields(leader_epoch=self.epoch)))
                self.messages.append((offset, START_MS, value))
        self.next_offset += count

    def leader_epoch_at(self, offset: int) -> int:
        epoch = self.epochs.epoch_at(offset)
        return -1 if epoch is None else epoch

    def elect(self) -> None:
        """What is appended from now on comes from another leader."""
        self.epoch += 1

    def truncate(self, offset: int) -> None:
        """As LiveLog; then there is another leader."""
        super().truncate(offset)
        self.epochs = self.epochs.truncate_from_end(offset)
        self._write_epochs()
        self.elect()

    def _write_epochs(self) -> None:
        if self._checkpoint:
            path = self.path / "leader-epoch-checkpoint"
            temporary = path.with_suffix(".tmp")
            temporary.write_bytes(encode(self.epochs.entries))
            temporary.replace(path)

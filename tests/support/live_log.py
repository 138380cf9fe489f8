"""A log that a test writes, rolls, retains, compacts and truncates while views of it are open, as a broker would."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.control_records import ControlType
from storage.format.record_batch import BatchFields, encode_batch
from tests.support.control_batches import marker_batch

START_MS = 1_700_000_000_000


class LiveLog:
    """A partition of a log directory. Messages are (offset, timestamp, value), by default a second apart.

    `key_of`: the key of the message at an offset; by default none has a key.
    """

    def __init__(
        self,
        log_dir: Path,
        codec: Codec = Codec.NONE,
        key_of: Callable[[int], bytes | None] = lambda _offset: None,
        partition: int = 0,
    ) -> None:
        self.path = log_dir / f"t-{partition}"
        self.path.mkdir(parents=True)
        self.codec = codec
        self.key_of = key_of
        self.next_offset = 0
        self.segments: list[int] = []
        self.messages: list[tuple[int, int, bytes]] = []
        self.open_messages: dict[int, list[tuple[int, int, bytes]]] = {}
        self.roll()

    def log(self, base: int) -> Path:
        return self.path / f"{base:020d}.log"

    def roll(self) -> None:
        self.segments.append(self.next_offset)
        self.log(self.next_offset).touch()

    def append(self, *values: bytes, timestamps: list[int] | None = None, batch: int = 0) -> None:
        step = batch or len(values)
        for first in range(0, len(values), step):
            part = values[first : first + step]
            stamps = [START_MS + 1000 * (self.next_offset + index) for index in range(len(part))]
            if timestamps is not None:
                stamps = timestamps[first : first + step]
            data = encode_batch(
                [
                    Record(self.key_of(self.next_offset + index), value, (), stamp)
                    for index, (value, stamp) in enumerate(zip(part, stamps, strict=True))
                ],
                base_offset=self.next_offset,
                codec=self.codec,
            )
            with self.log(self.segments[-1]).open("ab") as file:
                file.write(data)
            for value, stamp in zip(part, stamps, strict=True):
                self.messages.append((self.next_offset, stamp, value))
                self.next_offset += 1

    def write(self, count: int, size: int = 40, batch: int = 10) -> None:
        start = self.next_offset
        values = [b"%d %s" % (start + index, b"x" * (size + (start + index) % 7)) for index in range(count)]
        self.append(*values, batch=batch)

    def write_segments(self, *counts: int, size: int = 40, batch: int = 10) -> None:
        """Writes so many messages to one segment after the other, of which the last remains the active one."""
        for number, count in enumerate(counts):
            if number:
                self.roll()
            self.write(count, size=size, batch=batch)

    def begin(self, producer: int, *values: bytes) -> None:
        """Appends a batch of an open transaction. `text` does not include it until `end`."""
        data = encode_batch(
            [Record(self.key_of(self.next_offset + i), value, (), START_MS) for i, value in enumerate(values)],
            base_offset=self.next_offset,
            codec=self.codec,
            fields=BatchFields(producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True),
        )
        with self.log(self.segments[-1]).open("ab") as file:
            file.write(data)
        self.open_messages.setdefault(producer, []).extend(
            (self.next_offset + index, START_MS, value) for index, value in enumerate(values)
        )
        self.next_offset += len(values)

    def end(self, producer: int, *, commit: bool) -> None:
        """Appends the marker that ends a producer's transaction; `text` holds its messages if it is a commit."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        data = marker_batch(kind, producer, base_offset=self.next_offset, timestamp=START_MS)
        with self.log(self.segments[-1]).open("ab") as file:
            file.write(data)
        self.next_offset += 1
        messages = self.open_messages.pop(producer, [])
        if commit:
            self.messages = sorted(self.messages + messages)

    def text(self, wanted: Callable[[int, int], bool] = lambda _offset, _timestamp: True) -> bytes:
        """The content of `messages.txt` for the messages in the log."""
        return b"".join(value + b"\n" for offset, stamp, value in self.messages if wanted(offset, stamp))

    def retain(self, segments: int = 1) -> None:
        """Removes the oldest segments: renamed to `.deleted`, then unlinked."""
        for _ in range(segments):
            base = self.segments.pop(0)
            deleted = self.log(base).with_suffix(".log.deleted")
            self.log(base).rename(deleted)
            deleted.unlink()
        self.messages = [message for message in self.messages if message[0] >= self.segments[0]]

    def leader_epoch_at(self, _offset: int) -> int:
        """The leader epoch that a cleaned batch keeps."""
        return -1

    def compact(self, keep: Callable[[int], bool]) -> None:
        """Rewrites all but the active segment into one, keeping the messages whose offsets `keep` accepts."""
        old, self.segments = self.segments[:-1], [self.segments[0], self.segments[-1]]
        active = self.segments[-1]
        self.messages = [message for message in self.messages if message[0] >= active or keep(message[0])]
        cleaned = self.log(old[0]).with_suffix(".log.cleaned")
        with cleaned.open("wb") as file:
            for offset, stamp, value in self.messages:
                if offset < active:
                    record = Record(self.key_of(offset), value, (), stamp)
                    fields = BatchFields(leader_epoch=self.leader_epoch_at(offset))
                    file.write(encode_batch([record], base_offset=offset, codec=self.codec, fields=fields))
        swap = cleaned.with_suffix(".swap")
        cleaned.rename(swap)
        deleted = []
        for base in old:
            deleted.append(self.log(base).with_suffix(".log.deleted"))
            self.log(base).rename(deleted[-1])
        swap.rename(self.log(old[0]))
        for path in deleted:
            path.unlink()

    def truncate(self, offset: int) -> None:
        """Removes everything from the batch that holds `offset` on, as a follower does."""
        while self.segments[-1] > offset and len(self.segments) > 1:
            self.log(self.segments.pop()).unlink()
        path = self.log(self.segments[-1])
        data = path.read_bytes()
        position, end = 0, self.segments[-1]
        while position < len(data):
            base = int.from_bytes(data[position : position + 8], "big")
            size = int.from_bytes(data[position + 8 : position + 12], "big") + 12
            last = base + int.from_bytes(data[position + 23 : position + 27], "big")
            if last >= offset:
                break
            position, end = position + size, last + 1
        os.truncate(path, position)
        self.next_offset = end
        self.messages = [message for message in self.messages if message[0] < end]

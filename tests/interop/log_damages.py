"""Damages to a partition's directory, drawn from a seed: what crashes, disks and people leave.

A damage gets the partition as it was written and changes its files or its checkpointed offsets. `UNCLEAN` are for a
directory whose broker was killed, `CLEAN` for one with a clean-shutdown file.
"""

import inspect
import os
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

from storage.format.block import Record
from tests.support import raw_batches
from tests.support.builders import AUTOMATIC, Batch, BuiltPartition, Partition, build_partition


@dataclass(slots=True)
class DamagedLog:
    """A partition that is being damaged: its directory, what it held, and what the checkpoints say of it."""

    path: Path
    built: BuiltPartition
    recovery_point: int
    log_start: int | None
    dice: random.Random

    def any_log(self):
        return self.built.log(self.dice.randrange(len(self.built.segments)))

    def active_log(self):
        return self.built.log(len(self.built.segments) - 1)

    def sealed_log(self):
        """A segment that is not the last one, where there are several."""
        return self.built.log(self.dice.randrange(max(len(self.built.segments) - 1, 1)))

    def log_of(self, batch):
        return self.path / f"{batch.segment:020d}.log"

    def _flip(self, path):
        size = path.stat().st_size
        if size:
            at = self.dice.randrange(size)
            _replace(path, at, at + 1, bytes([path.read_bytes()[at] ^ 1 << self.dice.randrange(8)]))

    def lose(self, pattern, share=1.0):
        for path in sorted(self.path.glob(pattern)):
            if self.dice.random() < share:
                path.unlink()

    def replacement(self, sources_gone=0, *, cleaned_too=False):
        """A finished replacement of the first segments, by one with every other batch of theirs."""
        segments = self.built.segments[:-1]
        if len(segments) < 2:
            return
        count = self.dice.randrange(1, min(len(segments), 4) + 1)
        first = self.dice.randrange(len(segments) - count + 1)
        chosen = segments[first : first + count]
        batches = [batch for batch in self.built.batches if batch.segment in chosen]
        kept = batches[1::2] or batches
        base = chosen[0]
        if max(batch.stored.last_offset for batch in batches) - base >= 2**31:
            return
        for suffix in (".log", ".index", ".timeindex"):
            data = b"".join(batch.stored.data for batch in kept) if suffix == ".log" else b""
            (self.path / f"{base:020d}{suffix}.swap").write_bytes(data)
        for number in chosen[: min(sources_gone, count)]:
            for path in self.path.glob(f"{number:020d}.*"):
                if path.suffix not in (".swap", ".snapshot"):
                    path.rename(path.with_name(path.name + ".deleted"))
        if cleaned_too:
            (self.path / f"{base:020d}.log.cleaned").write_bytes(b"unfinished")


def _replace(path, start, end, data=b""):
    """The bytes from `start` to `end` become these."""
    before = path.read_bytes()
    path.write_bytes(before[:start] + data + before[end:])


def _append(path, data):
    with path.open("ab") as file:
        file.write(data)


class AnyDamages(DamagedLog):
    """Damages that a broker may find after a clean stop, too."""

    def flip_below_the_recovery_point(self):
        self.recovery_point = self.built.log_end_offset
        self._flip(self.sealed_log())

    def snapshot_damaged(self):
        for path in sorted(self.path.glob("*.snapshot")):
            if self.dice.random() < 0.7:
                at = self.dice.randrange(path.stat().st_size)
                _replace(path, at, at + 1, self.dice.randbytes(1))

    def snapshot_empty(self):
        for path in sorted(self.path.glob("*.snapshot"))[-2:]:
            path.write_bytes(b"")

    def stray_snapshots(self):
        source = next(iter(sorted(self.path.glob("*.snapshot"))), None)
        content = b"\0\1\x48\x67\x4b\xc7\0\0\0\0" if source is None else source.read_bytes()
        start, end = self.built.start_offset, self.built.log_end_offset
        for _ in range(3):
            offset = start + self.dice.randrange(3 * (end - start) + 9)
            (self.path / f"{offset:020d}.snapshot").write_bytes(content)

    def orphan_indexes(self):
        offset = self.built.log_end_offset + self.dice.randrange(3)
        for suffix in (".index", ".timeindex", ".txnindex"):
            if offset not in self.built.segments:
                (self.path / f"{offset:020d}{suffix}").write_bytes(self.dice.randbytes(self.dice.choice((0, 12, 48))))

    def unknown_files(self):
        (self.path / "notes.txt").write_bytes(b"mine")
        (self.path / "leader-epoch-checkpoint.tmp").write_bytes(b"0\n1\n")

    def cleaned_left(self):
        for suffix in (".log", ".index", ".timeindex"):
            source = self.sealed_log().with_suffix(suffix)
            shutil.copyfile(source, source.with_name(source.name + ".cleaned"))

    def deleted_left(self):
        for suffix in (".log", ".index", ".timeindex"):
            (self.path / f"{0:020d}{suffix}.deleted").write_bytes(self.dice.randbytes(100))

    def log_start_beyond(self):
        self.log_start = self.built.log_end_offset + self.dice.randrange(50)

    def log_start_inside(self):
        self.log_start = self.dice.randrange(self.built.start_offset, self.built.log_end_offset + 1)

    def segment_missing(self):
        base = self.dice.choice(self.built.segments)
        for path in self.path.glob(f"{base:020d}.*"):
            if path.suffix != ".snapshot":
                path.unlink()


class UncleanDamages(AnyDamages):
    """Damages to a log whose broker was killed."""

    def torn_tail(self):
        path = self.active_log()
        size = path.stat().st_size
        os.truncate(path, size - self.dice.randrange(1, 200) if size > 200 else 0)

    def cut_anywhere(self):
        path = self.any_log()
        os.truncate(path, self.dice.randrange(path.stat().st_size + 1))

    def flip_above_the_recovery_point(self):
        self.recovery_point = self.built.start_offset
        self._flip(self.any_log())

    def flip_in_a_header(self):
        if self.built.batches:
            batch = self.dice.choice(self.built.batches)
            self.recovery_point = self.dice.choice((0, batch.stored.last_offset + 1, self.built.log_end_offset))
            at = batch.position + self.dice.randrange(min(61, batch.size))
            _replace(self.log_of(batch), at, at + 1, self.dice.randbytes(1))

    def zeroed_range(self):
        path = self.any_log()
        self.recovery_point = self.dice.choice((0, self.recovery_point))
        size = path.stat().st_size
        start = self.dice.randrange(size + 1)
        end = min(start + self.dice.choice((1, 61, 500, 4096)), size)
        _replace(path, start, end, bytes(end - start))

    def last_batch_twice(self):
        for batch in self.built.batches[-1:]:
            _append(self.log_of(batch), batch.stored.data)

    def batches_swapped(self):
        pairs = zip(self.built.batches, self.built.batches[1:], strict=False)
        pairs = [(a, b) for a, b in pairs if a.segment == b.segment]
        if pairs:
            a, b = self.dice.choice(pairs)
            self.recovery_point = self.dice.choice((0, self.recovery_point))
            _replace(self.log_of(a), a.position, b.position + b.size, b.stored.data + a.stored.data)

    def batch_lost(self):
        """A batch in the middle is missing: its offsets become a gap."""
        if self.built.batches:
            batch = self.dice.choice(self.built.batches)
            self.recovery_point = 0
            _replace(self.log_of(batch), batch.position, batch.position + batch.size)

    def index_garbage(self):
        """Only where recovery rebuilds it: below the recovery point a broker believes it."""
        self.recovery_point = self.built.start_offset
        for path in self.path.glob(self.dice.choice(("*.index", "*.timeindex"))):
            garbage = self.dice.randbytes(self.dice.choice((0, 8, 12, 24, 25, 600)))
            path.write_bytes(self.dice.choice((garbage, bytes(path.stat().st_size))))

    def transaction_index_cut(self):
        for path in self.path.glob("*.txnindex"):
            os.truncate(path, self.dice.randrange(path.stat().st_size // 34 + 1) * 34)

    def recovery_point_beyond(self):
        self.recovery_point = self.built.log_end_offset + self.dice.randrange(1, 1000)

    def recovery_point_beyond_a_torn_tail(self):
        self.torn_tail()
        self.recovery_point = self.built.log_end_offset

    def epochs_beyond_the_end(self):
        path = self.path / "leader-epoch-checkpoint"
        lines = path.read_text().splitlines()[2:]
        last = int(lines[-1].split()[0]) if lines else -1
        lines.append(f"{last + 1} {self.built.log_end_offset + self.dice.randrange(9)}")
        path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))

    def offsets_too_far_for_a_segment(self):
        """A segment whose offsets exceed 31 bits above its base, as cleaners before Kafka 1.0.1 left them."""
        start = self.built.log_end_offset
        spec = Partition(
            [Batch([Record(b"k", b"v%d" % n, (), AUTOMATIC)], base_offset=start + n) for n in range(3)],
            start_offset=start,
        )
        apart = self.path.parent / f"{self.path.name}.apart"
        other = build_partition(apart, spec)
        data = other.log().read_bytes() + raw_batches.batch([raw_batches.record()], start + 2**31 + 5)
        shutil.rmtree(apart)
        _append(self.active_log(), data)
        if self.built.log_end_offset - self.built.segments[-1] > 2**30:
            return
        self.recovery_point = struct.unpack(">q", data[:8])[0]


def _damages(kind):
    """The damages of a class, by name."""
    return {name: it for name, it in inspect.getmembers(kind, inspect.isfunction) if not hasattr(DamagedLog, name)}


CLEAN = {
    **_damages(AnyDamages),
    "without": lambda log: log.lose(log.dice.choice(("*.index", "*.timeindex", "*.snapshot")), 0.6),
    "without_transaction_indexes": lambda log: log.lose("*.txnindex", 0.6),
    "without_any_index": lambda log: log.lose("*index"),
    "swap_left": lambda log: log.replacement(),
    "swap_and_sources_gone": lambda log: log.replacement(log.dice.randrange(1, 4)),
    "swap_and_cleaned": lambda log: log.replacement(cleaned_too=True),
    "epochs_missing": lambda log: log.lose("leader-epoch-checkpoint"),
    "no_segments": lambda log: log.lose("[0-9]*"),
}
UNCLEAN = {
    **CLEAN,
    **_damages(UncleanDamages),
    "zeros_at_the_end": lambda log: _append(log.active_log(), bytes(log.dice.choice((1, 12, 61, 4096, 70_000)))),
    "garbage_at_the_end": lambda log: _append(log.any_log(), log.dice.randbytes(log.dice.choice((1, 17, 61, 500)))),
    "empty_log": lambda log: log.any_log().write_bytes(b""),
}

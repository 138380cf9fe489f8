"""Damages to a partition's directory, drawn from a seed: what crashes, disks and people leave.

A damage gets the partition as it was written and changes its files or its checkpointed offsets. `UNCLEAN` are for a
directory whose broker was killed, `CLEAN` for one with a clean-shutdown file.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
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

    def edit(self, path, change):
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)


Damage = Callable[[DamagedLog], None]
UNCLEAN = {}
CLEAN = {}


def _unclean(damage):
    UNCLEAN[damage.__name__] = damage
    return damage


def _either(damage):
    CLEAN[damage.__name__] = damage
    return _unclean(damage)


def _flip(log, path):
    def change(data):
        if data:
            data[log.dice.randrange(len(data))] ^= 1 << log.dice.randrange(8)

    log.edit(path, change)


@_unclean
def torn_tail(log):
    path = log.active_log()
    size = path.stat().st_size
    log.edit(path, lambda data: data.__delitem__(slice(size - log.dice.randrange(1, 200) if size > 200 else 0, None)))


@_unclean
def cut_anywhere(log):
    path = log.any_log()
    log.edit(path, lambda data: data.__delitem__(slice(log.dice.randrange(len(data) + 1), None)))


@_unclean
def flip_above_the_recovery_point(log):
    log.recovery_point = log.built.start_offset
    _flip(log, log.any_log())


@_either
def flip_below_the_recovery_point(log):
    log.recovery_point = log.built.log_end_offset
    _flip(log, log.sealed_log())


@_unclean
def flip_in_a_header(log):
    if not log.built.batches:
        return
    batch = log.dice.choice(log.built.batches)
    log.recovery_point = log.dice.choice((0, batch.stored.last_offset + 1, log.built.log_end_offset))
    at = batch.position + log.dice.randrange(61)
    path = log.path / f"{batch.segment:020d}.log"
    log.edit(path, lambda data: data.__setitem__(min(at, len(data) - 1), log.dice.randrange(256)))


@_unclean
def zeroed_range(log):
    path = log.any_log()
    log.recovery_point = log.dice.choice((0, log.recovery_point))

    def change(data):
        start = log.dice.randrange(len(data) + 1)
        end = min(start + log.dice.choice((1, 61, 500, 4096)), len(data))
        data[start:end] = bytes(end - start)

    log.edit(path, change)


@_unclean
def zeros_at_the_end(log):
    log.edit(log.active_log(), lambda data: data.extend(bytes(log.dice.choice((1, 12, 61, 4096, 70_000)))))


@_unclean
def garbage_at_the_end(log):
    log.edit(log.any_log(), lambda data: data.extend(log.dice.randbytes(log.dice.choice((1, 17, 61, 500)))))


@_unclean
def last_batch_twice(log):
    if not log.built.batches:
        return
    batch = log.built.batches[-1]
    log.edit(log.path / f"{batch.segment:020d}.log", lambda data: data.extend(batch.stored.data))


@_unclean
def batches_swapped(log):
    pairs = [
        (a, b) for a, b in zip(log.built.batches, log.built.batches[1:], strict=False) if a.segment == b.segment
    ]  # fmt: skip
    if not pairs:
        return
    a, b = log.dice.choice(pairs)
    both = slice(a.position, b.position + b.size)
    log.recovery_point = log.dice.choice((0, log.recovery_point))
    log.edit(
        log.path / f"{a.segment:020d}.log",
        lambda data: data.__setitem__(both, b.stored.data + a.stored.data),
    )


@_unclean
def batch_lost(log):
    """A batch in the middle is missing: its offsets become a gap."""
    if not log.built.batches:
        return
    batch = log.dice.choice(log.built.batches)
    log.recovery_point = 0
    log.edit(
        log.path / f"{batch.segment:020d}.log",
        lambda data: data.__delitem__(slice(batch.position, batch.position + batch.size)),
    )


def _without(suffix):
    def damage(log):
        for path in sorted(log.path.glob(f"*{suffix}")):
            if log.dice.random() < 0.6:
                path.unlink()

    return damage


for _suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
    UNCLEAN[f"without{_suffix}"] = CLEAN[f"without{_suffix}"] = _without(_suffix)


@_either
def without_any_index(log):
    for path in list(log.path.glob("*index")):
        path.unlink()


@_unclean
def index_garbage(log):
    """Only where recovery rebuilds it: below the recovery point a broker believes it."""
    log.recovery_point = log.built.start_offset
    for path in log.path.glob(log.dice.choice(("*.index", "*.timeindex"))):
        path.write_bytes(log.dice.randbytes(log.dice.choice((0, 8, 12, 24, 25, 600))))


@_unclean
def index_zeroed(log):
    log.recovery_point = log.built.start_offset
    for path in log.path.glob(log.dice.choice(("*.index", "*.timeindex"))):
        path.write_bytes(bytes(path.stat().st_size))


@_unclean
def transaction_index_cut(log):
    for path in log.path.glob("*.txnindex"):
        log.edit(path, lambda data: data.__delitem__(slice(log.dice.randrange(len(data) // 34 + 1) * 34, None)))


@_either
def snapshot_damaged(log):
    for path in sorted(log.path.glob("*.snapshot")):
        if log.dice.random() < 0.7:
            log.edit(path, lambda data: data.__setitem__(log.dice.randrange(len(data)), log.dice.randrange(256)))


@_either
def snapshot_empty(log):
    for path in sorted(log.path.glob("*.snapshot"))[-2:]:
        path.write_bytes(b"")


@_either
def stray_snapshots(log):
    source = next(iter(sorted(log.path.glob("*.snapshot"))), None)
    content = b"\0\1\x48\x67\x4b\xc7\0\0\0\0" if source is None else source.read_bytes()
    start, end = log.built.start_offset, log.built.log_end_offset
    for _ in range(3):
        offset = start + log.dice.randrange(3 * (end - start) + 9)
        (log.path / f"{offset:020d}.snapshot").write_bytes(content)


@_either
def orphan_indexes(log):
    offset = log.built.log_end_offset + log.dice.randrange(3)
    for suffix in (".index", ".timeindex", ".txnindex"):
        if offset not in log.built.segments:
            (log.path / f"{offset:020d}{suffix}").write_bytes(log.dice.randbytes(log.dice.choice((0, 12, 48))))


@_either
def unknown_files(log):
    (log.path / "notes.txt").write_bytes(b"mine")
    (log.path / "leader-epoch-checkpoint.tmp").write_bytes(b"0\n1\n")


@_either
def cleaned_left(log):
    for suffix in (".log", ".index", ".timeindex"):
        source = log.sealed_log().with_suffix(suffix)
        shutil.copyfile(source, source.with_name(source.name + ".cleaned"))


@_either
def deleted_left(log):
    for suffix in (".log", ".index", ".timeindex"):
        (log.path / f"{0:020d}{suffix}.deleted").write_bytes(log.dice.randbytes(100))


def _replacement(log, *, sources_gone, cleaned_too=False):
    """A finished replacement of the first segments, by one with every other batch of theirs."""
    segments = log.built.segments[:-1]
    if len(segments) < 2:
        return
    count = log.dice.randrange(1, min(len(segments), 4) + 1)
    first = log.dice.randrange(len(segments) - count + 1)
    chosen = segments[first : first + count]
    batches = [batch for batch in log.built.batches if batch.segment in chosen]
    kept = batches[1::2] or batches
    base = chosen[0]
    if max(batch.stored.last_offset for batch in batches) - base >= 2**31:
        return
    swap = log.path / f"{base:020d}.log.swap"
    swap.write_bytes(b"".join(batch.stored.data for batch in kept))
    for suffix in (".index", ".timeindex"):
        swap.with_name(f"{base:020d}{suffix}.swap").write_bytes(b"")
    for number in chosen[: min(sources_gone, count)]:
        for path in log.path.glob(f"{number:020d}.*"):
            if path.suffix not in (".swap", ".snapshot"):
                path.rename(path.with_name(path.name + ".deleted"))
    if cleaned_too:
        swap.with_name(f"{base:020d}.log.cleaned").write_bytes(b"unfinished")


@_either
def swap_left(log):
    _replacement(log, sources_gone=0)


@_either
def swap_and_sources_gone(log):
    _replacement(log, sources_gone=log.dice.randrange(1, 4))


@_either
def swap_and_cleaned(log):
    _replacement(log, sources_gone=0, cleaned_too=True)


@_unclean
def recovery_point_beyond(log):
    log.recovery_point = log.built.log_end_offset + log.dice.randrange(1, 1000)


@_unclean
def recovery_point_beyond_a_torn_tail(log):
    torn_tail(log)
    log.recovery_point = log.built.log_end_offset


@_either
def log_start_beyond(log):
    log.log_start = log.built.log_end_offset + log.dice.randrange(50)


@_either
def log_start_inside(log):
    log.log_start = log.dice.randrange(log.built.start_offset, log.built.log_end_offset + 1)


@_either
def segment_missing(log):
    base = log.dice.choice(log.built.segments)
    for path in log.path.glob(f"{base:020d}.*"):
        if path.suffix != ".snapshot":
            path.unlink()


@_either
def no_segments(log):
    for path in list(log.path.iterdir()):
        if path.name[0].isdigit():
            path.unlink()


@_unclean
def empty_log(log):
    log.any_log().write_bytes(b"")


@_either
def epochs_missing(log):
    (log.path / "leader-epoch-checkpoint").unlink()


@_unclean
def epochs_beyond_the_end(log):
    path = log.path / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()[2:]
    last = int(lines[-1].split()[0]) if lines else -1
    lines.append(f"{last + 1} {log.built.log_end_offset + log.dice.randrange(9)}")
    path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))


@_unclean
def offsets_too_far_for_a_segment(log):
    """A segment whose offsets exceed 31 bits above its base, as cleaners before Kafka 1.0.1 left them."""
    start = log.built.log_end_offset
    spec = Partition(
        [Batch([Record(b"k", b"v%d" % n, (), AUTOMATIC)], base_offset=start + n) for n in range(3)], start_offset=start
    )
    apart = log.path.parent / f"{log.path.name}.apart"
    other = build_partition(apart, spec)
    data = other.log().read_bytes() + raw_batches.batch([raw_batches.record()], start + 2**31 + 5)
    shutil.rmtree(apart)
    active = log.active_log()
    log.edit(active, lambda own: own.extend(data))
    if log.built.log_end_offset - log.built.segments[-1] > 2**30:
        return
    log.recovery_point = struct.unpack(">q", data[:8])[0]

"""What a broker made of a directory, against what the engine made of a copy: files, batches, snapshots."""

import struct
import time
from typing import NamedTuple

import numpy as np

from storage.format.batches import Column
from storage.types import TopicPartition
from tests.interop.kafka import BROKER_VERSION
from tests.support.readers import table_of

_EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms
# Why a broker does otherwise (storage/DESIGN.md, "Where we differ from a broker").
FORGOTTEN = "recovery of segments below the log start: a broker forgets the producers before each of them"
BELOW_START = "snapshots at or below the log start, which the next opening removes"
ABORTED_BELOW_START = "compaction: a broker does not know transactions that were aborted below the log start"
EMPTY_AT_THE_END = "compaction: from 4.4 on a broker keeps no batch without records at the end of a round"
# What another encoder makes of the same records may have other bytes, and horizons are of the moment of the pass.
_OF_THE_ENCODER = (Column.POSITION, Column.SIZE, Column.CRC, Column.BASE_TIMESTAMP)


class Difference(NamedTuple):
    """One thing that the two do not agree about. `reason`: why, if that is known."""

    tp: TopicPartition
    what: str
    broker: object
    ours: object
    reason: str | None = None

    def __str__(self):
        return f"{self.tp}: {self.what}: broker {_short(self.broker)}, kafkafs {_short(self.ours)}"


def _short(value):
    text = repr(value)
    return text if len(text) < 300 else f"{text[:200]} … {len(text)} characters"


def segment_files(directory):
    """The segments' files and snapshots, without those that await deletion."""
    return {path.name: path.read_bytes() for path in directory.glob("[0-9]*") if path.suffix != ".deleted"}


def different_files(tp, broker, ours, log_start=0):
    """Byte for byte; of the leader epochs all but the one that the broker has begun after the recovery.

    `log_start`: of what is below it a broker may know less (FORGOTTEN).
    """
    theirs, mine = segment_files(broker / tp.dir_name), segment_files(ours / tp.dir_name)
    found = []
    if theirs.keys() != mine.keys():
        only = sorted(theirs.keys() - mine.keys()), sorted(mine.keys() - theirs.keys())
        below = all(
            name.endswith(".snapshot") and int(name.partition(".")[0]) <= log_start for names in only for name in names
        )
        found.append(Difference(tp, "files", *only, BELOW_START if below else None))
    for name in theirs.keys() & mine.keys():
        if theirs[name] != mine[name] and not _same_producers(name, theirs[name], mine[name], log_start):
            forgotten = _forgotten_transactions(name, theirs[name], mine[name], log_start)
            difference = _first_difference(theirs[name], mine[name])
            found.append(Difference(tp, name, *difference, FORGOTTEN if forgotten else None))
    begun, epochs = (_epochs(where / tp.dir_name) for where in (broker, ours))
    # An epoch takes the place of those that begin where it does (LeaderEpochFileCache.assign).
    if begun[:-1] != [
        entry for entry in epochs if not begun or all(a < b for a, b in zip(entry, begun[-1], strict=True))
    ]:
        found.append(Difference(tp, "leader epochs", begun, epochs))
    return found


def _first_difference(theirs, mine):
    """Sizes, and the bytes around the first that differs."""
    at = next((n for n, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a != b), min(len(theirs), len(mine)))
    start = max(at - at % 4 - 4, 0)
    return tuple(f"{len(data)} bytes, at {start}: {data[start : start + 40].hex(' ', 4)}" for data in (theirs, mine))


def _same_producers(name, theirs, mine, log_start):
    """Whether two snapshots have the same entries: their order is free."""
    if not name.endswith(".snapshot"):
        return False
    a, b = producers_in(theirs, log_start), producers_in(mine, log_start)
    return a.keys() == b.keys() and all(_same_producer(a[key], b[key], log_start) for key in a)


def producers_in(data, log_start):
    """The entries by producer id: what nothing takes away, the coordinator's epoch and where a transaction began. Those
    that have not expired, because when a producer is forgotten depends on when a log was opened, and whose last batch
    is at `log_start` or above."""
    now_ms = time.time() * 1000
    found = {}
    for at in range(10, len(data), 46):
        last_offset, _, timestamp, coordinator_epoch, transaction = struct.unpack_from(">qiqiq", data, at + 14)
        if last_offset < log_start:
            continue
        if transaction >= 0 or now_ms - timestamp < _EXPIRATION_MS:
            found[data[at : at + 8]] = (data[at : at + 34], coordinator_epoch, transaction)
    return found


def _same_producer(theirs, mine, log_start):
    """A broker forgets what markers below the log start have told."""
    same_epoch = theirs[1] == mine[1] or (theirs[1] == -1 and log_start > 0)
    return theirs[0] == mine[0] and same_epoch and (theirs[2] == mine[2] or 0 <= mine[2] < log_start)


def _forgotten_transactions(name, theirs, mine, log_start):
    """Whether a broker's transaction index lacks only what began below the log start: transactions, or their first
    batches. (Which transaction was open at a marker depends on them too.)"""
    if not name.endswith(".txnindex"):
        return False
    a, b = (_aborted(data) for data in (theirs, mine))
    return a.keys() <= b.keys() and all(a.get(key) == first for key, first in b.items() if first >= log_start)


def _aborted(data):
    """The first offset by producer id and last offset."""
    entries = (struct.unpack_from(">qqq", data, at + 2) for at in range(0, len(data), 34))
    return {(producer, last): first for producer, first, last in entries}


def _epochs(directory):
    path = directory / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]


def different_compacted(tp, broker, ours, log_start, round_end):
    """Segments by name, batches by their headers, uncompressed ones byte for byte where no horizon is in them.

    `round_end` (excluded): where the round of cleaning ended (EMPTY_AT_THE_END).
    """
    theirs, mine = (
        {name: data for name, data in segment_files(where / tp.dir_name).items() if name.endswith(".log")}
        for where in (broker, ours)
    )
    if theirs.keys() != mine.keys():
        return [Difference(tp, "compacted segments", sorted(theirs), sorted(mine))]
    found = []
    for name in theirs:
        tables = table_of(theirs[name]), table_of(mine[name])
        different = _different_batches(*tables)
        if different is not None:
            reason = None
            if _different_batches(*tables, log_start) is None:
                reason = ABORTED_BELOW_START
            elif BROKER_VERSION >= "4.4" and _different_batches(*tables, empty_end=round_end) is None:
                reason = EMPTY_AT_THE_END
            found.append(Difference(tp, f"{name}: {different[0]}", *different[1:], reason))
    return found


def _different_batches(theirs, mine, start=0, empty_end=-1):
    """The first thing that differs in the headers of batches that reach `start`, and both; but for batches without
    records whose next offset is `empty_end`."""
    pair = [
        (table, (table.last_offset >= start) & ((table.count != 0) | (table.last_offset + 1 != empty_end)))
        for table in (theirs, mine)
    ]
    counts = [int(chosen.sum()) for _, chosen in pair]
    if counts[0] != counts[1]:
        return "batches", *counts
    for column in Column:
        if column not in _OF_THE_ENCODER:
            a, b = (table.data[column, : table.rows][chosen].tolist() for table, chosen in pair)
            if a != b:
                return column.name, a, b
    same = (theirs.codec == 0) & ~np.asarray(theirs.has_delete_horizon, dtype=bool)
    a, b = (table.crc[: table.rows][chosen][same[: theirs.rows][pair[0][1]]].tolist() for table, chosen in pair)
    return ("CRCs", a, b) if a != b else None

"""What an open log knows and has written down, compared with what was done to it, while nobody works on it: the list of
states is in the package. Recovery repairs most of what is wrong here, so that later nothing could be seen of it."""

from __future__ import annotations

import struct
from bisect import bisect_right

from storage.files import leader_epochs, names, producer_state
from storage.files.names import FileKind
from storage.format.batches import BatchTable, scan
from tests.simulation.copies import Producer, epochs_of, producers_of
from tests.simulation.world import Anomaly

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED = struct.Struct(">18xq8x")  # of an entry of a .txnindex: the offset of its marker


class ActiveIndexes:
    """The index files of a segment that is being written, by Kafka's arithmetic (storage/DESIGN.md, "Index files")."""

    def __init__(self, log, known):
        """A segment that was just opened, with what its files hold, or begun; `known`: its greatest timestamp, and the
        offset."""
        self.base = log._active.base_offset
        self._interval = log._active._state._interval_bytes
        self._offsets, self._times = self._contents(log)
        self._before = None  # without a final time entry that a failed call has written
        self._bytes = 0
        entry = self._last_time()
        self._largest = known if known[0] > entry[0] else entry

    def appended(self, log, batch):
        """The indexes after a batch, which may be the first of another segment."""
        indexes = self
        if log._active.base_offset != self.base:
            indexes = ActiveIndexes(log, (-1, 0))
            indexes._offsets, indexes._times = b"", b""
        indexes._add(batch, log._active.size - batch.size)
        return indexes

    def _add(self, batch, position):
        if batch.timestamp > self._largest[0]:
            self._largest = batch.timestamp, batch.last
        if self._bytes > self._interval:
            self._offsets += _OFFSET_ENTRY.pack(batch.last - self.base, position)
            if self._largest[0] > self._last_time()[0]:
                self._times += self._final()
            self._bytes = 0
        self._bytes += batch.size

    def check(self, log, *, failed):
        """After each call. One that failed while it rolled the log may have written the final time entry, or a part of
        it, which the next one removes or overwrites. `failed`: one may have."""
        offsets, times = self._contents(log)
        if failed and times == self._times + self._final() and self._largest[0] > self._last_time()[0]:
            self._before, self._times = self._times, times
        elif self._before is not None and len(times) < len(self._times):
            added = self._times[len(self._before) + _TIME_ENTRY.size :]  # by a batch since then
            self._times, self._before = self._before + added, None
        if failed and len(times) < len(self._times) + _TIME_ENTRY.size:
            times = times[: len(self._times)]
        if (offsets, times) != (self._offsets, self._times):
            raise Anomaly(
                f"index of {log.tp} at {self.base}: entries {offsets.hex()} {times.hex()}, "
                f"expected {self._offsets.hex()} {self._times.hex()}"
            )

    def _final(self):
        return _TIME_ENTRY.pack(self._largest[0], self._largest[1] - self.base)

    def _last_time(self):
        if not self._times:
            return -1, self.base
        timestamp, offset = _TIME_ENTRY.unpack(self._times[-_TIME_ENTRY.size :])
        return timestamp, offset + self.base

    @staticmethod
    def _contents(log):
        _, offsets, times = log._active.paths()
        return offsets.read_bytes(), times.read_bytes()


def check_largest(log, batches):
    """A segment that was opened knows its greatest timestamp: the next time entry has it."""
    expected = max((batch.timestamp for batch in batches if batch.base >= log._active.base_offset), default=-1)
    found = log._active._state.largest.timestamp
    if found != expected:
        raise Anomaly(f"index of {log.tp} at {log._active.base_offset}: its greatest time is {found}, not {expected}")


def check_log(log, disk, *, failed):
    """Of any log: its ends, that no leader epoch begins below it, and that what it counts as durable is. `failed`: a
    call may have failed. Nothing of a log that is being changed."""
    if log._lock.locked():
        return
    start, end = log.log_start_offset, log.log_end_offset
    base = log._snapshot_locked().segments[0].base_offset
    if not base <= start <= end:
        raise Anomaly(f"log start: {log.tp} begins at {start} and ends at {end}")
    below = [entry for entry in log._epochs.entries if entry.start_offset < base]
    if disk.was_killed:  # a broker too moves the first entry up to the checkpoint's log start alone
        below = below[:-1]
    if below and not failed:
        raise Anomaly(f"leader epochs: {log.tp} has {below}, and its first segment begins at {base}")
    check_durable(log.path, log.recovery_point, disk, "recovery point")


def check_copy(log, copy, disk, *, failed):
    """Of a follower's log as well: start, leader epochs, producers. `failed`: a call may have failed."""
    check_log(log, disk, failed=failed)
    if log.log_start_offset != min(copy.start, log.log_end_offset):
        raise Anomaly(f"log start: {log.tp} begins at {log.log_start_offset}, expected {copy.start}")
    written = leader_epochs.read(log.path / names.LEADER_EPOCH_CHECKPOINT)
    if written != log._epochs and not failed:
        raise Anomaly(f"leader epochs: {log.tp} has {log._epochs}, and on disk {written}")
    beyond = [entry for entry in written.entries if entry.start_offset >= log.log_end_offset > log.log_start_offset]
    if beyond and not failed:
        raise Anomaly(f"leader epochs: {log.tp} ends at {log.log_end_offset}, and has {beyond}")
    check_epochs(str(log.tp), log._epochs, copy.batches, log.log_start_offset, log.log_end_offset)
    check_producers(str(log.tp), log._producers.entries(), copy.batches, log.log_start_offset, disk.latest_ms)


def check_epochs(name, epochs, batches, start, end):
    """Each batch is in its leader's epoch, and no other epoch begins among them."""
    batches = [batch for batch in batches if batch.last >= start]
    if not batches:
        return
    first = max(start, batches[0].base)
    expected = [(batches[0].epoch, first), *(entry for entry in epochs_of(batches) if entry[1] > first)]
    entries = epochs.entries
    slot = bisect_right(entries, first, key=lambda entry: entry.start_offset) - 1
    found = [] if slot < 0 else [(entries[slot].epoch, first)]
    found += [(entry.epoch, entry.start_offset) for entry in entries[slot + 1 :] if entry.start_offset < end]
    if found != expected:
        raise Anomaly(f"leader epochs: {name} has {found}, expected {expected}")


def check_producers(name, found, batches, start, latest_ms):
    """What a log, or a snapshot, knows of its producers. What they wrote below the log start may be forgotten, and who
    has written nothing for long, unless a transaction is open. `latest_ms`: the time by the latest clock."""
    expected = producers_of(batches)
    known = {
        one.producer_id: Producer(one.last_sequence, one.last_offset, one.current_txn_first_offset, one.timestamp)
        for one in found
    }
    for producer in expected.keys() | known.keys():
        wanted, is_now = expected.get(producer), known.get(producer)
        if wanted is not None and (wanted.last_offset < start or wanted.may_be_forgotten(latest_ms)):
            wanted = wanted if is_now is not None and wanted.last_offset < start else is_now
        if wanted == is_now or (wanted is not None and wanted._replace(wrote_ms=-1) == is_now):
            continue
        raise Anomaly(f"producers: {name} has {is_now} of {producer}, expected {wanted}")


def check_snapshot(log, batches, base):
    """A roll has left the snapshot that belongs to its segment."""
    path = log.path / names.segment_file(base, FileKind.PRODUCER_SNAPSHOT)
    snapshot = producer_state.read(path)
    if snapshot is None:
        raise Anomaly(f"producers: {log.tp} was rolled at {base} without a snapshot")
    before = [batch for batch in batches if batch.last < base]
    check_producers(path.name, snapshot.entries(), before, log.log_start_offset, log._clock.latest_ms)


def check_durable(directory, recovery_point, disk, what):
    """All messages below a recovery point are on the disk, whatever happens now. (While a cleaner's segment gets its
    name, they are there under another one.)"""
    if disk.has_unsynced_names(directory, ".swap"):
        return
    for path, next_base in _segments(directory):
        base = int(path.stem)
        if base >= recovery_point:
            return
        data = path.read_bytes()
        end = len(data) if next_base is not None and next_base <= recovery_point else _end_below(data, recovery_point)
        durable = disk.durable_file(path)
        if durable is None or durable[:end] != data[:end]:
            raise Anomaly(f"{what}: {recovery_point} of {directory.name}, and {path.name} is not on disk up to it")
        if next_base is not None and next_base <= recovery_point and durable != data:
            raise Anomaly(f"{what}: {recovery_point} of {directory.name}, and {path.name} goes on behind its end")
        _check_durable_transactions(path.with_suffix(".txnindex"), recovery_point, disk, what)


def _check_durable_transactions(path, recovery_point, disk, what):
    """The aborted transactions that end below a recovery point are on the disk, too, and no others."""
    if not path.exists() and disk.durable_file(path) is None:
        return
    written, durable = path.read_bytes() if path.exists() else b"", disk.durable_file(path) or b""
    below = sum(_ABORTED.unpack(entry)[0] < recovery_point for entry in _entries(written))
    if durable[: below * _ABORTED.size] != written[: below * _ABORTED.size] or any(
        _ABORTED.unpack(entry)[0] < recovery_point for entry in _entries(durable)[below:]
    ):
        raise Anomaly(f"{what}: {recovery_point} of {path.parent.name}, and {path.name} is not on disk up to it")


def _entries(data):
    size = _ABORTED.size
    return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]


def check_reaches(directory, recovery_point, what):
    """The log that a loss of power has left goes up to a recovery point, without damage."""
    end = 0
    for path, next_base in _segments(directory):
        base, data = int(path.stem), path.read_bytes()
        table = BatchTable.empty(4096)
        scan(memoryview(data), 0, table, 0, len(data))
        whole = not data or (table.rows and int(table.end[table.rows - 1]) == len(data))
        if next_base is not None and next_base <= recovery_point and not whole:
            raise Anomaly(f"{what}: {recovery_point} of {directory.name}, and {path.name} is damaged")
        # Behind the recovery point there may be half a batch, which looks like one of other offsets.
        end = max(end, base, *(table.last_offset[: table.rows] + 1).tolist())
    if end < recovery_point:
        raise Anomaly(f"{what}: {recovery_point} of {directory.name}, which ends at {end}")


def _segments(directory):
    paths = sorted(directory.glob("*.log"))
    bases = [int(path.stem) for path in paths]
    return list(zip(paths, [*bases[1:], None], strict=True)) if paths else []


def _end_below(data, offset):
    """Where in a segment the last batch ends that is below an offset."""
    table = BatchTable.empty(4096)
    scan(memoryview(data), 0, table, 0, len(data))
    rows = int(table.last_offset[: table.rows].searchsorted(offset))
    return int(table.end[rows - 1]) if rows else 0

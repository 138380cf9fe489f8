"""What an open log knows and has written down, compared with what was done to it, while nobody works on it: the list of
states is in the package. Recovery repairs most of what is wrong here, so that later nothing could be seen of it."""

import struct
from bisect import bisect_left, bisect_right

from storage.files import leader_epochs, names, producer_state
from storage.files.names import FileKind
from tests.simulation.contents import Anomaly, segments_of
from tests.simulation.copies import Producer, epochs_of, producers_of

_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
_ABORTED = struct.Struct(">18xq8x")  # of an entry of a .txnindex: the offset of its marker


class ActiveIndexes:
    """The index files of a segment that is being written, by Kafka's arithmetic (storage/DESIGN.md, "Index files")."""

    def __init__(self, log, base, interval_bytes, *, is_new=False):
        """Of a segment that was just opened, with what its files hold, or begun (`is_new`)."""
        self.base = base
        self._interval_bytes = interval_bytes
        self._offsets, self._times = (b"", b"") if is_new else self._contents(log)
        self._before = None  # without a final time entry that a failed call has written
        self._bytes = 0
        self._largest = self._last_time()

    def appended(self, batch, position):
        """A batch was appended, at this position of the .log."""
        if batch.timestamp > self._largest[0]:
            self._largest = batch.timestamp, batch.last
        if self._bytes > self._interval_bytes:
            self._offsets += _OFFSET_ENTRY.pack(batch.last - self.base, position)
            if self._largest[0] > self._last_time()[0]:
                self._times += self._final()
            self._bytes = 0
        self._bytes += batch.size

    def problem(self, log, *, failed):
        """After each call: what is wrong, None if nothing is. A call that failed while it rolled the log may have
        written the final time entry, or a part of it, which the next one removes or overwrites. `failed`: one may
        have."""
        offsets, times = self._contents(log)
        if failed and times == self._times + self._final() and self._largest[0] > self._last_time()[0]:
            self._before, self._times = self._times, times
        elif self._before is not None and len(times) < len(self._times):
            added = self._times[len(self._before) + _TIME_ENTRY.size :]  # by a batch since then
            self._times, self._before = self._before + added, None
        if failed and len(times) < len(self._times) + _TIME_ENTRY.size:
            times = times[: len(self._times)]
        if (offsets, times) == (self._offsets, self._times):
            return None
        expected = f"expected {self._offsets.hex()} {self._times.hex()}"
        return f"index of {log.tp} at {self.base}: entries {offsets.hex()} {times.hex()}, {expected}"

    def check_largest(self, batches):
        """The last time entry of a segment that was opened has its greatest timestamp."""
        expected = max((batch.timestamp for batch in batches if batch.base >= self.base), default=-1)
        if self._largest[0] != expected:
            raise Anomaly(f"index at {self.base}: its greatest time is {self._largest[0]}, not {expected}")

    def _final(self):
        return _TIME_ENTRY.pack(self._largest[0], self._largest[1] - self.base)

    def _last_time(self):
        if not self._times:
            return -1, self.base
        timestamp, offset = _TIME_ENTRY.unpack(self._times[-_TIME_ENTRY.size :])
        return timestamp, offset + self.base

    def _contents(self, log):
        kinds = FileKind.OFFSET_INDEX, FileKind.TIME_INDEX
        return tuple((log.path / names.segment_file(self.base, kind)).read_bytes() for kind in kinds)


def check_log(log, disk, *, failed):
    """Of any log: its ends, that no leader epoch begins below it, and that what it counts as durable is. `failed`: a
    call may have failed. Returns its snapshot; raises Held while the log is being changed."""
    snapshot = log.snapshot()
    start, end = snapshot.log_start_offset, snapshot.log_end_offset
    base = snapshot.segments[0].base_offset
    if not base <= start <= end:
        raise Anomaly(f"log start: {log.tp} begins at {start} and ends at {end}")
    below = [entry for entry in snapshot.epochs.entries if entry.start_offset < base]
    # A kill between the removal of segments and that of their epochs leaves all of these: a broker that starts, too,
    # removes only what is below the checkpoint's log start.
    if below and not (failed or disk.was_killed):
        raise Anomaly(f"leader epochs: {log.tp} has {below}, and its first segment begins at {base}")
    check_durable(log.path, log.recovery_point, disk, "recovery point")
    return snapshot


def check_copy(log, copy, world):
    """Of a follower's log as well: start, leader epochs, producers."""
    failed = bool(world.faults)
    snapshot = check_log(log, world.disk, failed=failed)
    start, end, epochs = snapshot.log_start_offset, snapshot.log_end_offset, snapshot.epochs
    if start != min(copy.start, end):
        raise Anomaly(f"log start: {log.tp} begins at {start}, expected {copy.start}")
    written = leader_epochs.read(log.path / names.LEADER_EPOCH_CHECKPOINT)
    if written != epochs and not failed:
        raise Anomaly(f"leader epochs: {log.tp} has {epochs}, and on disk {written}")
    beyond = [entry for entry in written.entries if entry.start_offset >= end > start]
    if beyond and not failed:
        raise Anomaly(f"leader epochs: {log.tp} ends at {end}, and has {beyond}")
    check_epochs(log.tp, epochs, copy.batches, start, end)
    check_producers(log.tp, log.active_producers(), copy.batches, start, world.clock.latest_ms)


def check_epochs(name, epochs, batches, start, end):
    """Each batch is in its leader's epoch, and no other epoch begins among them. After a power loss a segment may be
    gone though an empty one after it is there: an epoch that began in such a gap counts as one of the batch behind."""
    batches = [batch for batch in batches if batch.last >= start]
    if not batches:
        return
    first = max(start, batches[0].base)
    expected = [(batches[0].epoch, first), *(entry for entry in epochs_of(batches) if entry[1] > first)]
    entries = epochs.entries
    slot = bisect_right(entries, first, key=lambda entry: entry.start_offset) - 1
    noted = {} if slot < 0 else {first: entries[slot].epoch}
    for entry in entries[slot + 1 :]:
        behind = bisect_left(batches, entry.start_offset, key=lambda batch: batch.base)
        if entry.start_offset <= batches[behind - 1].last:
            noted[entry.start_offset] = entry.epoch
        elif behind < len(batches) and entry.start_offset < end:
            noted[batches[behind].base] = entry.epoch
    if [(epoch, offset) for offset, epoch in noted.items()] != expected:
        raise Anomaly(f"leader epochs: {name} has {noted}, expected {expected}")


def check_producers(name, entries, batches, start, latest_ms):
    """What a log, or a snapshot, knows of its producers. What they wrote below the log start may be forgotten, and who
    has written nothing for long, unless a transaction is open. `latest_ms`: the time by the latest clock."""
    expected = producers_of(batches)
    known = {
        entry.producer_id: Producer(
            entry.last_sequence, entry.last_offset, entry.current_txn_first_offset, entry.timestamp
        )
        for entry in entries
    }
    for producer in expected.keys() | known.keys():
        state, is_now = expected.get(producer), known.get(producer)
        if state is not None and (state.last_offset < start or state.may_be_forgotten(latest_ms)):
            state = state if is_now is not None and state.last_offset < start else is_now
        if state != is_now and (state is None or state._replace(wrote_ms=-1) != is_now):
            raise Anomaly(f"producers: {name} has {is_now} of {producer}, expected {state}")


def check_snapshot(log, batches, base, latest_ms):
    """A roll has left the snapshot that belongs to its segment."""
    path = log.path / names.segment_file(base, FileKind.PRODUCER_SNAPSHOT)
    snapshot = producer_state.read(path)
    if snapshot is None:
        raise Anomaly(f"producers: {log.tp} was rolled at {base} without a snapshot")
    before = [batch for batch in batches if batch.last < base]
    check_producers(path.name, snapshot.entries(), before, log.log_start_offset, latest_ms)


def check_durable(directory, recovery_point, disk, what):
    """All messages below a recovery point are on the disk, whatever happens now. (While a cleaner's segment gets its
    name, they are there under another one.)"""
    if disk.has_unsynced_names(directory, ".swap"):
        return
    what = f"{what}: {recovery_point} of {directory.name}, and"
    for (path, data, table), is_whole in _segments(directory, recovery_point):
        if int(path.stem) >= recovery_point:
            return
        rows = int(table.last_offset[: table.rows].searchsorted(recovery_point))
        end = len(data) if is_whole else int(table.end[rows - 1]) if rows else 0
        durable = disk.durable_file(path)
        if durable is None or durable[:end] != data[:end]:
            raise Anomaly(f"{what} {path.name} is not on disk up to it")
        if is_whole and durable != data:
            raise Anomaly(f"{what} {path.name} goes on behind its end")
        # The aborted transactions that end below it are on the disk, too, and no others.
        path = path.with_suffix(".txnindex")
        written, durable = path.read_bytes() if path.exists() else b"", disk.durable_file(path) or b""
        below = sum(_ABORTED.unpack(entry)[0] < recovery_point for entry in _entries(written)) * _ABORTED.size
        later = [_ABORTED.unpack(entry)[0] for entry in _entries(durable[below:])]
        if durable[:below] != written[:below] or any(offset < recovery_point for offset in later):
            raise Anomaly(f"{what} {path.name} is not on disk up to it")


def _entries(data):
    size = _ABORTED.size
    return [data[at : at + size] for at in range(0, len(data) - size + 1, size)]


def check_reaches(directory, recovery_point, what):
    """The log that a loss of power has left goes up to a recovery point, without damage."""
    end = 0
    for (path, data, table), is_below in _segments(directory, recovery_point):
        whole = not data or (table.rows and int(table.end[table.rows - 1]) == len(data))
        if is_below and not whole:
            raise Anomaly(f"{what}: {recovery_point} of {directory.name}, and {path.name} is damaged")
        # Behind the recovery point there may be half a batch, which looks like one of other offsets.
        end = max(end, int(path.stem), *(table.last_offset[: table.rows] + 1).tolist())
    if end < recovery_point:
        raise Anomaly(f"{what}: {recovery_point} of {directory.name}, which ends at {end}")


def _segments(directory, recovery_point):
    """The segments of a partition, each with whether the next one begins at or below the recovery point."""
    segments = list(segments_of(directory))
    bases = [int(path.stem) for path, _, _ in segments]
    return [(segment, base <= recovery_point) for segment, base in zip(segments, [*bases[1:], 1 << 62], strict=False)]

"""What a broker answers about a directory, against what the engine answers about a copy."""

import struct
import time
from functools import partial
from unittest import mock

import numpy as np
from aiokafka import TopicPartition as Theirs
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import _MemoryRecordsPy

from storage.errors import OffsetOutOfRange, StorageError
from storage.log.counting import visible_end
from storage.log.fetch import read_chunk
from storage.log.intact import walk
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import offset_for_timestamp
from storage.log.segment import Segment
from storage.log.segment_check import ignore_batches
from storage.types import Isolation, TimestampOffset
from tests.interop.client import Client, golden
from tests.interop.comparing_files import FORGOTTEN, Difference, producers_in
from tests.interop.raw_requests import Listed, fetch, list_offsets
from tests.support.readers import read_all, read_past_damage, table_of
from tests.support.waiting import wait_for

_EARLIEST, _LATEST = -2, -1  # in place of a time: ListOffsetsRequest
_OUT_OF_RANGE, _UNKNOWN = 1, -1  # Errors.OFFSET_OUT_OF_RANGE, UNKNOWN_SERVER_ERROR
# A consumer may get no further although the log does: what it has got by then is compared.
_WITHOUT_PROGRESS_S = 30
# Why a broker does otherwise (storage/DESIGN.md, "Where we differ from a broker").
BATCH_THERE = "an open transaction began below the log start, or in a gap: a broker tells the batch that it finds there"
WITHOUT_TIMES = "a broker takes a segment whose time index is empty for one without timestamps"
STALE_TIMES = "a broker believes a time index whose last entry is beyond the end of its log"
DAMAGE_BELOW_START = "a lookup by time that may meet damage below the log start fails on one side"


class Logs:
    """The engine's view of a directory that nobody writes to."""

    def __init__(self, path, partitions):
        log_dir = LogDir.open_read_only(path)
        self.snapshots = {tp: log_dir.log(tp).snapshot() for tp in partitions}
        self.damaged = {tp for tp, snapshot in self.snapshots.items() if read_past_damage(snapshot)[1]}
        self.wrong_times = {tp: _wrong_times(path / tp.dir_name) for tp in self.snapshots}
        # Why a broker's last stable offset is another one, where it is; found out when it is asked for.
        self.other_stable = {}
        self._path = path

    def why(self, tp, isolation, *, is_time=False):
        """Why the broker's answer may differ: about the ends of a log, or to a time."""
        if is_time and self.wrong_times[tp]:
            return self.wrong_times[tp]
        return self.other_stable.get(tp) if isolation is Isolation.READ_COMMITTED else None

    def why_stable(self, tp, theirs, mine):
        """Why last stable offsets differ: UnifiedLog.maybeIncrementFirstUnstableOffset tells the base offset of the
        batch that it reads at that place; and a broker forgets a transaction that began below the log start."""
        snapshot = self.snapshots[tp]
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        if theirs == mine or not start <= mine < end:
            return None
        (base_offset,) = struct.unpack_from(">q", read_chunk(snapshot, mine, 8).read())
        if theirs == base_offset:
            self.other_stable[tp] = BATCH_THERE
        elif mine == start and theirs in {end, *self._continued(tp, start)}:
            self.other_stable[tp] = FORGOTTEN
        return self.other_stable.get(tp)

    def _continued(self, tp, start):
        """Where transactions begin or go on above `start` that are open at the end, by the last snapshot."""
        directory = self._path / tp.dir_name
        last = max(directory.glob("*.snapshot"), default=None)
        producers = {} if last is None else producers_in(last.read_bytes(), 0)
        open_ones = [int.from_bytes(key) for key, (_, _, transaction) in producers.items() if transaction >= 0]
        found = set()
        for log in directory.glob("*.log"):
            table = table_of(log.read_bytes())
            base = table.base_offset[: table.rows]
            theirs = table.is_transactional[: table.rows] & np.isin(table.producer_id[: table.rows], open_ones)
            found.update(base[theirs & (base >= start)].tolist())
        return found

    def holds_damage(self, tp):
        """Whether a segment holds damage, also below the log start."""
        directory = self._path / tp.dir_name
        segments = [Segment.at(directory, int(path.stem)) for path in directory.glob("*.log")]
        return any(walk(segment, ignore_batches, lambda *_: None).breaks for segment in segments)


def _wrong_times(directory):
    """How the time index of a segment misleads a broker, if one does."""
    for log in sorted(directory.glob("*.log")):
        path = log.with_suffix(".timeindex")
        times = path.read_bytes() if path.exists() else b""
        table = table_of(log.read_bytes())
        if not times and (table.max_timestamp[: table.rows] >= 0).any():
            return WITHOUT_TIMES
        end = int(table.last_offset[table.rows - 1]) if table.rows else -1
        if times and int(log.stem) + struct.unpack(">i", times[-4:])[0] > end:
            return STALE_TIMES
    return None


def different_lookups(address, logs, dice, rounds, timestamps, rewritten=()):
    """ListOffsets for both ends and for `rounds` random times, in both isolations; fetches at random offsets.

    `dice(…)`: dice for what is named, so that a partition gets the same questions whatever else is asked.
    `rewritten`: logs whose batches another encoder has compressed, so that their bytes differ.
    """
    found = []
    # A broker that has just started becomes the leader of one partition after the other.
    first = dict.fromkeys(logs.snapshots, _EARLIEST)
    wait_for("the leaders", lambda: not any(answer.error for answer in list_offsets(address, first).values()))
    for end in (_EARLIEST, _LATEST):
        for isolation in Isolation:
            answers = list_offsets(address, dict.fromkeys(logs.snapshots, end), isolation)
            for tp, snapshot in logs.snapshots.items():
                mine = _answer(partial(_end_of, snapshot, end, isolation))
                excused = () if isolation is Isolation.READ_UNCOMMITTED else logs.damaged
                what, theirs = f"{'EARLIEST' if end == _EARLIEST else 'LATEST'} {isolation.value}", answers[tp]
                reason = logs.why(tp, isolation)
                if end == _LATEST and not isinstance(mine, str):
                    reason = logs.why_stable(tp, theirs.offset, mine.offset)
                _compare(found, tp, what, theirs, mine, excused, reason)
    for number in range(rounds):
        times = {tp: _some_time(dice("time", number, tp), timestamps.get(tp, ())) for tp in logs.snapshots}
        for isolation in Isolation:
            answers = list_offsets(address, times, isolation)
            for tp, snapshot in logs.snapshots.items():
                mine = _answer(partial(offset_for_timestamp, snapshot, times[tp], isolation))
                reason = logs.why(tp, isolation, is_time=True)
                failed = answers[tp].error == _UNKNOWN or isinstance(mine, str)
                if failed and answers[tp] != mine and logs.holds_damage(tp):
                    reason = DAMAGE_BELOW_START
                _compare(found, tp, f"time {times[tp]} {isolation.value}", answers[tp], mine, logs.damaged, reason)
    for number in range(rounds):
        fetched = _different_fetches(address, logs, partial(dice, "fetch", number))
        found += (difference for difference in fetched if difference.tp not in rewritten)
    return found


def _end_of(snapshot, end, isolation):
    return TimestampOffset(-1, snapshot.whole_start_offset if end == _EARLIEST else visible_end(snapshot, isolation))


def _answer(lookup):
    try:
        found = lookup()
    except StorageError as error:
        return f"{type(error).__name__}: {error}"
    return Listed(0, -1, -1) if found is None else Listed(0, found.timestamp, found.offset)


def _compare(found, tp, what, theirs, mine, damaged, reason=None):
    """Where a batch is damaged, an answer may depend on it: a broker does not look. `reason`: of a difference here."""
    if theirs != mine and tp not in damaged:
        found.append(Difference(tp, what, theirs, mine, reason))


def _some_time(dice, known):
    if not known or dice.random() < 0.1:
        return dice.choice((0, 1, 10**12, 2**62))
    return max(dice.choice(known) + dice.choice((-1, 0, 0, 1, 5000)), 0)


def _different_fetches(address, logs, dice):
    """Bytes from a random offset of each log on, those below its start and above its end included."""
    found = []
    max_bytes = dice().choice((100_000, 1 << 20))
    offsets = {}
    for tp, snapshot in logs.snapshots.items():
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        own = dice(tp)
        offsets[tp] = own.choice((own.randrange(start, end + 1), start, max(end - 1, 0), end + 1, max(start - 1, 0)))
    answers = fetch(address, offsets, max_bytes)
    for tp, offset in offsets.items():
        snapshot, answer = logs.snapshots[tp], answers[tp]
        theirs = (answer.error, answer.records)
        try:
            mine = (0, bytes(read_chunk(snapshot, offset, max_bytes).read()))
            stable = last_stable_offset(snapshot)
            why = logs.why_stable(tp, answer.last_stable_offset, stable)
            what = f"last stable offset in a fetch of {offset}"
            if not answer.error:
                _compare(found, tp, what, answer.last_stable_offset, stable, logs.damaged, why)
        except OffsetOutOfRange:
            mine, theirs = _OUT_OF_RANGE, answer.error
        except StorageError as error:
            mine = str(error)
        _compare(found, tp, f"fetch of {offset}", theirs, mine, logs.damaged)
    return found


def different_consumption(address, logs):
    """Record for record, in both isolations. Not of damaged logs: a consumer stops at a batch whose CRC is wrong."""
    found = []
    for isolation in Isolation:
        expected = {
            tp: [
                # Of what has no timestamp the consumer does not say which type of timestamp that is.
                record if record.timestamp >= 0 else record._replace(timestamp_type="NoTimestampType")
                for record in read_all(snapshot, isolation=isolation)
            ]
            for tp, snapshot in logs.snapshots.items()
            if tp not in logs.damaged
        }
        # aiokafka's compiled reader of formats v0 and v1 fails at null keys and values; the one in Python does not.
        with mock.patch.object(fetcher, "MemoryRecords", _MemoryRecordsPy):
            consumed = _consumed(address, list(expected), isolation) if expected else {}
        for tp, records in expected.items():
            if consumed[tp] != records:
                pairs = zip(consumed[tp], records, strict=False)
                at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(consumed[tp]), len(records)))
                what = f"consumed {isolation.value}: {len(consumed[tp])} and {len(records)} records; number {at}"
                reason = logs.why(tp, isolation)
                found.append(Difference(tp, what, consumed[tp][at : at + 1], records[at : at + 1], reason))
    return found


def _consumed(address, partitions, isolation):
    """What a consumer gets of each partition."""

    async def work(consumer):
        names = {Theirs(tp.topic, tp.partition): tp for tp in partitions}
        found = {tp: [] for tp in partitions}
        first, last = await consumer.beginning_offsets(list(names)), await consumer.end_offsets(list(names))
        consumer.assign(list(names))
        for theirs, offset in first.items():
            consumer.seek(theirs, offset)
        left = {theirs for theirs in names if first[theirs] < last[theirs]}
        positions = {}
        deadline = time.monotonic() + _WITHOUT_PROGRESS_S
        while left and time.monotonic() < deadline:
            try:
                got = await consumer.getmany(*left, timeout_ms=500)
            except CorruptRecordException as error:
                # Damage that we did not find: what is missing of this partition will be a difference.
                left -= {theirs for theirs in left if str(theirs) in str(error)}
                continue
            for theirs, records in got.items():
                found[names[theirs]] += [golden(record) for record in records if record.offset < last[theirs]]
            before, positions = positions, {theirs: await consumer.position(theirs) for theirs in left}
            if positions != before:
                deadline = time.monotonic() + _WITHOUT_PROGRESS_S
            left = {theirs for theirs in left if positions[theirs] < last[theirs]}
            consumer.pause(*(names.keys() - left))
        return found

    return Client(address).with_consumer(work, isolation_level=isolation.value)

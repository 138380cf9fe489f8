"""What a broker made of a directory and answers about it, against what the engine made of a copy and answers."""

from __future__ import annotations

import asyncio
import random
import struct
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import aiokafka
import numpy as np
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import _MemoryRecordsPy

from storage.client.fetch import read_chunk
from storage.client.offset_lookup import SpecialTimestamp, list_offset, offset_for_timestamp
from storage.errors import OffsetOutOfRange, StorageError
from storage.files.names import FileKind, FileState, parse_segment_file
from storage.format.batches import BatchTable, Column, scan
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.snapshot import LogSnapshot
from storage.types import Isolation, TimestampOffset, TopicPartition
from tests.interop.client import TYPES
from tests.interop.raw_requests import Listed, RawClient
from tests.support.fixtures import Golden
from tests.support.readers import read_all, read_past_damage

_EXPIRATION_MS = 86_400_000  # producer.id.expiration.ms
_OUT_OF_RANGE = 1  # Errors.OFFSET_OUT_OF_RANGE
# A consumer may get no further although the log does: what it has got by then is compared.
_WITHOUT_PROGRESS_S = 30
# Why a broker does otherwise (storage/DESIGN.md, "Where we differ from a broker").
FORGOTTEN = "recovery of segments below the log start: a broker forgets the producers before each of them"
BATCH_AT_LOG_START = "a transaction that is open at the log start: a broker tells the base offset of the batch there"
WITHOUT_TIMES = "a broker takes a segment whose time index is empty for one without timestamps"
# What another encoder makes of the same records may have other bytes, and horizons are of the moment of the pass.
_OF_THE_ENCODER = (Column.POSITION, Column.SIZE, Column.CRC, Column.BASE_TIMESTAMP)


class Difference(NamedTuple):
    """One thing that the two do not agree about. `reason`: why, if that is known."""

    tp: TopicPartition
    what: str
    broker: object
    ours: object
    reason: str | None = None

    def __str__(self) -> str:
        return f"{self.tp}: {self.what}: broker {_short(self.broker)}, kafkafs {_short(self.ours)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) < 300 else f"{text[:200]} … {len(text)} characters"


def segment_files(directory: Path) -> dict[str, bytes]:
    """The segments' files and snapshots, without those that await deletion."""
    found = {}
    for path in sorted(directory.iterdir()):
        part = parse_segment_file(path.name)
        if part is not None and part.state is not FileState.DELETED:
            found[path.name] = path.read_bytes()
    return found


def different_files(tp: TopicPartition, broker: Path, ours: Path, log_start: int = 0) -> list[Difference]:
    """Byte for byte; of the leader epochs all but the one that the broker has begun after the recovery.

    `log_start`: of what is below it a broker may know less (FORGOTTEN).
    """
    theirs, mine = segment_files(broker / tp.dir_name), segment_files(ours / tp.dir_name)
    found = []
    if theirs.keys() != mine.keys():
        found.append(Difference(tp, "files", sorted(theirs.keys() - mine.keys()), sorted(mine.keys() - theirs.keys())))
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


def _first_difference(theirs: bytes, mine: bytes) -> tuple[str, str]:
    """Sizes, and the bytes around the first that differs."""
    at = next((n for n, (a, b) in enumerate(zip(theirs, mine, strict=False)) if a != b), min(len(theirs), len(mine)))
    start = max(at - at % 4 - 4, 0)
    return tuple(f"{len(data)} bytes, at {start}: {data[start : start + 40].hex(' ', 4)}" for data in (theirs, mine))  # type: ignore[return-value]


def _same_producers(name: str, theirs: bytes, mine: bytes, log_start: int) -> bool:
    """Whether two snapshots have the same entries: their order is free."""
    if _kind(name) is not FileKind.PRODUCER_SNAPSHOT:
        return False
    a, b = _producers(theirs, log_start), _producers(mine, log_start)
    return a.keys() == b.keys() and all(_same_producer(a[key], b[key], log_start) for key in a)


class _Producer(NamedTuple):
    """An entry of a snapshot: what nothing takes away, and what a broker forgets of markers below the log start."""

    head: bytes
    coordinator_epoch: int
    transaction: int


def _producers(data: bytes, log_start: int) -> dict[bytes, _Producer]:
    """The entries by producer id: those that have not expired, because when a producer is forgotten depends on when a
    log was opened, and whose last batch is at `log_start` or above."""
    now_ms = time.time() * 1000
    found = {}
    for at in range(10, len(data), 46):
        last_offset, _, timestamp, coordinator_epoch, transaction = struct.unpack_from(">qiqiq", data, at + 14)
        if last_offset < log_start:
            continue
        if transaction >= 0 or now_ms - timestamp < _EXPIRATION_MS:
            found[data[at : at + 8]] = _Producer(data[at : at + 34], coordinator_epoch, transaction)
    return found


def _same_producer(theirs: _Producer, mine: _Producer, log_start: int) -> bool:
    coordinator = theirs.coordinator_epoch in (mine.coordinator_epoch, -1 if log_start else mine.coordinator_epoch)
    transaction = theirs.transaction == mine.transaction or 0 <= mine.transaction < log_start
    return theirs.head == mine.head and coordinator and transaction


def _forgotten_transactions(name: str, theirs: bytes, mine: bytes, log_start: int) -> bool:
    """Whether a broker's transaction index lacks only what began below the log start: transactions, or their first
    batches. (Which transaction was open at a marker depends on them too.)"""
    if _kind(name) is not FileKind.TRANSACTION_INDEX:
        return False
    a, b = (_aborted(data) for data in (theirs, mine))
    return a.keys() <= b.keys() and all(a.get(key) == first for key, first in b.items() if first >= log_start)


def _aborted(data: bytes) -> dict[tuple[int, int], int]:
    """The first offset by producer id and last offset."""
    entries = (struct.unpack_from(">qqq", data, at + 2) for at in range(0, len(data), 34))
    return {(producer, last): first for producer, first, last in entries}


def _kind(name: str) -> FileKind | None:
    part = parse_segment_file(name)
    return None if part is None else part.kind


def _epochs(directory: Path) -> list[tuple[int, int]]:
    path = directory / "leader-epoch-checkpoint"
    lines = path.read_text().splitlines()[2:] if path.exists() else []
    return [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]


def different_compacted(tp: TopicPartition, broker: Path, ours: Path) -> list[Difference]:
    """Segments by name, batches by their headers, uncompressed ones byte for byte where no horizon is in them."""
    theirs, mine = (
        {name: data for name, data in segment_files(where / tp.dir_name).items() if name.endswith(".log")}
        for where in (broker, ours)
    )
    if theirs.keys() != mine.keys():
        return [Difference(tp, "compacted segments", sorted(theirs), sorted(mine))]
    found = []
    for name in theirs:
        tables = [_table(theirs[name]), _table(mine[name])]
        if tables[0].rows != tables[1].rows:
            found.append(Difference(tp, f"batches of {name}", tables[0].rows, tables[1].rows))
            continue
        for column in Column:
            if column not in _OF_THE_ENCODER:
                columns = [table.data[column, : table.rows].tolist() for table in tables]
                if columns[0] != columns[1]:
                    found.append(Difference(tp, f"{column.name} of {name}", *columns))
        same = (tables[0].codec == 0) & ~np.asarray(tables[0].has_delete_horizon, dtype=bool)
        crcs = [table.crc[same].tolist() for table in tables]
        if crcs[0] != crcs[1]:
            found.append(Difference(tp, f"CRCs of {name}", *crcs))
    return found


def _table(data: bytes) -> BatchTable:
    table = BatchTable.empty(len(data) // 26 + 1)
    scan(data, 0, table)
    return table


# Answers to requests


class Logs:
    """The engine's view of a directory that nobody writes to: snapshots, what is damaged, where times are missing."""

    def __init__(self, path: Path, partitions: Iterable[TopicPartition]) -> None:
        log_dir = LogDir.open_read_only(path)
        self.snapshots: dict[TopicPartition, LogSnapshot] = {
            tp: log_dir.log(tp).snapshot() for tp in partitions
        }  # fmt: skip
        self.damaged = {tp for tp, snapshot in self.snapshots.items() if read_past_damage(snapshot)[1]}
        self.without_times = {tp for tp in self.snapshots if _lacks_times(path / tp.dir_name)}


def _lacks_times(directory: Path) -> bool:
    """Whether a segment holds timestamps, and its time index nothing."""
    for log in directory.glob("*.log"):
        times = log.with_suffix(".timeindex")
        if not (times.exists() and times.stat().st_size):
            table = _table(log.read_bytes())
            if (table.max_timestamp[: table.rows] >= 0).any():
                return True
    return False


def different_lookups(
    address: str,
    logs: Logs,
    dice: Callable[..., random.Random],
    rounds: int,
    timestamps: Mapping[TopicPartition, Sequence[int]],
    rewritten: Collection[TopicPartition] = (),
) -> list[Difference]:
    """ListOffsets for special values and for `rounds` random times, in both isolations; fetches at random offsets.

    `dice(…)`: dice for what is named, so that a partition gets the same questions whatever else is asked.
    `rewritten`: logs whose batches another encoder has compressed, so that their bytes differ.
    """
    client = RawClient(address)
    found: list[Difference] = []
    try:
        _wait_for_leaders(client, logs)
        for special in (SpecialTimestamp.EARLIEST, SpecialTimestamp.LATEST, SpecialTimestamp.MAX_TIMESTAMP):
            for isolation in Isolation:
                answers = _listed(client, dict.fromkeys(logs.snapshots, int(special)), isolation)
                for tp, snapshot in logs.snapshots.items():
                    mine = _answer(partial(list_offset, snapshot, special, isolation))
                    ends = special is not SpecialTimestamp.MAX_TIMESTAMP and isolation is Isolation.READ_UNCOMMITTED
                    excused = () if ends else logs.damaged
                    what, theirs = f"{special.name} {isolation.value}", answers[tp]
                    _compare(found, tp, what, theirs, mine, excused, _why(logs, tp, special, theirs, mine))
        for number in range(rounds):
            wanted = {tp: _some_time(dice("time", number, tp), timestamps.get(tp, ())) for tp in logs.snapshots}
            for isolation in Isolation:
                answers = _listed(client, wanted, isolation)
                for tp, snapshot in logs.snapshots.items():
                    mine = _answer(partial(offset_for_timestamp, snapshot, wanted[tp], isolation))
                    reason = WITHOUT_TIMES if tp in logs.without_times else None
                    _compare(found, tp, f"time {wanted[tp]} {isolation.value}", answers[tp], mine, logs.damaged, reason)
        for number in range(rounds):
            fetched = _different_fetches(client, logs, partial(dice, "fetch", number))
            found += (difference for difference in fetched if difference.tp not in rewritten)
    finally:
        client.close()
    return found


def _wait_for_leaders(client: RawClient, logs: Logs) -> None:
    """A broker that has just started becomes the leader of one partition after the other."""
    deadline = time.monotonic() + 120
    wanted = dict.fromkeys(logs.snapshots, int(SpecialTimestamp.EARLIEST))
    while any(answer.error for answer in client.list_offsets(wanted).values()):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def _listed(client: RawClient, wanted: Mapping[TopicPartition, int], isolation: Isolation) -> dict[TopicPartition, Any]:
    return dict(client.list_offsets(wanted, committed=isolation is Isolation.READ_COMMITTED))


def _answer(lookup: Callable[[], TimestampOffset | None]) -> Listed | str:
    try:
        found = lookup()
    except StorageError as error:
        return f"{type(error).__name__}: {error}"
    return Listed(0, -1, -1) if found is None else Listed(0, found.timestamp, found.offset)


def _compare(
    found: list[Difference],
    tp: TopicPartition,
    what: str,
    theirs: object,
    mine: object,
    damaged: Collection[TopicPartition],
    reason: str | None = None,
) -> None:
    """Where a batch is damaged, an answer may depend on it: a broker does not look. `reason`: of a difference here."""
    if theirs != mine and tp not in damaged:
        found.append(Difference(tp, what, theirs, mine, reason))


def _why(logs: Logs, tp: TopicPartition, special: SpecialTimestamp, theirs: Listed, mine: Listed | str) -> str | None:
    if special is SpecialTimestamp.MAX_TIMESTAMP and tp in logs.without_times:
        return WITHOUT_TIMES
    if special is SpecialTimestamp.LATEST and not isinstance(mine, str):
        return _why_stable(logs.snapshots[tp], theirs.offset, mine.offset)
    return None


def _why_stable(snapshot: LogSnapshot, theirs: int, mine: int) -> str | None:
    """Why last stable offsets differ: UnifiedLog.maybeIncrementFirstUnstableOffset moves one that is below the log
    start there, and tells the base offset of the batch that it reads at that place."""
    if mine != snapshot.log_start_offset or mine == snapshot.log_end_offset:
        return None
    (base_offset,) = struct.unpack_from(">q", read_chunk(snapshot, mine, 8).read())
    return BATCH_AT_LOG_START if theirs == base_offset else None


def _some_time(dice: random.Random, known: Sequence[int]) -> int:
    if not known or dice.random() < 0.1:
        return dice.choice((0, 1, 10**12, 2**62))
    return max(dice.choice(known) + dice.choice((-1, 0, 0, 1, 5000)), 0)


def _different_fetches(client: RawClient, logs: Logs, dice: Callable[..., random.Random]) -> list[Difference]:
    """Bytes from a random offset of each log on, those below its start and above its end included."""
    found: list[Difference] = []
    max_bytes = dice().choice((100_000, 1 << 20))
    offsets = {}
    for tp, snapshot in logs.snapshots.items():
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        own = dice(tp)
        offsets[tp] = own.choice((own.randrange(start, end + 1), start, max(end - 1, 0), end + 1, max(start - 1, 0)))
    answers = client.fetch(offsets, max_bytes)
    for tp, offset in offsets.items():
        snapshot, answer = logs.snapshots[tp], answers[tp]
        mine: object
        theirs: object = (answer.error, answer.records)
        try:
            mine = (0, bytes(read_chunk(snapshot, offset, max_bytes).read()))
            stable = last_stable_offset(snapshot)
            why = _why_stable(snapshot, answer.last_stable_offset, stable)
            what = f"last stable offset in a fetch of {offset}"
            if not answer.error:
                _compare(found, tp, what, answer.last_stable_offset, stable, logs.damaged, why)
        except OffsetOutOfRange:
            mine, theirs = _OUT_OF_RANGE, answer.error
        except StorageError as error:
            mine = str(error)
        _compare(found, tp, f"fetch of {offset}", theirs, mine, logs.damaged)
    return found


def different_consumption(address: str, logs: Logs) -> list[Difference]:
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
            consumed = asyncio.run(_consume(address, list(expected), isolation))
        for tp, records in expected.items():
            if consumed[tp] != records:
                pairs = zip(consumed[tp], records, strict=False)
                at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(consumed[tp]), len(records)))
                what = f"consumed {isolation.value}: {len(consumed[tp])} and {len(records)} records; number {at}"
                found.append(Difference(tp, what, consumed[tp][at : at + 1], records[at : at + 1]))
    return found


async def _consume(
    address: str, partitions: Sequence[TopicPartition], isolation: Isolation
) -> dict[TopicPartition, list[Golden]]:
    """What a consumer gets of each partition."""
    consumer: Any = AIOKafkaConsumer(
        bootstrap_servers=address,
        isolation_level=isolation.value,
        enable_auto_commit=False,
        request_timeout_ms=120_000,
    )
    await consumer.start()
    try:
        wanted = {aiokafka.TopicPartition(tp.topic, tp.partition): tp for tp in partitions}
        found: dict[TopicPartition, list[Golden]] = {tp: [] for tp in partitions}
        first = await consumer.beginning_offsets(list(wanted))
        last = await consumer.end_offsets(list(wanted))
        left = {theirs for theirs in wanted if first[theirs] < last[theirs]}
        consumer.assign(sorted(left))
        for theirs in left:
            consumer.seek(theirs, first[theirs])
        positions: dict[object, int] = {}
        deadline = time.monotonic() + _WITHOUT_PROGRESS_S
        while left and time.monotonic() < deadline:
            try:
                got = await consumer.getmany(*left, timeout_ms=500)
            except CorruptRecordException as error:
                # Damage that we did not find: what is missing of this partition will be a difference.
                (failed,) = (theirs for theirs in left if str(theirs) in str(error))
                left.discard(failed)
                consumer.pause(failed)
                continue
            for theirs, records in got.items():
                found[wanted[theirs]] += [_golden(record) for record in records if record.offset < last[theirs]]
            now = {theirs: await consumer.position(theirs) for theirs in left}
            if any(positions.get(theirs) != now[theirs] for theirs in left):
                positions |= now
                deadline = time.monotonic() + _WITHOUT_PROGRESS_S
            done = {theirs for theirs in left if now[theirs] >= last[theirs]}
            left -= done
            consumer.pause(*done)
        return found
    finally:
        await consumer.stop()


def _golden(record: Any) -> Golden:
    """A consumer's record; format v0 has no timestamps."""
    old = record.timestamp is None or record.timestamp_type is None or record.timestamp < 0
    headers = tuple((name.encode(), value) for name, value in record.headers)
    kind = "NoTimestampType" if old else TYPES[record.timestamp_type]
    return Golden(record.offset, -1 if old else record.timestamp, kind, record.key, record.value, headers)

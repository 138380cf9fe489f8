"""Who has transactions open, without a broker: producers from the logs, transactional ids from `__transaction_state`.

A broker answers this with DescribeProducers and DescribeTransactions, and `kafka-transactions.sh find-hanging` compares
the two: a transaction is hanging if it is open in a partition, and no coordinator will end it. Nothing after its first
message is then shown to readers of committed messages. Sources: Kafka's ProducerStateManager,
FindHangingTransactionsCommand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from storage.append.producer_table import ProducerTable
from storage.coordinators.transaction_records import TransactionMetadata, TransactionState
from storage.errors import StorageError, TooManyKeys, UnknownTopicOrPartition, error_text
from storage.files.names import TRANSACTION_STATE_TOPIC
from storage.files.producer_state import ProducerEntry
from storage.format.batches import times_of
from storage.format.messages import Held, UnknownRecordType, messages
from storage.log.isolation import last_stable_offset
from storage.log.log_dir import LogDir
from storage.log.producers import newest_snapshot
from storage.log.reader import find_batch, read_range
from storage.log.rereads import reread
from storage.log.scanning import scan_sound_batches
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.types import NO_TIMESTAMP, TopicPartition

_EPOCH_FOR_EACH: Final = 2  # the transaction version
_PROBLEMS_KEPT: Final = 20  # of a partition's records


@dataclass(frozen=True, slots=True)
class PartitionProducers:
    """The producers of a partition, by id, as its log shows them: a broker forgets those that are silent for long.

    `begun`: for each open transaction the timestamp of its first batch, -1 if unknown, by producer id.
    """

    tp: TopicPartition
    log_start_offset: int
    log_end_offset: int
    last_stable_offset: int
    producers: tuple[ProducerEntry, ...]
    begun: Mapping[int, int]

    def holds_back(self, producer: ProducerEntry) -> bool:
        """Whether this producer's open transaction is where the last stable offset is."""
        return producer.current_txn_first_offset == self.last_stable_offset


def partition_producers(log: ReadableLog) -> PartitionProducers:
    """The producers of a log, from its newest good snapshot and the batches after it. Changes nothing.

    StorageError where headers show damage that may hide a transaction's begin or end; CRCs are not checked.
    """
    return reread(log, partial(_producers, log))


def _producers(log: ReadableLog, snapshot: LogSnapshot) -> PartitionProducers:
    known = newest_snapshot(log.path, snapshot)
    table = ProducerTable(snapshot.log_start_offset) if known is None else ProducerTable(known[0], known[1].entries())
    first = max(snapshot.segment_index(table.end_offset), 0)
    for segment in snapshot.segments[first:]:
        start = (
            segment.floor(table.end_offset, snapshot.end_position(segment))
            if segment is snapshot.segments[first]
            else 0
        )
        for window in scan_sound_batches(snapshot, segment, start):
            batches = window.table
            row = int(batches.last_offset.searchsorted(table.end_offset))
            if row < batches.rows:
                changes = table.changes(window.buffer, batches, row, batches.rows, window.origin)
                table.commit(changes, int(batches.last_offset[-1]) + 1)
    producers = tuple(sorted(table.entries(), key=lambda entry: entry.producer_id))
    begun = {
        entry.producer_id: _timestamp_at(snapshot, entry.current_txn_first_offset)
        for entry in producers
        if entry.current_txn_first_offset >= 0
    }
    return PartitionProducers(
        snapshot.tp,
        snapshot.whole_start_offset,
        snapshot.log_end_offset,
        last_stable_offset(snapshot),
        producers,
        begun,
    )


def _timestamp_at(snapshot: LogSnapshot, offset: int) -> int:
    """The timestamp of the first message of the batch at an offset; -1 if it was removed."""
    place = find_batch(snapshot, offset)
    if place is None:
        return NO_TIMESTAMP
    batch = place.segment.batch_at(place.position, snapshot.end_position(place.segment))
    if batch is None or int(batch.base_offset[0]) != offset:
        return NO_TIMESTAMP
    return times_of(batch, 0)[0]


@dataclass(frozen=True, slots=True)
class TransactionalIds:
    """The transactional ids in a directory's `__transaction_state`. `complete`: all its partitions are here and could
    be read, so an id that is not listed does not exist. `problems`: what could not be read."""

    by_id: Mapping[str, TransactionMetadata]
    complete: bool
    problems: tuple[str, ...] = ()
    by_producer: Mapping[int, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_producer", {metadata.producer_id: name for name, metadata in self.by_id.items()})

    def owner(self, producer_id: int) -> str | None:
        """The transactional id that a producer id belongs to now, or None."""
        return self.by_producer.get(producer_id)

    def will_end(self, tp: TopicPartition, producer: ProducerEntry) -> bool | None:
        """Whether a coordinator will end this producer's open transaction in a partition; None if that is not known
        here. A coordinator whose state is older than the transaction cannot: partitions refuse its epoch."""
        owner = self.owner(producer.producer_id)
        if owner is None:
            return False if self.complete else None
        state = self.by_id[owner]
        return tp in state.partitions and state.producer_epoch >= producer.epoch

    def has_committed(self, tp: TopicPartition, producer: ProducerEntry) -> bool:
        """Whether a commit of this producer's open transaction was acknowledged: a coordinator had prepared it, and
        only the marker is missing here. With transaction version 2 each transaction has an epoch of its own, one less
        than its coordinator has then."""
        owner = self.owner(producer.producer_id)
        if owner is None:
            return False
        state = self.by_id[owner]
        if state.state is TransactionState.PREPARE_COMMIT and tp in state.partitions:
            return state.producer_epoch in (producer.epoch, producer.epoch + 1)
        is_of_version_2 = state.client_version >= _EPOCH_FOR_EACH and state.producer_epoch == producer.epoch + 1
        return is_of_version_2 and state.state is TransactionState.COMPLETE_COMMIT


def transactional_ids(log_dir: LogDir) -> TransactionalIds:
    """The latest state of each transactional id, as a coordinator loads it. Records and partitions that cannot be read
    are left out and named in `problems`."""
    try:
        partitions = log_dir.partitions(TRANSACTION_STATE_TOPIC)
    except UnknownTopicOrPartition:
        return TransactionalIds({}, complete=False)
    by_id: dict[str, TransactionMetadata] = {}
    problems: list[str] = []
    counted: list[Held] = []  # kept, so that those of all partitions count together
    for partition in partitions:
        try:
            states, skipped, held = _states(log_dir.log(TopicPartition(TRANSACTION_STATE_TOPIC, partition)))
        except (StorageError, OSError) as error:
            problems.append(error_text(error))
            continue
        by_id |= states
        problems += skipped
        counted.append(held)
    count = log_dir.topic_info(TRANSACTION_STATE_TOPIC).partition_count
    return TransactionalIds(by_id, complete=count == len(partitions) and not problems, problems=tuple(problems))


def recorded_ids(snapshots: Iterable[LogSnapshot]) -> TransactionalIds:
    """The transactional ids of single partitions of `__transaction_state`, wherever they are."""
    states: dict[str, TransactionMetadata] = {}
    for snapshot in snapshots:
        with suppress(StorageError, OSError):
            states |= _replayed(snapshot)[0]
    return TransactionalIds(states, complete=False)


def _states(log: ReadableLog) -> tuple[dict[str, TransactionMetadata], list[str], Held]:
    try:
        return reread(log, _replayed)
    except TooManyKeys as error:
        error.path = log.path
        raise


def _replayed(snapshot: LogSnapshot) -> tuple[dict[str, TransactionMetadata], list[str], Held]:
    states: dict[str, TransactionMetadata] = {}
    problems: list[str] = []
    held = Held(states)
    for block in read_range(snapshot, snapshot.log_start_offset):
        read = messages(TRANSACTION_STATE_TOPIC).objects(block, held=held)
        for row, (key, value, unread) in enumerate(read):
            if isinstance(unread, UnknownRecordType):
                continue  # a type that a coordinator passes over, too
            try:
                if unread is not None:
                    raise unread
                name = key["data"]["transactionalId"]
                if value is None:
                    states.pop(name, None)
                else:
                    states[name] = TransactionMetadata.of(value["data"])
            except StorageError as error:
                error.path, error.offset = snapshot.segments[-1].directory, int(block.offset[row])
                if len(problems) < _PROBLEMS_KEPT:
                    problems.append(str(error))
        if block.damage is not None:
            problems.append(str(block.damage.error))
    # A coordinator forgets an id that has become Dead; its tombstone follows.
    return (
        {name: metadata for name, metadata in states.items() if metadata.state is not TransactionState.DEAD},
        problems,
        held,
    )


def involves(metadata: TransactionMetadata, chosen: Iterable[TopicPartition]) -> bool:
    """Whether any of these partitions takes part in a transaction."""
    return not set(chosen).isdisjoint(metadata.partitions)

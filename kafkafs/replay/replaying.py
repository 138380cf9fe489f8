"""Replays partitions: finds the place where an earlier run has ended, and produces the messages from there on.

How the place is found: the map has the messages that were acknowledged and written down. Messages that have arrived
since follow them at the target, in order, because one idempotent producer writes each partition. So the run reads the
target from the map's end to the target's end. The messages there are the next messages of the source, one after the
other; a message that differs is another producer's.

- If the target is compacted, some of our messages may be gone. As long as nobody else has produced there, the offset of
  each message that is left says which of ours it is.
- If nothing tells our messages from others', the run ends with an error and changes nothing. This is so if others'
  messages are in a target that is compacted or has its own timestamps, if retention has removed messages, or if the
  topic was created again.
- A broker may append messages of a killed run after this reading, and would then have them twice. The first message
  that is acknowledged shows this: then the run ends with an error that names both offsets.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kafkafs.replay.cluster import Cluster, ClusterMessage, TargetTopic
from storage.errors import CorruptData, InvalidRecord, RecordTooLarge, StorageError
from storage.types import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import Producer

    from kafkafs.replay.arrivals import ArrivalMap, Arrivals
    from storage.format.block import RecordBlock

_TOO_LARGE: Final = "MSG_SIZE_TOO_LARGE"
_GIVEN_UP: Final = ("_FATAL", "_PURGE_INFLIGHT", "_PURGE_QUEUE")  # because of another message
_POLL_MASK: Final = 1023  # acknowledgements are handled after so many messages
_FLUSH_S: Final = 1.0  # the map is written this often
_END_S: Final = 10.0  # how long an interrupted run waits for acknowledgements
_Headers = list[tuple[str, str | bytes | None]]
_Row = tuple[int, int, bytes | None, bytes | None, _Headers | None]


def rows_of(tp: TopicPartition, block: RecordBlock) -> Iterator[_Row]:
    """The records of a block: offset, timestamp, key, value, headers. InvalidRecord for the name of a header that is
    not UTF-8, which a client cannot send."""
    headers: list[_Headers | None] = [None] * len(block)
    for row in np.flatnonzero(block.headers_count > 0).tolist():
        try:
            headers[row] = [(name.decode(), value) for name, value in block.headers(row)]
        except UnicodeDecodeError:
            what = f"{tp}: the name of a header is not UTF-8, and clients cannot send it"
            raise InvalidRecord(what, offset=int(block.offset[row])) from None
    offsets, timestamps = block.offset.tolist(), block.timestamp.tolist()
    return zip(offsets, timestamps, _texts(block, "key"), _texts(block, "value"), headers, strict=True)


def _texts(block: RecordBlock, column: Any) -> list[bytes | None]:
    memory, ends = block.gather(column)
    data, lengths = bytes(memory), block.key_length if column == "key" else block.value_length
    starts = np.concatenate(([0], ends[:-1])).tolist() if len(ends) else []
    texts: list[bytes | None] = [data[start:end] for start, end in zip(starts, ends.tolist(), strict=True)]
    for row in np.flatnonzero(lengths < 0).tolist():
        texts[row] = None
    return texts


class TooLarge(RecordTooLarge):
    """The cluster refuses the message at `offset` because of its size, and has no message after it."""


class Replay:
    """Replays into one cluster. `skip_too_large`: messages that it refused for their size may be missing there."""

    def __init__(self, cluster: Cluster, arrivals: ArrivalMap, batch_bytes: int, *, skip_too_large: bool) -> None:
        self._cluster, self._map, self._skip = cluster, arrivals, skip_too_large
        self._batch_bytes = batch_bytes
        self._producer = self._new_producer()
        self._failure: StorageError | None = None  # of the first message that failed
        self._pending: deque[int] = deque()  # the offsets that wait for their acknowledgement
        self._failed = (True, 0)  # of `_failure`: whether another failure caused it, and its offset
        self._ended: StorageError | None = None  # what ended the producer
        self._flushed = time.monotonic()

    def _new_producer(self) -> Producer:
        return self._cluster.producer(self._batch_bytes)

    def partition(self, tp: TopicPartition, target: TargetTopic, blocks: Iterable[RecordBlock]) -> None:
        """Produces the messages of a partition, in order, that have not arrived yet: those in `blocks` at or after
        `next_old` of its Arrivals. TooLarge or another StorageError names the message that the cluster has refused."""
        place = TopicPartition(target.name, tp.partition)
        rows: Iterator[_Row] = chain.from_iterable(rows_of(tp, block) for block in blocks)
        arrivals, expected = self._map.get(tp), None
        if arrivals is None:
            arrivals = self._map.begin(tp, target.name, self._cluster.bounds(place)[1])
        else:
            rows, expected = self._resumed(arrivals, place, target, rows)
            self._map.flush()
        begun = arrivals.next_new
        first: _Row | None = None
        damage: Exception | None = None
        try:
            first = self._produce(arrivals, place, rows)
        except (StorageError, OSError) as caught:  # of the source: the messages before it arrive
            damage = caught
        except BaseException:
            self._finish(_END_S)
            raise
        self._finish(math.inf)
        failure = self._first_failure(arrivals)
        if failure is not None:
            self._producer = self._new_producer()  # a failure ends all that a producer can do
        error = failure or damage
        if error is not None:
            raise error
        if expected is not None and first is not None:
            self._check_first(arrivals, place, expected, begun, first)

    def _first_failure(self, arrivals: Arrivals) -> StorageError | None:
        """Returns, and forgets, the error of the first message that was not acknowledged. When a producer ends, the
        library loses the acknowledgement that ended it; the reason is in the exception that it raises."""
        from confluent_kafka import KafkaError

        failure, ended = self._failure, self._ended
        pending = [offset for offset in self._pending if offset >= arrivals.next_old]
        self._failure, self._ended, self._pending = None, None, deque()
        if not pending or (failure is not None and failure.offset == pending[0]):
            return failure or ended
        said = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE).str()
        if ended is not None and said in ended.what:
            return _too_large(arrivals, said, pending[0])
        what = (ended or failure or StorageError("no acknowledgement")).what
        return StorageError(f"{arrivals.tp}: {arrivals.topic} does not take the message: {what}", offset=pending[0])

    def _finish(self, timeout_s: float) -> None:
        """Waits until everything is acknowledged, or given up after a failure; writes the map."""
        deadline = time.monotonic() + timeout_s
        while len(self._producer) and time.monotonic() < deadline:
            if self._failure is None and self._ended is None:
                self._serve(self._producer.flush, _FLUSH_S)
            else:
                self._producer.purge()
                self._serve(self._producer.poll, _FLUSH_S)
        self._map.flush()

    def _serve(self, serve: Callable[[float], int], timeout_s: float) -> None:
        """Lets the library hand over acknowledgements; writes the map now and then."""
        from confluent_kafka import KafkaException

        try:
            serve(timeout_s)
        except (KafkaException, SystemError) as error:  # the producer has ended
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            said = cause.args[0].str() if isinstance(cause, KafkaException) else str(cause)
            if self._ended is None or isinstance(cause, KafkaException):
                self._ended = StorageError(f"the cluster takes no more messages: {said}")
        now = time.monotonic()
        if now - self._flushed > _FLUSH_S:
            self._map.flush()
            self._flushed = now

    def _produce(self, arrivals: Arrivals, place: TopicPartition, rows: Iterable[_Row]) -> _Row | None:
        """Hands all rows to the library; returns the first.

        The first row is acknowledged before the others are sent: until a broker has accepted a message of a producer,
        it would also accept messages after a refused message.
        """
        from confluent_kafka import KafkaException

        produce, poll, acknowledged = self._producer.produce, self._producer.poll, partial(self._acknowledged, arrivals)
        topic, partition, first, pending = place.topic, place.partition, None, self._pending
        for number, row in enumerate(rows):
            offset, timestamp, key, value, headers = row
            if first is None:
                first = row
            while True:
                try:
                    produce(topic, value, key, partition, partial(acknowledged, offset), None, timestamp, headers)
                    pending.append(offset)
                    break
                except BufferError:
                    self._serve(poll, 0.1)
                    if self._failure is not None or self._ended is not None:
                        return first
                except KafkaException as error:  # the library refuses to send it
                    self._finish(math.inf)  # the messages before it arrive first
                    acknowledged(offset, error.args[0], None)
                    break
            if not number:
                self._finish(math.inf)
            elif not number & _POLL_MASK:
                self._serve(poll, 0)
            if self._failure is not None or self._ended is not None:
                break
        return first

    def _acknowledged(self, arrivals: Arrivals, offset: int, error: Any, message: Any) -> None:
        """Called by the library for each message, in order.

        When a producer ends, confluent-kafka calls with its exception pending: the first call of a function of its own
        raises that as a SystemError, and further ones work.
        """
        try:
            new = message.offset() if error is None else error.name()
        except SystemError:
            self._acknowledged(arrivals, offset, error, message)
            return
        if error is None:
            arrivals.add(offset, new)
            while self._pending and self._pending[0] <= offset:
                self._pending.popleft()
        elif self._failure is None or (new in _GIVEN_UP, offset) < self._failed:
            self._failed = (new in _GIVEN_UP, offset)
            where = f"{arrivals.tp}: {arrivals.topic} does not take the message"
            if new == _TOO_LARGE:
                self._failure = _too_large(arrivals, error.str(), offset)
            else:
                self._failure = StorageError(f"{where} ({new}: {error.str()})", offset=offset)

    def _resumed(
        self, arrivals: Arrivals, place: TopicPartition, target: TargetTopic, rows: Iterator[_Row]
    ) -> tuple[Iterator[_Row], int]:
        """The rows that have not arrived, and the end of the target. Adds the rows that have arrived to `arrivals`."""
        low, end = self._cluster.bounds(place)
        at = arrivals.next_new
        if end < at:
            why = f"{place} ends at {end}: the topic was created again, or has lost messages"
            raise _undecided(arrivals, why, f"an end at or after {at}")
        if low > at:
            raise _undecided(arrivals, f"{place} begins at {low}: retention has removed messages since", f"offset {at}")
        ahead: deque[_Row] = deque()

        def peek(count: int) -> _Row | None:
            while len(ahead) <= count:
                row = next(rows, None)
                if row is None:
                    return None
                ahead.append(row)
            return ahead[count]

        other: int | None = None
        for message in self._cluster.messages(place, at, end):
            gap = message.offset - at
            at = message.offset + 1
            row = peek(0)
            if row is not None and not _is_same(row, message, target):
                if target.is_compacted and gap and other is None and _is_same(peek(gap), message, target):
                    for _ in range(gap):  # ours too, and compacted away since
                        arrivals.add(ahead.popleft()[0], arrivals.next_new)
                elif self._skip:
                    self._pass_over_large(arrivals, peek, ahead, message, target)
                row = peek(0)
            if row is not None and _is_same(row, message, target):
                arrivals.add(ahead.popleft()[0], message.offset)
            elif other is None:
                other = message.offset
        if other is not None and (target.is_compacted or target.has_append_time):
            why = "is compacted" if target.is_compacted else "has its own timestamps (LogAppendTime)"
            raise _undecided(arrivals, f"{place} has others' messages, from {other} on, and {why}", None)
        if target.is_compacted and at < end:
            raise _undecided(arrivals, f"{place} is compacted, and has no message at its end", f"one at {end - 1}")
        return chain(ahead, rows), end

    def _pass_over_large(
        self, arrivals: Arrivals, peek: Any, ahead: deque[_Row], message: ClusterMessage, target: TargetTopic
    ) -> None:
        """Skips rows that the broker may have refused, if the message follows on them."""
        count = 0
        while (row := peek(count)) is not None and _size(row) > target.max_message_bytes // 2:
            count += 1
            if _is_same(peek(count), message, target):
                for _ in range(count):
                    arrivals.add(ahead.popleft()[0], -1)
                return

    def _check_first(self, arrivals: Arrivals, place: TopicPartition, expected: int, begun: int, first: _Row) -> None:
        """CorruptData if the first message that was produced is at the target twice: also before the acknowledged
        offset, after the end up to which this run had read."""
        new = arrivals.new_offset(first[0])
        for message in self._cluster.messages(place, max(expected, begun), new):
            if _is_same(first, message, None):
                what = f"{place} has the message at {message.offset} and at {new}"
                why = "the broker appended it for the previous run, after this run had read the target"
                raise CorruptData(f"{arrivals.tp}: {what}: {why}", offset=first[0])


def _is_same(row: _Row | None, message: ClusterMessage, target: TargetTopic | None) -> bool:
    """Whether a message at the target is this row. Timestamps do not count if the target sets its own, nor for 0, which
    the library replaces."""
    if row is None or row[2:4] != (message.key, message.value) or (row[4] or []) != (message.headers or []):
        return False
    return row[1] in (0, message.timestamp) or (target is not None and target.has_append_time)


def _size(row: _Row) -> int:
    headers = sum(len(name.encode()) + len(value or "") for name, value in row[4] or ())
    return len(row[2] or b"") + len(row[3] or b"") + headers


def _too_large(arrivals: Arrivals, said: str, offset: int) -> TooLarge:
    what = f"{arrivals.tp}: {arrivals.topic} does not take the message ({said})"
    advice = "--skip-too-large leaves such messages out; or raise max.message.bytes of the topic"
    return TooLarge(what, offset=offset, advice=advice)


def _undecided(arrivals: Arrivals, why: str, expected: str | None) -> StorageError:
    return StorageError(
        f"{arrivals.tp}: which messages have arrived cannot be decided: {why}",
        offset=arrivals.next_old,
        expected=expected,
        advice="Nothing was produced. Choose an offset to go on from (--offsets), or a new topic, with a new map",
    )

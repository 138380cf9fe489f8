"""Where lines go: a partition, or a topic whose partitions are chosen as Kafka's producer chooses them.

Each destination belongs to one writer and is not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

import numpy as np

from kafkafs.writing.line_parsers import Buffer, Int64s, ParsedLines
from storage.append.appender import AppendedLines, Appender
from storage.append.batch_encoder import size_limit
from storage.append.partition_log import PartitionLog
from storage.append.partitioner import Partitioner
from storage.clock import Clock
from storage.config import LogConfig
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidConfig, InvalidRecord, PartitionOffline, StorageError
from storage.files import names
from storage.format.block import RecordColumns
from storage.types import TopicPartition

# A line of up to this size may yet become a small message: compressed, or with its escapes undone.
_LONG_LINE_BYTES: Final = 64 << 20
# A row surely fits if it is this and an eighth of the limit below the limit: compression may enlarge it. Any larger row
# is appended by itself.
_SURE_BYTES: Final = 1024


class Taken(NamedTuple):
    """The outcome of appending some rows: the first `rows` of them are in the log. `error`: why the next row is not in
    the log; None: all rows are. `elsewhere`: how many rows after it are in the logs of other partitions nevertheless.
    """

    rows: int
    error: Exception | None = None
    elsewhere: int = 0


class LineDestination(Protocol):
    """Where lines go."""

    def append(self, parsed: ParsedLines) -> Taken:
        """Appends the records in order; `parsed.error` is ignored."""

    def longest_line(self, *, verbatim: bool) -> int:
        """The most bytes that a line may have to become a message. `verbatim`: the line is the value."""

    def sync(self) -> None:
        """Everything that was appended is on disk when it returns."""


class PartitionTarget:
    """A partition. See LineDestination."""

    def __init__(self, log: PartitionLog, *, clock: Clock) -> None:
        self.log = log
        self.appender = Appender(log, clock=clock)
        self._unsynced = False

    def append(self, parsed: ParsedLines) -> Taken:
        if not len(parsed.columns):
            return Taken(0)
        self._unsynced = True
        result = self.appender.append(parsed.columns)
        return Taken(result.taken, None if result.error is None else self._offline_or(result.error))

    def append_lines(self, begun: bytearray, data: Buffer) -> AppendedLines | None:
        """Appends all lines that end in `data`, as values; `begun` precedes the first.

        Returns None, having done nothing, if only `append` can decide what to do. PartitionOffline, OSError: none of
        the lines is appended.
        """
        self._unsynced = True
        try:
            return self.appender.append_lines(begun, data)
        except OSError as error:
            raise self._offline_or(error) from error

    def longest_line(self, *, verbatim: bool) -> int:
        return _longest_line(self.log.config, verbatim=verbatim)

    def sync(self) -> None:
        if self._unsynced:
            self.log.flush()
            self._unsynced = False

    def _offline_or(self, error: Exception) -> Exception:
        """The error to report for an append: PartitionOffline if an OSError of any errno took the log offline."""
        if isinstance(error, OSError):
            try:
                self.log.check()
            except PartitionOffline as offline:
                return offline
        return error


class TopicTarget:
    """A topic of `count` partitions; `partitions` are those in this directory."""

    def __init__(self, owned: OwnedDir, topic: str, partitions: list[int], count: int) -> None:
        self._owned = owned
        self._topic = topic
        self._targets: dict[int, PartitionTarget] = {}  # those written to so far
        self._here: Int64s = np.array(partitions, np.int64)
        self._numbers = frozenset(partitions)
        self._partitioner = Partitioner(count)

    def append(self, parsed: ParsedLines) -> Taken:
        """Appends each record to the partition that it asks for, or that is chosen for it. When a disk fails, later
        records of other partitions may already be in their logs."""
        columns = parsed.columns
        if not len(columns):
            return Taken(0)
        chosen = self._chosen(columns, parsed.partition)
        possible = self._all_here(chosen)
        if possible.rows == 0:
            return possible
        if possible.error is None and (chosen == chosen[0]).all():
            return self._target(int(chosen[0])).append(ParsedLines(columns))
        # A row that the topic refuses, or whose partition is offline, ends the write for all partitions. So look for
        # the first such row before appending: no later row may be appended to any partition.
        accepted = Taken(*self._any_target(int(chosen[0])).appender.acceptable(columns))
        possible = min(possible, accepted, key=attrgetter("rows"))
        possible = min(possible, self._all_online(chosen[: possible.rows]), key=attrgetter("rows"))
        row = 0
        for end in _groups(columns, possible.rows, self._sure_limit()):
            taken = self._append_group(columns, chosen, row, end)
            row += taken.rows
            if taken.error is not None:
                return taken._replace(rows=row)
        return Taken(row, possible.error)

    def append_lines(self, begun: bytearray, data: Buffer) -> AppendedLines | None:
        sticky = self._partitioner.sticky
        partition = sticky if sticky in self._numbers else int(self._reachable(sticky))
        if partition not in self._targets and b"\n" not in bytes(data):
            return None  # no reason to open that log yet
        done = self._target(partition).append_lines(begun, data)
        if done is not None:
            lines, size = done
            self._partitioner.used(len(begun) + size - lines)
        return done

    def longest_line(self, *, verbatim: bool) -> int:
        return _longest_line(self._config(), verbatim=verbatim)

    def sync(self) -> None:
        sync_each(self._targets[partition].sync for partition in sorted(self._targets))

    def _append_group(self, columns: RecordColumns, chosen: Int64s, first: int, last: int) -> Taken:
        """Appends rows [first, last), a batch to each partition. `Taken.rows` counts from `first`."""
        group = chosen[first:last]
        done: set[int] = set()
        numbers, at = np.unique(group, return_index=True)
        ordered = numbers[np.argsort(at)].tolist()
        for index, partition in enumerate(ordered):
            rows = np.flatnonzero(group == partition) + first
            taken = self._target(partition).append(ParsedLines(columns.take(rows)))
            done.update(rows[: taken.rows].tolist())
            if taken.error is not None:
                missing = [int(rows[taken.rows])] if taken.rows < len(rows) else []
                missing += [int(np.flatnonzero(group == other)[0]) + first for other in ordered[index + 1 :]]
                end = min(missing)
                return Taken(end - first, taken.error, sum(row > end for row in done))
        return Taken(last - first)

    def _chosen(self, columns: RecordColumns, asked: Int64s | None) -> Int64s:
        """Each row's partition."""
        chosen = self._partitioner.choose(columns)
        is_local = np.isin(chosen, self._here)
        if not is_local.all():
            # A producer sends keyless messages to any partition that it can reach.
            lost = ~is_local & (columns.key_length < 0)
            chosen[lost] = self._reachable(chosen[lost])
        return chosen if asked is None else np.where(asked >= 0, asked, chosen)

    def _all_here(self, chosen: Int64s) -> Taken:
        """How many rows precede the first row whose partition is not in this directory, and the error for that row."""
        away = ~np.isin(chosen, self._here)
        if not away.any():
            return Taken(len(chosen))
        row = int(away.argmax())
        return Taken(row, InvalidRecord(f"there is no partition {self._topic}/{int(chosen[row])} here"))

    def _all_online(self, chosen: Int64s) -> Taken:
        """How many rows precede the first row whose partition is offline, and why it is offline."""
        numbers, at = np.unique(chosen, return_index=True)
        for row, partition in sorted(zip(at.tolist(), numbers.tolist(), strict=True)):
            try:
                self._target(partition).log.check()
            except (StorageError, OSError) as error:
                return Taken(row, error)
        return Taken(len(chosen))

    def _config(self) -> LogConfig:
        """The topic's configuration as of now."""
        for target in self._targets.values():
            return target.log.config
        return self._owned.topic_info(self._topic).config

    def _target(self, partition: int) -> PartitionTarget:
        target = self._targets.get(partition)
        if target is None:
            log = self._owned.log(TopicPartition(self._topic, partition))
            target = self._targets[partition] = PartitionTarget(log, clock=self._owned.clock)
        return target

    def _any_target(self, partition: int) -> PartitionTarget:
        return next(iter(self._targets.values()), None) or self._target(partition)

    def _reachable(self, chosen: Int64s | int) -> Int64s:
        """A partition in this directory for each chosen partition that is not."""
        return self._here[chosen % len(self._here)]

    def _sure_limit(self) -> int:
        config = self._config()
        limit = size_limit(config)
        return limit - limit // 8 - _SURE_BYTES


Target = PartitionTarget | TopicTarget


def open_target(owned: OwnedDir, place: str | TopicPartition, *, force: bool = False) -> Target:
    """The target for a topic, given by its name, or for a partition.

    NotPermitted where nothing may be appended, UnknownTopicOrPartition, PartitionOffline, OSError; InvalidConfig for a
    topic whose number of partitions in the cluster is not known here.
    """
    topic = place if isinstance(place, str) else place.topic
    info = None
    if owned.log_dir.is_broker or topic in names.KAFKAS_OWN_TOPICS:
        # Only where it may be refused: this reads files, and `echo >>` opens the file for each line.
        info = owned.topic_info(topic)
        guest_rules.check_append(info, force=force)
    if isinstance(place, TopicPartition):
        return PartitionTarget(owned.log(place), clock=owned.clock)
    partitions = owned.log_dir.partitions(topic)
    count = partitions[-1] + 1 if info is None else info.partition_count
    if count is None:
        raise InvalidConfig(
            f"the number of partitions of {topic} is unknown here", advice="Append to one of its partitions"
        )
    return TopicTarget(owned, topic, partitions, count)


def sync_each(syncs: Iterable[Callable[[], object]]) -> None:
    """Calls all of them: a partition that fails does not keep others from being synced. Raises the first error."""
    first: Exception | None = None
    for sync in syncs:
        try:
            sync()
        except (StorageError, OSError) as error:
            first = first or error
    if first is not None:
        raise first


def _longest_line(config: LogConfig, *, verbatim: bool) -> int:
    limit = size_limit(config)
    plain = verbatim and config.compression_type in ("producer", "uncompressed")
    return limit if plain else max(8 * limit, _LONG_LINE_BYTES)


def _groups(columns: RecordColumns, stop: int, sure_limit: int) -> list[int]:
    """The ends of groups of rows. A row that may prove too large is a group by itself: no row after it is appended
    before it."""
    sizes = np.zeros(len(columns), np.int64)
    for lengths in (columns.key_length, columns.value_length, columns.headers_length):
        sizes += np.maximum(lengths, 0)
    risky = np.flatnonzero(sizes[:stop] > sure_limit)
    return sorted({*risky.tolist(), *(risky + 1).tolist(), stop} - {0})

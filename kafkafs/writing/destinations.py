"""Where lines go: a partition, or a topic whose partitions are chosen as Kafka's producer does.

Each is one writer's, and not thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

import numpy as np

from kafkafs.writing.line_parsers import Buffer, Int64s, Parsed
from kafkafs.writing.resent_lines import Ahead
from storage.append.appender import AppendedLines, Appender
from storage.append.partition_log import PartitionLog
from storage.client.partitioner import Partitioner
from storage.clock import Clock
from storage.config import LogConfig
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidConfig, InvalidRecord, PartitionOffline, StorageError
from storage.files import names
from storage.format.record_columns import RecordColumns
from storage.types import TopicPartition

# Of a line that may yet become a small message: compressed, or with its escapes undone.
_LONG_LINE_BYTES: Final = 64 << 20
# A row whose size cannot be foreseen is appended by itself: 1 KiB and an eighth for compression that gains nothing.
_SURE_BYTES: Final = 1024


class Taken(NamedTuple):
    """The first `rows` are in the log; `error` says why the next one is not, None for all."""

    rows: int
    error: Exception | None


class Destination(Protocol):
    """Where lines go."""

    def append(self, parsed: Parsed) -> Taken:
        """Appends the records in order; `parsed.error` is not looked at."""

    def longest_line(self, *, verbatim: bool) -> int:
        """No line above so many bytes can become a message; `verbatim`: the line is the message's value."""

    def forget_refused(self) -> None:
        """Records that were refused do not come again: the next ones are others, even where they look the same."""

    def sync(self) -> None:
        """All that was appended is on disk."""


class PartitionTarget:
    """A partition. See Destination."""

    def __init__(self, log: PartitionLog, *, clock: Clock) -> None:
        self.log = log
        self._appender = Appender(log, clock=clock)
        self._unsynced = False

    def append(self, parsed: Parsed) -> Taken:
        """See Destination."""
        return self.append_columns(parsed.columns) if len(parsed.columns) else Taken(0, None)

    def append_columns(self, columns: RecordColumns) -> Taken:
        """As `append`, of at least one row."""
        self._unsynced = True
        result = self._appender.append(columns)
        return Taken(result.taken, None if result.error is None else self._offline_or(result.error))

    def append_lines(self, begun: bytearray, data: Buffer) -> AppendedLines | None:
        """Appends all lines of `data` that end in it as values, `begun` standing before the first.

        None, and nothing done, where only `append` can tell what to do. PartitionOffline, OSError: nothing of them is
        appended.
        """
        self._unsynced = True
        try:
            return self._appender.append_lines(begun, data)
        except OSError as error:
            raise self._offline_or(error) from error

    def acceptable(self, columns: RecordColumns) -> tuple[int, InvalidRecord | None]:
        """See Appender."""
        return self._appender.acceptable(columns)

    def longest_line(self, *, verbatim: bool) -> int:
        """See Destination."""
        return _longest_line(self.log.config, verbatim=verbatim)

    def forget_refused(self) -> None:
        """See Destination."""

    def sync(self) -> None:
        """See Destination."""
        if self._unsynced:
            self.log.flush()
            self._unsynced = False

    def _offline_or(self, error: Exception) -> Exception:
        """What an append is answered: an error of the disk that took the log offline is that, whatever its number."""
        if isinstance(error, OSError):
            try:
                self.log.check()
            except PartitionOffline as offline:
                return offline
        return error


class TopicTarget:
    """A topic, of whose `count` partitions those in `here` are here. See Destination."""

    def __init__(self, owned: OwnedDir, topic: str, here: list[int], count: int) -> None:
        self._owned = owned
        self._topic = topic
        self._targets: dict[int, PartitionTarget] = {}  # those written to so far
        self._here: Int64s = np.array(here, np.int64)
        self._numbers = frozenset(here)
        self._partitioner = Partitioner(count)
        self._ahead = Ahead()

    def append(self, parsed: Parsed) -> Taken:
        """See Destination. A disk that fails meanwhile may leave later records of other partitions in their logs: when
        they come again with the next call they are not appended twice."""
        columns, asked = parsed.columns, parsed.partition
        if not len(columns):
            return Taken(0, None)
        if not self._ahead:
            taken, beyond = self._append_all(columns, asked)
            if beyond:
                self._ahead.note(columns, taken.rows, beyond)
            return taken
        missing = self._ahead.missing(columns)
        there = set(range(len(columns))).difference(missing.tolist())
        taken, beyond = Taken(0, None), set()
        if len(missing):
            taken, beyond = self._append_all(columns.take(missing), None if asked is None else asked[missing])
        rows = int(missing[taken.rows]) if taken.rows < len(missing) else len(columns)
        self._ahead.note(columns, rows, there | {int(missing[row]) for row in beyond})
        return Taken(rows, taken.error)

    def _append_all(self, columns: RecordColumns, asked: Int64s | None) -> tuple[Taken, set[int]]:
        """To the partitions that are chosen for them, or asked for by them; and which rows beyond those taken are in a
        log nevertheless."""
        error: Exception | None
        chosen, stop, error = self._chosen(columns, asked)
        if stop == 0:
            return Taken(0, error), set()
        if stop == len(columns) and (chosen == chosen[0]).all():
            taken = self._target(int(chosen[0])).append_columns(columns)
            return taken if taken.error is not None else Taken(taken.rows, error), set()
        # What the topic does not take ends it for all partitions: it is looked for before any gets a later row.
        able, refused = self._any_target(int(chosen[0])).acceptable(columns)
        if able < stop:
            stop, error = able, refused
        # So does a partition that is offline.
        working, failure = self._working(chosen[:stop])
        if working < stop:
            stop, error = working, failure
        row = 0
        for end in _groups(columns, stop, self._sure_limit()):
            taken, beyond = self._append_group(columns, chosen, row, end)
            row += taken.rows
            if taken.error is not None:
                return Taken(row, taken.error), beyond
        return Taken(row, error), set()

    def append_lines(self, begun: bytearray, data: Buffer) -> AppendedLines | None:
        """See PartitionTarget."""
        if self._ahead:
            return None
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
        """See Destination."""
        return _longest_line(self._config(), verbatim=verbatim)

    def forget_refused(self) -> None:
        """See Destination."""
        self._ahead.forget()

    def sync(self) -> None:
        """See Destination."""
        sync_each(self._targets[partition].sync for partition in sorted(self._targets))

    def _config(self) -> LogConfig:
        """The topic's as of now."""
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

    def _working(self, chosen: Int64s) -> tuple[int, Exception | None]:
        """How many rows there are before the first whose partition is offline, and why it is."""
        numbers, at = np.unique(chosen, return_index=True)
        for row, partition in sorted(zip(at.tolist(), numbers.tolist(), strict=True)):
            try:
                self._target(partition).log.check()
            except (StorageError, OSError) as error:
                return row, error
        return len(chosen), None

    def _append_group(self, columns: RecordColumns, chosen: Int64s, first: int, last: int) -> tuple[Taken, set[int]]:
        """Rows [first, last), a batch for each partition. The rows before the first that is not in a log are taken; the
        set names those beyond it that are in one."""
        group = chosen[first:last]
        done: set[int] = set()
        numbers, at = np.unique(group, return_index=True)
        ordered = numbers[np.argsort(at)].tolist()
        for index, partition in enumerate(ordered):
            rows = np.flatnonzero(group == partition) + first
            taken = self._target(partition).append_columns(columns.take(rows))
            done.update(rows[: taken.rows].tolist())
            if taken.error is not None:
                missing = [int(rows[taken.rows])] if taken.rows < len(rows) else []
                missing += [int(np.flatnonzero(group == other)[0]) + first for other in ordered[index + 1 :]]
                end = min(missing)
                return Taken(end - first, taken.error), {row for row in done if row > end}
        return Taken(last - first, None), set()

    def _chosen(self, columns: RecordColumns, asked: Int64s | None) -> tuple[Int64s, int, InvalidRecord | None]:
        """Each row's partition, how many rows have one that is here, and what is wrong with the next."""
        chosen = self._partitioner.choose(columns)
        here = np.isin(chosen, self._here)
        if not here.all():
            # A producer's keyless messages go to any partition that it can reach.
            lost = ~here & (columns.key_length < 0)
            chosen[lost] = self._reachable(chosen[lost])
        if asked is not None:
            chosen = np.where(asked >= 0, asked, chosen)
        away = ~np.isin(chosen, self._here)
        if not away.any():
            return chosen, len(chosen), None
        row = int(away.argmax())
        return chosen, row, InvalidRecord(f"there is no partition {self._topic}/{int(chosen[row])} here")

    def _reachable(self, chosen: Int64s | int) -> Int64s:
        """A partition that is here, for each that is not."""
        return self._here[chosen % len(self._here)]

    def _sure_limit(self) -> int:
        config = self._config()
        limit = min(config.max_message_bytes, config.segment_bytes)
        return limit - limit // 8 - _SURE_BYTES


Target = PartitionTarget | TopicTarget


def open_target(owned: OwnedDir, place: str | TopicPartition, *, force: bool = False) -> Target:
    """A topic, by its name, or a partition.

    NotPermitted where nothing may be appended, UnknownTopicOrPartition, PartitionOffline, OSError; InvalidConfig for a
    topic whose true number of partitions nobody here knows.
    """
    topic = place if isinstance(place, str) else place.topic
    info = None
    if owned.log_dir.is_broker or topic in names.INTERNAL_TOPICS or topic == names.CLUSTER_METADATA_TOPIC:
        # Asked only where the answer may be no: it takes files to read, and `echo >>` opens for each line.
        info = owned.topic_info(topic)
        guest_rules.check_append(info, force=force)
    if isinstance(place, TopicPartition):
        return PartitionTarget(owned.log(place), clock=owned.clock)
    here = owned.log_dir.partitions(topic)
    count = here[-1] + 1 if info is None else info.partition_count
    if count is None:
        raise InvalidConfig(
            f"how many partitions {topic} has is not known here", advice="Append to one of its partitions"
        )
    return TopicTarget(owned, topic, here, count)


def sync_each(syncs: Iterable[Callable[[], object]]) -> None:
    """Calls all of them: one partition that fails keeps no other from the disk. Raises the first error."""
    first: Exception | None = None
    for sync in syncs:
        try:
            sync()
        except (StorageError, OSError) as error:
            first = first or error
    if first is not None:
        raise first


def _longest_line(config: LogConfig, *, verbatim: bool) -> int:
    limit = min(config.max_message_bytes, config.segment_bytes)
    plain = verbatim and config.compression_type in ("producer", "uncompressed")
    return limit if plain else max(8 * limit, _LONG_LINE_BYTES)


def _groups(columns: RecordColumns, stop: int, sure_limit: int) -> list[int]:
    """Ends of groups of rows. A row that may prove too large makes one by itself: no later one precedes it."""
    sizes = np.zeros(len(columns), np.int64)
    for lengths in (columns.key_length, columns.value_length, columns.headers_length):
        sizes += np.maximum(lengths, 0)
    risky = np.flatnonzero(sizes[:stop] > sure_limit)
    return sorted({*risky.tolist(), *(risky + 1).tolist(), stop} - {0})

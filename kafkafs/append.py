"""Bytes written → messages: lines, batches, partitions. What `@append` files and `kafkafs append` share.

    writer = LineWriter(Target(owned, "orders"), parse_txt)
    writer.write(b"one\\ntwo\\nthr")  # two messages, one batch
    writer.sync()                    # a third, and all of it is on disk

A write is taken up to its last complete line. What goes wrong is one of two things. A bad line (one that does not
parse, or that the topic does not take): it is gone, and the rest of it too, should it come later. Anything else (the
disk is full, a partition offline): nothing of the write is taken, and the same bytes may be written again; what of them
some of a topic's partitions have already got is not appended twice.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

import numpy as np

from kafkafs.lines import Buffer, Int64s, Parse, Parsed, parse_txt
from kafkafs.retries import Ahead
from storage.client.partitioner import Partitioner
from storage.config import LogConfig
from storage.errors import InvalidConfig, InvalidRecord, PartitionOffline, RecordTooLarge, StorageError
from storage.files import names
from storage.format.lines_kernel import split_lines
from storage.format.record_columns import RecordColumns
from storage.log import guest_rules
from storage.log.appender import AppendedLines, Appender
from storage.log.owned_dir import OwnedDir
from storage.types import TopicPartition

_NEWLINE: Final = 10
_FEW_LINES: Final = 16
_NO_ROWS: Final = np.zeros(0, np.int64)
# Errors of a line, not of the disk.
_BAD_LINES: Final = (InvalidRecord, RecordTooLarge, InvalidConfig)
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

    def sync(self) -> None:
        """All that was appended is on disk."""


class Target:
    """A partition, or a topic whose partitions are chosen as Kafka's producer does. One writer's, not thread-safe.

    NotPermitted where nothing may be appended, UnknownTopicOrPartition, PartitionOffline, OSError; InvalidConfig for a
    topic whose true number of partitions nobody here knows.
    """

    def __init__(self, owned: OwnedDir, topic: str, partition: int | None = None, *, force: bool = False) -> None:
        self._owned = owned
        self._topic = topic
        self._appenders: dict[int, Appender] = {}
        self._unsynced: set[int] = set()
        self._partitioner: Partitioner | None = None
        self._here: Int64s = _NO_ROWS
        self._numbers: frozenset[int] = frozenset()
        self._only = partition
        self._ahead = Ahead()
        here = owned.log_dir.partitions(topic)
        count: int | None = here[-1] + 1
        if owned.log_dir.is_broker or topic in names.INTERNAL_TOPICS or topic == names.CLUSTER_METADATA_TOPIC:
            # Asked only where the answer may be no: it takes files to read, and `echo >>` opens for each line.
            info = owned.topic_info(topic)
            guest_rules.check_append(info, force=force)
            count = info.partition_count
        if partition is not None:
            self._appender(partition)
            return
        if count is None:
            raise InvalidConfig(
                f"how many partitions {topic} has is not known here", advice="Append to one of its partitions"
            )
        self._here = np.array(here, np.int64)
        self._numbers = frozenset(here)
        self._partitioner = Partitioner(count)

    def append(self, parsed: Parsed) -> Taken:
        """See Destination. A disk that fails meanwhile may leave later records of other partitions in their logs: when
        they come again with the next call they are not appended twice."""
        columns, asked = parsed.columns, parsed.partition
        if not len(columns):
            return Taken(0, None)
        if self._only is not None:
            return self._append_to(self._only, columns)
        if not self._ahead:
            taken, beyond = self._append_all(columns, asked)
            if beyond:
                self._ahead.note(columns, taken.rows, beyond)
            return taken
        missing = self._ahead.missing(columns)
        there = set(range(len(columns))).difference(missing.tolist())
        taken, beyond = Taken(0, None), set()
        if len(missing):
            taken, beyond = self._append_all(_selected(columns, missing), None if asked is None else asked[missing])
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
            taken = self._append_to(int(chosen[0]), columns)
            return taken if taken.error is not None else Taken(taken.rows, error), set()
        # What the topic does not take ends it for all partitions: it is looked for before any gets a later row.
        able, refused = self._any_appender(int(chosen[0])).acceptable(columns)
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
        """Appends all lines of `data` that end in it as values, `begun` standing before the first.

        None, and nothing done, where only `append` can tell what to do. PartitionOffline, OSError: nothing of them is
        appended.
        """
        if self._only is not None:
            return self._lines_to(self._only, begun, data)
        if self._ahead:
            return None
        assert self._partitioner is not None
        sticky = self._partitioner.sticky
        partition = sticky if sticky in self._numbers else int(self._reachable(sticky))
        if partition not in self._appenders and b"\n" not in bytes(data):
            return None  # no reason to open that log yet
        done = self._lines_to(partition, begun, data)
        if done is not None:
            self._partitioner.used(len(begun) + done.size - done.lines)
        return done

    def longest_line(self, *, verbatim: bool) -> int:
        """See Destination."""
        config = self._config()
        limit = min(config.max_message_bytes, config.segment_bytes)
        plain = verbatim and config.compression_type in ("producer", "uncompressed")
        return limit if plain else max(8 * limit, _LONG_LINE_BYTES)

    def sync(self) -> None:
        """See Destination."""
        for partition in sorted(self._unsynced):
            self._appenders[partition].log.flush()
            self._unsynced.discard(partition)

    def _config(self) -> LogConfig:
        """The topic's as of now."""
        for appender in self._appenders.values():
            return appender.log.config
        return self._owned.topic_info(self._topic).config

    def _appender(self, partition: int) -> Appender:
        appender = self._appenders.get(partition)
        if appender is None:
            log = self._owned.log(TopicPartition(self._topic, partition))
            appender = self._appenders[partition] = Appender(log, clock=self._owned.clock)
        return appender

    def _any_appender(self, partition: int) -> Appender:
        return next(iter(self._appenders.values()), None) or self._appender(partition)

    def _append_to(self, partition: int, columns: RecordColumns) -> Taken:
        self._unsynced.add(partition)
        appender = self._appender(partition)
        result = appender.append(columns)
        return Taken(result.taken, None if result.error is None else _offline_or(result.error, appender))

    def _lines_to(self, partition: int, begun: bytearray, data: Buffer) -> AppendedLines | None:
        self._unsynced.add(partition)
        appender = self._appender(partition)
        try:
            return appender.append_lines(begun, data)
        except OSError as error:
            raise _offline_or(error, appender) from error

    def _working(self, chosen: Int64s) -> tuple[int, Exception | None]:
        """How many rows there are before the first whose partition is offline, and why it is."""
        numbers, at = np.unique(chosen, return_index=True)
        for row, partition in sorted(zip(at.tolist(), numbers.tolist(), strict=True)):
            try:
                self._appender(partition).log.check()
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
            taken = self._append_to(partition, _selected(columns, rows))
            done.update(rows[: taken.rows].tolist())
            if taken.error is not None:
                missing = [int(rows[taken.rows])] if taken.rows < len(rows) else []
                missing += [int(np.flatnonzero(group == other)[0]) + first for other in ordered[index + 1 :]]
                end = min(missing)
                return Taken(end - first, taken.error), {row for row in done if row > end}
        return Taken(last - first, None), set()

    def _chosen(self, columns: RecordColumns, asked: Int64s | None) -> tuple[Int64s, int, InvalidRecord | None]:
        """Each row's partition, how many rows have one that is here, and what is wrong with the next."""
        assert self._partitioner is not None
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


def _offline_or(error: Exception, appender: Appender) -> Exception:
    """What an append is answered: an error of the disk that took the log offline is that, whatever its number."""
    if isinstance(error, OSError):
        try:
            appender.log.check()
        except PartitionOffline as offline:
            return offline
    return error


def _groups(columns: RecordColumns, stop: int, sure_limit: int) -> list[int]:
    """Ends of groups of rows. A row that may prove too large makes one by itself: no later one precedes it."""
    sizes = np.zeros(len(columns), np.int64)
    for lengths in (columns.key_length, columns.value_length, columns.headers_length):
        sizes += np.maximum(lengths, 0)
    risky = np.flatnonzero(sizes[:stop] > sure_limit)
    return sorted({*risky.tolist(), *(risky + 1).tolist(), stop} - {0})


def _selected(columns: RecordColumns, rows: Int64s) -> RecordColumns:
    def of(column: Int64s) -> Int64s:
        return column if len(column) <= 1 < len(columns) else column[rows]

    return replace(
        columns,
        value_start=columns.value_start[rows],
        value_length=of(columns.value_length),
        timestamp=of(columns.timestamp),
        key_start=of(columns.key_start),
        key_length=of(columns.key_length),
        headers_start=of(columns.headers_start),
        headers_length=of(columns.headers_length),
        headers_count=of(columns.headers_count),
    )


class LineWriter:
    """One writer with one line buffer. Thread-safe: processes may share a descriptor."""

    def __init__(self, destination: Destination, parse: Parse) -> None:
        # Constant after construction.
        self._parse = parse
        # Whom lines as they are can be given to.
        self._target = destination if parse is parse_txt and isinstance(destination, Target) else None
        # Guarded by the lock.
        self._lock = threading.Lock()
        self._destination = destination
        self._starts: Int64s = _NO_ROWS
        self._lengths: Int64s = _NO_ROWS
        self._begun = bytearray()  # the line that has no newline yet
        self._discarding = False  # the rest of a bad line
        self._refused = False  # the last write failed: what was begun may lack a part

    def write(self, data: Buffer) -> int:
        """Takes `data` up to a bad line or an error; returns how many bytes, all of them when nothing is wrong.

        Raises what is wrong when that is none: InvalidRecord, RecordTooLarge, PartitionOffline, OSError.
        """
        with self._lock:
            skipped = self._skip_locked(data) if self._discarding else 0
            try:
                return skipped + self._write_locked(data[skipped:] if skipped else data)
            except Exception:
                if not skipped:
                    raise
                # The rest comes again, and is then as bad as now.
                self._discarding = self._refused = False
                return skipped

    def end_line(self) -> None:
        """What stands after the last newline becomes a message. Errors as `write`; a bad line is then gone."""
        with self._lock:
            if not self._begun:
                return
            if self._refused:
                self._begun.clear()
                return
            try:
                self._take_locked(bytes(self._begun), np.zeros(1, np.int64), np.full(1, len(self._begun), np.int64))
            except _BAD_LINES:
                self._begun.clear()
                raise
            self._begun.clear()

    def sync(self) -> None:
        """As `end_line`, and all that was written is on disk when it returns. Errors as `write`."""
        self.end_line()
        with self._lock:
            self._destination.sync()

    def close(self) -> None:
        """The end for good: as `end_line`. A second call does nothing."""
        try:
            self.end_line()
        finally:
            with self._lock:
                self._begun.clear()

    def abandon(self) -> None:
        """Forgets what stands after the last newline."""
        with self._lock:
            self._begun.clear()

    def _skip_locked(self, data: Buffer) -> int:
        newline = bytes(data).find(b"\n")
        if newline < 0:
            return len(data)
        self._discarding = False
        return newline + 1

    def _write_locked(self, data: Buffer) -> int:
        if not len(data):
            return 0
        if self._target is not None:
            try:
                done = self._target.append_lines(self._begun, data)
            except Exception:
                self._refused = True
                raise
            if done is not None:
                return self._keep_rest_locked(data, done.size)
        rows = self._split_locked(data)
        if rows == 0:
            self._begin_locked(data, len(data), data)
            return len(data)
        starts, lengths = self._starts[:rows], self._lengths[:rows]
        end = int(starts[-1] + lengths[-1]) + 1
        buffer: Buffer = data
        before = len(self._begun)
        if before:
            buffer = b"".join((self._begun, data))
            starts[1:] += before
            lengths[0] += before
        try:
            taken = self._take_locked(buffer, starts, lengths)
        except _BAD_LINES:
            self._bad_line_locked(data)
            raise
        except Exception:
            self._refused = True
            raise
        if taken < rows:
            self._begun.clear()
            return int(starts[taken]) - before
        return self._keep_rest_locked(data, end)

    def _keep_rest_locked(self, data: Buffer, end: int) -> int:
        """What follows the last newline, at `end`, is a line's beginning; how many bytes of `data` are taken."""
        self._begun.clear()
        if end < len(data):
            try:
                self._begin_locked(data[end:], len(data) - end, None)
            except RecordTooLarge:
                return end
        self._refused = False
        return len(data)

    def _split_locked(self, data: Buffer) -> int:
        while True:
            rows = int(split_lines(memoryview(data), 0, len(data), _NEWLINE, self._starts, self._lengths))
            if rows < len(self._starts):
                return rows
            size = min(max(_FEW_LINES, 8 * rows), len(data) + 1)
            self._starts, self._lengths = np.empty(size, np.int64), np.empty(size, np.int64)

    def _begin_locked(self, part: Buffer, size: int, whole: Buffer | None) -> None:
        """Keeps a line's beginning, unless no message can be so long. `whole`: the write that fails then."""
        longest = self._destination.longest_line(verbatim=self._parse is parse_txt)
        if len(self._begun) + size > longest:
            if whole is not None:
                self._bad_line_locked(whole)
            raise RecordTooLarge("message", expected=f"a line of at most {longest} bytes")
        self._begun += part
        self._refused = False

    def _bad_line_locked(self, data: Buffer) -> None:
        """Nothing of the write was taken. Whatever line it ended in is not whole any more."""
        self._begun.clear()
        self._discarding = data[-1] != _NEWLINE

    def _take_locked(self, buffer: Buffer, starts: Int64s, lengths: Int64s) -> int:
        """Appends lines up to a bad one or an error, and returns how many; raises what is wrong when that is none."""
        parsed = self._parse(buffer, starts, lengths)
        taken = self._destination.append(parsed)
        error = parsed.error if taken.error is None else taken.error
        if error is not None and taken.rows == 0:
            raise error
        return taken.rows

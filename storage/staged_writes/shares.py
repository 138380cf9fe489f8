"""A partition's share of a write, appended to its log: each staged batch once, wherever an earlier attempt was stopped.

A batch is in the log if one of the same size and checksum has its offset. The first batches that follow one another
there, from the share's `base_offset` on, are counted, and the others are appended after them. If others appended in
between (a broker ran, or another writer was quicker), the rest goes to the log's end. Before that, the ledger notes
where the rest begins, and how much of the share came before it and is flushed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.append.append_values import BytesAt
from storage.append.partition_log import PartitionLog
from storage.files.commit_ledger import PendingPart
from storage.format.record_batch import move_batch
from storage.log.batch_spans import BatchSpan, spans_between
from storage.staged_writes.staging import staged_spans


class _Overtaken(Exception):
    """Others appended to the log since the share's place in it was determined."""


def append(log_dir: Path, part: PendingPart, log: PartitionLog, note: Callable[[PendingPart], None]) -> None:
    """Appends what the log does not have of a share, and flushes it.

    `note`: stores a changed share durably; OSError. CorruptBatch or FileNotFoundError of a staged file,
    PartitionOffline, errors of reading the log, OSError: some of it may be in the log.
    """
    while True:
        part = _counted(log_dir, part, log, note)
        with contextlib.suppress(_Overtaken):
            next_offset = part.base_offset
            for span, shift in _rest(log_dir, part):
                log.append(_moved(span, shift, next_offset))
                next_offset = int(span.table.last_offset[-1]) + shift + 1
            log.flush()
            return


def _counted(log_dir: Path, part: PendingPart, log: PartitionLog, note: Callable[[PendingPart], None]) -> PendingPart:
    """The share, with what the log has of it counted as done, and the offset at which the rest is to be appended."""
    end_offset = log.log_end_offset
    count = _messages_there(log_dir, part, log) if part.base_offset < end_offset else 0
    counted = part._replace(base_offset=part.base_offset + count, done=part.done + count)
    if counted.base_offset == end_offset or counted.is_written:
        return counted
    log.flush()  # what is noted as done must stay
    moved = counted._replace(base_offset=end_offset)
    note(moved)
    return moved


def _messages_there(log_dir: Path, part: PendingPart, log: PartitionLog) -> int:
    """How many messages of the staged batches follow one another in the log, from `base_offset` on."""
    staged = (batch for span, shift in _rest(log_dir, part) for batch in _batches(span, shift))
    in_log = (batch for span in spans_between(log.snapshot(), part.base_offset) for batch in _batches(span, 0))
    end_offset = part.base_offset
    for batch, other in zip(staged, in_log, strict=False):
        if batch != other:
            break
        end_offset = batch[0] + 1
    return end_offset - part.base_offset


def _batches(span: BatchSpan, shift: int) -> Iterator[tuple[int, int, int]]:
    """Each batch's last offset plus `shift`, its size, and its checksum."""
    table = span.table
    return zip((table.last_offset + shift).tolist(), table.size.tolist(), table.crc.tolist(), strict=True)


def _rest(log_dir: Path, part: PendingPart) -> Iterator[tuple[BatchSpan, int]]:
    """The staged batches from the share's message number `done` on, and by how much their offsets have to grow."""
    number = 0  # of the file's first message in the share
    for file in part.files:
        first_offset = max(part.done - number, 0)
        if first_offset < file.records:
            for span in staged_spans(log_dir, file, first_offset):
                yield span, part.base_offset - part.done + number
        number += file.records


def _moved(span: BatchSpan, shift: int, first_offset: int) -> BytesAt:
    """The bytes of staged batches with their offsets in the log, if the log ends at `first_offset`. _Overtaken."""

    def place(base_offset: int, leader_epoch: int) -> memoryview:
        if base_offset != first_offset:
            raise _Overtaken
        assert isinstance(span.data, memoryview)
        for position in (span.table.position - span.origin).tolist():
            move_batch(span.data[position:], shift, leader_epoch)
        return span.data

    return place

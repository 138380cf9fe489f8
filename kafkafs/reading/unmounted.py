"""Reading without a mount: a partition's messages in a range, in order, as blocks or as the log's own bytes.

A reader that is called again continues where it stopped, so a log is followed by reading it again and again. Segments
that retention or compaction replaces meanwhile are looked up again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from kafkafs.reading.layout import Cursor, spans_from
from kafkafs.reading.selection import ChosenOffsets, Question, RecordFilter, Selection
from kafkafs.reading.split_reader import ALL, Split, read_offsets
from storage.errors import CorruptData, LogTruncated, OffsetOutOfRange, SegmentGone, StorageError, TierUnavailable
from storage.log import lineage
from storage.log.counting import visible_end
from storage.log.rereads import Rereads

if TYPE_CHECKING:
    from storage.format.block import RecordBlock
    from storage.format.decoder import Decoder
    from storage.log.snapshot import LogSnapshot, ReadableLog
    from storage.types import OffsetRange, TopicPartition


_Part = TypeVar("_Part")

_CHUNK_BYTES: Final = 1 << 20


class PartitionReader:
    """Reads the chosen messages of one log. Not thread-safe.

    `follow`: messages that are appended later belong to the range too, a range above the log end is waited for, and a
    loss is reported to `note` instead of raised. Messages that a tier cannot deliver are always reported to it: then
    `failed` is set, and reading continues after them. `decoder` may be shared with readers that are not used at the
    same time. `done`: no more messages can come.
    """

    def __init__(
        self,
        log: ReadableLog,
        question: Question,
        now_ms: int,
        decoder: Decoder,
        *,
        follow: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.done = False
        self.failed = False
        self._log = log
        self._question = question
        self._now_ms = now_ms
        self._follow = follow
        self._note = note
        self._selection: Selection | None = None
        self._seen: LogSnapshot | None = None  # the snapshot that was read last
        self._next = 0
        self._left: int | None = None
        self._latest: ChosenOffsets | None = None
        self._may_retry = True  # nothing was yielded since `_next` was moved
        self._decoder = decoder

    def blocks(self) -> Iterator[RecordBlock]:
        """Yield the chosen records up to the log's present end; a block is valid until the next is taken.

        Raises OffsetOutOfRange; the error of damaged data, after the records before it.
        """
        yield from self._passes(self._blocks)

    def raw(self) -> Iterator[memoryview]:
        """Yield the whole batches that hold the ranges, verbatim, in parts of up to a MiB; a part is valid until the
        next.

        Key and headers are ignored; batches are not decoded.
        """
        yield from self._passes(self._raw)

    def _passes(self, one_pass: Callable[[LogSnapshot, Selection], Iterator[_Part]]) -> Iterator[_Part]:
        rereads = Rereads()
        self._may_retry = True
        while not self.done:
            snapshot = self._log.snapshot()
            if self._selection is None and self._follow and self._question.begins_behind(snapshot):
                return  # the log has not reached the range yet
            before = self._seen
            if self._follow and before is not None and before.epochs.entries and not snapshot.epochs.entries:
                return  # a broker is rebuilding the replica, and its leader epochs are not known yet
            try:
                selection = self._settle(snapshot)
                if self._next > snapshot.log_end_offset:  # truncated below where the range begins
                    self.done = not self._follow
                    return
                yield from one_pass(snapshot, selection)
            except (SegmentGone, CorruptData) as error:
                # What looks like damage may have been truncated, and written again, while it was read.
                is_gone = isinstance(error, SegmentGone) or self._log.snapshot().generation != snapshot.generation
                if not is_gone or not self._may_retry or rereads.are_exhausted(self._next):
                    raise
                continue
            end = visible_end(snapshot, self._question.isolation)
            bound = end if selection.end_offset is None else min(end, selection.end_offset)
            self._next = max(self._next, bound)
            whole = selection.end_offset is not None and selection.end_offset <= end
            self.done = self.done or whole or not self._follow
            return

    def _settle(self, snapshot: LogSnapshot) -> Selection:
        """Decide where to continue: the log may have changed at both ends since the last pass."""
        before, self._seen = self._seen, snapshot
        if self._selection is None or (self._question.latest_bytes is not None and self._latest is None):
            self._selection = self._question.resolve(snapshot, self._now_ms, follow=self._follow, find_nth=False)
            self._next = self._selection.start_offset
            self._left = self._selection.limit
            if self._question.latest_bytes is not None:
                from storage.latest.latest_records import latest_offsets

                offsets = latest_offsets(snapshot, self._question.isolation, self._question.latest_bytes)
                self._latest = ChosenOffsets(offsets)
            return self._selection
        start = self._selection.start_offset
        if before is not None and before.generation != snapshot.generation and self._next > start:
            self._go_on_after_truncation(before, snapshot, start)
        if self._next < snapshot.log_start_offset:
            how = "removed" if snapshot.remote_offsets is None else "moved to tiered storage"
            lost = f"messages {self._next} to {snapshot.log_start_offset - 1} of {snapshot.tp} were {how} unread"
            if not self._follow:
                raise OffsetOutOfRange(lost)
            self._say(lost)
            self._next = snapshot.log_start_offset
        return self._selection

    def _go_on_after_truncation(self, before: LogSnapshot, snapshot: LogSnapshot, start: int) -> None:
        """Move the next offset back to where the log still holds what was read. LogTruncated if that is unknown, or if
        the reader does not follow the log."""
        kept = lineage.kept_end(before, snapshot, self._next)
        if kept == self._next and self._latest is None:
            return
        if kept is None or not self._follow or self._left is not None:
            raise LogTruncated(f"{snapshot.tp} was truncated while it was read", advice="Run it again")
        self._next = max(kept, start)
        self._say(f"{snapshot.tp} was truncated to {kept}: going on at {self._next}")

    def _say(self, text: str) -> None:
        if self._note is not None:
            self._note(text)

    def _pass_over(self, error: StorageError) -> None:
        """Report messages that a tier cannot deliver; raise any other error."""
        if not isinstance(error, TierUnavailable):
            raise error
        self.failed = True
        self._say(str(error))

    def _blocks(self, snapshot: LogSnapshot, selection: Selection) -> Iterator[RecordBlock]:
        question = self._question
        end = visible_end(snapshot, question.isolation)
        split = Split(snapshot.tp, self._next, end if selection.end_offset is None else min(end, selection.end_offset))
        record_filter = RecordFilter(times=selection.time_range, key=question.key, headers=question.headers)
        given = [snapshot]  # first, so that what was truncated since is not read on as if it were the same log
        blocks = read_offsets(
            lambda: given.pop() if given else self._log.snapshot(),
            split,
            self._decoder,
            on_loss=_look_again,
            on_damage=lambda _, damage: self._pass_over(damage.error),
            isolation=question.isolation,
            record_filter=record_filter if self._left is None else ALL,  # the first N messages have any time and key
            latest=self._latest,
        )
        for block in blocks:
            if self._left is not None:
                block = block.select(slice(0, self._left)) if len(block) > self._left else block
                self._left -= len(block)
            behind = int(block.offset[-1]) + 1
            chosen = record_filter.apply(block)
            if len(chosen):
                yield chosen
            self._next = behind
            if self._left == 0:
                self.done = True
                return

    def _raw(self, snapshot: LogSnapshot, selection: Selection) -> Iterator[memoryview]:
        # The plans of the views, so that the bytes are the same.
        from kafkafs.reading.layout import Run
        from kafkafs.reading.raw import RawPlan, RawTimePlan

        end = visible_end(snapshot, self._question.isolation)
        if self._left is not None:
            nth = replace(self._question, times=None).resolve(snapshot, self._now_ms)
            selection = replace(selection, end_offset=nth.end_offset)
        plan = RawPlan() if selection.time_range is None else RawTimePlan(selection.time_range)
        spans, _ = spans_from(snapshot, Cursor(self._next), selection.end_offset, end)
        buffer = bytearray(_CHUNK_BYTES)
        for span in spans:
            runs: list[Run] = []
            plan.add(snapshot, runs, span, grows=False)
            for run in runs:
                end = run.source_start + run.end - run.start
                try:
                    for position in range(run.source_start, end, _CHUNK_BYTES):
                        part = run.segment.read(position, min(_CHUNK_BYTES, end - position), buffer)
                        self._may_retry = False
                        yield part
                except TierUnavailable as error:
                    self._pass_over(error)
        if self._left is not None and selection.end_offset is not None:
            self.done = True


def _look_again(tp: TopicPartition, _: OffsetRange, why: str) -> None:
    """Ignore a loss: the next pass reports it, and decides where to continue."""
    raise SegmentGone(f"{tp}: {why}")

"""The plan of a key's messages: only the blocks that may hold the key are measured, through a filter.

Without a key index everything is. What is appended later is measured through the filter as it comes, so positions do
not depend on the index.
"""

from __future__ import annotations

from collections.abc import Iterator

from kafkafs.view_index.index import ViewIndex
from kafkafs.view_index.key_blocks import Found
from kafkafs.view_index.pieces import RecordFilter
from kafkafs.view_index.workbench import Rendition
from kafkafs.views.layout import Run
from kafkafs.views.plans import RenderedPlan
from kafkafs.views.spans import Cursor, Span, spans_from
from storage.client.counting import visible_end
from storage.log.snapshot import LogSnapshot
from storage.types import NO_TIMESTAMP


class KeyPlan(RenderedPlan):
    """The plan of all messages with a key."""

    def __init__(self, index: ViewIndex, rendition: Rendition, key: bytes) -> None:
        super().__init__(index, rendition)
        self._key = key

    def add(self, snapshot: LogSnapshot, runs: list[Run], span: Span, *, grows: bool) -> int:
        if self._continues(runs, span):
            return self._lengthen(snapshot, runs, span)
        wanted = self._wanted(span)
        found = self._find(snapshot, span)
        greatest = NO_TIMESTAMP
        for start, end in found.stretches:
            greatest = max(greatest, self._add_measured(snapshot, runs, span, start, end, wanted, grows=False))
        if grows or found.behind < span.end:
            behind = self._add_measured(snapshot, runs, span, found.behind, span.end, wanted, grows=grows)
            greatest = max(greatest, behind)
        return greatest

    def first_sizes(self, snapshot: LogSnapshot) -> Iterator[tuple[int, int]]:
        """For each stretch that may hold the key, in order: the bytes that its messages render to, and the greatest
        timestamp in them. Measured one by one, so that the first with messages shows that the key is there."""
        visible = visible_end(snapshot, self._rendition.isolation)
        spans, _ = spans_from(snapshot, Cursor(snapshot.log_start_offset), None, visible)
        for span in spans:
            found = self._find(snapshot, span)
            wanted = self._wanted(span)
            # The stretches as `add` measures them, so that an open finds them measured.
            stretches = [(*stretch, False) for stretch in found.stretches]
            grows = span is spans[-1]
            if grows or found.behind < span.end:
                stretches.append((found.behind, span.end, grows))
            for start, end, grows in stretches:
                extent = self._index.stretch(snapshot, span.segment, self._rendition, start, end, wanted, grows=grows)
                yield extent.pieces.size, extent.pieces.greatest_timestamp

    def _wanted(self, span: Span) -> RecordFilter:
        first, end = (0, None) if span.wanted is None else (span.wanted.first, span.wanted.end)
        return RecordFilter(first, end, None, self._key)

    def _find(self, snapshot: LogSnapshot, span: Span) -> Found:
        if self._index.keys is None:
            return Found([], span.start)
        return self._index.keys.find(snapshot, span.segment, self._key, span.start, span.end)

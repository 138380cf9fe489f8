"""Which keys the messages of a log have, where these are few: from the key index, and from the messages that are not in
it yet."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from kafkafs.view_index.key_blocks import LONGEST_NAME, MOST_NAMES
from kafkafs.view_index.key_index import KeyIndex
from kafkafs.views.spans import Cursor, Span, spans_from
from storage.client.counting import visible_end
from storage.errors import SegmentGone
from storage.log.reader import read_blocks
from storage.log.rereading import Rereads
from storage.log.snapshot import Log, LogSnapshot
from storage.types import Isolation


class KeyNames(NamedTuple):
    """Keys of a log. `unsure`: those whose messages may all be below the log start, or aborted, or not yet decided."""

    certain: set[bytes]
    unsure: set[bytes]


def keys_of(log: Log, keys: KeyIndex, isolation: Isolation) -> KeyNames | None:
    """The keys of a log as it is now; None if they are more than MOST_NAMES, which is known soon."""
    rereads = Rereads()
    while True:
        try:
            return _keys_in(log.snapshot(), keys, isolation)
        except SegmentGone:
            if rereads.are_exhausted(0):
                raise


def _keys_in(snapshot: LogSnapshot, keys: KeyIndex, isolation: Isolation) -> KeyNames | None:
    found = KeyNames(set(), set())
    visible = visible_end(snapshot, isolation)
    spans, _ = spans_from(snapshot, Cursor(snapshot.log_start_offset), None, visible)
    for span in spans:
        known = keys.names(snapshot, span.segment, span.end)
        if known is None:
            return None
        names, reached = known
        is_certain = isolation is Isolation.READ_UNCOMMITTED and span.start == 0 and span.wanted is None
        (found.certain if is_certain else found.unsure).update(names)
        if reached < span.end:
            _add_keys(snapshot, span, max(reached, span.start), isolation, found.certain)
        if len(found.certain) > MOST_NAMES:
            return None
    found.unsure.difference_update(found.certain)
    return found


def _add_keys(snapshot: LogSnapshot, span: Span, start: int, isolation: Isolation, names: set[bytes]) -> None:
    """Adds the keys of a span's messages from a position on; stops when they are too many."""
    with closing(read_blocks(snapshot, span.segment, start, span.end, isolation=isolation)) as blocks:
        for block in blocks:
            for row in range(len(block)):
                key = block.key(row) if int(block.key_length[row]) <= LONGEST_NAME else None
                if key is not None:
                    names.add(key)
            if len(names) > MOST_NAMES:
                return

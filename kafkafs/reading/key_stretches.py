"""Where in a log messages with a key may be, by the key index: reading without a mount leaves out the rest."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from kafkafs.reading.layout import Cursor, Span, spans_from
from storage.log.counting import visible_end
from storage.log.reader import read_blocks, read_range

if TYPE_CHECKING:
    from kafkafs.reading.key_index import KeyIndex
    from storage.format.block import RecordBlock
    from storage.format.decoder import Decoder
    from storage.log.snapshot import LogSnapshot
    from storage.types import Isolation

KEYS_BYTES: Final = 1 << 30  # of the key index on disk


def read_with_key(
    snapshot: LogSnapshot,
    start_offset: int,
    end_offset: int | None,
    *,
    isolation: Isolation,
    decoder: Decoder,
    keys: KeyIndex | None,
    key: bytes | None,
) -> Iterator[RecordBlock]:
    """`storage.log.reader.read_range`, without records of which the key index shows that they have not this key; others
    with another key are there. Without an index or a key they all are."""
    if keys is None or key is None:
        yield from read_range(snapshot, start_offset, end_offset, isolation=isolation, decoder=decoder)
        return
    snapshot.check_offset(start_offset)
    spans, _ = spans_from(snapshot, Cursor(start_offset), end_offset, visible_end(snapshot, isolation))
    for span in spans:
        for start, end in _stretches(snapshot, span, keys, key):
            for block in read_blocks(snapshot, span.segment, start, end, isolation=isolation, decoder=decoder):
                yield block if span.wanted is None else span.wanted.apply(block)


def _stretches(snapshot: LogSnapshot, span: Span, keys: KeyIndex, key: bytes) -> list[tuple[int, int]]:
    """The stretches (start, end) of a span in which the key may be."""
    from kafkafs.reading.store import LEAST_BYTES

    segment, whole = span.segment, [(span.start, span.end)]
    if segment.size < LEAST_BYTES:
        return whole
    found = keys.find_known(segment, key, span.start, span.end)
    if found is None or found.behind < span.end:
        # To scan a segment for its index is worth while if most of it would have to be read anyway.
        left = span.end - (span.start if found is None else found.behind)
        if 2 * left > snapshot.end_position(segment):
            found = keys.find(snapshot, segment, key, span.start, span.end)
    if found is None:
        return whole
    return [*found.stretches, (found.behind, span.end)] if found.behind < span.end else found.stretches


@contextmanager
def key_index() -> Iterator[KeyIndex]:
    """The key index, with what mounts and earlier commands have kept of it; what is added is kept at the end."""
    from kafkafs.reading.key_index import KeyIndex
    from kafkafs.reading.store import KeyStore, default_directory
    from kafkafs.reading.workers import Workers

    store: KeyStore | None
    try:
        store = KeyStore(default_directory(), KEYS_BYTES)
    except RuntimeError:  # there is no home directory
        store = None
    keys = KeyIndex(Workers(), store)
    try:
        yield keys
    finally:
        keys.stop()

"""From a partition's directory to its segments: which files count at any moment of the directory's life.

    .log            a segment
    .log.cleaned    being built by the cleaner: does not count yet
    .log.deleted    awaiting removal: no longer counts (readers that hold it continue)
    .log.swap       complete, about to replace the live files that it was made from

A broker (or a crash) may have stopped anywhere in a replacement (LocalLog.replaceSegments): .cleaned → .swap, sources
→ .deleted in ascending order, .swap → .log. Recovery completes what has reached .swap. Since nothing is changed here,
whichever is complete is read: the sources while they all exist, the .swap file as soon as one of them is missing.

    on disk                               what is read
    1. sources live, .cleaned             the sources
    2. sources live, .swap                the sources (they hold more than the .swap, never less)
    3. some sources .deleted, .swap       the .swap, in place of all live files with offsets in its range
    4. .swap renamed to .log              that
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import SegmentGone
from storage.files import names
from storage.files.listing import scan_quietly
from storage.files.log_file import FileIdentity, LogFile
from storage.files.names import FileKind, FileState
from storage.files.opening import status_of
from storage.log import tail
from storage.log.segment import Segment

_LOG: Final = FileKind.LOG
_LOG_ENDS: Final = tuple(_LOG.value + state.value for state in (FileState.LIVE, FileState.SWAP))
_CLEANED_END: Final = FileState.CLEANED.value


class Listing(NamedTuple):
    """The .log files of a directory by base offset: live ones and complete replacements."""

    live: set[int]
    swap: set[int]


def list_logs(directory: Path) -> Listing:
    """List a partition's directory, opening nothing. FileNotFoundError if it was removed."""
    live: set[int] = set()
    swap: set[int] = set()
    first_cleaned: int | None = None
    with scan_quietly(directory) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(_LOG_ENDS) and not entry.is_dir(follow_symlinks=False):  # a broker ignores directories
                parsed = names.parse_segment_file(name)
                if parsed is not None:
                    (live if parsed.state is FileState.LIVE else swap).add(parsed.offset)
            elif name.endswith(_CLEANED_END):
                parsed = names.parse_segment_file(name)
                if parsed is not None and (first_cleaned is None or parsed.offset < first_cleaned):
                    first_cleaned = parsed.offset
    if first_cleaned is not None:
        # The replacement was not complete: recovery discards these (LogLoader.removeTempFilesAndCollectSwapFiles).
        swap = {base for base in swap if base < first_cleaned}
    return Listing(live, swap)


def live_offsets(directory: Path, kind: FileKind) -> list[int]:
    """The offsets in the names of a partition's live files of a kind, ascending. FileNotFoundError, OSError."""
    with scan_quietly(directory) as entries:
        parsed = [
            names.parse_segment_file(entry.name)
            for entry in entries
            if entry.name.endswith(kind.value) and not entry.is_dir(follow_symlinks=False)
        ]
    return sorted(part.offset for part in parsed if part is not None)


def bytes_from(directory: Path, offset: int) -> int:
    """The bytes of the live segments from the one that holds an offset on. OSError."""
    bases = live_offsets(directory, _LOG)
    first = max((base for base in bases if base <= offset), default=0)
    return sum(Segment.at(directory, base).size for base in bases if base >= first)


def load(
    directory: Path, listing: Listing, held: Iterable[Segment], on_change: Callable[[], None] | None = None
) -> list[Segment]:
    """The segments in a listing, ascending; those of `held` that are still the same file are kept.

    A sealed segment is the same only as long as its file has the same size and modification time: since the last look a
    log may have been truncated across it, written to and rolled, or its topic created again with the inode numbers of
    the old one. So its file is tied to this size and time (LogFile.fix), and `on_change` is called when a reader sees
    others. The caller must find out whether a segment that was not sealed still has the same content. FileNotFoundError
    if the directory has changed since the listing.
    """
    known = {segment.base_offset: segment for segment in held}
    last = max(listing.live, default=-1)
    place = os.fspath(directory)

    def segment_of(base: int, state: FileState) -> Segment:
        old = known.get(base)
        # Text instead of Path: there may be a hundred thousand.
        path = f"{place}/{names.segment_file(base, _LOG, state)}"
        status = status_of(path)
        if old is not None:
            # If the segment was sealed and is the last one now, the log lost what followed, and perhaps this segment's
            # end.
            same = base != last and old.log.is_as_fixed(status) if old.sealed else old.log.is_it(status)
            if same:
                return old
        file = LogFile(path, FileIdentity.of(status))
        if base != last:
            file.fix(status, on_change)
        return Segment(directory, base, file, status.st_size)

    segments = {base: segment_of(base, FileState.LIVE) for base in listing.live}
    for base in sorted(listing.swap):
        # A live file without messages holds nothing that the replacement lacks.
        if (base in segments and segments[base].size) or _covered(base, sorted(segments), segments.__getitem__):
            continue
        replacement = segment_of(base, FileState.SWAP)
        end = tail.measure(replacement, replacement.size).next_offset
        for other in [other for other in segments if base < other < end]:
            del segments[other]
        segments[base] = replacement
    return [segments[base] for base in sorted(segments)]


def slot_of(sources: Sequence[Segment], sealed: Sequence[Segment]) -> int:
    """The index of these consecutive segments among the sealed ones. SegmentGone if one is missing."""
    slot = sealed.index(sources[0]) if sources and sources[0] in sealed else 0
    if not sources or tuple(sources) != tuple(sealed[slot : slot + len(sources)]):
        raise SegmentGone("segments were removed while they were compacted")
    return slot


def _covered(offset: int, bases: list[int], segment_at: Callable[[int], Segment]) -> bool:
    """Whether a live segment's messages reach `offset`: the source that a replacement was made from still exists."""
    slot = bisect_right(bases, offset) - 1
    if slot < 0:
        return False
    below = segment_at(bases[slot])
    return tail.measure(below, below.size).next_offset > offset

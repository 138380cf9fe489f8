"""A plan for the files that interrupted work left in a partition's directory. Pure.

Source: the first three passes of LogLoader.load. Numbers in the comments are those of `storage.recovery.recovery`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from storage.files import names
from storage.files.names import FileKind, FileState, SegmentFileName


@dataclass(frozen=True, slots=True)
class LeftoverPlan:
    """Files to remove, then files to rename (source, target), in this order; by name within the directory."""

    remove: tuple[str, ...] = ()
    rename: tuple[tuple[str, str], ...] = ()

    def source_of(self, name: str) -> str | None:
        """The present name of the file that will have this name; None if no file will."""
        sources = {target: source for source, target in self.rename}
        return sources.get(name, None if name in self.remove else name)


def plan_leftovers(files: Iterable[str], next_offset_of: Callable[[str], int]) -> LeftoverPlan:
    """Plan what to do with `.deleted`, `.cleaned`, `.swap` and checkpoint `.tmp` files, and with staged segments.

    `next_offset_of` returns the offset after the last message of a `.log.swap` or .log file.
    """
    files = sorted(files)
    parsed = {name: part for name in files if (part := names.parse_segment_file(name)) is not None}
    of_state: dict[FileState, dict[str, SegmentFileName]] = {state: {} for state in FileState}
    for name, part in parsed.items():
        of_state[part.state][name] = part
    remove = [name for name in files if _is_temporary(name) or names.is_staged_segment(name)]
    # 1. Files that were being removed or built are removed, with the replacements that were not complete.
    remove += of_state[FileState.DELETED]
    cleaned = of_state[FileState.CLEANED]
    first_cleaned = min((part.offset for part in cleaned.values()), default=None)
    swap = of_state[FileState.SWAP]
    if first_cleaned is not None:
        remove += [name for name, part in swap.items() if part.offset >= first_cleaned]
        swap = {name: part for name, part in swap.items() if part.offset < first_cleaned}
    remove += cleaned
    # 2. A finished replacement replaces all files with offsets in its range.
    logs = [name for name, part in swap.items() if part.kind is FileKind.LOG]
    if logs:
        start = min(swap[name].offset for name in logs)
        end = max(next_offset_of(name) for name in logs)
        live = of_state[FileState.LIVE]
        below = max((part.offset for part in live.values() if part.offset < start), default=None)
        if below is not None and next_offset_of(names.segment_file(below, FileKind.LOG)) > start:
            start = below  # the segment that was split, if its first message had a later offset than its name
        remove += [name for name, part in live.items() if start <= part.offset < end]
    # 3. The replacement gets its final names, the .log last: until then the .swap file is enough to repeat all this.
    order = sorted(swap, key=lambda name: (swap[name].kind is FileKind.LOG, name))
    rename = [(name, names.segment_file(swap[name].offset, swap[name].kind)) for name in order]
    return LeftoverPlan(tuple(dict.fromkeys(remove)), tuple(rename))


def _is_temporary(name: str) -> bool:
    # A topic's configuration may be written while its logs are opened: OwnedLogs removes its leftovers.
    return name.endswith(names.TEMPORARY_SUFFIX) and name != names.TOPIC_PROPERTIES + names.TEMPORARY_SUFFIX

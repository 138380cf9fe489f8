"""The keys of a segment, collected in one pass over its batches. CRCs are checked: damage may hide any key."""

from __future__ import annotations

from kafkafs.view_index.key_blocks import KeyCollector, Secret
from kafkafs.view_index.parts import OnBytes, in_parts, window_bytes
from kafkafs.view_index.workbench import Workbench
from kafkafs.view_index.workers import Workers
from storage.format.batches import BatchTable
from storage.format.block import RecordBlock
from storage.log.scanning import Window, scan_batches
from storage.log.segment import Segment
from storage.log.snapshot import LogSnapshot


def scan_keys(
    snapshot: LogSnapshot,
    segment: Segment,
    start: int,
    end: int,
    secret: Secret,
    workers: Workers,
    on_bytes: OnBytes,
) -> list[KeyCollector]:
    """The keys of the batches that begin in [start, end), in parts in order. SegmentGone."""

    def do(bench: Workbench, keys: KeyCollector, first: int, stop: int) -> int:
        reached = first
        for window in scan_batches(snapshot, segment, first, stop, window=window_bytes(first, stop)):
            if window.damage is not None:
                behind = window.damage.end
                keys.add_damage(window.damage.position, behind)
            else:
                collect_keys(bench, keys, window)
                behind = int(window.table.end[-1])
            on_bytes(behind - reached)
            reached = behind
        return reached

    return in_parts(segment, start, end, workers, lambda: KeyCollector(secret), do)[0]


def collect_keys(bench: Workbench, keys: KeyCollector, window: Window) -> None:
    """Adds all batches of a window, those of aborted transactions too."""
    row = 0
    while row < window.table.rows:
        block = bench.checked.decode(window.buffer, window.table, row, origin=window.origin)
        bench.note(block)
        add_keys(bench, keys, window.table, row, block)
        row = block.next_row if block.damage is None else block.damage.row + 1


def add_keys(bench: Workbench, keys: KeyCollector, table: BatchTable, first: int, block: RecordBlock) -> None:
    """Adds the batches from the row `first` on that are decoded in `block`, and the damaged one after them."""
    last = block.next_row if block.damage is None else block.damage.row
    keys.add(table, first, last, block, bench.hashes(len(block)))
    if block.damage is not None:
        row = block.damage.row
        keys.add_damage(int(table.position[row]), int(table.end[row]))

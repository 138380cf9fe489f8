"""What background work has to have done once it was due: retention, flushes, the second pass over what was deleted."""

from __future__ import annotations

from pathlib import Path

from storage.format.batches import BatchTable, scan
from storage.format.decoder import Decoder
from storage.upkeep.maintenance import COMPACTION, RETENTION
from tests.simulation.world import Anomaly

Old = tuple[int, list[Path]]  # how often the clock was set back; segments that retention.ms lets go


def expired(world, owned, status):
    """The sealed segments that a pass of retention will remove by their age, if one is due."""
    found = []
    now_ms = world.clock.time_ms
    if world.retained_ms and not owned.commits.state.pending and _task(status, RETENTION).next_run_ms <= now_ms:
        for tp in owned.partitions():
            limit_ms = world.retained_ms.get(tp.topic)
            if limit_ms is None:
                continue
            for path in sorted((world.path / tp.dir_name).glob("*.log"))[:-1]:
                data = path.read_bytes()
                table = _scanned(data)
                if not table.rows or now_ms - int(table.max_timestamp[: table.rows].max()) <= limit_ms:
                    break
                found.append(path)
    return world.clock.set_back, found


def check_removed(world, owned, old, began, ended):
    """After a pass of retention: none of them is there."""
    set_back, paths = old
    task = _task(ended, RETENTION)
    has_run = task.runs > _task(began, RETENTION).runs and not task.errors and not owned.commits.state.pending
    if has_run and set_back == world.clock.set_back and (left := [path for path in paths if path.exists()]):
        raise Anomaly(f"retention: {left} is there, though it is older than retention.ms")


class Flushed:
    """What was appended flush.ms ago is on the disk, if there was time for that since."""

    def __init__(self, world, owned):
        self._world = world
        self._owned = owned
        self._set_back = 0
        self._rounds = []  # when each began, and where logs ended

    def begin(self):
        """Before a round of upkeep."""
        if not self._world.flush_ms:
            return
        if self._set_back != self._world.clock.set_back:
            self._rounds.clear()
        self._set_back = self._world.clock.set_back
        ends = {log: log.log_end_offset for log in self._owned.logs() if log.tp.topic in self._world.flush_ms}
        self._rounds.append((self._world.clock.time_ms, ends))

    def check(self):
        """After it: the round before it began when these messages had waited long enough."""
        if len(self._rounds) < 2 or self._set_back != self._world.clock.set_back:
            return
        for log in self._owned.logs():
            limit_ms = self._world.flush_ms.get(log.tp.topic)
            if limit_ms is None or log.failure is not None:
                continue
            until_ms = self._rounds[-2][0] - limit_ms
            # Or what was there when its last flush began, if that was not before the clock was set back.
            flushed_ms = log.last_flush_ms
            until_ms = max(until_ms, flushed_ms - 1) if flushed_ms <= self._world.clock.time_ms else until_ms
            end = max((ends.get(log, 0) for began_ms, ends in self._rounds if began_ms <= until_ms), default=0)
            if log.recovery_point < end:
                raise Anomaly(f"flush.ms: {log.tp} is on disk up to {log.recovery_point}, and ended at {end}")


def check_deletes(world, owned, began, ended):
    """After a pass over a follower's log: messages without a value, and whose time is over, are gone from what was
    cleaned."""
    task = _task(ended, COMPACTION)
    if task.runs == _task(began, COMPACTION).runs or world.clock.set_back or task.last_run_ms is None:
        return
    for tp in [tp for tp in world.copies if task.result.startswith(f"{tp}:")]:
        until = owned.checkpoints.cleaner_offset(tp) or 0
        for horizon_ms, last_offset, has_deletes in deletes_in(world.path / tp.dir_name):
            if horizon_ms is None or not has_deletes:
                continue
            known_ms = world.horizons.setdefault((tp, last_offset), horizon_ms)
            if horizon_ms != known_ms:
                raise Anomaly(
                    f"deleted keys: {tp} kept those at {last_offset} until {known_ms}, now until {horizon_ms}"
                )
            if horizon_ms < task.last_run_ms and last_offset < until:
                raise Anomaly(f"deleted keys: {tp} has those at {last_offset}, whose time was over at {horizon_ms}")


def check_horizons(world, tp, written_ms):
    """How long messages without a value stay: delete.retention.ms from the pass on that has seen them first.
    `written_ms`: the timestamps of batches by their last offsets."""
    keep_ms = world.delete_retention_ms.get(tp.topic)
    if keep_ms is None or world.clock.set_back:
        return
    for horizon_ms, last_offset, has_deletes in deletes_in(world.path / tp.dir_name):
        if horizon_ms is None or not has_deletes or last_offset not in written_ms:
            continue
        if not written_ms[last_offset] <= horizon_ms - keep_ms <= world.clock.latest_ms:
            raise Anomaly(
                f"deleted keys: {tp} keeps those at {last_offset} until {horizon_ms}, which is not {keep_ms} ms"
            )


def deletes_in(directory):
    """Of each data batch in a partition's segments: its delete horizon, its last offset, and whether messages have no
    value."""
    found = []
    decoder = Decoder()
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        table, row = _scanned(data), 0
        while row < table.rows:
            block = decoder.decode(data, table, row, origin=0)
            empty = {int(block.batch[n]) for n in range(len(block)) if block.value(n) is None}
            for at in range(row, block.next_row):
                horizon_ms = int(table.base_timestamp[at]) if table.has_delete_horizon[at] else None
                if not table.is_control[at]:
                    found.append((horizon_ms, int(table.last_offset[at]), at in empty))
            row = block.next_row
    return found


def _scanned(data):
    table = BatchTable.empty(4096)
    scan(memoryview(data), 0, table, 0, len(data))
    return table


def _task(status, name):
    return next(task for task in status.tasks if task.name == name)

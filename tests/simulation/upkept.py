"""What background work has to have done once it was due: retention, flushes, the second pass over what was deleted."""

from storage.format.decoder import Decoder
from storage.upkeep.maintenance import COMPACTION, RETENTION
from tests.simulation.contents import Anomaly, segments_of


def expired(world, owned, status):
    """The sealed segments that a pass of retention will remove by their age, if one is due; and how often the clock
    was set back."""
    paths, now_ms = [], world.clock.time_ms
    is_due = not owned.commits.state.pending and _task(status, RETENTION).next_run_ms <= now_ms
    limits_ms = world.settings["retention.ms"]
    for tp in owned.partitions() if limits_ms and is_due else ():
        if tp.topic not in limits_ms:
            continue
        for path, _, table in list(segments_of(world.path / tp.dir_name))[:-1]:
            if not table.rows or now_ms - int(table.max_timestamp[: table.rows].max()) <= limits_ms[tp.topic]:
                break
            paths.append(path)
    return world.clock.set_back, paths


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
        limits_ms = self._world.settings["flush.ms"]
        if not limits_ms:
            return
        if self._set_back != self._world.clock.set_back:
            self._rounds.clear()
        self._set_back = self._world.clock.set_back
        ends = {log: log.log_end_offset for log in self._owned.logs() if log.tp.topic in limits_ms}
        self._rounds.append((self._world.clock.time_ms, ends))

    def check(self):
        """After it: the round before it began when these messages had waited long enough."""
        if len(self._rounds) < 2 or self._set_back != self._world.clock.set_back:
            return
        for log in self._owned.logs():
            limit_ms = self._world.settings["flush.ms"].get(log.tp.topic)
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
        for horizon_ms, last_offset in _deletes_in(world.path / tp.dir_name):
            known_ms = world.horizons.setdefault((tp, last_offset), horizon_ms)
            deletes = f"deleted keys: {tp} has those at {last_offset}"
            if horizon_ms != known_ms:
                raise Anomaly(f"{deletes}, until {known_ms} at first, and now until {horizon_ms}")
            if horizon_ms < task.last_run_ms and last_offset < until:
                raise Anomaly(f"{deletes}, whose time was over at {horizon_ms}")


def check_horizons(world, tp, written_ms):
    """How long messages without a value stay: delete.retention.ms from the pass on that has seen them first.
    `written_ms`: the timestamps of batches by their last offsets."""
    keep_ms = world.settings["delete.retention.ms"].get(tp.topic)
    if keep_ms is None or world.clock.set_back:
        return
    for horizon_ms, last_offset in _deletes_in(world.path / tp.dir_name):
        if last_offset in written_ms and not (written_ms[last_offset] <= horizon_ms - keep_ms <= world.clock.latest_ms):
            kept = f"keeps those at {last_offset} until {horizon_ms}, which is not {keep_ms} ms"
            raise Anomaly(f"deleted keys: {tp} {kept}")


def _deletes_in(directory):
    """Delete horizon and last offset of each data batch in a partition's segments that has messages without a value."""
    decoder = Decoder()
    for _, data, table in segments_of(directory):
        row = 0
        while row < table.rows:
            block = decoder.decode(data, table, row, origin=0)
            deletes = {int(block.batch[n]) for n in range(len(block)) if block.value(n) is None}
            for at in range(row, block.next_row):
                if at in deletes and table.has_delete_horizon[at] and not table.is_control[at]:
                    yield int(table.base_timestamp[at]), int(table.last_offset[at])
            row = block.next_row


def _task(status, name):
    return next(task for task in status.tasks if task.name == name)

"""Programs other than writers and readers: upkeep, an administrator, a leader whose follower the mount is, a Spark
driver, a consumer that commits offsets."""

import contextlib
import uuid

from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import GroupOffsets
from storage.directory.directory_checkpoints import CHECKPOINTS
from storage.errors import StorageError
from storage.files import checkpoints, names, topic_properties
from storage.files.commit_ledger import WriteId
from storage.format.block import Record, RecordColumns
from storage.format.control_records import ControlType
from storage.format.record_batch import BatchFields, encode_batch
from storage.staged_writes.commit import CommitUnfinished, commit
from storage.staged_writes.staging import StagedFileWriter
from storage.types import TopicPartition
from storage.upkeep.partition_retention import retain_partition
from tests.simulation.contents import Anomaly, messages_of
from tests.simulation.copies import ABORT, COMMIT, Copied, crc_of
from tests.simulation.mounts import MAX_MESSAGE_BYTES, Problem
from tests.simulation.plan import Fault, Pause
from tests.simulation.scheduler import Held, moment
from tests.simulation.states import ActiveIndexes, check_copy, check_snapshot
from tests.simulation.upkept import Flushed, check_deletes, check_removed, expired
from tests.simulation.world import Fate, Removal
from tests.support.control_batches import marker_batch


def check_configuration(world, configs):
    """What was set last is in these configurations, each with its topic."""
    for topic, config in configs:
        for (altered, key), to in world.altered.items():
            if altered == topic and str(getattr(config, key.replace(".", "_"))) != to:
                raise Anomaly(f"configuration: {topic} does not have {key} {to}")


class Program:
    """A program of operations, each with its own method here or in a subclass."""

    def __init__(self, process, job):
        self._process = process
        self._world = process.world
        self._owned = process.owned
        self._job = job

    def run(self):
        for op in self._job.ops:
            with contextlib.suppress(*Problem):
                self.carry_out(op)

    def carry_out(self, op):
        """One operation. Raises a Problem."""
        getattr(self, type(op).__name__.lower())(op)

    def pause(self, op):
        for _ in range(op.times):
            self._process.scheduler.pause("a while")


class Upkeep(Program):
    """The maintenance thread. Each operation is a time in which it looks for what is due."""

    def run(self):
        maintenance, world, owned = self._process.maintenance, self._world, self._owned
        rounds = sum(op.times for op in self._job.ops if isinstance(op, Pause))
        flushing = Flushed(world, owned)
        while self._process.working > 1 and rounds > 0:
            rounds -= 1
            began = maintenance.status()
            old = expired(world, owned, began)
            flushing.begin()
            wait_ms = maintenance.run_due()
            self._check_errors()
            if not world.faults:
                ended = maintenance.status()
                check_removed(world, owned, old, began, ended)
                flushing.check()
                check_deletes(world, owned, began, ended)
            world.clock.time_ms += min(wait_ms, world.trouble.randrange(1, 60))
            self._process.scheduler.pause("waits")

    def _check_errors(self):
        """Without a fault of the disk nothing of upkeep fails; that a segment is gone means that somebody else removed
        it."""
        world = self._world
        if world.faults or world.rotten or world.removals:
            return
        for task in self._process.maintenance.status().tasks:
            errors = [text for _, text in task.errors if not (world.deletes_records and "no longer" in text)]
            if errors:
                raise Anomaly(f"upkeep fails: {task.name}: {errors}")


class Administrator(Program):
    """Makes and removes topics, changes their configuration, deletes records, sets the clock; and what befalls the
    disk."""

    def __init__(self, process, job):
        super().__init__(process, job)
        self._half_changed = set()  # topics whose last change of configuration failed

    def run(self):
        super().run()
        lasting = {op.kind for op in self._job.ops if isinstance(op, Fault) and op.lasting}
        self._world.failing = {kind: rate for kind, rate in self._world.failing.items() if kind in lasting}

    def create(self, op):
        settings = self._world.settings
        for key in ("flush.messages", "flush.ms", "segment.ms"):
            settings[key].pop(op.topic, None)
        settings["segment.bytes"][op.topic] = max(400, settings["segment.bytes"].get(op.topic, 0))
        count = 3 if op.topic == "x" else 1
        self._owned.create_topic(op.topic, count, {"segment.bytes": "400", "max.message.bytes": str(MAX_MESSAGE_BYTES)})
        self._world.partitions[op.topic] = count
        self._half_changed.discard(op.topic)

    def extend(self, op):
        """All partitions have the same topic id and the same configuration, unless a change of it failed before."""
        self._owned.add_partitions(op.topic, op.partitions)
        self._world.partitions[op.topic] = op.partitions
        kept = [names.PARTITION_METADATA] + [names.TOPIC_PROPERTIES] * (op.topic not in self._half_changed)
        paths = [self._world.path / TopicPartition(op.topic, n).dir_name for n in range(op.partitions)]
        files = {tuple((path / name).read_bytes() for name in kept) for path in paths}
        if len(files) != 1:
            raise Anomaly(f"partitions of {op.topic} differ: {files}")

    def remove(self, op):
        world, removal = self._world, Removal(self._world.tick(), failed=True)
        world.removals.setdefault(op.topic, []).append(removal)
        world.partitions.pop(op.topic, None)
        # One that fails half-way may have been carried out by the next opening.
        world.altered = {key: to for key, to in world.altered.items() if key[0] != op.topic}
        try:
            self._owned.delete_topic(op.topic)
            removal.failed = False
            self._check_failures()
            for name in CHECKPOINTS:  # a line would count for the next topic of that name
                if left := [tp for tp in checkpoints.read(world.path / name) if tp.topic == op.topic]:
                    raise Anomaly(f"{name} has lines of a topic that was removed: {left}")
            world.deleted = {tp: offset for tp, offset in world.deleted.items() if tp.topic != op.topic}
        finally:
            if not self._process.scheduler.killed:
                removal.end = world.tick()

    def alter(self, op):
        world = self._world
        world.altered.pop((op.topic, op.key), None)
        if op.key == "segment.bytes":
            known = world.settings["segment.bytes"]
            known[op.topic] = max(int(op.to), known.get(op.topic, 0))
        elif op.topic == "copy":
            world.intervals.add(int(op.to))
        self._half_changed.add(op.topic)
        self._owned.alter_config(op.topic, {op.key: op.to})
        self._half_changed.discard(op.topic)
        world.altered[op.topic, op.key] = op.to
        # The only program that does this has returned from it: this is in force, for logs that are being opened too.
        for tp in [tp for tp in self._owned.partitions() if tp.topic == op.topic]:
            written = topic_properties.read(world.path / tp.dir_name / names.TOPIC_PROPERTIES) or {}
            if written.get(op.key) != op.to:
                raise Anomaly(f"configuration: {tp}'s topic.properties has {op.key} {written.get(op.key)}, not {op.to}")
        check_configuration(world, [(log.tp.topic, log.config) for log in self._owned.logs()])

    def jump(self, op):
        self._world.clock.time_ms += op.by_ms
        self._world.clock.set_back += op.by_ms < 0

    def fault(self, op):
        self._world.failing.pop(op.kind, None)
        if op.rate:
            self._world.failing[op.kind] = op.rate

    def status(self, _op):
        self._process.tree.status()
        self._process.maintenance.status()
        self._check_failures()

    def _check_failures(self):
        """No other program makes or removes topics: what is listed as offline is there."""
        gone = [tp for tp in self._owned.failures() if not (self._world.path / tp.dir_name).exists()]
        if gone:
            raise Anomaly(f"partitions are offline that do not exist: {gone}")

    def before(self, op):
        log = self._owned.log(TopicPartition(op.topic, op.partition))
        start, end = log.log_start_offset, log.log_end_offset
        before = start + int(op.part * (end - start))
        self._world.deleted[log.tp] = max(before, self._world.deleted.get(log.tp, 0))
        for segment in log.snapshot().segments:
            for message in messages_of(segment.log.path.read_bytes()):
                if message.offset < before:  # it may no longer be shown, and its segment stays
                    self._world.removed[log.tp, message.offset] = message
        result = retain_partition(self._owned, log.tp, free_bytes=lambda: 1 << 30, before=before)
        if result is not None:
            self._process.maintenance.delete_later(result.files, 20)


class Leader(Program):
    """What a follower does with what its leader has: appends its batches, flushes. One partition."""

    def __init__(self, process, job):
        super().__init__(process, job)
        topic, _, number = job.path.strip("/").partition("/")
        self._tp = TopicPartition(topic, int(number))
        self._copy = self._world.copies[self._tp]
        self._number = 0
        self._sequences = {}
        self._indexes = []  # for each interval that may be in force for the active segment

    def run(self):
        for op in self._job.ops:
            with contextlib.suppress(*Problem):
                self._look_at(self._owned.log(self._tp))  # first opened, perhaps
                self.carry_out(op)
            log = self._process.opened_log(self._tp)
            if log is not None and not self._process.scheduler.killed:
                self._look_at(log)

    def _look_at(self, log):
        if not self._in_a_moment(lambda: self._check(log, log.snapshot())):
            return
        until = self._owned.checkpoints.cleaner_offset(self._tp) or 0
        base = self._in_a_moment(log.snapshot).segments[-1].base_offset
        if self._copy.is_compacted and until > base:
            raise Anomaly(f"cleaner checkpoint: {until} of {self._tp}, which is written from {base} on")

    def _in_a_moment(self, look):
        """What `look` returns once nobody is changing the log."""
        while True:
            try:
                with moment():
                    return look()
            except Held:
                self._process.scheduler.pause("a log that is changed")

    def _check(self, log, snapshot):
        """Nobody else changes this log, except that upkeep removes segments and compacts them."""
        copy, base, failed = self._copy, snapshot.segments[-1].base_offset, bool(self._world.faults)
        if log.failure is not None or copy.appending:
            self._indexes = []
            return False
        if not self._indexes or self._indexes[0].base != base:
            # Opened, or rolled without an append that succeeded.
            self._indexes = [ActiveIndexes(log, base, interval) for interval in sorted(self._world.intervals)]
            if not copy.is_compacted and not failed:
                self._indexes[0].check_largest(copy.batches)
        problems = [indexes.problem(log, failed=failed) for indexes in self._indexes]
        if all(problems):
            raise Anomaly(problems[0])
        self._indexes = [indexes for indexes, problem in zip(self._indexes, problems, strict=True) if not problem]
        check_copy(log, copy, self._world)
        return True

    def batch(self, op):
        values, keys, time_ms = [], [], self._world.clock.time_ms
        for _ in range(op.messages):
            self._number += 1
            text = b"%s.%d.%d." % (self._job.name.encode(), self._world.number, self._number)
            values.append(None if op.deletes else text + b"y" * max(0, op.size - len(text)))
            keys.append(b"k%d" % (self._number * 7 % 11 % op.keys) if op.keys else None)
        base, epoch, sequence = self._end() + op.skips, self._epoch() + op.epoch, -1
        fields = BatchFields(leader_epoch=epoch)
        if op.producer >= 0:
            sequence = self._sequences.get(op.producer, 0)
            self._sequences[op.producer] = sequence + op.messages
            fields = BatchFields(epoch, op.producer, 0, sequence, op.transactional)
        records = [Record(key, value, (), time_ms) for key, value in zip(keys, values, strict=True)]
        data = encode_batch(records, base_offset=base, fields=fields)
        batch = Copied(
            base, base + op.messages - 1, crc_of(data), tuple(values), time_ms, op.producer, op.transactional,
            epoch=epoch, sequence=sequence, keys=tuple(keys), size=len(data),
        )  # fmt: skip
        self._append(batch, data)

    def marker(self, op):
        base, time_ms, epoch = self._end(), self._world.clock.time_ms, self._epoch()
        kind = ControlType.COMMIT if op.commits else ControlType.ABORT
        data = marker_batch(kind, op.producer, base_offset=base, timestamp=time_ms, leader_epoch=epoch)
        marker = COMMIT if op.commits else ABORT
        self._append(
            Copied(base, base, crc_of(data), (), time_ms, op.producer, True, marker, epoch=epoch, size=len(data)), data
        )

    def _epoch(self):
        """The leader epoch of the last batch."""
        return self._copy.batches[-1].epoch if self._copy.batches else 0

    def before(self, op):
        """The leader's log start has moved."""
        log = self._owned.log(self._tp)
        start = log.log_start_offset
        offset = start + int(op.part * (log.log_end_offset - start))
        log.check()
        self._copy.start = max(self._copy.start, offset)
        log.increment_log_start_offset(offset)

    def _end(self):
        return max(self._copy.end, self._owned.log(self._tp).log_end_offset)

    def _append(self, batch, data):
        log = self._owned.log(self._tp)
        log.check()
        self._copy.begin(batch)
        base = self._in_a_moment(log.snapshot).segments[-1].base_offset
        try:
            log.append_batches(memoryview(data))
        except (StorageError, OSError):
            if log.failure is None:
                self._copy.refused()
            raise
        self._copy.appended()
        snapshot = self._in_a_moment(log.snapshot)
        active = snapshot.segments[-1].base_offset
        if self._indexes and self._indexes[0].base != active:
            intervals = sorted(self._world.intervals)
            self._indexes = [ActiveIndexes(log, active, interval, is_new=True) for interval in intervals]
        for indexes in self._indexes:
            indexes.appended(batch, snapshot.active_end - batch.size)
        if active != base and not self._process.scheduler.killed:
            check_snapshot(log, self._copy.batches, active, self._world.clock.latest_ms)
        if self._world.settings["flush.messages"].get(self._tp.topic) == 1:
            self._copy.flushed(batch.last + 1)

    def flush(self, _op):
        end = self._copy.end
        self._owned.log(self._tp).flush()
        self._copy.flushed(end)


class Driver(Program):
    """A Spark driver: it commits what its tasks have staged."""

    def __init__(self, process, job):
        super().__init__(process, job)
        self._number = 0
        self._query, self._batch = str(uuid.uuid4()), 0
        self._failed = 0  # writes

    def commit(self, op):
        world = self._world
        if world.query is not None:
            last, shares = world.query
            # A batch that failed may be written all the same: its query writes it again, with the same content.
            failed = op.query and last == WriteId(self._query, self._batch)
            if failed or (op.goes_on and self._query != last.id):
                self._resume(last, shares)
        is_behind = self._is_behind()
        write = WriteId(self._query, self._batch) if op.query else WriteId(str(uuid.uuid4()), None)
        shares = {
            TopicPartition(topic, partition): self._lines(topic, partition, n) for topic, partition, n in op.shares
        }
        if op.query and not is_behind and (op.goes_on or (world.query is not None and world.query[0].id == write.id)):
            world.query = write, shares
        if op.query and is_behind:
            self._refused(WriteId(self._query, self._batch + 1), shares)
        elif not self._write(write, shares, op.batches, goes_on=op.goes_on):
            self._failed += 1
        else:
            self._batch += op.query
            if op.query and op.again:
                self._write(write, shares, op.batches)

    def _lines(self, topic, partition, count):
        """Lines to write, which stay refused as long as nothing is committed."""
        lines = []
        for _ in range(count):
            self._number += 1
            # A write that failed may come after what was written meanwhile: by the next opening, or when its query is
            # started again.
            name = f"{self._job.name}.{self._world.number}.{self._failed}"
            lines.append(self._world.line(topic, f"/{topic}/{partition}/@staged", name, self._number, 30))
            lines[-1].fate = Fate.REFUSED
        return lines

    def _resume(self, write, shares):
        """A query that was started again begins with its last batch: what is there of it stays, otherwise it is written
        now."""
        self._query, self._batch = write.id, write.batch or 0
        if self._is_behind():
            return
        if self._write(write, shares, 1):
            self._batch += 1
        else:
            self._query, self._batch = str(uuid.uuid4()), 0

    def _is_behind(self):
        """Whether the query has a write that is not finished."""
        return any(pending.write.id == self._query for pending in self._owned.commits.state.pending)

    def _refused(self, write, shares):
        """A query's batches come in order: none before the one that is not finished (its lines stay refused)."""
        files = self._staged(write, shares, 1)
        try:
            commit(self._owned, write, files or ())
        except CommitUnfinished:
            return
        except (StorageError, OSError):
            if self._world.faults:
                return
            raise
        raise Anomaly(f"reordered: {write} was written while an earlier one of its query is not finished")

    def _staged(self, write, shares, batches):
        """What the tasks have written; None when that failed."""
        world, files = self._world, []
        for tp, lines in shares.items():
            config = self._owned.topic_info(tp.topic).config
            size = -(-len(lines) // batches)
            parts = [lines[first : first + size] for first in range(0, len(lines), size)]
            # By one task, or each part by its own.
            for task in [[part] for part in parts] if len(lines) % 2 else [parts]:
                writer = StagedFileWriter(world.disk, world.path, tp, write, config=config, clock=world.clock)
                try:
                    for part in task:
                        writer.append(RecordColumns.from_records([Record(line.key, line.value) for line in part]))
                    files.append(writer.finish())
                except OSError:
                    writer.discard()
                    return None
        return files

    def _write(self, write, shares, batches, *, goes_on=False):
        """True once it is committed. `goes_on`: the query does after a failure."""
        world, files = self._world, self._staged(write, shares, batches)
        if files is None:
            return False
        lines = [line for share in shares.values() for line in share]
        fresh = [line for line in lines if line.fate is Fate.REFUSED]
        fate = Fate.UNKNOWN
        for line in fresh:
            line.fate = fate
        world.commits.append(lines)
        try:
            commit(self._owned, write, files)
        except CommitUnfinished:
            # A share whose first batches are in the log is not taken back.
            world.had_unfinished = True
            if not goes_on:
                self._query, self._batch = str(uuid.uuid4()), 0
            # The next opening will see to it, if the disk has really kept what began.
            fate = Fate.UNKNOWN if world.had_errors else Fate.SYNCED
        except (StorageError, OSError):
            fate = Fate.REFUSED
        else:
            left = [file.name for file in files if (world.path / file.tp.dir_name / file.name).exists()]
            if left and not world.faults:
                raise Anomaly(f"staged files stay after their commit: {left}")
            for line in fresh:
                world.acknowledge(line)
            world.synced("a commit", {line.value for line in fresh})
            return True
        for line in fresh:
            line.fate = fate
        return False


class Consumer(Program):
    """Commits a group's offsets, as `kafkafs groups --reset-to` does."""

    def __init__(self, process, job):
        super().__init__(process, job)
        groups = GroupOffsets(self._owned.log_dir)
        self._committer = GroupCommitter(self._owned, groups, partitions=2)  # Kafka's fifty would take most of the time

    def offset(self, op):
        known = self._world.offsets.setdefault(op.group, [None])
        self._committer.check(op.group, [TopicPartition("plain", 0)])
        known.append(op.offset)
        self._committer.commit(op.group, {TopicPartition("plain", 0): op.offset})
        self._committer.sync(op.group)
        del known[:-1]

"""Logs and damages drawn from a seed, given to a real broker and to the engine: both must make the same of them.

    python -m tests.interop differential --logs 300 --damages 300 --seed 7
    python -m tests.interop differential --logs 300 --damages 300 --seed 7 --now 1795399323071 --only d4-2,d17-0

One broker has them all as partitions of its log directory, so a few starts serve hundreds of logs:

1. it creates the topics and stops; the logs are written into its directory, damaged, and copied
2. it recovers its directory after an unclean stop, and the engine the copy: files, offsets by time, fetches, and what
   consumers get in both isolations must be equal
3. after its clean stop more damages are made, to both: the broker starts again, with its cleaner; the engine opens the
   copy and compacts the same topics; the results must be equal again

Each difference is printed. What a broker does otherwise for a reason stands in storage/DESIGN.md, "Where we differ from
a broker", and in `explained` here.
"""

import itertools
import random
import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from storage.compaction.partition_compaction import compact_partition
from storage.directory.owned_dir import OwnedDir
from storage.errors import StorageError
from storage.files import checkpoints, names
from storage.log.intact import COUNTED, BreakReason, walk
from storage.log.segment import Segment
from storage.log.segment_check import ignore_batches
from storage.types import MAX_OFFSET, TopicPartition
from storage.upkeep.retention import Retention
from tests.interop.client import Client
from tests.interop.comparing import Logs, different_consumption, different_lookups
from tests.interop.comparing_files import Difference, different_compacted, different_files
from tests.interop.kafka import Broker, DidNotStart
from tests.interop.log_damages import CLEAN, UNCLEAN, UncleanDamages
from tests.interop.random_logs import random_log, topic_config
from tests.support.builders import build_partition
from tests.support.owned_dirs import HastyDisk

PER_TOPIC = 10
HOUR_MS = "3600000"
# Replacements are made without a transaction index.
_WITHOUT_TRANSACTIONS = {
    "without_transaction_indexes", "without_any_index", "transaction_index_cut",
    "swap_left", "swap_and_sources_gone", "swap_and_cleaned",
}  # fmt: skip
DESCENT = "offsets that do not ascend: a broker fails where an index entry is due, and ends after its last batch"
NO_START = {
    "Split operation is only permitted": "an offset, not the last, that is too far from its segment: no broker starts",
    "Attempt to append to a full": "recovery: an index becomes full, and no broker starts",
}
UPSET = "a damaged compressed message set that recovery does not check: a broker may not start, or run out of memory"
# Nothing of the broker's own happens to the logs, unless a phase asks for it.
AT_REST = {
    "log.cleaner.enable": "false",
    "log.initial.task.delay.ms": HOUR_MS,
    "log.retention.check.interval.ms": HOUR_MS,
    "log.segment.delete.delay.ms": HOUR_MS,
    "num.recovery.threads.per.data.dir": "2",
}


@dataclass(frozen=True, slots=True)
class Case:
    """One partition: its configuration, how it is damaged before the recovery and after it (None: not at all)."""

    tp: TopicPartition
    config: dict
    unclean: str | None = None
    clean: str | None = None

    @property
    def is_damaged(self):
        return (self.unclean or self.clean) is not None

    @property
    def is_compacted(self):
        return self.config["cleanup.policy"] == "compact" and self.clean is None


def cases(logs, damages, seed):
    """The partitions of one run. A damage of each kind before any comes again; the first topic is compacted."""
    dice = random.Random(seed)
    kinds = [(None, None)] * logs
    unclean, clean = (itertools.cycle(dice.sample(sorted(kind), len(kind))) for kind in (UNCLEAN, CLEAN))
    kinds += [(next(unclean), None) if number % 3 else (None, next(clean)) for number in range(damages)]
    found = []
    for first in range(0, len(kinds), PER_TOPIC):
        part = kinds[first : first + PER_TOPIC]
        config = topic_config(dice)
        if part[0] != (None, None) or part[-1] != (None, None):
            config["cleanup.policy"] = "delete"
        elif not found:
            config["cleanup.policy"] = "compact"
        for number, (before, after) in enumerate(part):
            found.append(Case(TopicPartition(f"d{first // PER_TOPIC}", number), config, before, after))
    return found


class Differential:
    """One run in `directory`."""

    def __init__(self, directory, chosen, seed, now_ms):
        self.counts = Counter(damages=sum(case.is_damaged for case in chosen))
        self.counts["logs"] = len(chosen) - self.counts["damages"]
        self.explained = Counter()
        self.differences = []
        self._directory = directory
        self._cases = {case.tp: case for case in chosen}
        self._seed = seed
        self._now_ms = now_ms
        self._broker = Broker(directory / "broker", AT_REST)
        self._built = {}
        self._starts = {}
        self._set_aside = set()

    def run(self):
        try:
            self._create()
            self._write()
            self._recover()
            self._damage_again()
            self._compact()
        finally:
            self._broker.kill()

    def lines(self):
        """What was compared, and the differences that nothing explains."""
        counts = (
            "{logs} logs and {damages} damages, {records} records; {compacted} logs compacted; {damaged} left damaged"
        )
        yield counts.format_map(self.counts)
        yield from (f"explained: {reason}: {count}" for reason, count in sorted(self.explained.items()))
        for case, difference in self.differences:
            yield f"DIFFERENT {difference} (damage: {case.unclean or case.clean or 'none'})"
        yield f"{len(self.differences)} differences"

    def _dice(self, *what):
        return random.Random(" ".join(map(str, (self._seed, *what))))

    def _note(self, differences):
        for difference in differences:
            case = self._cases[difference.tp]
            reason = explained(case, difference)
            if reason is None:
                self.differences.append((case, difference))
            else:
                self.explained[reason] += 1

    def _create(self):
        client = Client(self._broker.start().address)
        # The last partition of a topic counts.
        topics = {tp.topic: (tp.partition + 1, case.config) for tp, case in sorted(self._cases.items())}
        client.create_topics(topics)
        self._broker.stop()

    def _write(self):
        log_dir = self._broker.log_dir
        points = {}
        starts = self._starts
        for tp, case in self._cases.items():
            spec = random_log(case.config, self._dice("log", tp), self._now_ms)
            partition = self._directory / "built" / tp.dir_name
            built = build_partition(partition, spec, clean=False)
            log = UncleanDamages(partition, built, spec.recovery_point, spec.log_start_offset, self._dice("damage", tp))
            if case.unclean is not None:
                UNCLEAN[case.unclean](log)
                reason = _not_comparable(partition, log.recovery_point)
                if reason is not None:
                    self._note([Difference(tp, "log", "?", "?", reason)])
                    self._set_aside.add(tp)
                    shutil.rmtree(partition)
                    continue
            _replace(log_dir / tp.dir_name, partition)
            points[tp] = log.recovery_point
            if log.log_start is not None:
                starts[tp] = log.log_start
            built.path = log_dir / tp.dir_name
            self._built[tp] = built
            self.counts["records"] += len(built.all_records)
        _set(log_dir / names.RECOVERY_POINT_CHECKPOINT, points)
        _set(log_dir / names.LOG_START_CHECKPOINT, starts)
        (log_dir / names.CLEAN_SHUTDOWN).unlink()

    def _recover(self):
        ours = self._copied("recovered")
        client = self._started_with(ours)
        owned = OwnedDir.open(ours, disk=HastyDisk())
        failures = owned.failures()
        closing = owned.close()
        assert closing.clean, (closing, failures)
        compared = [tp for tp in self._cases if tp not in self._set_aside]
        logs = Logs(ours, compared)
        self.counts["damaged"] = len(logs.damaged)
        self._compare_answers(client.address, logs, compared)
        self._broker.stop()
        for tp in compared:
            self._note(different_files(tp, self._broker.log_dir, ours, self._starts.get(tp, 0)))

    def _started_with(self, copy):
        """Starts the broker. A log that keeps it from starting is emptied, there and in the copy, and the broker gets
        all others as they were."""
        log_dir = self._broker.log_dir
        while True:
            try:
                return Client(self._broker.start().address)
            except DidNotStart:
                text = self._broker.log_since_start()
                failed = set(re.findall(r"Error while loading logs in \S*/(\S+) in ", text))
                if not failed:
                    raise
            shutil.rmtree(log_dir)
            shutil.copytree(copy, log_dir)
            for tp in [tp for tp in self._cases if tp.dir_name in failed]:
                _replace(log_dir / tp.dir_name, None)
                _replace(copy / tp.dir_name, None)
                self._set_aside.add(tp)
                why = (NO_START[reason] for reason in NO_START if reason in text)
                self._note([Difference(tp, "start", text[-2000:], "recovers", next(why, None))])

    def _compare_answers(self, address, logs, partitions, rewritten=()):
        times = {tp: [record.timestamp for record in self._built[tp].all_records] for tp in partitions}
        self._note(different_lookups(address, logs, partial(self._dice, "lookups"), 8, times, rewritten))
        self._note(different_consumption(address, logs))

    def _copied(self, name):
        return Path(shutil.copytree(self._broker.log_dir, self._directory / name))

    def _damage_again(self):
        log_dir = self._broker.log_dir
        starts = checkpoints.read(log_dir / names.LOG_START_CHECKPOINT)
        for tp, case in self._cases.items():
            if case.clean is not None:
                directory = log_dir / tp.dir_name
                before = {path: path.read_bytes() for path in directory.iterdir()}
                log = UncleanDamages(directory, self._built[tp], 0, starts.get(tp), self._dice("damage", tp))
                CLEAN[case.clean](log)
                if _not_comparable(directory, MAX_OFFSET) is not None:
                    self._note([Difference(tp, "log", "?", "?", UPSET)])
                    for path, content in before.items():
                        path.write_bytes(content)
                    continue
                if log.log_start is not None:
                    starts[tp] = log.log_start
        _set(log_dir / names.LOG_START_CHECKPOINT, starts)

    def _compact(self):
        ours = self._copied("compacted")
        chosen = [tp for tp, case in self._cases.items() if case.clean is not None]
        compacted = [tp for tp, case in self._cases.items() if case.is_compacted]
        owned = OwnedDir.open(ours, disk=HastyDisk())
        for tp in chosen:
            owned.log(tp)
        failed = {}
        ends = {}
        # The broker's cleaner removes what is below the log start before it cleans a log for the first time.
        below_the_start = Retention(owned.clock, lambda: 2**63, None, None, only_start=True)
        for tp in compacted:
            try:
                files = [*below_the_start.run(owned.log(tp)).files]
                sealed = owned.log(tp).snapshot().segments[:-1]
                result = compact_partition(owned, tp)
            except StorageError as error:
                failed[tp] = error
                continue
            for path in (*files, *result.files):
                owned.disk.unlink(path)
            # A broker leaves a log alone that has nothing to be cleaned.
            dirty = [segment for segment in sealed if segment.base_offset < result.end_offset]
            if result.end_offset > result.first_dirty and any(segment.size for segment in dirty):
                ends[tp] = result.end_offset
        assert owned.close().clean
        self.counts["compacted"] = len(ends)
        self._broker.reconfigure({"log.cleaner.enable": "true"})
        client = Client(self._broker.start().address)
        done = self._cleaned(ends)
        for tp in ends.keys() - done:
            self._note([Difference(tp, "compaction", self._why_given_up(tp), ends[tp])])
        for tp, failure in failed.items():
            self._note([Difference(tp, "compaction", "?", str(failure))])
        compared = [*chosen, *sorted(done)]
        logs = Logs(ours, compared)
        for tp in sorted(done):
            log_start = logs.snapshots[tp].log_start_offset
            different = different_compacted(tp, self._broker.log_dir, ours, log_start, ends[tp])
            if any(difference.reason for difference in different):
                logs.wrong_times[tp] = different[0].reason
            self._note(different)
        self._compare_answers(client.address, logs, compared, done)
        self._broker.stop()
        for tp in chosen:
            self._note(different_files(tp, self._broker.log_dir, ours, logs.snapshots[tp].log_start_offset))

    def _cleaned(self, ends):
        """Waits until the broker's cleaner has reached these offsets, or has given up; returns where it did."""
        path = self._broker.log_dir / names.CLEANER_CHECKPOINT
        deadline = time.monotonic() + 120
        while True:
            there = checkpoints.read(path) if path.exists() else {}
            done = {tp for tp, end in ends.items() if there.get(tp) == end}
            if all(tp in done or self._why_given_up(tp) for tp in ends) or time.monotonic() > deadline:
                return done
            time.sleep(0.5)

    def _why_given_up(self, tp):
        """What the broker's cleaner said when it set this partition aside; empty if it did not."""
        said = rf"Unexpected exception thrown when cleaning log Log\(dir=\S*/{tp.dir_name},.*\n.*"
        found = re.search(said, self._broker.log_since_start())
        return "" if found is None else found[0].splitlines()[1]


def explained(case, difference):
    """Why a broker does otherwise, in words of storage/DESIGN.md; None if nothing explains it."""
    if difference.reason is not None:
        return difference.reason
    if difference.what.startswith("consumed read_committed") and {case.unclean, case.clean} & _WITHOUT_TRANSACTIONS:
        return "a broker takes a segment whose transaction index is missing for one without aborted transactions"
    if difference.what == "files":
        only = [*difference.broker, *difference.ours]
        if len(only) == 1 and only[0].endswith(".snapshot"):
            return "the snapshot of an empty log, which the next opening removes"
    if difference.what == "compaction" and "Attempt to append to a full" in str(difference.broker):
        return "its cleaner fails where an index of a segment that it writes is full"
    if difference.what == "compaction" and "Empty batches are only supported for magic v2" in str(difference.broker):
        return "its cleaner fails where the last batch of a round has an old format and no records left"
    return None


def _not_comparable(directory, recovery_point):
    """Why a broker cannot be asked about a log."""
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    first = max(sum(base <= recovery_point for base in bases) - 1, 0)
    for row, base in enumerate(bases):
        segment = Segment.at(directory, base)
        breaks = walk(segment, ignore_batches, lambda *_: None).breaks
        if row < first or recovery_point == MAX_OFFSET:
            data = segment.log.path.read_bytes()
            if any(
                _is_old_and_compressed(data[found.position :]) for found in breaks if found.fault is BreakReason.CRC
            ):
                return UPSET
        elif breaks:
            return DESCENT if breaks[0].fault in COUNTED else None
    return None


def _is_old_and_compressed(batch):
    return batch[16] < 2 and bool(batch[17] & 7)


def _replace(directory, built):
    """The files of a partition, except its topic id, are replaced by those that were written, if any."""
    for path in directory.iterdir():
        if path.name != names.PARTITION_METADATA:
            path.unlink()
    if built is None:
        return
    for path in built.iterdir():
        shutil.move(path, directory / path.name)
    built.rmdir()


def _set(path, offsets):
    """Changes these lines of a checkpoint."""
    before = checkpoints.read(path) if path.exists() else {}
    path.write_bytes(checkpoints.encode({**before, **offsets}))


def run(directory, *, logs, damages, seed, now=None, only="", keep=None, **_):
    """AssertionError if there is a difference that nothing explains."""
    now_ms = now or int(time.time() * 1000)
    yield f"seed {seed}, now {now_ms}"
    wanted = set(filter(None, only.split(",")))
    chosen = [case for case in cases(logs, damages, seed) if not wanted or case.tp.dir_name in wanted]
    work = Differential(keep or directory, chosen, seed, now_ms)
    work.run()
    yield from work.lines()
    assert not work.differences

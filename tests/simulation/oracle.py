"""What must hold of a log directory, whatever happened to it. The names of what may be wrong are those of
jepsen.tests.kafka: lost write, duplicate, inconsistent offsets, nonmonotonic poll, aborted read (of a refused line).

After a loss of power there may be holes between messages that nobody was told are on disk, as in Kafka: segments reach
the disk in any order.
"""

from itertools import pairwise

from storage.files import leader_epochs, names
from tests.simulation import cleaned
from tests.simulation.contents import Anomaly, batches_in, log_start, messages_in
from tests.simulation.copies import shown
from tests.simulation.states import check_epochs
from tests.simulation.world import Fate

COMPACTED = frozenset(("keyed", "__consumer_offsets"))
RETAINED = frozenset(("kept",))
UNKNOWN_START = 1 << 62  # of a range that counts from the end


class Oracle:
    """Compares what is in the directory with what programs were told, from one process's end to the next."""

    def __init__(self, world):
        self._world = world
        self._before = {}
        self._has_lost_power = False

    def check(self, *, lost_power):
        """After the end of a process, when the next one has recovered the directory."""
        world = self._world
        logs = messages_in(world.path, {tp for tp, _ in world.rotten})
        self._has_lost_power |= lost_power
        for tp, messages in logs.items():
            copy = world.copies.get(tp)
            if copy is not None:
                _check_copy(world, tp, copy, messages, lost_power=lost_power)
                continue
            self._check_offsets(tp, messages)
            if tp.topic in COMPACTED:
                cleaned.check_unique(world.path, tp, messages)
        plain = {tp: logs[tp] for tp in logs if tp not in world.copies and tp.topic != "__consumer_offsets"}
        self._check_same_as_before(plain)
        if not lost_power:
            self._check_sights(plain)
        self._check_lines(plain)
        world.sights.clear()
        self._before = plain
        # Recovery ends with everything on disk: what is there stays.
        values = {message.value for messages in plain.values() for message in messages}
        for line in world.lines.values():
            if line.value in values:
                line.fate = Fate.SYNCED
                line.told = world.tick() if line.told is None else line.told
            elif line.fate in (Fate.SENT, Fate.UNKNOWN):
                line.fate = Fate.REFUSED

    def _check_offsets(self, tp, messages):
        offsets = [message.offset for message in messages]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            raise Anomaly(f"nonmonotonic poll: {tp}: {offsets}")
        known = sorted({offset for place, offset in self._world.rotten if place == tp}.union(offsets))
        if self._has_lost_power or tp.topic in COMPACTED or not known:
            return
        if known[-1] - known[0] + 1 != len(known):
            raise Anomaly(f"lost write: {tp} has holes: {offsets}")
        if tp.topic not in RETAINED and known[0] > self._world.deleted.get(tp, 0):
            raise Anomaly(f"lost write: {tp} begins at {known[0]}")

    def _check_same_as_before(self, logs):
        for tp, messages in self._before.items():
            if tp.topic in self._world.removals:
                continue
            now = {message.offset: message.value for message in logs.get(tp, [])}
            for offset, _, value, _ in messages:
                is_now = now.get(offset, value)
                if is_now != value and (tp, offset) not in self._world.rotten:  # recovery has cut that off
                    raise Anomaly(f"inconsistent offsets: {tp} {offset} was {value!r}, is {is_now!r}")

    # What was read

    def _check_sights(self, logs):
        """What was read is what is there, or was until retention took it."""
        world, history = self._world, {}
        for known in (world.rotten, world.removed):
            for (tp, offset), message in known.items():
                history.setdefault(tp, {})[offset] = message
        for tp, messages in logs.items():
            history.setdefault(tp, {}).update({message.offset: message for message in messages})
        for sight in world.sights:
            if sight.tp.topic in world.removals:
                self._check_generation(sight)
            else:
                self._check_sight(sight, history.get(sight.tp, {}))

    def _check_generation(self, sight):
        """Of a topic that was removed and made again, a reader sees messages of one topic: that which it has opened."""
        removals = self._world.removals[sight.tp.topic]
        removals = [removal for removal in removals if removal.end is not None and not removal.failed]
        seen = [self._world.lines[value] for value in sight.values if value in self._world.lines]
        for removal in removals:
            later = [line for line in seen if line.began > removal.end]
            earlier = sight.opened < removal.begin or any(
                line.told is not None and line.told < removal.begin for line in seen
            )
            if later and earlier:
                raise Anomaly(f"another topic's messages: {sight.path} showed {later[0].value!r} of one made later")
        for value in sight.values:
            line = self._world.lines.get(value)
            if line is None or line.topic != sight.tp.topic or line.fate is Fate.REFUSED:
                raise Anomaly(f"aborted read: {sight.path} showed {value!r}, which is not there")
            for removal in removals:
                if removal.end < sight.tick and line.told is not None and line.told < removal.begin:
                    raise Anomaly(f"another topic's messages: {sight.path} showed {value!r} of one that was removed")

    def _check_sight(self, sight, history):
        world, ordered = self._world, [history[offset] for offset in sorted(history)]
        gone = [message for (tp, _), message in [*world.rotten.items(), *world.removed.items()] if tp == sight.tp]
        by_value = {message.value: message for message in [*gone, *ordered]}
        is_log = sight.path.endswith(".log")  # whole batches
        for row, value in enumerate(sight.values):
            message = by_value.get(value)
            if message is None:
                raise Anomaly(f"aborted read: {sight.path} showed {value!r}, which is not there")
            if sight.offsets is not None and sight.offsets[row] != message.offset:
                raise Anomaly(f"inconsistent offsets: {sight.path} showed {value!r} at {sight.offsets[row]}")
            if not _is_in_time(sight, message) and not is_log:
                raise Anomaly(f"{sight.path} showed {value!r} of {message.timestamp}")
        places = [by_value[value].offset for value in sight.values]
        if any(later <= earlier for earlier, later in pairwise(places)):
            raise Anomaly(f"nonmonotonic poll: {sight.path} showed offsets {places}")
        if not is_log and sight.tp.topic not in COMPACTED and sight.begins[1] != UNKNOWN_START:
            self._check_complete(sight, ordered, places)

    def _check_complete(self, sight, ordered, places):
        """Nothing is missing among what was shown, nor before the end of file."""
        first, latest = sight.begins
        last = UNKNOWN_START if sight.last is None else sight.last
        expected = [message for message in ordered if _is_in_time(sight, message) and first <= message.offset <= last]
        left = list(sight.values)
        for message in expected:
            if left and message.value == left[0]:
                left.pop(0)
                continue
            offset = message.offset
            # What retention had taken by then was not there at the open, or was never looked at.
            is_needed = offset >= max(latest if len(left) == len(sight.values) else 0, sight.start)
            # A batch whose damaged header says that it ends before the range is not looked at (kafkafs/DESIGN.md).
            is_needed &= sight.times is None or (sight.tp, offset) not in self._world.untimed
            is_needed &= not all((sight.tp, n) in self._world.rotten for n in range(first - 1, offset + 1))
            if not is_needed or len(sight.values) - len(left) == sight.most:
                continue
            if left:
                raise Anomaly(f"lost write: {sight.path} showed offsets {places}, without {offset}")
            if sight.ended is not None and offset < sight.ended:
                raise Anomaly(f"lost write: {sight.path} ended after offsets {places}, without {offset}")
        if left:
            raise Anomaly(f"lost write: {sight.path} showed offsets {places} in another order")

    # What is there

    def _check_lines(self, logs):
        world, places = self._world, {}
        for tp, messages in logs.items():
            for offset, key, value, timestamp in messages:
                line = world.lines.get(value or b"")
                if line is None:
                    raise Anomaly(f"a message that nobody wrote: {tp} {offset}: {value!r}")
                if line.value in places:
                    raise Anomaly(f"duplicate: {value!r} at {places[line.value]} and {tp} {offset}")
                if line.fate is Fate.REFUSED:
                    raise Anomaly(f"aborted read: {tp} {offset} holds {value!r}, which was refused")
                if line.topic != tp.topic or key != line.key:
                    raise Anomaly(f"misplaced: {value!r} of {line.topic} in {tp}, key {key!r}")
                if line.timestamp is not None and line.timestamp != timestamp:
                    raise Anomaly(f"misplaced: {value!r} has timestamp {timestamp}, not {line.timestamp}")
                if world.must_be_gone(line):
                    raise Anomaly(f"another topic's messages: {value!r} is in {tp} again")
                places[line.value] = tp, offset
        self._check_removed(places)
        self._check_order(places)
        latest = world.latest_by_key()
        for line in world.lines.values():
            if line.fate not in (Fate.SYNCED, Fate.ACKNOWLEDGED) or line.value in places or world.may_be_gone(line):
                continue
            if line.topic in COMPACTED and line.key is not None and latest[line.key] is not line:
                continue
            raise Anomaly(f"lost write: {line.value[:60]!r} to {line.path}, {line.fate.value}")
        self._check_commits(places)

    def _check_removed(self, places):
        """What retention took, and what a flipped bit destroyed, is nowhere else."""
        for (tp, offset), message in [*self._world.removed.items(), *self._world.rotten.items()]:
            value = message.value
            if value is None:
                continue
            place = places.get(value)
            # A share of a commit that recovery has cut off is written again.
            again = self._has_lost_power or (tp, offset) in self._world.rotten
            if place is not None and place != (tp, offset) and not again:
                raise Anomaly(f"duplicate: {value!r} was at {tp} {offset}, and is at {place}")
            if tp.topic not in COMPACTED:  # of a compacted topic the sources of a pass
                places.setdefault(value, (tp, offset))

    def _check_commits(self, places):
        for lines in self._world.commits:
            present = [line.value in places for line in lines]
            if any(present) and not all(present):
                raise Anomaly(f"lost write: {lines[0].value!r} and others were committed in part: {present}")
            for line in lines:
                if line.fate is Fate.UNKNOWN:
                    line.fate = Fate.ACKNOWLEDGED if present[0] else Fate.REFUSED
        self._world.commits.clear()

    def _check_order(self, places):
        last = {}
        for value, (tp, offset) in sorted(places.items(), key=lambda item: item[1]):
            line = self._world.lines.get(value)
            if line is None or (tp, offset) in self._world.rotten:
                continue
            if tp.topic in self._world.removals and (tp, offset) in self._world.removed:
                continue  # perhaps of an earlier topic of this name, whose offsets began at 0 too
            number, at = last.get((line.writer, tp), (-1, -1))
            if line.number <= number:
                raise Anomaly(f"reordered: {line.writer} wrote {number} (at {at}) before {line.number} (at {offset})")
            last[line.writer, tp] = line.number, offset


def _is_in_time(sight, message):
    start, end = sight.times or (None, None)
    return (start is None or message.timestamp >= start) and (end is None or message.timestamp < end)


def _check_copy(world, tp, copy, messages, *, lost_power):
    """A follower's partition after recovery; the copy becomes what is there."""
    start = log_start(world.path, tp)
    if start > copy.start:
        raise Anomaly(f"log start: {tp} begins at {start}, expected {copy.start}")
    copy.start = start
    least = [batch for batch in copy.batches if not lost_power or batch.last < copy.synced]
    possible = [*copy.batches, *copy.appending]
    epochs = leader_epochs.read(world.path / tp.dir_name / names.LEADER_EPOCH_CHECKPOINT)
    if copy.is_compacted:
        cleaned.check(world, tp, copy, least, possible)
        check_epochs(tp, epochs, copy.batches, start, copy.end)
        return
    known = {(batch.base, batch.crc): batch for batch in [*(copy.undone if lost_power else []), *possible]}
    batches = batches_in(world.path / tp.dir_name)
    # What is below the log start may be there and need not be; it counts as there.
    first = batches[0][0] if batches else start
    below = [batch for batch in possible if batch.last < min(start, first)]
    possible = possible[len(below) :]
    for batch in batches:
        if batch not in known:
            raise Anomaly(f"aborted read: {tp} holds the batch at {batch[0]}, which was refused or never was there")
    if not lost_power and batches != [(batch.base, batch.crc) for batch in possible][: len(batches)]:
        raise Anomaly(f"inconsistent offsets: {tp} holds batches at {batches}")
    missing = {(batch.base, batch.crc) for batch in least if batch.last >= start}.difference(batches)
    if missing:
        raise Anomaly(f"lost write: {tp} is without the batches at {sorted(missing)}, which were appended")
    copy.recovered([*below, *(known[batch] for batch in batches)])
    check_epochs(tp, epochs, copy.batches, start, copy.end)
    expected = [(offset, value) for offset, value, _ in shown(copy.batches, committed=False) if offset >= start]
    if [(message.offset, message.value) for message in messages] != expected:
        raise Anomaly(f"inconsistent offsets: {tp} shows {messages}, expected {expected}")

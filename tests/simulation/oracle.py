"""What must hold of a log directory, whatever happened to it. The names of what may be wrong are those of
jepsen.tests.kafka: lost write, duplicate, inconsistent offsets, nonmonotonic poll, aborted read (of a refused line).

After a loss of power there may be holes between messages that nobody was told are on disk, as in Kafka: segments reach
the disk in any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

from storage.types import TopicPartition
from tests.simulation.world import Fate, Line, World, messages_in

Messages = dict[TopicPartition, list[tuple[int, bytes | None, bytes | None]]]

COMPACTED = frozenset(("keyed",))
RETAINED = frozenset(("kept",))


class Anomaly(AssertionError):
    """What was promised does not hold."""


class Oracle:
    """Compares what is in the directory with what programs were told, from one process's end to the next."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before: Messages = {}
        self._has_lost_power = False

    def check(self, *, lost_power: bool) -> None:
        """After the end of a process, when the next one has recovered the directory."""
        world = self._world
        found = messages_in(world.path)
        self._has_lost_power |= lost_power
        for tp, messages in found.items():
            self._check_offsets(tp, messages)
        self._check_same_as_before(found, lost_power)
        if not lost_power:
            self._check_sights(found)
        self._check_lines(found, lost_power)
        world.sights.clear()
        self._before = found
        # What power has taken is lost to those who were not told that it is synced; what is there now stays.
        there = {value for messages in found.values() for _, _, value in messages}
        for line in world.lines.values():
            if line.value in there:
                line.fate = Fate.SYNCED if lost_power else max(line.fate, Fate.ACKNOWLEDGED, key=list(Fate).index)
            elif line.fate in (Fate.SENT, Fate.UNKNOWN) or (lost_power and line.fate is Fate.ACKNOWLEDGED):
                line.fate = Fate.REFUSED

    def _check_offsets(self, tp: TopicPartition, messages: list[tuple[int, bytes | None, bytes | None]]) -> None:
        offsets = [offset for offset, _, _ in messages]
        if any(later <= earlier for earlier, later in pairwise(offsets)):
            raise Anomaly(f"nonmonotonic poll: {tp}: {offsets}")
        if self._has_lost_power:
            return
        if tp.topic not in COMPACTED and offsets and offsets[-1] - offsets[0] + 1 != len(offsets):
            raise Anomaly(f"lost write: {tp} has holes: {offsets}")
        if tp.topic not in COMPACTED | RETAINED and offsets and offsets[0] != 0:
            raise Anomaly(f"lost write: {tp} begins at {offsets[0]}")

    def _check_same_as_before(self, found: Messages, lost_power: bool) -> None:
        for tp, messages in self._before.items():
            now = {offset: value for offset, _, value in found.get(tp, [])}
            for offset, _, value in messages:
                if now.get(offset, value) != value:
                    raise Anomaly(f"inconsistent offsets: {tp} {offset} was {value!r}, is {now[offset]!r}")

    def _check_sights(self, found: Messages) -> None:
        """What was read is what is there, or was until retention took it."""
        places: dict[bytes, tuple[TopicPartition, int]] = {}
        for (tp, offset), value in self._world.removed.items():
            places[value or b""] = (tp, offset)
        for tp, messages in found.items():
            places |= {value or b"": (tp, offset) for offset, _, value in messages}
        for sight in self._world.sights:
            expected = sight.first_offset
            for value in sight.values:
                place = places.get(value)
                if place is None or place[0] != sight.tp:
                    raise Anomaly(f"aborted read: {sight.path} showed {value!r}, which is not there")
                gap = self._has_lost_power or sight.tp.topic in COMPACTED
                if expected is not None and (place[1] < expected if gap else place[1] != expected):
                    raise Anomaly(f"inconsistent offsets: {sight.path}: offset {place[1]}, expected {expected}")
                expected = place[1] + 1

    def _check_lines(self, found: Messages, lost_power: bool) -> None:
        world = self._world
        places: dict[bytes, tuple[TopicPartition, int]] = {}
        for tp, messages in found.items():
            for offset, key, value in messages:
                line = world.lines.get(value or b"")
                if line is None:
                    raise Anomaly(f"a message that nobody wrote: {tp} {offset}: {value!r}")
                if line.value in places:
                    raise Anomaly(f"duplicate: {value!r} at {places[line.value]} and {tp} {offset}")
                if line.fate is Fate.REFUSED:
                    raise Anomaly(f"aborted read: {tp} {offset} holds {value!r}, which was refused")
                if line.topic != tp.topic or key != line.key:
                    raise Anomaly(f"misplaced: {value!r} of {line.topic} in {tp}, key {key!r}")
                places[line.value] = tp, offset
        for (tp, offset), value in world.removed.items():
            if tp.topic not in COMPACTED:  # of a compacted topic the sources of a pass
                places.setdefault(value or b"", (tp, offset))
        self._check_order(places)
        latest = self._latest_by_key()
        for line in world.lines.values():
            promised = (Fate.SYNCED,) if lost_power else (Fate.SYNCED, Fate.ACKNOWLEDGED)
            if line.fate not in promised or line.value in places or line.topic in world.deleted_topics:
                continue
            if line.topic in COMPACTED and line.key is not None and latest[line.key] is not line:
                continue
            raise Anomaly(f"lost write: {line.value[:60]!r} to {line.path}, {line.fate.value}")

    def _latest_by_key(self) -> Mapping[bytes, Line]:
        latest: dict[bytes, Line] = {}
        for line in self._world.lines.values():
            if line.key is not None and line.fate is not Fate.REFUSED:
                latest[line.key] = line
        return latest

    def _check_order(self, places: Mapping[bytes, tuple[TopicPartition, int]]) -> None:
        last: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        for value, (tp, offset) in sorted(places.items(), key=lambda item: item[1]):
            line = self._world.lines.get(value)
            if line is None:
                continue
            number, at = last.get((line.writer, tp), (-1, -1))
            if line.number <= number:
                raise Anomaly(f"reordered: {line.writer} wrote {number} (at {at}) before {line.number} (at {offset})")
            last[line.writer, tp] = line.number, offset

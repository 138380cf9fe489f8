"""What a mount shows once everybody is through: exactly what is in the directory, whatever happened before."""

from __future__ import annotations

import json
import os

from storage.types import Isolation
from tests.simulation import cleaned
from tests.simulation.copies import shown
from tests.simulation.mounts import Opened, Problem
from tests.simulation.oracle import COMPACTED
from tests.simulation.states import check_log
from tests.simulation.world import Anomaly, messages_in

_NAME = "messages.jsonl"
_BYTES = 1 << 16
_TRIES = 3  # a file that another thread has just replaced may need another look

Content = list[tuple[int, str]]


def last_look(process, partitions):
    """Opens and reads a file of all messages of each partition, with views and caches as they are by now. Nothing
    changes meanwhile, the disk works, and so must this. Of partitions that are offline or damaged nothing is known."""
    world, owned = process.world, process.owned
    owner = process.owner()
    offline = () if owner is None else owner.failures()
    damaged = {tp for tp, _ in world.rotten}
    there = messages_in(world.path, damaged.union(offline))
    for tp in partitions:
        if tp in offline or tp in damaged or tp not in there:
            continue
        if owned is not None:
            check_log(owned.log(tp), world.disk, failed=bool(world.faults))
        start = 0 if owned is None else owned.log(tp).log_start_offset
        expected = [(one.offset, (one.value or b"").decode()) for one in there[tp] if one.offset >= start]
        copy = world.copies.get(tp)
        if copy is not None and process.isolation is Isolation.READ_COMMITTED:
            if copy.appending:
                continue
            expected = [(offset, (value or b"").decode()) for offset, value, _ in shown(copy.batches, committed=True)]
        if copy is not None and copy.compacted:
            if copy.appending:
                continue
            stays = {message.offset for message in there[tp]}  # the cleaner has left it
            expected = [one for one in expected if one[0] in stays]
            cleaned.check_shown(world, tp, copy, there[tp], Isolation.READ_UNCOMMITTED)
        found = _content(process, f"/{tp.topic}/{tp.partition}/{_NAME}")
        if found != expected:
            raise Anomaly(f"last look: {tp} shows {found}, and there is {expected}")
        if tp.topic in COMPACTED or (copy is not None and copy.compacted):
            keys = {message.offset: message.key for message in there[tp]}
            last = {keys[offset]: (offset, value) for offset, value in expected}
            latest = sorted(one for one in last.values() if one[1])  # without deleted keys
            found = _content(process, f"/{tp.topic}/{tp.partition}/latest.jsonl")
            if found != latest:
                raise Anomaly(f"last look: the latest of {tp} are {found}, and there is {latest}")


def _content(process, path):
    problem = None
    for _ in range(_TRIES):
        info = Opened(os.O_RDONLY)
        try:
            process.operations.open(path, info)
        except Problem as error:
            problem = error
            continue
        try:
            data, position = b"", 0
            handle = process.operations.handles[info.fh]
            while part := handle.read(position, _BYTES):
                data += part
                position += len(part)
        except Problem as error:
            problem = error
            continue
        finally:
            if not process.scheduler.killed:
                process.operations.release(None, info)
        return [(int(one["offset"]), one["value"] or "") for one in map(json.loads, data.splitlines())]
    raise Anomaly(f"last look: {path} cannot be read: {problem!r}")

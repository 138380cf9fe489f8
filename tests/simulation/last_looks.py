"""What a mount shows once everybody is through: exactly what is in the directory, whatever happened before."""

import json
import os
from contextlib import suppress

from storage.types import Isolation
from tests.simulation import cleaned
from tests.simulation.contents import Anomaly, messages_in
from tests.simulation.copies import shown
from tests.simulation.mounts import Problem, file_info
from tests.simulation.oracle import COMPACTED
from tests.simulation.scheduler import Held, moment
from tests.simulation.states import check_log

_BYTES = 1 << 16
_TRIES = 3  # a file that another thread has just replaced may need another look


def last_look(process, partitions):
    """Opens and reads a file of all messages of each partition, with views and caches as they are by now. Nothing
    changes meanwhile, the disk works, and so must this. Of partitions that are offline or damaged nothing is known."""
    world, owned, owner = process.world, process.owned, process.owner()
    offline = () if owner is None else owner.failures()
    damaged = {tp for tp, _ in world.rotten}
    messages = messages_in(world.path, damaged.union(offline))
    for tp in partitions:
        copy, start = world.copies.get(tp), 0
        if tp in offline or tp in damaged or tp not in messages:
            continue
        if owned is not None:
            log = owned.log(tp)
            with suppress(Held), moment():
                check_log(log, world.disk, failed=bool(world.faults))
            start = owned.log(tp).log_start_offset
        expected = [(offset, (value or b"").decode()) for offset, _, value, _ in messages[tp] if offset >= start]
        is_committed = process.isolation is Isolation.READ_COMMITTED
        is_compacted = copy is not None and copy.is_compacted
        if copy is not None and copy.appending and (is_committed or is_compacted):
            continue
        if copy is not None and is_committed:
            expected = [(offset, (value or b"").decode()) for offset, value, _ in shown(copy.batches, committed=True)]
        if is_compacted:
            stays = {message.offset for message in messages[tp]}  # the cleaner has left it
            expected = [(offset, value) for offset, value in expected if offset in stays]
            cleaned.check_shown(world, tp, copy, messages[tp], Isolation.READ_UNCOMMITTED)
        _check_content(process, tp, "messages", expected)
        if tp.topic in COMPACTED or is_compacted:
            keys = {message.offset: message.key for message in messages[tp]}
            last = {keys[offset]: (offset, value) for offset, value in expected}
            latest = sorted((offset, value) for offset, value in last.values() if value)  # without deleted keys
            _check_content(process, tp, "latest", latest)


def _check_content(process, tp, name, expected):
    content = _content(process, f"/{tp.topic}/{tp.partition}/{name}.jsonl")
    if content != expected:
        raise Anomaly(f"last look: {name} of {tp} are {content}, and there is {expected}")


def _content(process, path):
    problem = None
    for _ in range(_TRIES):
        info = file_info(os.O_RDONLY)
        try:
            process.operations.open(path, info)
        except Problem as error:
            problem = error
            continue
        try:
            data, handle = b"", process.operations.handles[info.fh]
            while part := handle.read(len(data), _BYTES):
                data += part
        except Problem as error:
            problem = error
            continue
        finally:
            if not process.scheduler.killed:
                process.operations.release(None, info)
        return [(record["offset"], record["value"] or "") for record in map(json.loads, data.splitlines())]
    raise Anomaly(f"last look: {path} cannot be read: {problem!r}")

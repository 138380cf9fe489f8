"""Bits that flip on the disk while nobody runs, and which messages that may cost."""

from __future__ import annotations

from storage.format.batches import BatchTable, scan, times_of
from storage.types import TopicPartition
from tests.simulation.world import messages_of

_OUTSIDE_CRC = range(12, 16)  # the leader epoch, which nothing protects; so it is with the first 8 bytes, the offset
_TIMES = range(27, 43)  # of the batch: base timestamp, max timestamp
_MAGIC = 16  # not covered by the CRC either: readers refuse such a batch, but recovery, as a broker's, leaves it


def rot_sealed(world, rots):
    """Flips bits in sealed segments of a directory that was closed in order: everything in them is below the recovery
    point. Returns how many."""
    count = 0
    for rot in rots:
        paths = _logs(world, rot)[:-1]
        count += bool(paths) and _flip(world, rot, paths, later=False)
    if count:
        world.new_disk()
    return count


def rot_unsynced(world, rots):
    """Flips bits beyond the recovery point of a directory that was not closed: recovery cuts the log there."""
    count = 0
    for rot in rots:
        paths = _logs(world, rot)
        count += bool(paths) and _flip(world, rot, paths[-1:], later=True)
    return count


def _logs(world, rot):
    directory = world.path / TopicPartition(rot.topic, rot.partition).dir_name
    return sorted(path for path in directory.glob("*.log") if path.stat().st_size)


def _flip(world, rot, paths, *, later):
    path = paths[min(int(rot.place * len(paths)), len(paths) - 1)]
    data = bytearray(path.read_bytes())
    table = BatchTable.empty(4096)
    scan(memoryview(data), 0, table, 0, len(data))
    part = rot.place * len(paths) % 1
    row = min(int(part * table.rows), table.rows - 1)
    if row < 0:
        return False
    start, end = int(table.position[row]), int(table.end[row])
    place = start + 8 + rot.bit // 8 % (end - start - 8)
    if place - start in _OUTSIDE_CRC or (later and place - start == _MAGIC):
        place = start + 17
    # A wrong length hides what follows in the segment, too.
    tp = TopicPartition(rot.topic, rot.partition)
    lost = [message for message in messages_of(bytes(data)) if message.offset >= int(table.base_offset[row])]
    if any((tp, message.offset) in world.rotten for message in messages_of(bytes(data))) or not lost:
        return False
    if place - start > 12 and not later:
        lost = [message for message in lost if message.offset <= int(table.last_offset[row])]
    # That a message is earlier than the first of its batch is told by nothing but the message (kafkafs/DESIGN.md). The
    # times of a batch that a wrong length hides are not looked for, and wrong times count only if they are near.
    least, greatest = times_of(table, row)
    for message in lost:
        world.rotten[tp, message.offset] = message
        if message.timestamp < least or message.timestamp > greatest or place - start in _TIMES:
            world.untimed.add((tp, message.offset))
    data[place] ^= 1 << rot.bit % 8
    path.write_bytes(bytes(data))
    return True

"""Bits that flip on the disk while nobody runs, and which messages that may cost."""

from storage.format.batches import times_of
from storage.types import TopicPartition
from tests.simulation.contents import messages_of, segments_of

_OUTSIDE_CRC = range(12, 16)  # the leader epoch, which nothing protects; so it is with the first 8 bytes, the offset
_TIMES = range(27, 43)  # of the batch: base timestamp, max timestamp
_MAGIC = 16  # not covered by the CRC either: readers refuse such a batch, but recovery, as a broker's, leaves it


def rot_sealed(world, rots):
    """Flips bits in sealed segments of a directory that was closed in order: everything in them is below the recovery
    point. Returns how many."""
    count = sum([_flip(world, rot, _segments(world, rot)[:-1], later=False) for rot in rots])
    if count:
        world.new_disk()
    return count


def rot_unsynced(world, rots):
    """Flips bits beyond the recovery point of a directory that was not closed: recovery cuts the log there."""
    return sum([_flip(world, rot, _segments(world, rot)[-1:], later=True) for rot in rots])


def _segments(world, rot):
    directory = world.path / TopicPartition(rot.topic, rot.partition).dir_name
    return [segment for segment in segments_of(directory) if segment[1]]


def _flip(world, rot, segments, *, later):
    """Flips a bit; whether there is one that may be flipped."""
    if not segments:
        return False
    path, data, table = segments[min(int(rot.place * len(segments)), len(segments) - 1)]
    row = min(int(rot.place * len(segments) % 1 * table.rows), table.rows - 1)
    if row < 0:
        return False
    start, end = int(table.position[row]), int(table.end[row])
    within = 8 + rot.bit // 8 % (end - start - 8)
    if within in _OUTSIDE_CRC or (later and within == _MAGIC):
        within = 17
    # A wrong length hides what follows in the segment, too.
    tp = TopicPartition(rot.topic, rot.partition)
    lost = [message for message in messages_of(data) if message.offset >= int(table.base_offset[row])]
    if any((tp, message.offset) in world.rotten for message in messages_of(data)) or not lost:
        return False
    if within > 12 and not later:
        lost = [message for message in lost if message.offset <= int(table.last_offset[row])]
    # That a message is earlier than the first of its batch is told by nothing but the message (kafkafs/DESIGN.md). The
    # times of a batch that a wrong length hides are not looked for, nor the right ones where the header has others, or
    # none, as with magic 0.
    least, greatest = times_of(table, row)
    for message in lost:
        world.rotten[tp, message.offset] = message
        if not least <= message.timestamp <= greatest or within in (*_TIMES, _MAGIC):
            world.untimed.add((tp, message.offset))
    flipped = bytearray(data)
    flipped[start + within] ^= 1 << rot.bit % 8
    path.write_bytes(flipped)
    return True

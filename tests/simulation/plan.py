"""What happens in a world, as values: topics, processes, programs and their operations, faults.

A plan is drawn from a seed (`drawing`), or written down in a test. With the choices of the scheduler it determines
everything that happens, so a failing plan can be made smaller piece by piece (`shrinking`).
"""

import dataclasses


class _Value:
    """Its text leaves out fields that have their default: plans are printed as tests."""

    def __repr__(self):
        fields = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        given = ", ".join(f"{field.name}={value!r}" for field, value in fields if value != field.default)
        return f"{type(self).__name__}({given})"


def _value(name, /, **defaults):
    fields = [(field, object, default) for field, default in defaults.items()]
    return dataclasses.make_dataclass(name, fields, bases=(_Value,), frozen=True, repr=False)


# Kinds of lines. All but the first are refused.
GOOD, TOO_LARGE, HUGE, NOT_JSON, NO_KEY = "good", "too large", "huge", "not JSON", "no key"
# What a program does after an error of write(2): closes the file, which the next operation opens again; or writes on.
GIVES_UP, GOES_ON = "gives up", "goes on"

# A line. `size`: of its value in bytes, at least; `key`: number of its key; `age_ms`: how much older than now its
# timestamp is (jsonl).
LineOf = _value("LineOf", size=0, kind=GOOD, key=None, age_ms=None)
# write(2) of these lines, after what an earlier one has left over. `cut`: the part of the last line that is in the
# buffer, the rest comes with the next write. `ended`: the last line has its newline. `first`: the size of the first
# request, between the least (0) and the greatest (1).
Write = _value("Write", lines=(), cut=1.0, ended=True, first=1.0)
Sync = _value("Sync")  # fsync(2)
Close = _value("Close")  # close(2); the next operation opens the file again

# read(2) of `size` bytes at the front (where the last one ended), or at this part of what was read before (`back`).
# `wait`: how often others come first.
Read = _value("Read", size=0, back=None, wait=0)
# Opens a file of records, reads, closes it. `to_end`: reads up to the end of file at last.
Look = _value("Look", topic="", partition=0, name="", reads=(), to_end=True)

Create = _value("Create", topic="")
Extend = _value("Extend", topic="", partitions=0)  # adds partitions, until a topic has so many
Remove = _value("Remove", topic="")
Alter = _value("Alter", topic="", key="", to="")  # sets a key of a topic's configuration
Jump = _value("Jump", by_ms=0)  # the clock is set
# From now on operations of the disk fail, each with this probability; 0: the disk is well again. `kind`: of
# disk.FAILURES; `lasting`: until the process's end.
Fault = _value("Fault", kind="", rate=0.0, lasting=False)
Status = _value("Status")  # a look at the mount's status
Before = _value("Before", topic="", partition=0, part=0.0)  # deletes the records up to this part of a partition
Pause = _value("Pause", times=0)  # others come first, so often

# A leader's batch for a follower: so many messages, of an idempotent or transactional producer. `skips`: offsets before
# it that the leader has compacted away. `epoch`: by how much its leader's epoch is above that of the batch before it.
# `keys`: one of so many is each message's; 0: none. `deletes`: its keys, since the messages have no values.
Batch = _value(
    "Batch", messages=1, size=20, producer=-1, transactional=False, skips=0, epoch=0, keys=0, deletes=False
)  # fmt: skip
Marker = _value("Marker", producer=0, commits=False)  # the end of a producer's transaction
Flush = _value("Flush")
# An exactly-once write of staged batches. `shares`: topic, partition and number of messages of each. `again`: the same
# micro-batch is written again afterwards. `goes_on`: with the same query after a write that could not be finished.
Commit = _value("Commit", shares=(), batches=1, query=False, again=False, goes_on=False)
Offset = _value("Offset", group="", offset=0)  # that a group commits

# A program. `path`: the file that a writer writes, `after_error`: what it does then; `persists`: writes the rest again
# after a short count; `shares`: one open file with all others that share it; `durable`: with O_SYNC; `follows`: it runs
# on a read-only mount of the same directory.
Job = _value(
    "Job", kind="", name="", ops=(), path="", after_error=GOES_ON, persists=True, shares=False, follows=False,
    durable=False,
)  # fmt: skip
# A bit is flipped on the disk after a process's end. `place`: the part of the partition's bytes where. `unclean`: in
# the last segment, after a kill; otherwise in a sealed one, after an orderly end.
Rot = _value("Rot", topic="", partition=0, place=0.0, bit=0, unclean=False)
# A mount from start to end. `kill_at`: the step at which it is killed, or `kill_operation`: which operation of the disk
# it does not survive, or `kill_rename`: which rename of a segment's file; `switching`: how probable it is that another
# thread goes on at a switch point, as `order` draws it; `held`: how many descriptors logs may have (three each);
# `unchecked`: the next process recovers what this one leaves; otherwise that is done and compared between them.
ProcessOf = _value(
    "ProcessOf", jobs=(), kill_at=None, kill_operation=None, kill_rename=None, loses_power=False, switching=0.2,
    order=0, gentle=False, trust_clean=True, committed=False, clamp=False, held=None, unchecked=False, rots=(),
)  # fmt: skip
TopicOf = _value("TopicOf", name="", partitions=1, config=())
# A world. `request_bytes`: how much one FUSE request carries.
Plan = _value("Plan", seed=0, topics=(), processes=(), request_bytes=96)

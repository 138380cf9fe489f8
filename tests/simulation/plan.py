"""What happens in a world, as values: topics, processes, programs and their operations, faults.

A plan is drawn from a seed (`drawing`), or written down in a test. With the choices of the scheduler it determines
everything that happens, so a failing plan can be made smaller piece by piece (`shrinking`).
"""

import dataclasses

GOOD, TOO_LARGE, HUGE, NOT_JSON, NO_KEY = "good", "too large", "huge", "not JSON", "no key"
"""Kinds of lines. All but the first are refused."""

GIVES_UP, DROPS, NEXT, AGAIN = "gives up", "drops", "next", "again"
"""What a program does after an error of write(2): closes the file; forgets the rest of its buffer; goes on with the
line after the one that failed; writes the same bytes again, twice at most."""


def value(kind):
    """A frozen dataclass; its repr leaves out fields that have their default: plans are printed as tests."""
    made = dataclasses.dataclass(frozen=True, repr=False)(kind)
    made.__repr__ = _short
    return made


def _short(self):
    fields = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
    given = ", ".join(f"{field.name}={found!r}" for field, found in fields if found != field.default)
    return f"{type(self).__name__}({given})"


@value
class LineOf:
    """A line. `size`: of its value in bytes, at least; `key`: number of its key; `age_ms`: how much older than now its
    timestamp is (jsonl)."""

    size: int = 0
    kind: str = GOOD
    key: int | None = None
    age_ms: int | None = None


@value
class Write:
    """write(2) of these lines, after what an earlier one has left over. `cut`: the part of the last line that is in the
    buffer, the rest comes with the next write. `ended`: the last line has its newline. `first`: the size of the first
    request, between the least (0) and the greatest (1)."""

    lines: tuple[LineOf, ...]
    cut: float = 1.0
    ended: bool = True
    first: float = 1.0


@value
class Sync:
    """fsync(2)."""


@value
class Close:
    """close(2); the next operation opens the file again."""


@value
class Read:
    """read(2) of `size` bytes at the front (where the last one ended), or at this part of what was read before. `wait`:
    how often others come first."""

    size: int
    back: float | None = None
    wait: int = 0


@value
class Look:
    """Opens a file of records, reads, closes it. `to_end`: reads up to the end of file at last."""

    topic: str
    partition: int
    name: str
    reads: tuple[Read, ...]
    to_end: bool = True


@value
class Create:
    """Makes a topic."""

    topic: str


@value
class Extend:
    """Adds partitions to a topic, until it has so many."""

    topic: str
    partitions: int


@value
class Remove:
    """Removes a topic."""

    topic: str


@value
class Alter:
    """Sets a key of a topic's configuration."""

    topic: str
    key: str
    to: str


@value
class Jump:
    """The clock is set."""

    by_ms: int


@value
class Fault:
    """From now on operations of the disk fail, each with this probability; 0: the disk is well again. `kind`: ENOSPC,
    EIO, EMFILE, or "slow"; `lasting`: until the process's end."""

    kind: str
    rate: float = 0.0
    lasting: bool = False


@value
class Status:
    """A look at the mount's status."""


@value
class Before:
    """Retention of a partition up to this part of it (DeleteRecords)."""

    topic: str
    partition: int
    part: float


@value
class Pause:
    """Others come first, so often."""

    times: int


@value
class Batch:
    """A leader's batch for a follower: so many messages, of an idempotent or transactional producer."""

    messages: int
    size: int = 20
    producer: int = -1
    transactional: bool = False
    skips: int = 0  # offsets before it that the leader has compacted away
    epoch: int = 0  # by how much its leader's epoch is above that of the batch before it
    keys: int = 0  # one of so many is each message's; 0: none
    deletes: bool = False  # its keys: the messages have no values


@value
class Marker:
    """The end of a producer's transaction."""

    producer: int
    commits: bool


@value
class Flush:
    """PartitionLog.flush."""


@value
class Commit:
    """An exactly-once write of staged batches. `shares`: topic, partition and number of messages of each. `again`: the
    same micro-batch is written again afterwards."""

    shares: tuple[tuple[str, int, int], ...]
    batches: int = 1
    query: bool = False
    again: bool = False
    goes_on: bool = False  # with the same query after a write that could not be finished


@value
class Offset:
    """A group's committed offset."""

    group: str
    offset: int


@value
class Job:
    """A program. `path`: the file that a writer writes, `after_error`: what it does then; `persists`: writes the rest
    again after a short count; `shares`: one open file with all others that share it; `durable`: with O_SYNC. A job of a
    follower runs on a read-only mount of the same directory."""

    kind: str
    name: str
    ops: tuple[object, ...]
    path: str = ""
    after_error: str = DROPS
    persists: bool = True
    shares: bool = False
    follows: bool = False
    durable: bool = False


@value
class Rot:
    """A bit is flipped on the disk after a process's end. `place`: the part of the partition's bytes where. `unclean`:
    in the last segment, after a kill; otherwise in a sealed one, after an orderly end."""

    topic: str
    partition: int
    place: float
    bit: int = 0
    unclean: bool = False


@value
class ProcessOf:
    """A mount from start to end. `kill_at`: the step at which it is killed, or `kill_operation`: which operation of
    the disk it does not survive, or `kill_rename`: which rename of a segment's file; `switching`: how probable it is
    that another thread goes on at a switch point, as `order` draws it; `held`: how many descriptors of written files
    may be open; `unchecked`: the next process recovers what this one leaves; otherwise that is done and compared
    between them."""

    jobs: tuple[Job, ...]
    kill_at: int | None = None
    kill_operation: int | None = None
    kill_rename: int | None = None
    loses_power: bool = False
    switching: float = 0.2
    order: int = 0
    gentle: bool = False
    trust_clean: bool = True
    committed: bool = False
    clamp: bool = False
    held: int | None = None
    unchecked: bool = False
    rots: tuple[Rot, ...] = ()


@value
class TopicOf:
    """A topic and its configuration."""

    name: str
    partitions: int = 1
    config: tuple[tuple[str, str], ...] = ()


@value
class Plan:
    """A world. `request_bytes`: how much one FUSE request carries."""

    seed: int
    topics: tuple[TopicOf, ...]
    processes: tuple[ProcessOf, ...]
    request_bytes: int = 96

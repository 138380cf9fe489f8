"""Failures that the simulation has found, reduced by `--shrink` or by hand. Each failed before its fault was mended."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.plan import (
    HUGE,
    Batch,
    Close,
    Create,
    Job,
    LineOf,
    Look,
    Marker,
    Pause,
    Plan,
    ProcessOf,
    Read,
    Remove,
    Rot,
    Sync,
    TopicOf,
    Truncate,
    Write,
)
from tests.simulation.runs import run, simulation
from tests.simulation.scheduler import Choices

SMALL = (("max.message.bytes", "250"), ("segment.bytes", "700"))


def simulate(plan: Plan, choices: Sequence[Choices] = ()) -> None:
    """Runs a plan with these choices of the scheduler."""
    with simulation():
        run(plan, choices)


def test_the_line_after_a_sync_is_not_the_rest_of_a_refused_one() -> None:
    """A program writes a line that is too long and one without a newline, forgets them after the error, calls
    fsync(2), and writes another line in two requests: that one vanished, and write(2) had taken it."""
    refused = Write((LineOf(kind=HUGE), LineOf()), ended=False)
    ops = (refused, Sync(), Write((LineOf(60),), first=0.2))
    plan = Plan(
        1,
        topics=(TopicOf("plain", 2, SMALL),),
        processes=(ProcessOf((Job("writer", "w", ops, "/plain/@append.jsonl"),)),),
    )
    simulate(plan)


def test_a_line_that_cannot_be_the_rest_of_a_refused_one_is_not_discarded() -> None:
    """The refused line, whose newline was to follow, is complete JSON. The next line comes in two requests, is refused
    with the pending error, and written again: it vanished, and write(2) had taken it."""
    refused = Write((LineOf(kind=HUGE), LineOf()), cut=0.759)
    ops = (refused, Write((LineOf(size=120),)))
    job = Job("writer", "w0", ops, path="/plain/1/@append.jsonl", after_error="again", persists=False)
    plan = Plan(
        594510586678,
        topics=(TopicOf("plain", 2, (("segment.bytes", "700"),)),),
        processes=(ProcessOf((job,), kill_at=244, switching=0.5, order=3406854820),),
        request_bytes=96,
    )
    simulate(plan, [{}])


def test_what_a_truncation_cut_from_an_index_does_not_come_back() -> None:
    """A process is killed after a truncation. The next one recovers nothing in the segment, which ends at the recovery
    point, and the power is lost: an entry of the offset index was there again, beyond the end of the log."""

    def leader(*ops: object) -> tuple[Job, ...]:
        return (Job("leader", "l", ops, path="/copy/0"),)

    first = leader(Marker(2, commits=False), Marker(1, commits=True), Batch(2, size=30, skips=2))
    second = leader(Truncate(0.9), Batch(5, size=30, producer=1, transactional=True), Truncate(0.6))
    plan = Plan(
        639296447029,
        topics=(TopicOf("copy", 1, (("segment.bytes", "300"), ("index.interval.bytes", "100"))),),
        processes=(
            ProcessOf(first, kill_at=205, loses_power=True, switching=0.02, order=3637495608),
            ProcessOf(second, kill_at=340, switching=0.1, order=1159310798),
            ProcessOf((), kill_at=28, loses_power=True, switching=0.1, order=3956798855),
        ),
        request_bytes=96,
    )
    simulate(plan, [{}, {}, {}])


def test_a_damaged_batch_between_later_and_earlier_ones_shows_in_a_range_of_times() -> None:
    """The only batch of a segment has a last offset that is too high. The segment before is later than the range, the
    batch behind is in it, as was the damaged one: a file of that range showed neither it nor an error."""
    later, lines = LineOf(120, age_ms=-1000), (LineOf(20), LineOf(), LineOf(20, age_ms=-1000))
    writer = Job("writer", "w0", (Write((LineOf(20), later, later, *lines)),), "/plain/1/@append.jsonl")
    look = Look("plain", 1, "time/until-1763700000232.jsonl", (Read(4000, wait=3),))
    plan = Plan(
        605246479737,
        topics=(TopicOf("plain", 2, (("segment.bytes", "300"),)),),
        processes=(
            ProcessOf((writer,), switching=0.5, order=3380127997, rots=(Rot("plain", 1, 0.576, bit=3465),)),
            ProcessOf((Job("reader", "r0", (look,)),), order=894405250),
        ),
        request_bytes=200,
    )
    simulate(plan, [{}, {}])


def test_an_index_is_cut_to_where_its_segment_now_ends() -> None:
    """A truncation within a sealed segment, then a new segment, then the power goes: an entry of the index pointed
    beyond the end of the log."""
    of = (
        Batch(5, 30, 1, True),
        Batch(2, 30, 1, True),
        Batch(1, 5, 1),
        Batch(2, 5),
        Batch(1, 30, skips=2),
        Batch(1, 30),
    )
    plan = Plan(
        155533294570,
        topics=(TopicOf("copy", config=(("segment.bytes", "300"), ("index.interval.bytes", "0"))),),
        processes=(
            ProcessOf((Job("leader", "l", of, "/copy/0"),), order=3650393752),
            ProcessOf(
                (Job("leader", "l", (Truncate(0.6), Batch(1, 30)), "/copy/0"),),
                kill_at=223,
                loses_power=True,
                order=4080359223,
            ),
        ),
        request_bytes=96,
    )
    simulate(plan, [{}, {}])


def test_a_file_of_a_topic_that_was_made_again() -> None:
    """A reader opens a file while its topic is removed, and reads it when the topic has been made again several times:
    the new segment had the inode of the old one, and its message was shown."""
    plan = Plan(
        16306072844,
        topics=(TopicOf("again"),),
        processes=(
            ProcessOf(
                jobs=(
                    Job(
                        "writer",
                        "g",
                        (
                            Write((LineOf(),)),
                            Close(),
                            Pause(9),
                            Write((LineOf(),), cut=0.212),
                        ),
                        path="/again/0/@append",
                        after_error="gives up",
                    ),
                    Job("reader", "r0", ()),
                    Job(
                        "reader",
                        "r1",
                        (
                            Look(
                                "again",
                                0,
                                "messages.txt",
                                (
                                    Read(400, wait=60),
                                    Read(10),
                                    Read(4000, wait=3),
                                    Read(4000, wait=3),
                                    Read(400),
                                    Read(10),
                                ),
                            ),
                        ),
                    ),
                    Job(
                        "administrator",
                        "a",
                        (
                            Remove("again"),
                            Create("again"),
                            Remove("again"),
                            Create("again"),
                            Remove("again"),
                            Create("again"),
                        ),
                    ),
                ),
                switching=0.02,
                order=3207038545,
            ),
        ),
        request_bytes=96,
    )
    simulate(plan, [{("mount", 48): "a", ("a", 4): "r1", ("r1", 75): "a"}])

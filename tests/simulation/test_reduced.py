"""Failures that the simulation has found, reduced by `--shrink` or by hand. Each failed before its fault was mended."""

from __future__ import annotations

from collections.abc import Sequence

from tests.simulation.plan import HUGE, Job, LineOf, Plan, ProcessOf, Sync, TopicOf, Write
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

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

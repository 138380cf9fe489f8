"""A failing plan made smaller: as few processes, programs, operations and switches of threads as still fail in the same
way, printed as a test.

First pieces of the plan are left out, each time with the plan's own orders of threads and some others; then the choices
of the scheduler. A failure counts as the same if it is of the same type, and its text begins with the same words.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeVar

from tests.simulation import runs
from tests.simulation.drawing import draw
from tests.simulation.plan import ProcessOf, Write

T = TypeVar("T")
_ORDERS = 4  # tried for each smaller plan
_MOST_RUNS = 1500


class _Shrinking:
    def __init__(self, plan, choices, failure):
        self.plan = plan
        self.choices = choices
        self.failure = failure
        self.runs = 0

    def try_plan(self, plan):
        """Whether a smaller plan still fails, in its own order of threads or another one."""
        for order in range(_ORDERS):
            processes = tuple(
                replace(of, order=of.order + order, kill_at=self._kill(of, order)) for of in plan.processes
            )
            changed = replace(plan, processes=processes)
            found = self._fails(changed, None)
            if found is not None:
                self.plan, self.choices = changed, found
                return True
        return False

    @staticmethod
    def _kill(of, order):
        return None if of.kill_at is None else max(1, int(of.kill_at * (1.0, 0.9, 0.7, 0.5)[order]))

    def try_choices(self, choices):
        if self._fails(self.plan, choices) is None:
            return False
        self.choices = choices
        return True

    def _fails(self, plan, choices):
        """The choices with which it fails in the same way; None if it does not."""
        if self.runs >= _MOST_RUNS:
            return None
        self.runs += 1
        figures = runs.Figures(plan.seed)
        failure = failure_of(figures, plan, choices)
        if failure is None or kind_of(failure) != kind_of(self.failure):
            return None
        self.failure = failure
        return choices if choices is not None else list(figures.choices)


def failure_of(figures, plan, choices):
    """The error that a plan ends with, as a text."""
    try:
        runs.run_into(figures, plan, choices)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is
        return f"{type(error).__name__}: {error}"
    return None


def kind_of(failure):
    """What a failure has in common with the same one of a smaller plan: its first words without names and numbers."""
    words = re.sub(r"b?'[^']*'|/\S+|\S*\d\S*", "", failure)
    return " ".join(words.split()[:4])


def shrink(seed):
    """Prints a test; 1 where the seed does not fail."""
    plan = draw(seed)
    figures = runs.Figures(seed)
    failure = failure_of(figures, plan, None)
    if failure is None:
        print(f"seed {seed} does not fail")  # noqa: T201
        return 1
    state = _Shrinking(plan, figures.choices, failure)
    before = None
    while before != state.plan:
        before = state.plan
        _fewer(state, lambda plan: plan.processes, lambda plan, left: replace(plan, processes=left), least=1)
        for number in range(len(state.plan.processes)):
            _fewer(state, lambda plan, n=number: plan.processes[n].jobs, _with_jobs(number))
            for job in range(len(state.plan.processes[number].jobs)):
                _fewer(state, lambda plan, n=number, j=job: plan.processes[n].jobs[j].ops, _with_ops(number, job))
                _fewer_lines(state, number, job)
        _simpler(state)
    _fewer_choices(state)
    print(as_test(state.plan, state.choices, state.failure))  # noqa: T201
    return 0


def _fewer(state, part, put, least=0):
    """Leaves out as many of these pieces as possible: halves, quarters, single ones."""
    size = max(1, len(part(state.plan)) // 2)
    while size:
        start = 0
        while start < len(part(state.plan)):
            pieces = tuple(part(state.plan))
            left = pieces[:start] + pieces[start + size :]
            if len(left) < least or not state.try_plan(put(state.plan, left)):
                start += size
        size //= 2


def _with_jobs(number):
    return lambda plan, left: _with_process(plan, number, replace(plan.processes[number], jobs=left))


def _with_ops(number, job):
    def put(plan, left):
        of = plan.processes[number]
        return _with_process(plan, number, replace(of, jobs=_with(of.jobs, job, replace(of.jobs[job], ops=left))))

    return put


def _fewer_lines(state, number, job):
    put = _with_ops(number, job)
    for place in range(len(state.plan.processes[number].jobs[job].ops)):
        op = state.plan.processes[number].jobs[job].ops[place]
        if isinstance(op, Write):

            def with_lines(plan, left, place=place):
                ops = plan.processes[number].jobs[job].ops
                return put(plan, _with(ops, place, replace(ops[place], lines=left)))

            _fewer(state, lambda plan, at=place: plan.processes[number].jobs[job].ops[at].lines, with_lines, least=1)


def _simpler(state):
    """Settings that do not matter get their defaults; topics that nobody needs go."""
    _fewer(state, lambda plan: plan.topics, lambda plan, left: replace(plan, topics=left))
    for number in range(len(state.plan.processes)):
        for changes in _defaults(state.plan.processes[number]):
            state.try_plan(_with_process(state.plan, number, replace(state.plan.processes[number], **changes)))
    for place in range(len(state.plan.topics)):

        def with_config(plan, left, place=place):
            return replace(plan, topics=_with(plan.topics, place, replace(plan.topics[place], config=left)))

        _fewer(state, lambda plan, at=place: plan.topics[at].config, with_config)


def _defaults(of):
    plain = ProcessOf(())
    for name in (
        "kill_at",
        "kill_operation",
        "kill_rename",
        "loses_power",
        "gentle",
        "trust_clean",
        "committed",
        "clamp",
        "held",
        "unchecked",
        "rots",
    ):
        if getattr(of, name) != getattr(plain, name):
            yield {name: getattr(plain, name)}


def _fewer_choices(state):
    if not state.try_choices(list(state.choices)):
        return
    for number in range(len(state.choices)):
        size = max(1, len(state.choices[number]) // 2)
        while size:
            start = 0
            while start < len(state.choices[number]):
                pieces = list(state.choices[number].items())
                left = dict(pieces[:start] + pieces[start + size :])
                if not state.try_choices(_with(tuple(state.choices), number, left)):
                    start += size
            size //= 2


def _with_process(plan, number, of):
    return replace(plan, processes=_with(plan.processes, number, of))


def _with(values, place, value):
    return (*values[:place], value, *values[place + 1 :])


def as_test(plan, choices, failure):
    """A test to be pasted into a module of tests."""
    lines = [
        f"def test_seed_{plan.seed}() -> None:",
        f'    """{failure[:300]}"""',
        "    plan = Plan(",
        f"        {plan.seed},",
    ]
    lines.append("        topics=(")
    lines += [f"            {topic!r}," for topic in plan.topics]
    lines += ["        ),", "        processes=("]
    for of in plan.processes:
        lines += ["            ProcessOf(", "                jobs=("]
        for job in of.jobs:
            lines += _job_lines(job)
        rest = repr(replace(of, jobs=())).removeprefix("ProcessOf((), ").removeprefix("ProcessOf(())").removesuffix(")")
        lines += ["                ),", *([f"                {rest},"] if rest else []), "            ),"]
    lines += ["        ),", f"        request_bytes={plan.request_bytes},", "    )"]
    lines.append(f"    simulate(plan, {list(choices)!r})")
    return "\n".join(lines)


def _job_lines(job):
    rest = repr(replace(job, ops=())).replace("(), ", "", 1).replace(", ()", "", 1)
    kind, name = repr(job.kind), repr(job.name)
    more = rest.removeprefix(f"Job({kind}, {name}").removesuffix(")")
    lines = [f"                    Job({kind}, {name}, ("]
    lines += [f"                        {op!r}," for op in job.ops]
    return [*lines, f"                    ){more}),"]

"""A failing plan made smaller: as few processes, programs, operations and switches of threads as still fail in the same
way, printed as a test.

First pieces of the plan are left out, each time with the plan's own orders of threads and some others; then the choices
of the scheduler. A failure counts as the same if it is of the same type, and its text begins with the same words.
"""

import re
from dataclasses import fields, is_dataclass, replace

from tests.simulation import runs
from tests.simulation.drawing import draw

_ORDERS = (1.0, 0.9, 0.7, 0.5)  # tried for each smaller plan: another order, killed at this part of the steps
_MOST_RUNS = 1500


class _Shrinking:
    def __init__(self, plan, choices, failure):
        self.plan = plan
        self.choices = choices
        self.failure = failure
        self._runs = 0

    def try_plan(self, plan):
        """Whether a smaller plan still fails, in its own order of threads or another one."""
        for order, part in enumerate(_ORDERS):
            processes = tuple(
                replace(of, order=of.order + order, kill_at=of.kill_at and max(1, int(of.kill_at * part)))
                for of in plan.processes
            )
            changed = replace(plan, processes=processes)
            choices = self._fails(changed, None)
            if choices is not None:
                self.plan, self.choices = changed, choices
                return True
        return False

    def try_choices(self, choices):
        if self._fails(self.plan, choices) is None:
            return False
        self.choices = choices
        return True

    def _fails(self, plan, choices):
        """The choices with which it fails in the same way; None if it does not."""
        if self._runs >= _MOST_RUNS:
            return None
        self._runs += 1
        figures = runs.Figures()
        failure = runs.failure_of(figures, plan, choices)
        if failure is None or _kind_of(failure) != _kind_of(self.failure):
            return None
        self.failure = failure
        return choices if choices is not None else list(figures.choices)


def _kind_of(failure):
    """What a failure has in common with the same one of a smaller plan: its first words without names and numbers."""
    words = re.sub(r"b?'[^']*'|/\S+|\S*\d\S*", "", str(failure))
    return type(failure), *words.split()[:3]


def shrink(seed):
    """Prints a test; 1 where the seed does not fail."""
    plan, figures = draw(seed), runs.Figures()
    failure = runs.failure_of(figures, plan)
    if failure is None:
        print(f"seed {seed} does not fail")  # noqa: T201
        return 1
    state = _Shrinking(plan, figures.choices, failure)
    before = None
    while before != state.plan:
        before = state.plan
        _reduce(state, lambda plan: plan, lambda _, smaller: smaller)
    _reduce_choices(state)
    # A test to be pasted into a module of tests; `ruff format` lays it out.
    print(f"def test_seed_{seed}():\n    {str(state.failure)[:300]!r}\n    simulate({state.plan!r}, {state.choices!r})")  # noqa: T201
    return 0


def _reduce(state, get, put):
    """Makes a part of the plan as small as possible: of a tuple some values are left out, of a value the fields get
    their defaults; then the parts of that. `get` and `put` take it from a plan, and replace it there."""
    part = get(state.plan)
    if isinstance(part, tuple) and not any(isinstance(one, str) for one in part):  # these belong together
        _fewer(lambda: get(state.plan), lambda left: state.try_plan(put(state.plan, left)))
        for place in range(len(get(state.plan))):
            _reduce(
                state,
                lambda plan, place=place: get(plan)[place],
                lambda plan, smaller, place=place: put(plan, _with(get(plan), place, smaller)),
            )
    elif is_dataclass(part):
        for field in fields(part):
            name, default = field.name, field.default
            if getattr(get(state.plan), name) != default:
                state.try_plan(put(state.plan, replace(get(state.plan), **{name: default})))
            _reduce(
                state,
                lambda plan, name=name: getattr(get(plan), name),
                lambda plan, smaller, name=name: put(plan, replace(get(plan), **{name: smaller})),
            )


def _fewer(get, try_left):
    """Leaves out as many pieces as possible: halves, quarters, single ones."""
    size = max(1, len(get()) // 2)
    while size:
        start = 0
        while start < len(pieces := get()):
            if not try_left(pieces[:start] + pieces[start + size :]):
                start += size
        size //= 2


def _reduce_choices(state):
    if not state.try_choices(list(state.choices)):
        return
    for number in range(len(state.choices)):
        _fewer(
            lambda number=number: tuple(state.choices[number].items()),
            lambda left, number=number: state.try_choices(list(_with(tuple(state.choices), number, dict(left)))),
        )


def _with(values, place, value):
    return (*values[:place], value, *values[place + 1 :])

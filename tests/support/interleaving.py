"""Two threads in every order in which the first is interrupted once: before each instruction of it that reads, calls or
stores something, the second runs from its beginning to its end.

Both run in one thread of the system: a trace function calls the second when the first comes to the instruction. So a
run is the same each time, and no order is left to chance. A lock that the first holds just then would block the second,
which then ends there: that is how far it would have come. The locks must be those of `simulated_locks`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

Point = tuple[CodeType, int]
_Result = TypeVar("_Result")

# Between others nothing happens that another thread could see or change.
_SEEN = ("CALL", "LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR", "FOR_ITER", "CONTAINS_OP", "BINARY_SUBSCR", "RETURN_VALUE")


def points(run: Callable[[], object], modules: tuple[str, ...]) -> list[Point]:
    """Where `run` can be interrupted: such instructions of these modules that it comes to, each once."""
    found: dict[Point, None] = {}
    _traced(run, modules, lambda point: found.setdefault(point))
    return [(code, at) for code, at in found if dis.opname[code.co_code[at]] in _SEEN]


def interrupted(
    run: Callable[[], _Result], modules: tuple[str, ...], at: Point, second: Callable[[], object]
) -> _Result:
    """The result of `run`, in which `second` runs once, when `run` comes to a point for the first time."""
    waiting = [second]

    def meet(point: Point) -> None:
        if point == at and waiting:
            second = waiting.pop()
            try:
                second()
            except AssertionError as error:
                if "a lock that is held" not in str(error):
                    raise

    return _traced(run, modules, meet)


def _traced(run: Callable[[], _Result], modules: tuple[str, ...], meet: Callable[[Point], object]) -> _Result:
    def trace(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_globals.get("__name__") not in modules:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            meet((frame.f_code, frame.f_lasti))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return run()
    finally:
        sys.settrace(before)

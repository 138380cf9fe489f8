"""What the views of one tree share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kafkafs.handles import BlockCache, Workers
from kafkafs.paths import Messages, OffsetsView, TimeView
from kafkafs.view_index.index import ViewIndex
from kafkafs.views.callers import Callers, OneCaller
from kafkafs.views.state import Clocks, ViewState
from storage.types import Isolation

RangeNode = Messages | OffsetsView | TimeView

_KEPT_STATES = 4096  # of files that nobody has open


class StateTable:
    """The states of range files by node, the least recently used of closed ones forgotten first. Thread-safe."""

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._states: OrderedDict[RangeNode, ViewState] = OrderedDict()

    def find(self, node: RangeNode) -> ViewState | None:
        """The state of a file that somebody opened, if it is remembered."""
        with self._lock:
            return self._states.get(node)

    def obtain(self, node: RangeNode, make: Callable[[], ViewState]) -> ViewState:
        """The state of a file, made if it is not there."""
        with self._lock:
            state = self._states.get(node)
            if state is None:
                state = self._states[node] = make()
            self._states.move_to_end(node)
            if len(self._states) > _KEPT_STATES:
                self._forget_locked()
            return state

    def status(self) -> dict[str, int]:
        """For @status.json."""
        with self._lock:
            return {
                "known": len(self._states),
                "open": sum(state.handles > 0 for state in self._states.values()),
                "handles": sum(state.handles for state in self._states.values()),
            }

    def _forget_locked(self) -> None:
        for node, state in self._states.items():
            if state.handles == 0:
                del self._states[node]
                return


@dataclass(frozen=True, slots=True)
class Services:
    """One of each for a tree."""

    index: ViewIndex
    cache: BlockCache
    workers: Workers
    clocks: Clocks
    isolation: Isolation
    clamp: bool
    callers: Callers = field(default_factory=OneCaller)
    states: StateTable = field(default_factory=StateTable)

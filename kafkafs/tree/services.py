"""The objects that all views of one tree share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from kafkafs.tree.decoded_views import DecodedViews
from kafkafs.tree.paths import RangePath
from kafkafs.view_index.index import ViewIndex
from kafkafs.view_index.workers import Workers
from kafkafs.views.block_cache import BlockCache
from kafkafs.views.callers import Callers, OneCaller
from kafkafs.views.path_pages import PathPages
from kafkafs.views.state import Clocks, ViewState
from storage.log.snapshot import Log
from storage.types import Isolation

_KEPT_STATES = 4096  # of files without an open handle


MakeState = Callable[[PathPages | None], ViewState]
"""Makes the state of a file; the pages are those of the path, if another log had it before."""


class StateTable:
    """The states of range files by node; of closed ones the least recently used is forgotten first. Thread-safe.

    A state belongs to one log. When the node's topic is deleted and made again, the node gets a new state; handles of
    the old state keep it, and their reads fail because their log is gone. Both share the path's page cache.
    """

    def __init__(self) -> None:
        # guarded by the lock
        self._lock = threading.Lock()
        self._states: OrderedDict[RangePath, ViewState] = OrderedDict()

    def get(self, node: RangePath, log: Log, make: MakeState) -> ViewState | None:
        """The state of a file of `log`; None if it was not opened lately. If the state is of another log, a new one,
        since the page cache may hold that log's pages."""
        with self._lock:
            return self._get_locked(node, log, make)

    def obtain(self, node: RangePath, log: Log, make: MakeState) -> ViewState:
        """The state of a file of `log`, made if there is none."""
        with self._lock:
            state = self._get_locked(node, log, make)
            if state is None:
                state = self._states[node] = make(None)
            self._states.move_to_end(node)
            if len(self._states) > _KEPT_STATES:
                self._forget_locked()
            return state

    def _get_locked(self, node: RangePath, log: Log, make: MakeState) -> ViewState | None:
        state = self._states.get(node)
        if state is not None and state.log is not log:
            state = self._states[node] = make(state.pages)
        return state

    def forget(self, node: RangePath, state: ViewState) -> bool:
        """Drops a state, so that the file begins again at the next look; False if it is open: then positions stay."""
        with self._lock:
            if state.handles or self._states.get(node) is not state:
                return False
            del self._states[node]
            return True

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
            if state.handles == 0 and not state.pages.is_in_use:
                del self._states[node]
                return


@dataclass(frozen=True, slots=True)
class Services:
    """One of each for every tree."""

    index: ViewIndex
    cache: BlockCache
    workers: Workers
    clocks: Clocks
    isolation: Isolation
    clamp: bool
    decoded: DecodedViews
    callers: Callers = field(default_factory=OneCaller)
    states: StateTable = field(default_factory=StateTable)

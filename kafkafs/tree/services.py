"""The objects that all views of one tree share."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from kafkafs.reading.block_cache import BlockCache, PathPages
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.selection import DEFAULT_LATEST_BYTES
from kafkafs.reading.state import Callers, Clocks, OneCaller, ViewState
from kafkafs.reading.workers import Workers
from kafkafs.tree.decoded_views import DecodedViews
from kafkafs.tree.paths import LatestPath, RangePath
from storage.log.snapshot import ReadableLog
from storage.types import Isolation

KEPT_STATES = 4096  # more only while so many files are open
STAT_BYTES = 64 << 20


# The files that have a state: of one partition each.
StateNode = RangePath | LatestPath

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
        self._states: OrderedDict[StateNode, ViewState] = OrderedDict()

    def get(self, node: StateNode, log: ReadableLog, make: MakeState) -> ViewState | None:
        """The state of a file of `log`; None if it was not opened lately. If the state belongs to another log, returns
        a new state with the path's pages, because the page cache may hold pages of the other log."""
        with self._lock:
            return self._get_locked(node, log, make)

    def has(self, node: StateNode) -> bool:
        """Whether a file was opened lately."""
        with self._lock:
            return node in self._states

    def obtain(self, node: StateNode, log: ReadableLog, make: MakeState) -> ViewState:
        """The state of a file of `log`, made if there is none."""
        with self._lock:
            state = self._get_locked(node, log, make)
            if state is None:
                state = self._states[node] = make(None)
            self._states.move_to_end(node)
            if len(self._states) > KEPT_STATES:
                self._forget_locked(state)
            return state

    def _get_locked(self, node: StateNode, log: ReadableLog, make: MakeState) -> ViewState | None:
        state = self._states.get(node)
        if state is not None and state.log is not log:
            state = self._states[node] = make(state.pages)
        return state

    def forget(self, node: StateNode, state: ViewState) -> bool:
        """Drops a state, so that the file begins again at the next look; False if it is open: then positions stay."""
        with self._lock:
            if state.handles or self._states.get(node) is not state:
                return False
            del self._states[node]
            return True

    def status(self) -> dict[str, int]:
        """The counts for @status.json."""
        with self._lock:
            return {
                "known": len(self._states),
                "open": sum(state.handles > 0 for state in self._states.values()),
                "handles": sum(state.handles for state in self._states.values()),
            }

    def _forget_locked(self, needed: ViewState) -> None:
        """Forgets closed files, but not the state `needed`, until KEPT_STATES are left. These may be many at once, if
        many files were open until now."""
        excess = len(self._states) - KEPT_STATES
        closed = (
            node
            for node, state in self._states.items()
            if state.handles == 0 and not state.pages.is_in_use and state is not needed
        )
        for node in list(islice(closed, excess)):
            del self._states[node]


class LatestMemory:
    """The memory that `latest` files take. Thread-safe.

    A scan holds a map of keys of at most `scan_bytes`, and one scan runs at a time. An open file holds the offsets of
    its messages, 8 bytes each. A closed file keeps them until the log changes; all closed files keep `KEPT_BYTES`.
    """

    KEPT_BYTES = 64 << 20

    def __init__(self, scan_bytes: int = DEFAULT_LATEST_BYTES) -> None:
        # constant after construction
        self.scan_bytes = scan_bytes
        # held during a scan
        self.scan = threading.Lock()
        # guarded by the lock
        self._lock = threading.Lock()
        self._held: OrderedDict[LatestPath, tuple[ViewState, int]] = OrderedDict()

    def hold(self, node: LatestPath, state: ViewState, size_bytes: int) -> None:
        """Notes the memory that the offsets of an opened file take."""
        with self._lock:
            self._held[node] = state, size_bytes
            self._held.move_to_end(node)

    def trim(self, states: StateTable) -> None:
        """Forgets the closed files that were opened longest ago, until closed files take at most KEPT_BYTES."""
        with self._lock:
            closed = {node: held for node, held in self._held.items() if not held[0].handles}
            excess = sum(size for _, size in closed.values()) - self.KEPT_BYTES
            for node, (state, size) in closed.items():
                if excess <= 0:
                    return
                states.forget(node, state)
                del self._held[node]
                excess -= size


@dataclass(frozen=True, slots=True)
class Services:
    """The services that a tree has, one of each kind."""

    index: BlockIndex
    cache: BlockCache
    workers: Workers
    clocks: Clocks
    isolation: Isolation
    clamp: bool
    decoded: DecodedViews
    exact_below: int | None
    callers: Callers = field(default_factory=OneCaller)
    states: StateTable = field(default_factory=StateTable)
    latest: LatestMemory = field(default_factory=LatestMemory)

    @property
    def stat_bytes(self) -> int:
        """Up to this size of a partition, a stat measures its views before anybody opens them."""
        return STAT_BYTES if self.exact_below is None else min(STAT_BYTES, self.exact_below)

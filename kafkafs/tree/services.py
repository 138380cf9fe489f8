"""The objects that all views of one tree share."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from threading import Lock
from typing import Final

from cachetools import LRUCache

from kafkafs.decoding.decoded_jsonl import DecodedJsonl
from kafkafs.reading.block_cache import BlockCache, PathPages
from kafkafs.reading.index import ViewIndex
from kafkafs.reading.selection import DEFAULT_LATEST_BYTES
from kafkafs.reading.state import Callers, Clocks, OneCaller, ViewState
from kafkafs.reading.workbench import Rendition
from kafkafs.reading.workers import Workers
from kafkafs.schemas.sources import SchemaSource, SteadySchemas
from kafkafs.tree.paths import LatestPath, RangePath
from storage.format.messages import GROUPS, definitions_digest
from storage.log.snapshot import Log
from storage.types import Isolation, TopicPartition

# `decoded.jsonl`: which topics have it, and by which schemas or definitions it is rendered.
#
# A rendition belongs to one partition and to the schemas as `SteadySchemas` gives them: what has been measured or
# served is not changed by a schema that appears later. Then the rendition is outdated: what is open keeps it, and the
# next open makes another one, which measures the partition again (kafkafs/DESIGN.md, "Decoded views").

_KEPT: Final = 1024

_numbers = itertools.count()


class SchemaBasis:
    """The schemas of one rendition. See Basis."""

    def __init__(self, schemas: SteadySchemas) -> None:
        self._schemas = schemas
        self._number = next(_numbers)

    @property
    def name(self) -> str:
        return f"#{self._number}"

    def is_outdated(self) -> bool:
        return self._schemas.is_outdated()

    def lasting_name(self) -> str | None:
        fingerprint = self._schemas.fingerprint()
        return None if fingerprint is None else f"@{fingerprint}"


class DefinedBasis:
    """The definitions of the messages in Kafka's own topics. See Basis."""

    name = "definitions"

    def is_outdated(self) -> bool:
        return False

    def lasting_name(self) -> str:
        return f"@{definitions_digest()}"


class DecodedViews:
    """The renditions of a tree's decoded views. Thread-safe."""

    def __init__(self, source: SchemaSource, isolation: Isolation) -> None:
        # constant after construction
        self.source = source
        self._isolation = isolation
        # guarded by the lock
        self._lock = Lock()
        self._renditions: LRUCache[TopicPartition, Rendition] = LRUCache(_KEPT)

    def has(self, topic: str) -> bool:
        """Whether the topic's partitions have decoded views: Kafka's own always, others where there are schemas."""
        return topic in GROUPS or bool(self.source.registry())

    def rendition(self, tp: TopicPartition) -> Rendition:
        """By the schemas as of now; the same until it is outdated."""
        with self._lock:
            rendition = self._renditions.get(tp)
            if rendition is None or rendition.is_outdated():
                schemas = SteadySchemas(self.source)
                basis = DefinedBasis() if tp.topic in GROUPS else SchemaBasis(schemas)
                rendition = Rendition(DecodedJsonl(tp, schemas), self._isolation, basis)
                self._renditions[tp] = rendition
            return rendition


KEPT_STATES = 4096  # of files without an open handle


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

    def get(self, node: StateNode, log: Log, make: MakeState) -> ViewState | None:
        """The state of a file of `log`; None if it was not opened lately. If the state is of another log, a new one,
        since the page cache may hold that log's pages."""
        with self._lock:
            return self._get_locked(node, log, make)

    def has(self, node: StateNode) -> bool:
        """Whether a file was opened lately."""
        with self._lock:
            return node in self._states

    def obtain(self, node: StateNode, log: Log, make: MakeState) -> ViewState:
        """The state of a file of `log`, made if there is none."""
        with self._lock:
            state = self._get_locked(node, log, make)
            if state is None:
                state = self._states[node] = make(None)
            self._states.move_to_end(node)
            if len(self._states) > KEPT_STATES:
                self._forget_locked(state)
            return state

    def _get_locked(self, node: StateNode, log: Log, make: MakeState) -> ViewState | None:
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
        """For @status.json."""
        with self._lock:
            return {
                "known": len(self._states),
                "open": sum(state.handles > 0 for state in self._states.values()),
                "handles": sum(state.handles for state in self._states.values()),
            }

    def _forget_locked(self, needed: ViewState) -> None:
        """Forgets closed files until few enough are left, also if many were open until now; not the needed one."""
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

    A scan has a map of keys, which may take `scan_bytes`; there is one scan at a time. An open file has the offsets of
    its messages, 8 bytes each, and so has a closed one until the log changes: `KEPT_BYTES` of closed files are kept.
    """

    KEPT_BYTES = 64 << 20

    def __init__(self, scan_bytes: int = DEFAULT_LATEST_BYTES) -> None:
        # constant after construction
        self.scan_bytes = scan_bytes
        # held during a scan; nothing else is locked by a thread that has it
        self.scan = threading.Lock()
        # guarded by the lock
        self._lock = threading.Lock()
        self._held: OrderedDict[LatestPath, tuple[ViewState, int]] = OrderedDict()

    def hold(self, node: LatestPath, state: ViewState, size_bytes: int) -> None:
        """Notes how much memory the offsets of a file take that was opened."""
        with self._lock:
            self._held[node] = state, size_bytes
            self._held.move_to_end(node)

    def trim(self, states: StateTable) -> None:
        """Forgets the closed files that were opened longest ago, if all of them take too much."""
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
    latest: LatestMemory = field(default_factory=LatestMemory)

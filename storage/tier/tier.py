"""All tiers that the user has named, as one: which partitions and segments they hold."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from storage.errors import StorageError
from storage.tier import manifests
from storage.tier.blocks import RemoteBlockCache, open_object
from storage.tier.data_keys import DataKeys
from storage.tier.layouts import RemoteDirectory, StoredObject, TierLayout, Wanted, find, segments
from storage.tier.object_places import ListedObject, Place, open_place
from storage.tier.remote_segments import RemoteFile, RemoteSegment, TopicIdPartition

_STALE_SECONDS: Final = 15.0  # after this, directories above those of partitions are listed again
_MOST_LISTINGS: Final = 10_000


class Tier:
    """Places to read remote segments from. Thread-safe; nothing is opened or listed before it is needed, and nothing is
    ever written.

    `places`: as the user named them (see `open_place`). `keys`: PEM files of private keys by their id in the tier.
    """

    def __init__(
        self, places: Sequence[str], keys: Mapping[str, Path] | None = None, cache: RemoteBlockCache | None = None
    ) -> None:
        self.places: Final[tuple[Place, ...]] = tuple(map(open_place, places))
        self._named: Final = (tuple(places), tuple(sorted((keys or {}).items())))
        self._keys: Final = DataKeys(keys or {})
        self._cache: Final = cache or RemoteBlockCache()
        self._connecting: Final[list[threading.Thread]] = []  # threads that `connect` has started
        self._lock: Final = threading.Lock()
        self._listed: dict[tuple[Place, str], tuple[float, list[ListedObject]]] = {}  # guarded by the lock

    # Pickled for tasks in other processes, which open the places anew.
    def __reduce__(self) -> tuple[type[Tier], tuple[tuple[str, ...], dict[str, Path]]]:
        return Tier, (self._named[0], dict(self._named[1]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tier) and self._named == other._named

    def __hash__(self) -> int:
        return hash(self._named)

    def connect(self) -> None:
        """Begin to connect to far places, for a process that has time before the first request, and keep the first
        listings. Errors are raised again when something is read."""

        def connect(place: Place) -> None:
            with contextlib.suppress(StorageError):
                self._entries(place, "")

        for place in self.places:
            if not place.is_local:
                self._connecting.append(threading.Thread(target=connect, args=(place,), daemon=True))
                self._connecting[-1].start()

    def wait_until_connected(self, timeout_s: float) -> None:
        """Wait until the attempts of `connect` have ended, with or without success, but at most this long."""
        deadline = time.monotonic() + timeout_s
        for thread in self._connecting:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forget_listings(self) -> None:
        """List everything again at the next use, because something expected was missing."""
        with self._lock:
            self._listed.clear()

    def segments(self, topic: str, partition: int, topic_id: str | None = None) -> list[RemoteSegment]:
        """A partition's present segments, ascending by base offset and segment id: every upload, finished or not. If
        several places have the same id, the first complete one counts.

        With `topic_id`: only segments of the topic with this id, and those in layouts without ids. TierUnavailable.
        """
        uploads: list[RemoteSegment] = []
        for of, directories in self._directories(Wanted(topic, topic_id, partition)).items():
            load = partial(manifests.content, opened=self._opened, keys=self._keys, cache=self._cache)
            uploads += segments(of, directories, self._opened, load)
        return _each_once(uploads)

    def partitions(self) -> list[TopicIdPartition]:
        """All partitions with objects in the places, ascending. Lists every directory. TierUnavailable."""
        return sorted(self._directories(Wanted()), key=lambda of: (of.topic, of.partition, of.topic_id or ""))

    def _directories(self, sought: Wanted) -> dict[TopicIdPartition, list[RemoteDirectory]]:
        by_partition: dict[TopicIdPartition, list[RemoteDirectory]] = defaultdict(list)
        for place in self.places:
            for directory in find(place, sought, partial(self._entries, place)):
                of = directory.of
                if sought.topic_id == of.topic_id and sought.topic is not None:
                    of = replace(of, topic=sought.topic)
                elif directory.layout is TierLayout.AIVEN:
                    of = replace(of, topic=self._topic_of(directory))
                if sought.topic in (None, of.topic):
                    by_partition[of].append(directory)
        return by_partition

    def _topic_of(self, directory: RemoteDirectory) -> str:
        """The topic of a partition in Aiven's layout: its directory's name may begin with a key prefix."""
        for entry in self._entries(directory.place, directory.key):
            if entry.size is not None and entry.name.endswith(manifests.MANIFEST):
                stored = StoredObject(
                    directory.place, f"{directory.key}/{entry.name}".lstrip("/"), entry.size, entry.version
                )
                with contextlib.suppress(StorageError):  # reading the segment reports the error
                    return manifests.topic_of(stored, self._opened) or directory.of.topic
        return directory.of.topic

    def _entries(self, place: Place, key: str) -> list[ListedObject]:
        now = time.monotonic()
        with self._lock:
            listed = self._listed.get((place, key))
        if listed is not None and now - listed[0] < _STALE_SECONDS:
            return listed[1]
        entries = place.entries(key)
        with self._lock:
            if len(self._listed) >= _MOST_LISTINGS:
                self._listed.clear()
            self._listed[place, key] = (now, entries)
        return entries

    def _opened(self, stored: StoredObject) -> RemoteFile:
        return open_object(stored, self._cache)


def _each_once(uploads: Sequence[RemoteSegment]) -> list[RemoteSegment]:
    """The segments without repeated ids. Segments without an id are all kept."""
    chosen: dict[tuple[int, str], RemoteSegment] = {}
    for segment in uploads:
        key = (segment.base_offset, segment.segment_id or segment.name)
        if key not in chosen or (segment.is_complete and not chosen[key].is_complete):
            chosen[key] = segment
    return [chosen[key] for key in sorted(chosen)]

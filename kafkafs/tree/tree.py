"""The tree: from a path to its view. The core of a mount, without FUSE.

tree = Tree(LogDir.open_read_only(path), TreeOptions(), files={"@status.json": …})
tree.start()                      # after any fork: the threads that render in advance
tree.lookup("/t/0/messages.txt")  # -> View; StorageError, NoSuchPath or OSError where there is none
tree.stop()
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from kafkafs.reading.block_cache import DEFAULT_CACHE_BYTES, BlockCache
from kafkafs.reading.growth import DEFAULT_EXACT_BELOW
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.selection import DEFAULT_LATEST_BYTES
from kafkafs.reading.state import Callers, Clocks, OneCaller
from kafkafs.reading.store import Store, default_directory
from kafkafs.reading.workers import DEFAULT_WORKERS, Workers
from kafkafs.schemas.log_schemas import LogSchemas
from kafkafs.schemas.schema_source import SchemaSource
from kafkafs.tree import paths
from kafkafs.tree.append_files import AppendFile
from kafkafs.tree.config_file import ConfigFile
from kafkafs.tree.decoded_views import DecodedViews
from kafkafs.tree.directories import (
    PartitionDirectory,
    RangesDirectory,
    RootDirectory,
    SegmentsDirectory,
    TopicDirectory,
    day_names,
    segment_ranges,
)
from kafkafs.tree.generated import GeneratedFile
from kafkafs.tree.group_files import GroupTree, read_only
from kafkafs.tree.info import InfoTexts
from kafkafs.tree.key_files import KeyFile, KeysDirectory, TopicKeyFile
from kafkafs.tree.latest_file import LatestFile, LatestOfTopic
from kafkafs.tree.node import View
from kafkafs.tree.paths import NoSuchPath
from kafkafs.tree.range_file import RangeFile, SeenFiles, SegmentFile
from kafkafs.tree.schema_directories import schema_view
from kafkafs.tree.services import LatestMemory, Services
from kafkafs.writing.refused_lines import RefusedLines
from storage.clock import Clock, SystemClock
from storage.directory import guest_rules
from storage.directory.owned_dir import OwnedDir
from storage.errors import NotPermitted, ReadOnlyLogDir
from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition

# Nodes that are answered from memory when the log directory cannot be read, so that a person can find out why.
_WITHOUT_DISK = (paths.Root, paths.RootFile, paths.TopicPath, paths.Groups, paths.Schemas)


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """The options of a mount. Sizes in bytes.

    `clamp`: ranges that begin below the log start show what is left, instead of OffsetOutOfRange.
    `index_dir`: where the index is kept; None: the user's cache directory. `index_bytes`: its maximum size on disk; 0:
    it is not kept. `keys`: whether it has keys. `workers`: threads that render in advance of readers. `latest_bytes`:
    memory for the keys of a `latest` file.
    `exact_below`: the size of a view is an estimate while more bytes of its batches, uncompressed, are unmeasured;
    None: never.
    """

    isolation: Isolation = Isolation.READ_UNCOMMITTED
    clamp: bool = False
    cache_bytes: int = DEFAULT_CACHE_BYTES
    workers: int = DEFAULT_WORKERS
    index_dir: Path | None = None
    index_bytes: int = 1 << 30
    keys: bool = True
    latest_bytes: int = DEFAULT_LATEST_BYTES
    exact_below: int | None = DEFAULT_EXACT_BELOW


class Tree:
    """Everything that can be looked up in a log directory. Thread-safe."""

    def __init__(
        self,
        log_dir: LogDir,
        options: TreeOptions | None = None,
        *,
        files: Mapping[str, Callable[[], bytes]] | None = None,
        clock: Clock | None = None,
        owned: OwnedDir | None = None,
        callers: Callers | None = None,
        schemas: SchemaSource | None = None,
    ) -> None:
        """`files`: functions that make the content of root files (`@status.json`, `@metrics`…), by name.

        `owned`: the owner of `log_dir`, if it may be written to. `callers`: the origin of requests; by default always
        the same. `schemas`: for decoded views and `@schemas`; by default those in the log directory.
        """
        # constant after construction
        self.log_dir = log_dir
        self.owned = owned
        self.options = options or TreeOptions()
        self._clock = clock or SystemClock()
        self._files = {"@status.json": self._status_json, "@metrics": bytes, "@help": bytes} | dict(files or {})
        # have their own locking
        schemas = schemas or LogSchemas(log_dir)
        self._workers = Workers(self.options.workers)
        cache = BlockCache(self.options.cache_bytes)
        self._services = Services(
            BlockIndex(self._workers, _store(self.options), has_keys=self.options.keys, cache=cache),
            cache,
            self._workers,
            Clocks(self._clock.now_ms),
            self.options.isolation,
            self.options.clamp,
            DecodedViews(schemas, self.options.isolation),
            self.options.exact_below,
            callers or OneCaller(),
            latest=LatestMemory(self.options.latest_bytes),
        )
        self._seen = SeenFiles()
        self._infos = InfoTexts(log_dir, self.options.isolation, self.options.exact_below, self._services.index)
        self._refused = RefusedLines(self._clock)
        self._groups = GroupTree(log_dir, self._refused)
        writable = owned is not None

        is_decoded = self._services.decoded.has

        def has_schemas() -> bool:
            return schemas.registry().has_ids

        # A dict is faster than a chain of comparisons, and each stat comes here.
        self._makers: dict[type, Callable[[Any], View]] = {
            **dict.fromkeys((paths.Groups, paths.GroupDir, paths.GroupTopic, paths.GroupOffset), self._groups.view),
            paths.GroupState: self._group_state,
            **dict.fromkeys(
                (paths.Schemas, paths.SchemaSubject, paths.SchemaFile), partial(schema_view, log_dir, schemas)
            ),
            paths.RangePath: self._range_file,
            paths.TopicKey: self._topic_key,
            paths.Keys: self._keys_directory,
            paths.LatestPath: self._latest,
            paths.SegmentPath: lambda node: SegmentFile(log_dir.log(node.tp), node.name, self._seen),
            paths.PartitionPath: self._partition_directory,
            paths.PartitionEntry: self._partition_entry,
            paths.Root: lambda _: RootDirectory(log_dir, has_schemas, writable=writable),
            paths.TopicPath: lambda node: TopicDirectory(log_dir, node.topic, is_decoded, writable=writable),
            paths.TopicConfig: self._topic_config,
            paths.RootFile: self._root_file,
        }

    def start(self) -> None:
        """Starts the worker threads: after any fork, from FUSE's init."""
        self._services.index.start()
        self._workers.start()

    def stop(self) -> None:
        """Ends the worker threads, and keeps the index on disk: from FUSE's destroy."""
        self._services.index.stop()
        self._workers.stop()

    def lookup(self, path: str) -> View:
        """The view at `path`, as FUSE gives it (`/` is the root).

        NoSuchPath or UnknownTopicOrPartition where there is none. A range that is out of range is reported by the view.
        """
        node = paths.parse(path)
        if isinstance(node, paths.Append) and self.owned is not None:
            # First, and without a look at the directory: `echo >>` comes here for each line, and only this process
            # makes and removes topics in a directory that it owns.
            return AppendFile(self.owned, node, self._refused)
        try:
            self.log_dir.refresh()
        except OSError:
            if not isinstance(node, _WITHOUT_DISK):
                raise
        make_view = self._makers.get(type(node))
        if make_view is None:
            raise NoSuchPath(path)
        return make_view(node)

    def make_directory(self, path: str) -> None:
        """Makes a topic with `num.partitions` partitions. InvalidTopic, FileExistsError, NotPermitted,
        ReadOnlyLogDir."""
        with self._refused.noting(path.removeprefix("/")):
            owned, name = self._topic_of(path)
            if name not in self.log_dir.topics():
                guest_rules.check_topic_may_be_made_by_hand(name)
            owned.create_topic(name)

    def remove_directory(self, path: str) -> None:
        """Removes a topic without messages; otherwise OSError (ENOTEMPTY). UnknownTopicOrPartition, NotPermitted,
        ReadOnlyLogDir."""
        with self._refused.noting(path.removeprefix("/")):
            owned, name = self._topic_of(path)
        owned.delete_topic(name, only_empty=True)

    def refuse_file(self, path: str) -> NoReturn:
        """Raises NotPermitted, or ReadOnlyLogDir on a read-only mount: nobody makes or removes files in the tree."""
        with self._refused.noting(path.removeprefix("/")):
            self._topic_of(path)
            raise NotPermitted("files are neither made nor removed here")

    def _topic_of(self, path: str) -> tuple[OwnedDir, str]:
        if self.owned is None:
            raise ReadOnlyLogDir("mounted read-only")
        _, name, *below = path.split("/")
        if name == "@groups":
            raise read_only()
        if below or name in paths.ROOT_FILES:
            raise NotPermitted("only topics can be made and removed, as directories")
        return self.owned, name

    def status(self) -> dict[str, Any]:
        """The tree's part of @status.json: block cache, both indexes with the scans in progress, open files, problems
        of `@groups`, the last refused lines."""
        view_index, key_index = self._services.index.status()
        return {
            "isolation": self.options.isolation.value,
            "block_cache": dataclasses.asdict(self._services.cache.status()),
            "view_index": view_index,
            "key_index": key_index,
            "views": self._services.states.status(),
            "groups": {"problems": self._groups.offsets.problems()},
            "refused_lines": self._refused.status(),
        }

    # The longer makers of views, for one type of node each. The directory has just been refreshed.

    def _group_state(self, node: paths.GroupState) -> View:
        return GeneratedFile(self._groups.state_text(node.group))

    def _range_file(self, node: paths.RangePath) -> View:
        self._check_decoded(node.tp.topic, node.ext)
        log = self.log_dir.log(node.tp)
        return RangeFile(self._services, log, node) if node.key is None else KeyFile(self._services, log, node)

    def _topic_key(self, node: paths.TopicKey) -> View:
        self._check_decoded(node.topic, node.ext)
        return TopicKeyFile(self._services, self.log_dir, node)

    def _check_decoded(self, topic: str, ext: str) -> None:
        """Raises NoSuchPath for `decoded.jsonl` of a topic that has no decoded views."""
        if ext == paths.DECODED and not self._services.decoded.has(topic):
            raise NoSuchPath(f"{topic} has no decoded views")

    def _partition_directory(self, node: paths.PartitionPath) -> View:
        log, is_decoded = self.log_dir.log(node.tp), self._services.decoded.has
        return PartitionDirectory(self.log_dir, log, is_decoded, writable=self.owned is not None)

    def _keys_directory(self, node: paths.Keys) -> View:
        place = node.place
        if isinstance(place, str):
            partitions = [TopicPartition(place, number) for number in self.log_dir.partitions(place)]
        else:
            partitions = [place]
        return KeysDirectory(self._services, [self.log_dir.log(tp) for tp in partitions])

    def _partition_entry(self, node: paths.PartitionEntry) -> View:
        log, infos = self.log_dir.log(node.tp), self._infos
        match node.name:
            case "offsets":
                return RangesDirectory(log, segment_ranges)
            case "time":
                return RangesDirectory(log, day_names)
            case "segments":
                return SegmentsDirectory(log)
        size = partial(infos.partition_info_size, log)
        return GeneratedFile(partial(infos.partition_info, log), size)

    def _latest(self, node: paths.LatestPath) -> View:
        place, log_dir = node.place, self.log_dir
        self._check_decoded(place if isinstance(place, str) else place.topic, node.ext)
        if isinstance(place, TopicPartition):
            return LatestFile(self._services, log_dir.log(place), node.ext)
        return LatestOfTopic(self._services, log_dir, place, node.ext)

    def _topic_config(self, node: paths.TopicConfig) -> View:
        if self.owned is not None:
            refused = self._refused.at(f"{node.topic}/@config")
            return ConfigFile(self.owned, self._infos, node.topic, refused)
        self.log_dir.partitions(node.topic)

        def make() -> tuple[bytes, int]:
            return self._infos.topic_config(node.topic), self.log_dir.mtime_ns

        return GeneratedFile(make)

    def _root_file(self, node: paths.RootFile) -> View:
        def make() -> tuple[bytes, int]:
            return self._files[node.name](), self._clock.now_ms() * 1_000_000

        return GeneratedFile(make)

    def _status_json(self) -> bytes:
        return json.dumps(self.status(), indent=2).encode() + b"\n"


def _store(options: TreeOptions) -> Store | None:
    if options.index_bytes <= 0:
        return None
    return Store(options.index_dir or default_directory(), options.index_bytes)

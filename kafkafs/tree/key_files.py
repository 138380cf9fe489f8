"""`keys/<key>.EXT`: the messages with a key, of a partition or of a topic. A key without messages has no file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing
from typing import NamedTuple

from kafkafs.reading.blocks import MOST_KEY_BYTES, MOST_NAMES
from kafkafs.reading.handle import Handle, JoinedHandle, ViewHandle, open_all
from kafkafs.reading.index import BlockIndex
from kafkafs.reading.layout import Cursor, Span, spans_from
from kafkafs.reading.plans import KeyPlan
from kafkafs.reading.selection import Selection
from kafkafs.reading.times import log_mtime_ns
from kafkafs.tree.node import DIRECTORY_MODE, FILE_MODE, Attributes, Directory, Entry, File, NodeKind
from kafkafs.tree.paths import MAX_NAME_BYTES, RENDERED, NoSuchPath, RangePath, TopicKey, key_name, name_bytes
from kafkafs.tree.range_file import RangeFile
from kafkafs.tree.services import Services
from storage.append.partitioner import in_order_for_key
from storage.log.counting import visible_end
from storage.log.log_dir import LogDir
from storage.log.reader import read_blocks
from storage.log.rereads import reread
from storage.log.snapshot import LogSnapshot, ReadableLog
from storage.types import NO_TIMESTAMP, Isolation, TopicPartition

# The keys of a log's messages, if they are few: from the index, and from the messages that are not indexed yet.


class KeyNames(NamedTuple):
    """Keys of a log. `unsure`: keys whose messages may all be below the log start, aborted, or in open transactions."""

    certain: set[bytes]
    unsure: set[bytes]


def keys_of(log: ReadableLog, index: BlockIndex, isolation: Isolation) -> KeyNames | None:
    """The keys of a log as it is now; None, as soon as this is known, if they are more than MOST_NAMES."""
    return reread(log, lambda snapshot: _keys_in(snapshot, index, isolation))


def _keys_in(snapshot: LogSnapshot, index: BlockIndex, isolation: Isolation) -> KeyNames | None:
    key_names = KeyNames(set(), set())
    visible = visible_end(snapshot, isolation)
    spans, _ = spans_from(snapshot, Cursor(snapshot.log_start_offset), None, visible)
    for span in spans:
        known = index.names(snapshot, span.segment, span.end)
        if known is None:
            return None
        names, reached = known
        is_certain = isolation is Isolation.READ_UNCOMMITTED and span.start == 0 and span.record_filter is None
        (key_names.certain if is_certain else key_names.unsure).update(names)
        if reached < span.end:
            _add_keys(snapshot, span, max(reached, span.start), isolation, key_names.certain)
        if len(key_names.certain) > MOST_NAMES:
            return None
    key_names.unsure.difference_update(key_names.certain)
    return key_names


def _add_keys(snapshot: LogSnapshot, span: Span, start: int, isolation: Isolation, names: set[bytes]) -> None:
    """Adds the keys of a span's messages from a position on; stops when they are too many."""
    with closing(read_blocks(snapshot, span.segment, start, span.end, isolation=isolation)) as blocks:
        for block in blocks:
            for row in range(len(block)):
                key = block.key(row) if int(block.key_length[row]) <= MOST_KEY_BYTES else None
                if key is not None:
                    names.add(key)
            if len(names) > MOST_NAMES:
                return


_LISTED = RENDERED[0]


class KeyFile(RangeFile):
    """The messages with a key in one partition."""

    @property
    def partition(self) -> int:
        return self._node.tp.partition

    def attributes(self) -> Attributes:
        seen = self.look()
        if seen is None:
            raise NoSuchPath(self._node)
        return seen

    def look(self) -> Attributes | None:
        """The attributes that stat shows; None if there is no such message. Before the first open, the size is that of
        the messages in the first block that has some: to count them all may take as long as to read the log."""
        shown = self.shown_attributes()
        if shown is not None:
            return shown if shown.size else None
        size, greatest = reread(self._log, self._first_found)
        if not size:
            return None
        mtime_ns = log_mtime_ns(self._log, self._log.snapshot()) if greatest == NO_TIMESTAMP else greatest * 1_000_000
        return Attributes(NodeKind.FILE, size, mtime_ns, FILE_MODE)

    def open(self) -> Handle:
        with ExitStack() as opened:
            handle = self.open_view()
            opened.callback(handle.close)
            if not handle.size:
                raise NoSuchPath(self._node)
            opened.pop_all()
        return handle

    def _first_found(self, snapshot: LogSnapshot) -> tuple[int, int]:
        """The rendered size of the key's messages in the first block that has some (0: no block has), and their
        greatest timestamp (-1: none has a timestamp)."""
        return next(
            (size_and_time for size_and_time in self._plan().first_sizes(snapshot) if size_and_time[0]),
            (0, NO_TIMESTAMP),
        )

    def _plan(self, _selection: Selection | None = None) -> KeyPlan:
        return KeyPlan(self._services.index, self._rendition(), self._node.key or b"")


class TopicKeyFile(File):
    """The messages with a key in all partitions of a topic: first the partition that Kafka's producers choose for the
    key, then the others in order."""

    def __init__(self, services: Services, log_dir: LogDir, node: TopicKey) -> None:
        self._services = services
        self._log_dir = log_dir
        self._node = node
        self._files = [self._file(number) for number in self._numbers()]

    def attributes(self) -> Attributes:
        seen = [attributes for attributes in (file.look() for file in self._files) if attributes is not None]
        if not seen:
            raise NoSuchPath(self._node)
        size = sum(attributes.size for attributes in seen)
        return Attributes(NodeKind.FILE, size, max(attributes.mtime_ns for attributes in seen), FILE_MODE)

    def open(self) -> Handle:
        with ExitStack() as opened:
            joined = JoinedHandle(open_all(file.open_view for file in self._files), self._added())
            opened.callback(joined.close)
            if not joined.size:
                raise NoSuchPath(self._node)
            opened.pop_all()
        return joined

    def _numbers(self) -> list[int]:
        """The topic's partitions, in the order in which the file has them. UnknownTopicOrPartition."""
        count = self._log_dir.topic_info(self._node.topic).partition_count
        return in_order_for_key(self._node.key, self._log_dir.partitions(self._node.topic), count)

    def _file(self, number: int) -> KeyFile:
        tp = TopicPartition(self._node.topic, number)
        return KeyFile(self._services, self._log_dir.log(tp), RangePath(tp, None, self._node.ext, self._node.key))

    def _added(self) -> Callable[[], Sequence[ViewHandle]]:
        """A function that opens the views of partitions that are added to the topic after this call."""
        known = {file.partition for file in self._files}

        def added() -> Sequence[ViewHandle]:
            self._log_dir.refresh()
            new = [number for number in self._log_dir.partitions(self._node.topic) if number not in known]
            handles = open_all(self._file(number).open_view for number in new)
            known.update(new)
            return handles

        return added


class KeysDirectory(Directory):
    """`keys` of a topic or of a partition: its keys if they are few enough. Others can be opened without being
    listed."""

    def __init__(self, services: Services, logs: Iterable[ReadableLog]) -> None:
        self._services = services
        self._logs = tuple(logs)

    def attributes(self) -> Attributes:
        mtime_ns = max((log_mtime_ns(log, log.snapshot()) for log in self._logs), default=0)
        return Attributes(NodeKind.DIRECTORY, 0, mtime_ns, DIRECTORY_MODE, 2)

    def list(self) -> Iterable[Entry]:
        for key in sorted(self._keys() or ()):
            name = f"{key_name(key)}.{_LISTED}"
            if len(name_bytes(name)) <= MAX_NAME_BYTES:
                yield Entry(name, NodeKind.FILE)

    def _keys(self) -> set[bytes] | None:
        """The keys that have messages; None if they are too many, or there is no index that knows them."""
        index, isolation = self._services.index, self._services.isolation
        if not index.has_keys:
            return None
        keys: set[bytes] = set()
        for log in self._logs:
            names = keys_of(log, index, isolation)
            if names is None:
                return None
            files = {key: KeyFile(self._services, log, RangePath(log.tp, None, _LISTED, key)) for key in names.unsure}
            keys |= names.certain | {key for key, file in files.items() if file.look() is not None}
            if len(keys) > MOST_NAMES:
                return None
        return keys

"""`@append` and `@append.jsonl`: written lines become messages. Reading returns end of file.

Bytes are taken in the order of the writes, whatever their positions: the kernel invents the position of a writer that
appends, and each open has its own. But tools that copy a sparse file (cp, dd conv=sparse) write nothing for a hole;
they advance their position and finally set the size. So a position that skips forward means zeros, as in any file. A
position never skips by itself: it advances by the count that each write returned.
"""

from __future__ import annotations

from collections.abc import Callable

from kafkafs.reading.handle import BytesHandle, Handle, SyncHandle, WriteHandle
from kafkafs.tree.node import Attributes, File, NodeKind
from kafkafs.tree.paths import Append
from kafkafs.writing.destinations import LineDestination, open_target, sync_each
from kafkafs.writing.line_parsers import Parse, parse_jsonl, parse_txt
from kafkafs.writing.line_writer import LineWriter
from kafkafs.writing.refused_lines import Refused, RefusedLines
from storage.directory.owned_dir import OwnedDir
from storage.errors import UnknownTopicOrPartition
from storage.types import TopicPartition

APPEND_FILES = ("@append", "@append.jsonl")
_MODE = 0o222
_ZEROS = 1 << 20  # zeros of a hole, written at a time


class LinesHandle(BytesHandle):
    """An open file to which lines are written."""

    def __init__(self, destination: LineDestination, parse: Parse, refused: Refused, content: bytes = b"") -> None:
        super().__init__(content)
        self._writer = LineWriter(destination, parse, refused)

    def write(self, data: bytes | memoryview, offset: int | None = None, *, durable: bool = False) -> int:
        return self._writer.write(data, durable=durable)

    def sync(self) -> None:
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()


class AppendHandle(LinesHandle):
    """An open `@append`. The kernel lets one process write to it at a time.

    `sync` also calls `flush`, which makes durable what other handles have written to the same file: fsync(2) promises
    this for the file, not for one handle.
    """

    def __init__(self, destination: LineDestination, parse: Parse, refused: Refused, flush: Callable[[], None]) -> None:
        super().__init__(destination, parse, refused)
        self._flush = flush
        self._end = 0  # after the last byte that was written at a position
        self._is_written = False

    def write(self, data: bytes | memoryview, offset: int | None = None, *, durable: bool = False) -> int:
        if offset is None:
            return self._writer.write(data, durable=durable)
        self._fill(offset)
        self._is_written = True
        taken = super().write(data, durable=durable)
        self._end = max(self._end, offset + taken)
        return taken

    def sync(self) -> None:
        sync_each((super().sync, self._flush))

    def extend(self, size: int) -> None:
        # A program that only sets a size (truncate(1)) writes nothing: truncation has no effect here.
        if self._is_written:
            self._fill(size)

    def _fill(self, offset: int) -> None:
        while self._end < offset:
            self._end += super().write(bytes(min(offset - self._end, _ZEROS)))


class AppendFile(File):
    """`@append` or `@append.jsonl` of a topic or a partition. UnknownTopicOrPartition if that does not exist."""

    def __init__(self, owned: OwnedDir, node: Append, refused: RefusedLines | None = None) -> None:
        self._owned = owned
        self._node = node
        self._refused = RefusedLines(owned.clock) if refused is None else refused
        place = node.place
        if isinstance(place, str):
            owned.log_dir.partitions(place)
        elif place.partition not in owned.log_dir.partitions(place.topic):
            raise UnknownTopicOrPartition(f"no partition {place} here", path=owned.path)

    def attributes(self) -> Attributes:
        return Attributes(NodeKind.FILE, 0, self._owned.path.stat().st_mtime_ns, _MODE)

    def open(self) -> Handle:
        return SyncHandle(b"", self._flush)

    def open_to_write(self) -> WriteHandle:
        place = self._node.place
        path = f"{place}/{APPEND_FILES[self._node.jsonl]}"
        with self._refused.noting(path):
            target = open_target(self._owned, place)
        parse: Parse = parse_jsonl if self._node.jsonl else parse_txt
        return AppendHandle(target, parse, self._refused.at(path), self._flush)

    def _flush(self) -> None:
        place = self._node.place
        if isinstance(place, TopicPartition):
            self._owned.log(place).flush()
            return
        partitions = [TopicPartition(place, number) for number in self._owned.log_dir.partitions(place)]
        sync_each(lambda tp=tp: self._owned.log(tp).flush() for tp in partitions)  # type: ignore[misc]

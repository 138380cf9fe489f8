"""`@append` and `@append.jsonl`: what is written to them becomes messages. Reading gives end of file."""

from __future__ import annotations

from kafkafs.append import LineWriter
from kafkafs.lines import Parse, parse_jsonl, parse_txt
from kafkafs.paths import Append
from kafkafs.targets import Destination, open_target
from kafkafs.views.base import Attributes, BytesHandle, File, Handle, Kind, SyncHandle, WriteHandle
from storage.errors import UnknownTopicOrPartition
from storage.log.owned_dir import OwnedDir
from storage.types import TopicPartition

APPEND_FILES = ("@append", "@append.jsonl")
_MODE = 0o222


class LinesHandle(BytesHandle):
    """An open file that takes lines."""

    def __init__(self, destination: Destination, parse: Parse, content: bytes = b"") -> None:
        super().__init__(content)
        self._writer = LineWriter(destination, parse)

    def write(self, data: bytes | memoryview) -> int:
        return self._writer.write(data)

    def sync(self) -> None:
        self._writer.sync()

    def close(self) -> None:
        self._writer.close()


class AppendFile(File):
    """A topic's or a partition's. UnknownTopicOrPartition when there is none."""

    def __init__(self, owned: OwnedDir, node: Append) -> None:
        self._owned = owned
        self._node = node
        place = node.place
        if isinstance(place, str):
            owned.log_dir.partitions(place)
        elif place.partition not in owned.log_dir.partitions(place.topic):
            raise UnknownTopicOrPartition(f"no partition {place} here", path=owned.path)

    def attributes(self) -> Attributes:
        return Attributes(Kind.FILE, 0, self._owned.path.stat().st_mtime_ns, _MODE)

    def open(self) -> Handle:
        return SyncHandle(b"", self._flush)

    def open_to_write(self) -> WriteHandle:
        target = open_target(self._owned, self._node.place)
        return LinesHandle(target, parse_jsonl if self._node.jsonl else parse_txt)

    def _flush(self) -> None:
        place = self._node.place
        if isinstance(place, TopicPartition):
            self._owned.log(place).flush()
            return
        for number in self._owned.log_dir.partitions(place):
            self._owned.log(TopicPartition(place, number)).flush()

"""A topic's `@config` on a writable mount: each `key=value` line sets one key, `key=` unsets it."""

from __future__ import annotations

from kafkafs.reading.handle import BytesHandle, Handle, WriteHandle
from kafkafs.tree.append_files import LinesHandle
from kafkafs.tree.info import InfoTexts
from kafkafs.tree.node import Attributes, File, NodeKind
from kafkafs.writing.destinations import Taken
from kafkafs.writing.line_parsers import ParsedLines, parse_txt
from kafkafs.writing.refused_lines import Refused
from storage.directory.owned_dir import OwnedDir
from storage.errors import InvalidConfig, StorageError

_MODE = 0o644
_LONGEST_LINE = 64 << 10


class ConfigFile(File):
    """A topic's `@config`: shows the settings, and changes one for each line written. UnknownTopicOrPartition if the
    topic does not exist."""

    def __init__(self, owned: OwnedDir, texts: InfoTexts, topic: str, refused: Refused) -> None:
        self._owned = owned
        self._refused = refused
        self._texts = texts
        self._topic = topic
        owned.log_dir.partitions(topic)

    def attributes(self) -> Attributes:
        return Attributes(NodeKind.FILE, len(self._content()), self._owned.log_dir.mtime_ns, _MODE)

    def open(self) -> Handle:
        return BytesHandle(self._content())

    def open_to_write(self) -> WriteHandle:
        return LinesHandle(_Settings(self._owned, self._topic), parse_txt, self._refused, self._content())

    def _content(self) -> bytes:
        return self._texts.topic_config(self._topic)


class _Settings:
    """The destination of settings lines. It skips blank lines and comments, so `@config` can be written back as is."""

    def __init__(self, owned: OwnedDir, topic: str) -> None:
        self._owned = owned
        self._topic = topic

    def append(self, parsed: ParsedLines) -> Taken:
        columns = parsed.columns
        data = memoryview(columns.buffer)
        for row in range(len(columns)):
            start = int(columns.value_start[row])
            try:
                self._set(bytes(data[start : start + int(columns.value_length[row])]))
            except (StorageError, OSError) as error:
                return Taken(row, error)
        return Taken(len(columns), None)

    def longest_line(self, *, verbatim: bool) -> int:
        return _LONGEST_LINE

    def sync(self) -> None:
        """Does nothing: each setting is on disk as soon as it is made."""

    def _set(self, line: bytes) -> None:
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            raise InvalidConfig(f"line is not UTF-8: {error}") from None
        if not text or text.startswith("#"):
            return
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key:
            raise InvalidConfig("line is not key=value", found=text[:100])
        if value:
            self._owned.alter_config(self._topic, {key: value})
        else:
            self._owned.alter_config(self._topic, {}, [key])

"""Checkpoint files: text with a version, a count, and that many lines.

The four offset checkpoints of a log directory (`<topic> <partition> <offset>`) are here; leader epochs use the same
frame. An empty file has no entries. See storage/FORMAT.md, "Checkpoints". Sources: Kafka's CheckpointFile,
OffsetCheckpointFile.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from storage.errors import CorruptCheckpoint
from storage.files.small_files import read_whole
from storage.types import MAX_OFFSET, TopicPartition

VERSION = 0
_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
_MAX_INT32 = 2**31 - 1


def parse_frame(data: bytes, fields: int, path: Path | None = None) -> list[list[str]]:
    """The entry lines, split at white space into `fields` fields each. CorruptCheckpoint if Kafka would refuse them."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint("checkpoint is not UTF-8 text", path=path, position=error.start) from None
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return []
    version = parse_integer(lines[0], _MAX_INT32, lines[0], path)
    if version != VERSION:
        raise CorruptCheckpoint("checkpoint has an unknown version", path=path, expected=VERSION, found=version)
    if len(lines) == 1:
        return []
    count = parse_integer(lines[1], _MAX_INT32, lines[1], path)
    entries = [line.split() for line in lines[2:]]
    for line, entry in zip(lines[2:], entries, strict=True):
        if len(entry) != fields or line[0].isspace():
            raise malformed(line, path)
    if len(entries) != count:
        raise CorruptCheckpoint(
            "checkpoint's count does not match its lines", path=path, expected=f"{count} entries", found=len(entries)
        )
    return entries


def encode_frame(lines: Iterable[str]) -> bytes:
    """A checkpoint with these entry lines."""
    entries = list(lines)
    return "".join(f"{line}\n" for line in (str(VERSION), str(len(entries)), *entries)).encode()


def parse_integer(text: str, maximum: int, line: str, path: Path | None) -> int:
    """A number as Java's parseInt and parseLong read it, within -maximum - 1 to `maximum`."""
    match = _INTEGER.fullmatch(text)
    if match is None or not -maximum - 1 <= (number := int(match[1] + match[2])) <= maximum:
        raise malformed(line, path)
    return number


def malformed(line: str, path: Path | None) -> CorruptCheckpoint:
    """The error for a line that does not parse."""
    shown = line if len(line) <= 80 else line[:79] + "…"
    return CorruptCheckpoint("checkpoint has a malformed line", path=path, found=repr(shown))


def parse(data: bytes, path: Path | None = None) -> dict[TopicPartition, int]:
    """The offsets in an offset checkpoint's bytes. Of a partition that is named twice, the last line counts."""
    return {
        TopicPartition(topic, parse_integer(partition, _MAX_INT32, f"{topic} {partition} {offset}", path)): (
            parse_integer(offset, MAX_OFFSET, f"{topic} {partition} {offset}", path)
        )
        for topic, partition, offset in parse_frame(data, 3, path)
    }


def encode(offsets: Mapping[TopicPartition, int]) -> bytes:
    """The bytes of an offset checkpoint, sorted by partition."""
    return encode_frame(f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items()))


def read(path: Path) -> dict[TopicPartition, int]:
    """Reads an offset checkpoint; {} when there is none. CorruptCheckpoint, or OSError when it cannot be read."""
    data = read_whole(path)
    return {} if data is None else parse(data, path)

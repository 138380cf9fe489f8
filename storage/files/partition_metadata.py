"""The topic id of a partition (partition.metadata), and Kafka's text form of ids.

`version: 0`, a newline, `topic_id: <22 characters>`, no final newline. A topic id is 16 bytes, shown as URL-safe base64
without padding. Sources: Kafka's PartitionMetadataFile, PartitionMetadataReadBuffer, Uuid.
"""

from __future__ import annotations

import base64
import re
import uuid
from pathlib import Path

from storage.errors import CorruptCheckpoint
from storage.files.small_files import read_whole

VERSION = 0
NO_ID = "partition metadata holds no topic id"
CUT_OFF = "partition metadata is cut off"
_LINE = re.compile(r"(?:(?!:\s).)*:\s+(\S+)\s*")  # split at ": ", of which a line has one
_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_ZERO_ID = "A" * 22


def id_text(data: bytes) -> str:
    """An id of 16 bytes as Kafka shows it, 22 characters (Uuid.toString)."""
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def id_bytes(text: str) -> bytes:
    """The 16 bytes of an id of 22 characters; ValueError for other text (Uuid.fromString)."""
    if _ID.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a Kafka id: 22 characters of URL-safe base64 are expected")
    return base64.urlsafe_b64decode(text + "==")  # 22 legal characters always decode


def random_id() -> str:
    """A new id; never one that begins with `-`, which a command line would parse as an option (Uuid.randomUuid)."""
    while True:
        text = id_text(uuid.uuid4().bytes)
        if not text.startswith("-"):
            return text


def parse(data: bytes, path: Path | None = None) -> str:
    """The topic id in the bytes of a partition.metadata. CorruptCheckpoint when it does not parse."""
    try:
        lines = data.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        lines = []
    values = [match[1] for match in map(_LINE.fullmatch, lines[:2]) if match is not None]
    if len(values) < 2:
        is_cut = len(values) == len(lines) and data.isascii()
        what = CUT_OFF if is_cut else "partition metadata does not parse"
        raise _corrupt(what, path, "two lines, version and topic_id", data[:80])
    version, topic_id = values
    # Later versions are accepted too, as in Kafka, so that a downgrade works.
    if not version.isascii() or not version.isdigit():
        raise _corrupt("partition metadata has an unknown version", path, VERSION, version)
    if _ID.fullmatch(topic_id) is None:
        raise _corrupt(NO_ID, path, "22 characters of URL-safe base64", topic_id)
    if topic_id == _ZERO_ID:
        raise _corrupt("partition metadata holds the zero id", path, "a topic's id", topic_id)
    return topic_id


def _corrupt(what: str, path: Path | None, expected: object, found: object) -> CorruptCheckpoint:
    return CorruptCheckpoint(what, path=path, expected=expected, found=repr(found))


def encode(topic_id: str) -> bytes:
    """The bytes of a partition.metadata; ValueError when `topic_id` is not a valid id."""
    id_bytes(topic_id)
    return f"version: {VERSION}\ntopic_id: {topic_id}".encode("ascii")


def read(path: Path) -> str | None:
    """Reads a partition.metadata; None when there is none (Kafka before 2.8). CorruptCheckpoint, or OSError."""
    data = read_whole(path)
    return None if data is None else parse(data, path)

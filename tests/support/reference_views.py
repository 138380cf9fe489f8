"""The expected content of views, made from golden records by simple code."""

from __future__ import annotations

import ctypes
import json
import random
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kafkafs.reading.handle import Handle
from kafkafs.tree.node import View
from kafkafs.tree.paths import DECODED, RENDERED
from kafkafs.tree.tree import Tree, TreeOptions
from storage.errors import StorageError
from storage.log.log_dir import LogDir
from storage.types import Isolation, TopicPartition
from tests.support.blocks import json_fields, json_text_line
from tests.support.broker_rules import stored_batches
from tests.support.builders import BuiltRecord
from tests.support.fixtures import Golden

PATH = "/t/0/messages.txt"
PLAIN = [ext for ext in RENDERED if ext != DECODED]  # the formats of a directory without schemas


def txt(records: Iterable[Golden | BuiltRecord]) -> bytes:
    return b"".join((record.value or b"") + b"\n" for record in records)


def jsonl(records: Iterable[BuiltRecord]) -> bytes:
    """The content of the `.jsonl` view of built records in t/0."""
    tp = TopicPartition("t", 0)
    return b"".join(json_text_line(json_fields(tp, record, "CreateTime")) for record in records)


def jsonl_objects(topic: str, partition: int, records: Iterable[Golden]) -> list[object]:
    return [json_fields(TopicPartition(topic, partition), record, record.timestamp_type) for record in records]


def parsed(lines: bytes) -> list[object]:
    assert lines == b"" or lines.endswith(b"\n")
    return [json.loads(line) for line in lines.split(b"\n")[:-1]]


def check_log_view(view: bytes, files: bytes, log_start_offset: int, shown: Sequence[Golden], isolation: str) -> None:
    """`messages.log` has the whole batches of the segments `files` from the one with the log start offset on. With
    `read_committed` it may end before a transaction that is open, after all messages that are `shown`."""
    expected = [batch for batch in stored_batches(files) if batch.last_offset >= log_start_offset]
    count = len(list(stored_batches(view)))
    assert view == b"".join(batch.data for batch in expected[:count])
    if count < len(expected):
        assert isolation == "read_committed"
        assert expected[count].transactional
        assert not shown or shown[-1].offset < expected[count].last_offset


def tree_of(log_dir: Path, isolation: str = "read_uncommitted", **options: object) -> Tree:
    chosen = {"index_bytes": 0, "isolation": Isolation(isolation), **options}
    return Tree(LogDir.open_read_only(log_dir), TreeOptions(**chosen))  # type: ignore[arg-type]


def opened(tree: Tree, path: str = PATH) -> Handle:
    return tree.lookup(path).open()


def size_of(tree: Tree, path: str = PATH) -> int:
    return tree.lookup(path).attributes().size


def scanned_bytes(tree: Tree) -> int:
    """How many bytes of the log have been read to measure views."""
    return int(tree.status()["view_index"]["scanned_bytes"])


def read_all(handle: Handle, step: int = 65_536) -> bytes:
    """Sequential reads to the end, short ones included."""
    parts = []
    position = 0
    while part := handle.read(position, step):
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def content(tree: Tree, path: str, step: int = 65_536) -> bytes:
    """Opens a view, reads to its end and closes it; the sizes must agree."""
    view = tree.lookup(path)
    handle = view.open()
    try:
        data = read_all(handle, step)
        assert len(data) == handle.size == view.attributes().size, path
        return data
    finally:
        handle.close()


def readable(view: View, step: int = 4096) -> tuple[list[bytes], list[StorageError]]:
    """Everything readable of a view with damaged places: the good stretches, and the errors between them."""
    handle = view.open()
    stretches = [b""]
    errors: list[StorageError] = []
    position = 0
    try:
        while position < handle.size:
            try:
                part = handle.read(position, step)
                assert part, "end of file before the size"
                stretches[-1] += part
                position += len(part)
            except StorageError as error:
                if not errors or errors[-1] is not error:
                    errors.append(error)
                    stretches.append(b"")
                position += 1
    finally:
        handle.close()
    return stretches, errors


def read_anyhow(handle: Handle, expected: bytes, seed: int, reads: int = 60) -> None:
    """Reads of any size, at any place, in any order, from several threads, return the expected bytes."""
    rng = random.Random(seed)
    size = len(expected)
    places = []
    for _ in range(reads):
        start = rng.randrange(size + 1)
        places.append((start, rng.choice((1, 7, 4096, 131_072, rng.randrange(1, size + 2)))))

    def check(place: tuple[int, int]) -> None:
        start, count = place
        buffer = ctypes.create_string_buffer(count)
        got = handle.read_into(ctypes.addressof(buffer), start, count)
        assert buffer.raw[:got] == expected[start : start + count], place

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(check, places))

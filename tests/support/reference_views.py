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
from storage.types import Isolation
from tests.support.blocks import json_text
from tests.support.broker_rules import stored_batches
from tests.support.fixtures import Golden

PLAIN = [ext for ext in RENDERED if ext != DECODED]  # the formats of a directory without schemas


def txt(records: Iterable[Golden]) -> bytes:
    return b"".join((record.value or b"") + b"\n" for record in records)


def jsonl_objects(topic: str, partition: int, records: Iterable[Golden]) -> list[object]:
    return [
        {
            "topic": topic,
            "partition": partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "timestampType": record.timestamp_type,
            "key": json_text(record.key),
            "value": json_text(record.value),
            "headers": [[json_text(name), json_text(value)] for name, value in record.headers],
        }
        for record in records
    ]


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

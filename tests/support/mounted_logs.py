"""A log directory for tests with tools, and what must not change in a directory."""

from __future__ import annotations

import os
from pathlib import Path

from storage.format.block import Record
from storage.format.compression import Codec
from tests.support.builders import (
    ROLL,
    START_MS,
    STEP_MS,
    Batch,
    BuiltLogDir,
    Item,
    Partition,
    build_log_dir,
)

SEGMENTS = 4
BATCHES = 12  # per segment
COUNT = 100  # messages per batch
MESSAGES = SEGMENTS * BATCHES * COUNT

WORDS = ("error", "warning", "größe", "ok", "日本", "")


def value(number: int) -> bytes:
    """A text that differs in length and content from its neighbours."""
    return f"{number * 7919 % MESSAGES:05d} {WORDS[number % 6]} {'x' * (number % 97)}".encode()


def sample(path: Path) -> BuiltLogDir:
    """Topic `t`, one partition of four segments; `empty`, without messages; `codecs`, one partition for each codec."""
    items: list[Item] = []
    for number in range(SEGMENTS * BATCHES):
        if number and number % BATCHES == 0:
            items.append(ROLL)
        numbers = range(number * COUNT, (number + 1) * COUNT)
        items.append(Batch([Record(b"key-%d" % (n % 10), value(n), (), START_MS + n * STEP_MS) for n in numbers]))
    return build_log_dir(
        path,
        {
            "t": [Partition(items)],
            "empty": [Partition([])],
            "codecs": [
                Partition([Batch([Record(None, value(n), (), START_MS) for n in range(500)], codec)]) for codec in Codec
            ],
        },
    )


def state_of(directory: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a reader must not change: names, contents, sizes, modes, owners, mtimes and ctimes."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(directory):
        for name in [".", *folders, *files]:
            path = Path(folder, name)
            status = path.lstat()
            content = path.read_bytes() if name in files else None
            key = str(path.relative_to(directory))
            found[key] = (
                status.st_mode, status.st_uid, status.st_nlink, status.st_mtime_ns, status.st_ctime_ns, content,
            )  # fmt: skip
    return found

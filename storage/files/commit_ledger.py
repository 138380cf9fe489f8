"""`kafkafs-commits`: the writes that are being committed, and the last micro-batch committed of each streaming query.

One JSON object in a file of the log directory. The file is always replaced as a whole, so that a single step marks a
write as begun, or as done and remembered. The file is kafkafs' own: brokers ignore plain files in a log directory. The
numbers in it are Kafka's offsets. See storage/DESIGN.md, "Staged writes".
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from storage.errors import CorruptCheckpoint
from storage.files import names
from storage.files.small_files import MOST_ENTRIES_BYTES, read_whole
from storage.types import TopicPartition

VERSION: Final = 2
_OLDER: Final = 1  # differs only in its pending writes
# For how many queries, those that committed last, the last committed batch is remembered.
QUERIES_KEPT: Final = 1000
# For how many of a query's last batches the content sums are remembered: as many as Spark's checkpoint keeps
# (spark.sql.streaming.minBatchesToRetain).
CONTENTS_KEPT: Final = 100
QUERIES_WITH_CONTENTS: Final = 20  # those that committed last; for others only the last batch is remembered


class WriteId(NamedTuple):
    """A write: micro-batch `batch` of the streaming query `id`, or a single write (`batch` None) with an id of its own.

    A query's batches arrive in order, and its last one may be repeated.
    """

    id: str
    batch: int | None


class ContentSum(NamedTuple):
    """The content of a write, regardless of order and partitions: the number of rows, and a sum over their hashes,
    modulo 2^64, that differs when a row differs."""

    records: int = 0
    digest: int = 0

    def plus(self, other: ContentSum) -> ContentSum:
        """The sum for both together."""
        return ContentSum(self.records + other.records, (self.digest + other.digest) % 2**64)


class StagedBatchFile(NamedTuple):
    """A task's whole batches for one partition, in its directory under `name` (names.StagedName)."""

    tp: TopicPartition
    name: str
    size_bytes: int
    records: int


class PendingPart(NamedTuple):
    """A partition's share of a write: the messages of `files`, in this order. The first `done` of them are in the
    log, flushed. The others are at `base_offset` and the offsets after it, as far as they are in the log."""

    tp: TopicPartition
    base_offset: int
    done: int
    files: tuple[StagedBatchFile, ...]

    @property
    def records(self) -> int:
        """The number of messages."""
        return sum(file.records for file in self.files)

    @property
    def is_written(self) -> bool:
        """Whether the log has all of it, flushed: it is not looked for again, whatever becomes of these messages."""
        return self.done == self.records


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A write that has begun and will be completed. `content`: None if unknown."""

    write: WriteId
    parts: tuple[PendingPart, ...]
    content: ContentSum | None = None


class LastBatch(NamedTuple):
    """The last committed micro-batch of a query, and the time of its commit in epoch milliseconds. `contents`: the
    content sums of the batches that committed last, by batch number, ascending."""

    batch: int
    time_ms: int
    contents: tuple[tuple[int, ContentSum], ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """The file's content. `pending` is in the order in which the writes began."""

    queries: Mapping[str, LastBatch] = field(default_factory=dict)
    pending: tuple[PendingCommit, ...] = ()

    def is_done(self, write: WriteId) -> bool:
        """True for a micro-batch that an earlier attempt has committed."""
        last = self.queries.get(write.id)
        return last is not None and write.batch is not None and write.batch <= last.batch

    def content_of(self, write: WriteId) -> ContentSum | None:
        """The content sum of a committed micro-batch; None if it is not remembered."""
        last = self.queries.get(write.id)
        return None if last is None or write.batch is None else dict(last.contents).get(write.batch)

    def begun(self, commit: PendingCommit) -> Ledger:
        """The ledger with one more write pending."""
        return replace(self, pending=(*self.pending, commit))

    def withdrawn(self, write: WriteId) -> Ledger:
        """The ledger without this pending write."""
        return replace(self, pending=tuple(commit for commit in self.pending if commit.write != write))

    def parts_of(self, tp: TopicPartition) -> list[PendingPart]:
        """A partition's shares of the pending writes."""
        return [part for commit in self.pending for part in commit.parts if part.tp == tp]

    def written(self, write: WriteId, partitions: Collection[TopicPartition]) -> Ledger:
        """The ledger with these partitions' shares of a pending write marked as done."""
        ledger = self
        for part in [part for commit in self.pending if commit.write == write for part in commit.parts]:
            if part.tp in partitions:
                ledger = ledger.with_part(write, part._replace(done=part.records))
        return ledger

    def with_part(self, write: WriteId, part: PendingPart) -> Ledger:
        """The ledger with `part` in place of that partition's share of a pending write."""
        changed = tuple(
            replace(commit, parts=tuple(part if earlier.tp == part.tp else earlier for earlier in commit.parts))
            if commit.write == write
            else commit
            for commit in self.pending
        )
        return replace(self, pending=changed)

    def done(self, write: WriteId, now_ms: int) -> Ledger:
        """The ledger without this pending write, which is remembered if it may be repeated. A write that was never
        pending had no rows."""
        pending = self.withdrawn(write).pending
        if write.batch is None:
            return self.withdrawn(write)
        known = [commit.content for commit in self.pending if commit.write == write] or [ContentSum()]
        before = self.queries.get(write.id)
        contents = [*(() if before is None else before.contents)]
        contents += [(write.batch, content) for content in known if content is not None]
        queries = {**self.queries, write.id: LastBatch(write.batch, now_ms, tuple(contents[-CONTENTS_KEPT:]))}
        kept = sorted(queries.items(), key=lambda query: query[1].time_ms)[-QUERIES_KEPT:]
        busy = {query for query, _ in kept[-QUERIES_WITH_CONTENTS:]}
        return Ledger(
            {query: last if query in busy else last._replace(contents=last.contents[-1:]) for query, last in kept},
            pending,
        )

    def staged_names(self) -> set[str]:
        """The names of the pending writes' staged files."""
        return {file.name for commit in self.pending for part in commit.parts for file in part.files}


def encode(ledger: Ledger) -> bytes:
    """The file's bytes."""
    pending = [
        {
            "write": commit.write.id,
            "batch": commit.write.batch,
            "content": commit.content,
            "parts": [
                {
                    "topic": part.tp.topic,
                    "partition": part.tp.partition,
                    "base_offset": part.base_offset,
                    "done": part.done,
                    "files": [[file.name, file.size_bytes, file.records] for file in part.files],
                }
                for part in commit.parts
            ],
        }
        for commit in ledger.pending
    ]
    queries = {query: [last.batch, last.time_ms] for query, last in ledger.queries.items()}
    contents = {
        query: [[batch, *content] for batch, content in last.contents]
        for query, last in ledger.queries.items()
        if last.contents
    }
    # `contents` on one line: there are many of them.
    lines = [
        f' "version": {VERSION}',
        f' "queries": {json.dumps(queries)}',
        f' "contents": {json.dumps(contents)}',
        f' "pending": {json.dumps(pending, indent=1)}',
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def parse(data: bytes, path: Path | None = None) -> Ledger:
    """The ledger in these bytes. CorruptCheckpoint when `encode` cannot have made them, or when they are of an older
    version that has begun writes: only that version knows how much of these is in the logs."""
    try:
        content = json.loads(data)
        if content["version"] not in (_OLDER, VERSION):
            raise CorruptCheckpoint("unknown version", path=path, expected=VERSION, found=content["version"])
        if content["version"] == _OLDER and content["pending"]:
            found = ", ".join(str(commit["write"]) for commit in content["pending"])
            advice = "Run `kafkafs recover` of the version that wrote it, which finishes them"
            raise CorruptCheckpoint("an older version began writes", path=path, found=found, advice=advice)
        contents = content.get("contents", {})
        queries = {
            str(query): LastBatch(_number(last[0]), _number(last[1]), _contents(contents.get(query, ())))
            for query, last in content["queries"].items()
        }
        return Ledger(queries, tuple(_pending(commit) for commit in content["pending"]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        found = f"no member {error}" if isinstance(error, KeyError) else str(error)
        raise CorruptCheckpoint("does not parse", path=path, found=found) from None


def _number(value: Any) -> int:
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:  # sums of hashes are unsigned
        raise ValueError("a number does not have 64 bits")
    return value


def _pending(commit: Any) -> PendingCommit:
    batch, content = commit["batch"], commit["content"]
    write = WriteId(str(commit["write"]), None if batch is None else _number(batch))
    content = None if content is None else ContentSum(_number(content[0]), _number(content[1]))
    return PendingCommit(write, tuple(_part(part) for part in commit["parts"]), content)


def _contents(given: Any) -> tuple[tuple[int, ContentSum], ...]:
    return tuple((_number(batch), ContentSum(_number(records), _number(digest))) for batch, records, digest in given)


def _part(part: Any) -> PendingPart:
    tp = TopicPartition(str(part["topic"]), _number(part["partition"]))
    if names.topic_name_problem(tp.topic) or tp.partition < 0:
        raise ValueError(f"{tp} is not a valid partition")
    files = tuple(
        StagedBatchFile(tp, _staged(name), _number(size), _number(records)) for name, size, records in part["files"]
    )
    return PendingPart(tp, _number(part["base_offset"]), _number(part["done"]), files)


def _staged(name: str) -> str:
    if names.parse_staged(name) is None:
        raise ValueError(f"{name!r} is not the name of a staged file")
    return name


def read(directory: Path) -> Ledger:
    """The ledger of a log directory, empty when it has none. CorruptCheckpoint, or OSError when it cannot be read."""
    path = directory / names.COMMITS
    data = read_whole(path, MOST_ENTRIES_BYTES)
    return Ledger() if data is None else parse(data, path)

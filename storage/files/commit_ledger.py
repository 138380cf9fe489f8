"""`kafkafs-commits`: the writes that are being committed, and the last micro-batch committed of each streaming query.

One JSON object in a file of the log directory, replaced as a whole, so that one step makes a write begun, or done and
remembered. Ours: brokers ignore plain files there. The numbers in it are Kafka's offsets and CRCs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from storage.errors import CorruptCheckpoint
from storage.files import names
from storage.files.whole_file import read_whole
from storage.types import TopicPartition

VERSION: Final = 1
# Of so many queries, those that committed last, it is remembered how far they came.
QUERIES_KEPT: Final = 1000
# Of so many batches of a query, its last ones, what they consisted of: as many as Spark's checkpoint goes back
# (spark.sql.streaming.minBatchesToRetain).
CONTENTS_KEPT: Final = 100
QUERIES_WITH_CONTENTS: Final = 20  # that committed last; of the others only their last batch


class WriteId(NamedTuple):
    """A write: micro-batch `batch` of the streaming query `id`, or a single write (`batch` None) with an id of its own.

    A query's batches come in order, and its last one may come again.
    """

    id: str
    batch: int | None


class ContentSum(NamedTuple):
    """What a write consists of, whatever its order and its partitions: how many rows, and a sum over them, modulo 2^64,
    that differs where a row does."""

    records: int = 0
    digest: int = 0

    def plus(self, other: ContentSum) -> ContentSum:
        """Of both together."""
        return ContentSum(self.records + other.records, (self.digest + other.digest) % 2**64)


class StagedBatchFile(NamedTuple):
    """A task's whole batches for one partition, in its directory under `name` (names.StagedName)."""

    tp: TopicPartition
    name: str
    size_bytes: int
    records: int


class PendingPart(NamedTuple):
    """One partition's share of a write. It is in the log if the batch at `base_offset` ends with `last_offset` and has
    the checksum `crc`: that of the first staged batch, put in its place. `written`: it was found there, flushed, and is
    not looked for again: whatever becomes of that batch, the share is done."""

    tp: TopicPartition
    base_offset: int
    last_offset: int
    crc: int
    files: tuple[StagedBatchFile, ...]
    written: bool = False


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A write that has begun: it will be carried out. `time_ms`: the time that LogAppendTime topics give it.
    `content`: None where it is not known."""

    write: WriteId
    time_ms: int
    parts: tuple[PendingPart, ...]
    content: ContentSum | None = None


class LastBatch(NamedTuple):
    """The last committed micro-batch of a query, and when that was, epoch milliseconds. `contents`: of the batches that
    committed last, by number, ascending."""

    batch: int
    time_ms: int
    contents: tuple[tuple[int, ContentSum], ...] = ()


@dataclass(frozen=True, slots=True)
class Ledger:
    """What the file says. `pending` in the order in which the writes began."""

    queries: Mapping[str, LastBatch] = field(default_factory=dict)
    pending: tuple[PendingCommit, ...] = ()

    def is_done(self, write: WriteId) -> bool:
        """True for a micro-batch that was committed before, with another attempt at it."""
        last = self.queries.get(write.id)
        return last is not None and write.batch is not None and write.batch <= last.batch

    def content_of(self, write: WriteId) -> ContentSum | None:
        """What a micro-batch that is done consisted of; None where that is not remembered."""
        last = self.queries.get(write.id)
        return None if last is None or write.batch is None else dict(last.contents).get(write.batch)

    def begun(self, commit: PendingCommit) -> Ledger:
        """With one more write pending."""
        return replace(self, pending=(*self.pending, commit))

    def withdrawn(self, write: WriteId) -> Ledger:
        """Without this pending write."""
        return replace(self, pending=tuple(commit for commit in self.pending if commit.write != write))

    def parts_of(self, tp: TopicPartition) -> list[PendingPart]:
        """A partition's shares of the pending writes."""
        return [part for commit in self.pending for part in commit.parts if part.tp == tp]

    def written(self, write: WriteId, partitions: Collection[TopicPartition]) -> Ledger:
        """With these partitions' shares of a pending write noted as done."""
        ledger = self
        for part in [part for commit in self.pending if commit.write == write for part in commit.parts]:
            if part.tp in partitions and not part.written:
                ledger = ledger.with_part(write, part._replace(written=True))
        return ledger

    def with_part(self, write: WriteId, part: PendingPart) -> Ledger:
        """With what is said here of a partition's share of a pending write."""
        changed = tuple(
            replace(commit, parts=tuple(part if one.tp == part.tp else one for one in commit.parts))
            if commit.write == write
            else commit
            for commit in self.pending
        )
        return replace(self, pending=changed)

    def done(self, write: WriteId, now_ms: int) -> Ledger:
        """The write is pending no more, and remembered if it may come again. One that is not pending has no rows."""
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
        """The staged files that pending writes consist of."""
        return {file.name for commit in self.pending for part in commit.parts for file in part.files}


def encode(ledger: Ledger) -> bytes:
    """The file's bytes."""
    pending = [
        {
            "write": commit.write.id,
            "batch": commit.write.batch,
            "time_ms": commit.time_ms,
            "content": commit.content,
            "parts": [
                {
                    "topic": part.tp.topic,
                    "partition": part.tp.partition,
                    "base_offset": part.base_offset,
                    "last_offset": part.last_offset,
                    "crc": part.crc,
                    "files": [[file.name, file.size_bytes, file.records] for file in part.files],
                    **({"written": True} if part.written else {}),
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
    # The contents in a line each: there are many of them.
    lines = [
        f' "version": {VERSION}',
        f' "queries": {json.dumps(queries)}',
        f' "contents": {json.dumps(contents)}',
        f' "pending": {json.dumps(pending, indent=1)}',
    ]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def parse(data: bytes, path: Path | None = None) -> Ledger:
    """What the bytes say. CorruptCheckpoint when they are not what `encode` makes."""
    try:
        content = json.loads(data)
        if content["version"] != VERSION:
            raise CorruptCheckpoint("unknown version", path=path, expected=VERSION, found=content["version"])
        contents = content.get("contents", {})
        queries = {
            str(query): LastBatch(int(last[0]), int(last[1]), _contents(contents.get(query, ())))
            for query, last in content["queries"].items()
        }
        return Ledger(queries, tuple(_pending(commit) for commit in content["pending"]))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CorruptCheckpoint("does not parse", path=path, found=repr(error)) from None


def _pending(commit: Any) -> PendingCommit:
    batch = commit["batch"]
    write = WriteId(str(commit["write"]), None if batch is None else int(batch))
    told = commit.get("content")
    content = None if told is None else ContentSum(int(told[0]), int(told[1]))
    return PendingCommit(write, int(commit["time_ms"]), tuple(_part(part) for part in commit["parts"]), content)


def _contents(given: Any) -> tuple[tuple[int, ContentSum], ...]:
    return tuple((int(batch), ContentSum(int(records), int(digest))) for batch, records, digest in given)


def _part(part: Any) -> PendingPart:
    tp = TopicPartition(str(part["topic"]), int(part["partition"]))
    if names.topic_name_problem(tp.topic) or tp.partition < 0:
        raise ValueError(f"{tp} is no partition")
    files = tuple(StagedBatchFile(tp, _staged(name), int(size), int(records)) for name, size, records in part["files"])
    written = part.get("written", False) is True
    return PendingPart(tp, int(part["base_offset"]), int(part["last_offset"]), int(part["crc"]), files, written)


def _staged(name: str) -> str:
    if names.parse_staged(name) is None:
        raise ValueError(f"{name!r} names no staged file")
    return name


def read(directory: Path) -> Ledger:
    """The ledger of a log directory, empty when it has none. CorruptCheckpoint, or OSError when it cannot be read."""
    path = directory / names.COMMITS
    data = read_whole(path)
    return Ledger() if data is None else parse(data, path)

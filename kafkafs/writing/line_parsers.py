"""Parsing lines: what is written to `@append` files becomes records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from kafkafs.formats.jsonl_parse import Encode, parse_line
from storage.errors import InvalidRecord
from storage.format.record_columns import Record, RecordColumns
from storage.types import NO_TIMESTAMP

Int64s = npt.NDArray[np.int64]
Buffer = bytes | memoryview

_NOW: Final = np.full(1, NO_TIMESTAMP, np.int64)


class Parsed(NamedTuple):
    """Lines as records, up to the first bad one. `partition`: which one each asks for (-1: any); None: none asks."""

    columns: RecordColumns
    partition: Int64s | None = None
    error: InvalidRecord | None = None


Parse = Callable[[Buffer, Int64s, Int64s], Parsed]
"""Parses the lines of a buffer, given their starts and lengths."""


def parse_txt(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Parsed:
    """Each line is a value; nothing is copied."""
    return Parsed(RecordColumns(buffer, starts, lengths, _NOW))


class JsonLines:
    """Each line is a JSON object: see jsonl_parse. `encode`: for lines that name schemas; without it they are refused.

    It holds no state: threads can share it.
    """

    def __init__(self, encode: Encode | None = None) -> None:
        self._encode = encode

    def __call__(self, buffer: Buffer, starts: Int64s, lengths: Int64s) -> Parsed:
        """See Parse."""
        records: list[Record] = []
        partitions: list[int] = []
        error = None
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            try:
                record, partition = parse_line(bytes(buffer[start : start + length]), self._encode)
            except InvalidRecord as failure:
                error = failure
                break
            records.append(record)
            partitions.append(-1 if partition is None else partition)
        return Parsed(RecordColumns.from_records(records), np.array(partitions, np.int64), error)


parse_jsonl: Final = JsonLines()


def keyed_txt(separator: bytes) -> Parse:
    """Each line is a key, `separator` and a value; a line without it is a value with a null key."""

    def parse(buffer: Buffer, starts: Int64s, lengths: Int64s) -> Parsed:
        records = []
        for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
            key, found, value = bytes(buffer[start : start + length]).partition(separator)
            records.append(Record(key, value) if found else Record(None, key))
        return Parsed(RecordColumns.from_records(records))

    return parse

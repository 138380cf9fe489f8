"""ListOffsets and Fetch requests of many partitions at once, with error codes and batches as they come."""

import asyncio
from types import SimpleNamespace
from typing import NamedTuple

from aiokafka.conn import create_conn
from aiokafka.protocol.fetch import FetchRequest_v4
from aiokafka.protocol.offset import OffsetRequest_v3

from storage.types import Isolation, TopicPartition


class Listed(NamedTuple):
    """The answer of ListOffsets: an error code (Kafka's Errors), a timestamp and an offset, -1 where there is none."""

    error: int
    timestamp: int
    offset: int


class Fetched(NamedTuple):
    """The answer of a fetch: an error code, the last stable offset, and the batches."""

    error: int
    last_stable_offset: int
    records: bytes


def _answers(address, struct):
    """What a broker answers of each partition."""
    host, _, port = address.rpartition(":")

    async def run():
        connection = await create_conn(host, int(port), request_timeout_ms=300_000)
        try:
            return await connection.send(SimpleNamespace(prepare=lambda _versions: struct))  # of just this version
        finally:
            connection.close()

    topics = asyncio.run(run()).topics
    return {TopicPartition(topic, row[0]): row[1:] for topic, partitions in topics for row in partitions}


def _by_topic(rows):
    found = {}
    for tp, row in rows.items():
        found.setdefault(tp.topic, []).append((tp.partition, *row))
    return list(found.items())


def list_offsets(address, timestamps, isolation=Isolation.READ_UNCOMMITTED):
    """The offset for a timestamp, or a special value of one, of each partition."""
    committed = int(isolation is Isolation.READ_COMMITTED)
    request = OffsetRequest_v3(-1, committed, _by_topic({tp: (time,) for tp, time in timestamps.items()}))
    return {tp: Listed(*row) for tp, row in _answers(address, request).items()}


def fetch(address, offsets, max_bytes):
    """What one fetch of each partition returns, read_uncommitted, at most `max_bytes` each."""
    rows = _by_topic({tp: (offset, max_bytes) for tp, offset in offsets.items()})
    found = _answers(address, FetchRequest_v4(-1, 0, 0, 2**31 - 1, 0, rows))
    return {tp: Fetched(error, stable, records or b"") for tp, (error, _, stable, _, records) in found.items()}

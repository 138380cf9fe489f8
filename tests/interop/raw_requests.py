"""ListOffsets and Fetch requests as bytes, many partitions at once: what no client library asks, or hides.

Sources: ListOffsetsRequest.json (version 7, the first with the greatest timestamp), FetchRequest.json (version 4, the
first that returns batches of format v2), RequestHeader.json.
"""

from __future__ import annotations

import itertools
import socket
import struct
from typing import NamedTuple

from storage.types import TopicPartition

_FETCH, _LIST_OFFSETS = 1, 2
_CLIENT_ID = b"kafkafs-tests"
MOST_BYTES = 2**31 - 1


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


class _Answer:
    """The fields of an answer, read in order."""

    def __init__(self, data):
        self._data = data
        self._at = 0

    def take(self, count):
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, code):
        return int(struct.unpack(">" + code, self.take(struct.calcsize(">" + code)))[0])

    def varint(self):
        """An unsigned varint, as lengths of compact fields are."""
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def no_tags(self):
        assert self.varint() == 0


class RawClient:
    """One connection to a broker. OSError when it fails."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=300)
        self._numbers = itertools.count(1)

    def close(self):
        self._socket.close()

    def list_offsets(self, timestamps, *, committed=False):
        """The offset for a timestamp, or a special value of one, of each partition."""
        body = [struct.pack(">ib", -1, committed)]
        by_topic = _by_topic(timestamps)
        body.append(_varint(len(by_topic) + 1))
        for topic, partitions in by_topic.items():
            body += (_varint(len(topic) + 1), topic.encode(), _varint(len(partitions) + 1))
            body += [struct.pack(">iiq", tp.partition, -1, timestamps[tp]) + b"\0" for tp in partitions]
            body.append(b"\0")
        answer = self._ask(_LIST_OFFSETS, 7, b"".join(body) + b"\0", flexible=True)
        answer.number("i")
        found = {}
        for _ in range(answer.varint() - 1):
            topic = answer.take(answer.varint() - 1).decode()
            for _ in range(answer.varint() - 1):
                number = answer.number("i")
                found[TopicPartition(topic, number)] = Listed(
                    answer.number("h"), answer.number("q"), answer.number("q")
                )
                answer.number("i")
                answer.no_tags()
            answer.no_tags()
        return found

    def fetch(self, offsets, max_bytes):
        """What one fetch of each partition returns, read_uncommitted, at most `max_bytes` each."""
        body = [struct.pack(">iiiib", -1, 0, 0, MOST_BYTES, 0)]
        by_topic = _by_topic(offsets)
        body.append(struct.pack(">i", len(by_topic)))
        for topic, partitions in by_topic.items():
            body.append(struct.pack(">h", len(topic)) + topic.encode() + struct.pack(">i", len(partitions)))
            body += [struct.pack(">iqi", tp.partition, offsets[tp], max_bytes) for tp in partitions]
        answer = self._ask(_FETCH, 4, b"".join(body), flexible=False)
        answer.number("i")
        found = {}
        for _ in range(answer.number("i")):
            topic = answer.take(answer.number("h")).decode()
            for _ in range(answer.number("i")):
                tp = TopicPartition(topic, answer.number("i"))
                error, _, stable = answer.number("h"), answer.number("q"), answer.number("q")
                assert answer.number("i") <= 0, "aborted transactions are for read_committed"
                found[tp] = Fetched(error, stable, answer.take(max(answer.number("i"), 0)))
        return found

    def _ask(self, key, version, body, *, flexible):
        number = next(self._numbers)
        header = struct.pack(">hhih", key, version, number, len(_CLIENT_ID)) + _CLIENT_ID + b"\0" * flexible
        self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", self._receive(4))
        answer = _Answer(self._receive(size))
        assert answer.number("i") == number
        if flexible:
            answer.no_tags()
        return answer

    def _receive(self, count):
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise ConnectionError("the broker closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


def _by_topic(partitions):
    found = {}
    for tp in partitions:
        found.setdefault(tp.topic, []).append(tp)
    return found


def _varint(value):
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])

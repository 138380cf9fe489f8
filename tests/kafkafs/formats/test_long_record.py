"""A record that is rendered in parts has the bytes that its format renders, wherever the parts are cut."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kafkafs.decoding import DecodedJsonl
from kafkafs.formats import by_name
from kafkafs.formats.long_record import LongRecord
from kafkafs.schemas.registry import Registry
from storage.types import TopicPartition
from tests.support.blocks import Row, block_of

CHUNK = 48 << 10
RANDOM = random.Random(19)
VALUES: dict[str, bytes | None] = {
    "null": None,
    "empty": b"",
    "plain": b"a" * (3 * CHUNK + 1),
    "escapes": b'\1"\\' * CHUNK,
    "at a cut": b"a" * (CHUNK - 1) + "€".encode() * CHUNK,
    "four bytes": b"ab" + "\U0001f600".encode() * CHUNK,
    "continuations": b"a" * CHUNK + b"\x80" * 9 + b"a" * CHUNK,
    "cut off": b"a" * 2 * CHUNK + "€".encode()[:2],
    "surrogate": b"a" * (CHUNK - 2) + b"\xed\xa0\x80" + b"a" * CHUNK,
    "binary": RANDOM.randbytes(2 * CHUNK + 1),
    "binary, thirds": RANDOM.randbytes(3 * CHUNK),
}
# Many small ones, nulls among them, large ones next to each other, and one that fills a chunk with what precedes it.
HEADERS: list[tuple[bytes, bytes | None]] = [
    *[(b"h%d" % i, (b"\1\xff", None, b"", b'"')[i % 4]) for i in range(CHUNK // 4)],
    (b"\xff" * 2 * CHUNK, None),
    (b"name", VALUES["cut off"]),
    (b"", b"x" * (CHUNK - 4)),
    (b"last", b"1"),
]


@pytest.mark.parametrize("form", ["jsonl", "txt", r"%o %T %k %K %s %S %R %h\n", "decoded"])
@pytest.mark.parametrize("name", VALUES)
def test_parts_equal_the_whole(name: str, form: str) -> None:
    headers = ((b"one", b"1"), (b"none", None), (b"large", VALUES["escapes"]), *HEADERS)
    block = block_of([Row(7, 1_763_700_000_000, VALUES["at a cut"], VALUES[name], headers)])
    tp = TopicPartition("t", 3)
    chosen = DecodedJsonl(tp, Registry()) if form == "decoded" else by_name(form, tp)
    sizes = np.empty(1, np.int64)
    chosen.measure(block, sizes)
    whole = bytearray(int(sizes[0]))
    assert chosen.render(block, memoryview(whole)) == len(whole)
    record = LongRecord(chosen, block)
    assert b"".join(bytes(part) for part in record.parts()) == whole
    assert record.size == len(whole)
    for _ in range(20):
        skip = RANDOM.randrange(len(whole) + 1)
        out = bytearray(RANDOM.randrange(min(len(whole) - skip, 3 * CHUNK) + 1))
        record.render(memoryview(out), skip)
        assert out == whole[skip : skip + len(out)]
    with pytest.raises(ValueError, match="bytes"):
        record.render(memoryview(bytearray(2)), len(whole) - 1)


@pytest.mark.parametrize("form", ["jsonl", "%h"])
def test_no_part_is_much_larger_than_a_chunk(form: str) -> None:
    headers = ((b"large", b"\1" * 9 * CHUNK), *[(b"", None) for _ in range(3 * CHUNK)])
    block = block_of([Row(7, 1_763_700_000_000, None, None, headers)])
    record = LongRecord(by_name(form, TopicPartition("t", 3)), block)
    assert record.size > 1_000_000
    assert max(len(part) for part in record.parts()) <= 10 * CHUNK

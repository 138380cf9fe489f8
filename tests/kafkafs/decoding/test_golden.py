"""Every golden line of the fixture `schemas`, decoded from the broker's segments."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kafkafs.decoding import DecodedJsonl
from kafkafs.formats import by_name
from storage.format.batches import BatchTable, scan
from storage.format.decoder import Decoder
from storage.types import TopicPartition
from tests.support.decoded_golden import GoldenSchemas, agrees, golden_lines, partitions
from tests.support.fixtures import FIXTURES, requires_fixtures

pytestmark = [requires_fixtures, pytest.mark.golden]


@pytest.mark.parametrize("partition", partitions())
def test_golden_lines(partition: str) -> None:
    topic, _, number = partition.rpartition("-")
    tp = TopicPartition(topic, int(number))
    decoded, jsonl = DecodedJsonl(tp, GoldenSchemas()), by_name("jsonl", tp)
    golden = list(golden_lines(partition))
    found = 0
    for log in sorted((FIXTURES / "schemas" / "log" / partition).glob("*.log")):
        data = log.read_bytes()
        table = BatchTable.empty(10_000)
        assert scan(memoryview(data), 0, table, 0, len(data)).next_start == len(data)
        decoder, row = Decoder(), 0
        while row < table.rows:
            block = decoder.decode(data, table, row, origin=0)
            block.check()
            row = block.next_row
            lines = []
            for form in (decoded, jsonl):
                sizes = np.empty(len(block), np.int64)
                form.measure(block, sizes)
                out = np.empty(int(sizes.sum()), np.uint8)
                assert form.render(block, out.data) == len(out)
                lines.append(out.tobytes().splitlines(keepends=True))
                assert [*map(len, lines[-1])] == sizes.tolist()
            for line, plain in zip(*lines, strict=True):
                shown = json.loads(line)
                assert shown["offset"] == golden[found]["offset"]
                assert not agrees(shown, golden[found], json.loads(plain)), (golden[found].get("kind"), line)
                found += 1
    assert found == len(golden)

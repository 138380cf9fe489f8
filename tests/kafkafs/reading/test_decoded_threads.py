"""Readers of decoded views while a registry registers schemas: each handle shows one thing throughout."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from storage.format.block import Record
from tests.support.reference_views import read_all, tree_of
from tests.support.schema_logs import START_MS, GrowingLog, avro_string, framed, schema_record

PATH = "/t/0/messages.decoded.jsonl"
_SCHEMAS = 24


def test_each_handle_shows_one_thing(tmp_path: Path) -> None:
    schemas, topic = GrowingLog(tmp_path, "_schemas-0"), GrowingLog(tmp_path, "t-0")
    schemas.append([schema_record("other", 1, 1000)])
    for number in range(_SCHEMAS):
        topic.append([Record(None, framed(number, avro_string(f"{number}-{row}")), (), START_MS) for row in range(50)])
    tree = tree_of(tmp_path, cache_bytes=64 << 10)
    tree.start()
    problems: list[str] = []
    ended = threading.Event()

    def read() -> None:
        while not ended.is_set():
            handle = tree.lookup(PATH).open()
            try:
                first, again = read_all(handle, 4096), read_all(handle, 10_000)
                if first != again or len(first) != handle.size:
                    problems.append(f"{len(first)} bytes, then {len(again)}, size {handle.size}")
                lines = [json.loads(line) for line in first.splitlines()]
                if [line["offset"] for line in lines] != list(range(50 * _SCHEMAS)):
                    problems.append("lines are missing")
                # An id is decoded in all its lines or in none.
                for number in range(_SCHEMAS):
                    if len({"error" in line for line in lines if line["valueSchema"] == number}) != 1:
                        problems.append(f"id {number} is decoded in some lines")
            finally:
                handle.close()

    readers = [threading.Thread(target=read) for _ in range(3)]
    try:
        for reader in readers:
            reader.start()
        for number in range(_SCHEMAS):
            schemas.append([schema_record("t-value", number + 1, number)])
            handle = tree.lookup(PATH).open()
            shown = [json.loads(line) for line in read_all(handle).splitlines()]
            handle.close()
            assert ["error" in line for line in shown if line["valueSchema"] == number] == [False] * 50
    finally:
        ended.set()
        for reader in readers:
            reader.join()
        tree.stop()
    assert not problems, problems[:5]

"""The golden decoded lines of the fixture `schemas`, and what a line of decoded.jsonl must show of them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from kafkafs.schemas.registry import Reference, Schema
from tests.support.fixtures import FIXTURES

GOLDEN = FIXTURES / "schemas" / "golden"


class GoldenSchemas:
    """The schemas of golden/schemas.json: a SchemaLookup that knows one context."""

    def __init__(self) -> None:
        self._ids: dict[int, Schema] = {}
        self._versions: dict[tuple[str, int], Schema] = {}
        for number, entry in json.loads((GOLDEN / "schemas.json").read_text())["ids"].items():
            references = tuple(Reference(**reference) for reference in entry["references"])
            schema = Schema(int(number), entry["type"], entry["schema"], references)
            self._ids[schema.schema_id] = schema
            for subject in entry["subjects"]:
                self._versions[subject["subject"], subject["version"]] = schema

    def by_id(self, schema_id: int, subject: str | None = None) -> Schema | None:
        return self._ids.get(schema_id)

    def by_guid(self, guid: bytes) -> Schema | None:
        return None

    def by_message_type(self, name: str) -> Schema | None:
        return None

    def referenced(self, reference: Reference) -> Schema | None:
        return self._versions.get((reference.subject, reference.version))


def partitions() -> list[str]:
    """`<topic>-<partition>` of every golden decoded file."""
    return sorted(path.name.removesuffix(".decoded.jsonl.gz") for path in GOLDEN.glob("*.decoded.jsonl.gz"))


def golden_lines(partition: str) -> Iterator[dict[str, Any]]:
    with gzip.open(GOLDEN / f"{partition}.decoded.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def same(found: Any, expected: Any) -> bool:
    """Whether two JSON values are equal; numbers that differ as doubles may be the same float."""
    if isinstance(expected, dict):
        return (
            isinstance(found, dict)
            and found.keys() == expected.keys()
            and all(same(found[k], expected[k]) for k in found)
        )
    if isinstance(expected, list):
        return isinstance(found, list) and len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float) and isinstance(found, float):
        return found == expected or bool(np.float32(found) == np.float32(expected))
    return type(found) is type(expected) and bool(found == expected)


def agrees(line: dict[str, Any], golden: dict[str, Any], plain: dict[str, Any]) -> str:
    """What is wrong with a decoded line according to the golden one; '': nothing. `plain`: the record in jsonl."""
    error = line.get("error", "")
    for side in ("key", "value"):
        schema = golden.get(f"{side}_schema", {})
        if line[f"{side}Schema"] != schema.get("id"):
            return f"{side}Schema is {line[f'{side}Schema']}"
        form = golden[f"{side}_format"]
        # Bytes behind a whole datum: the clients ignore them, a line says so and shows the bytes.
        undecoded = form in ("null", "text", "bytes", "wire") or f"{side}_trailing_bytes" in golden
        if (form == "wire" or f"{side}_trailing_bytes" in golden) != (f"{side}: " in error):
            return f"the error is {error!r}"
        wanted = [plain[side]] if undecoded else [golden[side], golden.get(f"{side}_of_stored_schema", golden[side])]
        if not any(same(line[side], value) for value in wanted):
            return f"{side} is {line[side]!r}, not {wanted[0]!r}"
    if list(line) != [*plain, "keySchema", "valueSchema", *(["error"] if error else [])]:
        return f"the keys are {list(line)}"
    return ""

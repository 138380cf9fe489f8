"""The golden decoded lines of the fixture `schemas`, and what a line of decoded.jsonl must show of them."""

import gzip
import json

import numpy as np

from tests.support.fixtures import FIXTURES

GOLDEN = FIXTURES / "schemas" / "golden"


def partitions():
    """`<topic>-<partition>` of every golden decoded file."""
    return sorted(path.name.removesuffix(".decoded.jsonl.gz") for path in GOLDEN.glob("*.decoded.jsonl.gz"))


def golden_lines(partition):
    with gzip.open(GOLDEN / f"{partition}.decoded.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def same(found, expected):
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


def agrees(line, golden, plain):
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

"""The examples of FORMAT.md are what lies in the files they name."""

from __future__ import annotations

import re

import pytest

from tests.support.fixtures import FIXTURES, ROOT, requires_fixtures

TEXT = (ROOT / "storage" / "FORMAT.md").read_text()
BYTES = re.findall(r"`([^`\n]+)` from byte (\d+):\n\n```hex\n(.*?)```", TEXT, re.DOTALL)
LINES = re.findall(r"`([^`\n]+)`:\n\n```text\n(.*?)```", TEXT, re.DOTALL)
HEX = re.compile(r"(?:[0-9a-f]{2} ?)+(?: (?:[0-9a-f]{2} ?)+)?")


def data_of(example: str) -> bytes:
    """The bytes at the start of each line; words follow after two spaces or more."""
    matches = [HEX.match(line) for line in example.splitlines()]
    assert all(matches)
    return bytes.fromhex("".join(match.group() for match in matches if match))


@requires_fixtures
@pytest.mark.parametrize(("name", "position", "example"), BYTES, ids=[name for name, _, _ in BYTES])
def test_bytes(name: str, position: str, example: str) -> None:
    data = data_of(example)
    assert (FIXTURES / name).read_bytes()[int(position) : int(position) + len(data)] == data
    if name.endswith(".log"):
        assert len(data) == 12 + int.from_bytes(data[8:12], "big")


@requires_fixtures
@pytest.mark.parametrize(("name", "example"), LINES, ids=[name for name, _ in LINES])
def test_lines(name: str, example: str) -> None:
    assert (FIXTURES / name).read_text().rstrip("\n") == example.rstrip("\n")


def test_no_example_is_missed() -> None:
    assert (len(BYTES), len(LINES)) == (TEXT.count("```hex"), TEXT.count("```text"))
    assert len(BYTES) == 8

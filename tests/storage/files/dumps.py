"""The text that DumpLogSegments printed of each file in the fixtures, beside the file."""

from __future__ import annotations

import gzip
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.fixtures import FIXTURES


class Dumped(NamedTuple):
    """A file of a fixture, and what Kafka's tool says is in it."""

    file: Path
    dump: Path

    def text(self):
        """The tool's output without its first line, which names the file."""
        with gzip.open(self.dump, "rt", encoding="utf-8") as lines:
            return lines.read().partition("\n")[2]

    def rows(self, pattern):
        """The numbers that a pattern's groups find, line by line."""
        return [tuple(map(int, found)) for found in re.findall(pattern, self.text())]


@cache
def dumped(suffix):
    """All dumped files with this suffix, damaged ones (`recovery/before`) left out."""
    return tuple(_dumped(suffix))


def _dumped(suffix):
    for dump in sorted(FIXTURES.glob(f"*/golden/dump/*/*{suffix}.txt.gz")):
        fixture = dump.relative_to(FIXTURES).parts[0]
        log_dir = FIXTURES / fixture / ("after" if fixture == "recovery" else "log")
        yield Dumped(log_dir / dump.parent.name / dump.name.removesuffix(".txt.gz"), dump)

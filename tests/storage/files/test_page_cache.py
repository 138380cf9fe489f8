"""Which bytes of a file the page cache does not have."""

import os
import tracemalloc

from storage.files.page_cache import uncached_spans
from tests.support.page_cache import uncached

TIB = 1 << 40


def test_the_spans_that_are_not_there(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1 << 20))
    uncached(path)
    with path.open("rb") as file:
        assert uncached_spans(file.fileno(), 5000, 900_000) == [(5000, 900_000)]
        assert uncached_spans(file.fileno(), 5000, 5000) == []
    path.read_bytes()
    with path.open("rb") as file:
        assert uncached_spans(file.fileno(), 5000, 900_000) == []


def test_a_giant_takes_no_more_memory_than_a_segment(tmp_path):
    """No segment is that large, but a stranger's file may be."""
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, TIB)
    tracemalloc.start()
    with path.open("rb") as file:
        assert uncached_spans(file.fileno(), 10, TIB) == [(10, 10 + (1 << 31))]
    assert tracemalloc.get_traced_memory()[1] < 32 << 20
    tracemalloc.stop()

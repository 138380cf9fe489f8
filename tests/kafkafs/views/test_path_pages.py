"""What the page cache may hold of a path, and how others are opened meanwhile."""

from __future__ import annotations

import pytest

from kafkafs.reading.block_cache import PathPages
from storage.errors import SegmentGone

BUFFERED, KEPT, DIRECT = (False, False), (False, True), (True, False)


def test_pages_are_kept_while_the_content_is_the_same() -> None:
    pages = PathPages()
    assert pages.open("a", 10, sealed=True) == BUFFERED
    assert pages.open("a", 10, sealed=True) == KEPT
    pages.close("a", 10)
    pages.close("a", 10)
    assert not pages.is_in_use
    assert pages.open("b", 20, sealed=True) == BUFFERED
    pages.close("b", 20)
    assert pages.open("a", 10, sealed=True) == BUFFERED


def test_what_is_not_sealed_is_never_buffered() -> None:
    pages = PathPages()
    assert pages.open("a", 10, sealed=False) == DIRECT
    assert not pages.is_in_use
    assert pages.open("a", 10, sealed=True) == BUFFERED


def test_beside_a_reader_of_another_content_nobody_fills_pages() -> None:
    pages = PathPages()
    assert pages.open("a", 10, sealed=True) == BUFFERED
    assert pages.open("b", 20, sealed=True) == DIRECT
    # The reader of `a` has filled pages again, after the open of `b` made the kernel drop them.
    pages.close("a", 10)
    assert pages.open("b", 20, sealed=True) == BUFFERED
    assert pages.open("b", 20, sealed=True) == KEPT


def test_no_smaller_size_is_shown_than_a_reader_was_promised() -> None:
    pages = PathPages()
    pages.check(0)
    pages.open("a", 10, sealed=True)
    pages.check(10)
    for sealed in (True, False):
        with pytest.raises(SegmentGone):
            pages.open("b", 9, sealed=sealed)
    with pytest.raises(SegmentGone):
        pages.check(9)
    pages.close("a", 10)
    pages.check(9)
    assert pages.open("b", 9, sealed=True) == BUFFERED

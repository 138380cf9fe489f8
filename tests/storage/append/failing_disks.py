"""Failures of a FaultyDisk while a block of a test runs."""

import contextlib
import errno
import os

import pytest


@contextlib.contextmanager
def failing(disk, *operations, code=errno.ENOSPC):
    """Expects the block to end with this error, because operations that begin with one of these fail. The disk works
    again afterwards."""
    disk.fail = lambda what, _path: code if what.startswith(operations) else None
    try:
        with pytest.raises(OSError, match=os.strerror(code)):
            yield
    finally:
        disk.fail = lambda _what, _path: None

"""The limit on descriptors, and descriptors above 1023."""

import fcntl
import os
import resource
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from storage.files import descriptors
from storage.files.descriptors import raise_limit, wait_for_room


@contextmanager
def soft_limit(descriptors_allowed):
    """The process may have so many, or fewer, until the end of the block."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors_allowed, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_paths():
    """What this process's descriptors are of."""
    found = set()
    for link in list(Path("/proc/self/fd").iterdir()):
        with suppress(FileNotFoundError):  # the descriptor by which it is listed
            found.add(str(link.readlink()))
    return found


def test_the_limit_is_raised(tmp_path):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with soft_limit(64):
        assert descriptors.half_the_limit() == 32
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)


def test_a_high_descriptor_is_waited_for():
    """select(2) takes none from 1024 on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard < 2048:
        pytest.skip("a process may have no descriptor above 1024 here")
    reading, writing = os.pipe()
    with soft_limit(2048):
        high = fcntl.fcntl(writing, fcntl.F_DUPFD, 1500)
        wait_for_room(high)
    for fd in (reading, writing, high):
        os.close(fd)

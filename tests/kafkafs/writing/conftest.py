"""What the tests of several modules here start from."""

from __future__ import annotations

import pytest

from storage.verify.verify import verify_log_dir
from tests.support.faults import FaultyDisk
from tests.support.owned_dirs import opened


@pytest.fixture
def full(tmp_path):
    """A topic of three partitions on a disk that can be full."""
    path = tmp_path / "full"
    directory = opened(path)
    directory.create_topic("t", 3)
    assert directory.close().clean
    disk = FaultyDisk(path)
    directory = opened(path, disk=disk)
    yield directory, disk
    disk.fail = lambda _what, _path: None
    assert not directory.close().errors
    assert verify_log_dir(path) == []

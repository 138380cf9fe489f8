"""What holds for every test: nothing of ours stays mounted."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mounts import detach, kafkafs_mounts


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """At the end no kafkafs is mounted below this session's temporary directory; what is gets cleaned up and named."""
    base = tmp_path_factory.getbasetemp()
    yield
    left = [path for path in kafkafs_mounts() if path.is_relative_to(base)]
    for path in left:
        detach(path)
    assert not left, f"left mounted: {', '.join(map(str, left))}"

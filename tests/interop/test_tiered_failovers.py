"""Two brokers that upload the same offsets in different segments: readers are given each message once."""

from __future__ import annotations

import pytest

from tests.interop.kafka import on_broker, requires_tiering
from tests.interop.tiered_failovers import run
from tests.support.mounts import requires_fuse

pytestmark = on_broker


@pytest.mark.nightly
@requires_tiering
@requires_fuse
def test_uploads_that_overlap(tmp_path):
    overlapping = run(tmp_path, ("unclean", "killed"), seed=1)
    # Not only what was uploaded again because nobody knew that it was there.
    assert any((one.base_offset, one.end_offset) != (other.base_offset, other.end_offset) for one, other in overlapping)

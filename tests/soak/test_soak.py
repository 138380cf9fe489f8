"""A soak of some seconds; `python -m tests.soak` runs one of any length."""

from tests.soak.soak import Plan, soak
from tests.support.mounts import requires_fuse

pytestmark = requires_fuse


def test_nothing_is_lost(tmp_path):
    report = soak(tmp_path, Plan(20, kills=3, per_second=100, segment_bytes=32 << 10, sample_every_s=5))
    assert report.is_sound, str(report)
    assert report.kills == 3
    assert report.account["acknowledged"] > 1000
    assert report.updates > 100
    assert report.reads["messages"] > 1000

"""A tiered topic through a real mount, from every layout; what no object has is EIO, for its part only."""

from __future__ import annotations

import errno
import json
import os

import pytest

import kafkafs
from storage.types import TopicPartition
from tests.support.fixtures import requires_fixtures
from tests.support.mounts import mounted, requires_fuse
from tests.support.reference_views import check_log_view, jsonl_objects, parsed, txt
from tests.support.tiers import KEYS, LAYOUTS, TIERS, copied, golden_of, partitions

pytestmark = [requires_fuse, requires_fixtures]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_record(layout, tmp_path):
    options = f"tier={TIERS / layout},tier_key=key1={KEYS['key1']},isolation=read_committed"
    with mounted(TIERS / "log", tmp_path / "mnt", "-o", options) as mount:
        for tp in partitions():
            directory, golden = mount.path / tp.topic / str(tp.partition), golden_of(tp, "read_committed")
            assert (directory / "messages.txt").read_bytes() == txt(golden), tp
            found = parsed((directory / "messages.jsonl").read_bytes())
            assert found == jsonl_objects(tp.topic, tp.partition, golden), tp
            named = sorted(path.name for path in (directory / "segments").glob("*.log"))
            bytes_of = b"".join((directory / "segments" / name).read_bytes() for name in named)
            log_start_offset = json.loads((directory / "@info.json").read_bytes())["log_start_offset"]
            view = (directory / "messages.log").read_bytes()
            check_log_view(view, bytes_of, log_start_offset, golden, "read_committed")
        sizes = {path.stat().st_size for path in (TIERS / "tier-local").glob("part-*/*.log")}
        shown = {path.stat().st_size for path in (mount.path / "part/0/segments").glob("*.log")}
        assert sizes <= shown


def test_what_is_lost_is_an_error_for_its_part(tmp_path):
    lz = TopicPartition("lz", 0)
    golden = golden_of(lz)
    with mounted(TIERS / "lost/log", tmp_path / "mnt", "-o", f"tier={TIERS / 'lost/tier-local'}") as mount:
        directory = mount.path / "lz/0"
        assert (directory / "offsets/0-780.txt").read_bytes() == txt(golden[:781])
        assert (directory / "offsets/1539-.txt").read_bytes() == txt(golden[1539:])
        assert (directory / "offsets/last-10.txt").read_bytes() == txt(golden[-10:])
        with pytest.raises(OSError, match="Input/output error") as caught:
            (directory / "messages.txt").read_bytes()
        assert caught.value.errno == errno.EIO
        fd = os.open(directory / "messages.txt", os.O_RDONLY)
        try:
            before = b"".join(iter(lambda: _more(fd), b""))
            assert before == txt(golden[:781])
        finally:
            os.close(fd)
    assert "messages 781 to 1538" in mount.path.with_name("mnt.messages").read_text()


def test_a_segment_that_the_broker_removes_here_is_read_in_the_tier(tmp_path):
    log = copied(TIERS / "log", tmp_path / "log")
    whole = txt(golden_of(TopicPartition("keep", 0)))
    with mounted(log, tmp_path / "mnt", "-o", f"tier={TIERS / 'tier-local'}") as mount:
        messages = mount.path / "keep/0/messages.txt"
        fd = os.open(messages, os.O_RDONLY)
        try:
            for segment in sorted((log / "keep-0").glob("*.log"))[:3]:
                for path in segment.parent.glob(f"{segment.stem}.*"):
                    path.unlink()
            with pytest.raises(OSError, match="out of range") as caught:
                os.pread(fd, 1000, 0)
            assert caught.value.errno == errno.ERANGE
            assert os.pread(fd, 1000, len(whole) - 1000) == whole[-1000:]
            assert messages.read_bytes() == whole
            assert os.fstat(fd).st_size == len(whole)
        finally:
            os.close(fd)


def test_a_scan_goes_on_in_the_tier(tmp_path):
    log = copied(TIERS / "log", tmp_path / "log")
    messages = kafkafs.open(log, tier=TIERS / "tier-local")["keep"][0].messages()
    offsets = [next(messages).offset]
    for segment in sorted((log / "keep-0").glob("*.log"))[:3]:
        for path in segment.parent.glob(f"{segment.stem}.*"):
            path.unlink()
    offsets += [message.offset for message in messages]
    assert offsets == [record.offset for record in golden_of(TopicPartition("keep", 0))]


def _more(fd):
    try:
        return os.read(fd, 1 << 17)
    except OSError:
        return b""

"""A tiered topic through a real mount, from every layout; what no object has is EIO, for its part only."""

import errno
import json
import os

import pytest

import kafkafs
from storage.types import TopicPartition
from tests.support.fixtures import requires_fixtures
from tests.support.mounts import mounted, requires_fuse
from tests.support.reference_views import check_log_view, jsonl_objects, parsed, txt
from tests.support.serving_processes import fails_with
from tests.support.tiers import KEYS, LAYOUTS, TIERS, copied, golden_of, partitions

pytestmark = [requires_fuse, requires_fixtures]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_record(layout, tmp_path):
    options = f"tier={TIERS / layout},tier_key=key1={KEYS['key1']},isolation=read_committed"
    with mounted(TIERS / "log", tmp_path / "mnt", "-o", options) as mount:
        for tp in partitions():
            directory, golden = mount.path / tp.topic / str(tp.partition), golden_of(tp, "read_committed")
            assert (directory / "messages.txt").read_bytes() == txt(golden), tp
            shown = parsed((directory / "messages.jsonl").read_bytes())
            assert shown == jsonl_objects(tp.topic, tp.partition, golden), tp
            segments = b"".join(path.read_bytes() for path in sorted((directory / "segments").glob("*.log")))
            log_start_offset = json.loads((directory / "@info.json").read_bytes())["log_start_offset"]
            view = (directory / "messages.log").read_bytes()
            check_log_view(view, segments, log_start_offset, golden, "read_committed")
        sizes = {path.stat().st_size for path in (TIERS / "tier-local").glob("part-*/*.log")}
        assert sizes <= {path.stat().st_size for path in (mount.path / "part/0/segments").glob("*.log")}


def test_what_is_lost_is_an_error_for_its_part(tmp_path):
    golden = golden_of(TopicPartition("lz", 0))
    with mounted(TIERS / "lost/log", tmp_path / "mnt", "-o", f"tier={TIERS / 'lost/tier-local'}") as mount:
        directory = mount.path / "lz/0"
        for name, part in (("0-780", golden[:781]), ("1539-", golden[1539:]), ("last-10", golden[-10:])):
            assert (directory / f"offsets/{name}.txt").read_bytes() == txt(part)
        before = b""
        with (directory / "messages.txt").open("rb", buffering=0) as file, fails_with(errno.EIO):
            while True:
                before += file.read(1 << 17)
        assert before == txt(golden[:781])
    assert "messages 781 to 1538" in mount.path.with_name("mnt.messages").read_text()


def removed_here(log):
    """The broker has removed the first three segments of topic keep: the tier has them."""
    for segment in sorted((log / "keep-0").glob("*.log"))[:3]:
        for path in segment.parent.glob(f"{segment.stem}.*"):
            path.unlink()


def test_a_segment_that_the_broker_removes_here_is_read_in_the_tier(tmp_path):
    log = copied(TIERS / "log", tmp_path / "log")
    whole = txt(golden_of(TopicPartition("keep", 0)))
    with mounted(log, tmp_path / "mnt", "-o", f"tier={TIERS / 'tier-local'}") as mount:
        view = mount.path / "keep/0/messages.txt"
        with view.open("rb", buffering=0) as file:
            removed_here(log)
            with fails_with(errno.ERANGE):
                os.pread(file.fileno(), 1000, 0)
            assert os.pread(file.fileno(), 1000, len(whole) - 1000) == whole[-1000:]
            assert view.read_bytes() == whole
            assert os.fstat(file.fileno()).st_size == len(whole)


def test_a_scan_goes_on_in_the_tier(tmp_path):
    log = copied(TIERS / "log", tmp_path / "log")
    messages = kafkafs.open(log, tier=TIERS / "tier-local")["keep"][0].messages()
    offsets = [next(messages).offset]
    removed_here(log)
    offsets += [message.offset for message in messages]
    assert offsets == [record.offset for record in golden_of(TopicPartition("keep", 0))]

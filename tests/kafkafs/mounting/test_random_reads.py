"""Reads at random places of every kind of view, after the manner of fsx, while the log grows, rolls, is retained,
compacted and truncated: the bytes are those that the log's messages make.

Files that stay open across such changes: test_growing.py, test_generations.py."""

import mmap
import os
import random

import pytest

from storage.format.compression import Codec
from tests.support.builders import BuiltRecord
from tests.support.live_log import START_MS, LiveLog
from tests.support.mounts import requires_fuse
from tests.support.reference_views import jsonl, txt
from tests.support.serving_processes import watched

pytestmark = requires_fuse

STEPS = 60  # changes of the log


def change(log, dice):
    """Something that happens to the log."""
    what = dice.choice(("write", "write", "write", "roll", "roll", "retain", "compact", "truncate"))
    sealed = len(log.segments) - 1
    if what == "write":
        log.write(dice.choice((1, 30, 400)), size=dice.choice((5, 300)), batch=dice.choice((1, 10, 100)))
    elif what == "roll" and log.next_offset > log.segments[-1]:
        log.roll()
    elif what == "retain" and sealed > 1:
        log.retain(dice.randrange(1, sealed))
    elif what == "compact" and sealed > 1:
        kept = dice.choice((2, 3, 7))
        log.compact(lambda offset: offset % kept == 0)
    elif what == "truncate" and log.next_offset - log.segments[0] > 50:
        log.truncate(dice.randrange(max(log.next_offset - 500, log.segments[0] + 1), log.next_offset))
    else:
        return "nothing"
    return what


def views(log, dice):
    """Files, and what each must hold now."""
    messages = [BuiltRecord(offset, timestamp, None, value) for offset, timestamp, value in log.messages]
    start, end = log.segments[0], log.next_offset
    for ext, render in (("txt", txt), ("jsonl", jsonl)):
        yield f"messages.{ext}", render(messages)
        if start == end:
            continue
        first = dice.randrange(start, end)
        last = dice.randrange(first, end + 3)
        after = [message for message in messages if message.offset >= first]
        count = dice.choice((1, 5, 300))
        yield f"offsets/{first}-{last}.{ext}", render([message for message in after if message.offset <= last])
        yield f"offsets/{first}-.{ext}", render(after)
        yield f"offsets/{first}+{count}.{ext}", render(after[:count])
        yield f"offsets/last-{count}.{ext}", render(messages[-count:])
        yield f"offsets/{first}.{ext}", render([message for message in after if message.offset == first])
        from_ms, to_ms = sorted(START_MS + 1000 * dice.randrange(start, end + 1) for _ in range(2))
        timely = [message for message in messages if message.timestamp >= from_ms]
        yield f"time/{from_ms}--.{ext}", render(timely)
        if from_ms < to_ms:
            yield f"time/{from_ms}--{to_ms}.{ext}", render([one for one in timely if one.timestamp < to_ms])
    files = {base: log.log(base).read_bytes() for base in log.segments}
    for base, data in files.items():
        yield f"segments/{log.log(base).name}", data
    yield "messages.log", b"".join(files.values())


def read_at_random(fd, content, dice):
    """read, pread, readv, lseek and, where there is something to map, a private mapping."""
    assert b"".join(iter(lambda: os.read(fd, 100_000), b"")) == content
    assert os.lseek(fd, 0, os.SEEK_END) == os.fstat(fd).st_size == len(content)
    for _ in range(6):
        at, count = dice.randrange(len(content) + 2), dice.choice((1, 7, 4096, 5000, 200_000))
        assert os.pread(fd, count, at) == content[at : at + count], (at, count)
    at = os.lseek(fd, dice.randrange(len(content) + 1), os.SEEK_SET)
    buffers = [bytearray(dice.choice((1, 100, 9000))) for _ in range(3)]
    size = os.readv(fd, buffers)
    assert size == min(sum(map(len, buffers)), len(content) - at)
    assert b"".join(buffers)[:size] == content[at : at + size]
    if content and dice.random() < 0.3:
        with mmap.mmap(fd, len(content), mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
            for _ in range(4):
                at = dice.randrange(len(content))
                assert mapped[at : at + 5000] == content[at : at + 5000]


@pytest.mark.parametrize(("seed", "codec"), [(1, Codec.NONE), (2, Codec.ZSTD)])
def test_as_a_sequential_read(tmp_path, seed, codec):
    dice, done = random.Random(seed), []
    log = LiveLog(tmp_path / "logs", codec)
    log.write(200)
    with watched(tmp_path / "logs", tmp_path / "mnt") as mount:
        for _ in range(STEPS):
            done.append(change(log, dice))
            for name, content in views(log, dice):
                try:
                    with (mount.path / "t/0" / name).open("rb", buffering=0) as file:
                        read_at_random(file.fileno(), content, dice)
                except BaseException as error:
                    error.add_note(f"{name} after {' '.join(done)}")
                    raise
    assert {"write", "roll", "retain", "compact", "truncate"} <= set(done)

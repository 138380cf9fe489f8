"""Many readers of one tree while a log is written, rolled, retained and compacted."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kafkafs.tree.tree import Tree
from storage.errors import SegmentGone
from storage.format.compression import Codec
from tests.support.live_log import LiveLog
from tests.support.reference_views import content, tree_of
from tests.support.uncompiled import plain_kernels


class Follower:
    """Reads on from where it stopped; what it read must be every message once."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree, self.path = tree, path
        self._handle = tree.lookup(path).open()
        self.data = b""

    def poll(self) -> None:
        size = self._tree.lookup(self.path).attributes().size
        while len(self.data) < size:
            part = self._handle.read(len(self.data), 10_000)
            if not part:
                return  # truncated views aside, the size is what can be read by now
            self.data += part

    def close(self) -> None:
        self._handle.close()


def test_followers_of_a_busy_log(tmp_path: Path) -> None:
    live = LiveLog(tmp_path / "log", Codec.LZ4)
    live.write(10)
    tree = tree_of(live.path.parent)
    tree.start()
    followers = [Follower(tree, f"/t/0/{name}.txt") for name in ("messages", "offsets/5-", "messages", "time/2020--")]
    written = live.text()
    skipped = len(live.text(lambda offset, _: offset < 5))
    done = threading.Event()

    def follow(follower: Follower) -> None:
        while not done.is_set():
            follower.poll()
        follower.poll()

    def browse() -> None:
        rng = random.Random(1)
        while not done.is_set():
            first = rng.randrange(live.next_offset)
            name = rng.choice((f"{first}-{first + 30}", f"{first}+9", f"last-{1 + first % 50}"))
            try:
                view = tree.lookup(f"/t/0/offsets/{name}.txt")
                handle = view.open()
                try:
                    assert len(handle.read(0, 1 << 20)) <= handle.size
                finally:
                    handle.close()
            except SegmentGone:
                pass
            except Exception as error:
                if type(error).__name__ != "OffsetOutOfRange":
                    raise

    with ThreadPoolExecutor(5) as pool:
        jobs = [pool.submit(follow, follower) for follower in followers] + [pool.submit(browse)]
        try:
            for number in range(150):
                live.write(1 + number % 13, batch=1 + number % 5)
                written += live.text(lambda offset, _, number=number: offset >= live.next_offset - 1 - number % 13)
                if number % 10 == 9:
                    live.roll()
                if number % 40 == 39:
                    # Nobody lags behind what goes: retention waits for its readers here.
                    while any(
                        len(follower.data) < len(written) - skipped * (follower is followers[1]) and not job.done()
                        for follower, job in zip(followers, jobs, strict=False)
                    ):
                        pass
                    live.compact(lambda offset: offset % 3 == 0)
                    live.retain()
        finally:
            done.set()
        for job in jobs:
            job.result()
    for follower, expected in zip(followers, (written, written[skipped:], written, written), strict=True):
        assert follower.data.split(b"\n") == expected.split(b"\n"), follower.path
    for follower in followers:
        follower.close()
    assert content(tree, "/t/0/messages.txt") == live.text()
    assert tree.status()["views"]["handles"] == 0
    tree.stop()


def test_the_plain_forms_of_all_kernels(tmp_path: Path) -> None:
    live = LiveLog(tmp_path / "log", Codec.GZIP)
    live.write(60)
    live.roll()
    live.write(20)
    with plain_kernels():
        tree = tree_of(live.path.parent)
        assert content(tree, "/t/0/offsets/15-70.txt") == live.text(lambda offset, _: 15 <= offset <= 70)
        assert content(tree, "/t/0/messages.txt") == live.text()
        assert content(tree, "/t/0/time/2023-11-14.txt") == live.text()

"""`tail -f messages.txt` on a live topic while the broker's retention and cleaner change the log."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.mounts import Mounted, requires_fuse
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, requires_fuse]
DELETE = {"cleanup.policy": "delete", "internal.segment.bytes": 10_000, "retention.bytes": 40_000}
# The lag lets tail, which polls once a second, see a message before compaction removes it.
COMPACT = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": 10_000,
    "min.cleanable.dirty.ratio": 0.01,
    "min.compaction.lag.ms": 4_000,
}


@contextmanager
def tail(view: Path, output: Path) -> Iterator[Callable[[], list[bytes]]]:
    """`tail -n +1 -f VIEW`; `lines` returns what it has printed so far."""
    with output.open("wb") as out:
        process = subprocess.Popen(["tail", "-n", "+1", "-f", str(view)], stdout=out, stderr=subprocess.PIPE)
    try:
        yield lambda: output.read_bytes().splitlines()
    finally:
        process.terminate()
        errors = process.communicate()[1].decode()
        assert not errors, errors


def deleted_files_open(pid: int) -> list[str]:
    """The deleted files, and those that await deletion, that a process holds open."""
    targets = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            targets.append(str(link.readlink()))
        except FileNotFoundError:  # closed meanwhile
            continue
    return [target for target in targets if "deleted" in target]


@pytest.mark.timeout(240)
def test_each_message_once_and_the_space_is_freed(
    broker: Broker, client: Client, live: Mounted, tmp_path: Path
) -> None:
    client.create_topic("tailed", 1, DELETE)
    log = broker.log_dir / "tailed-0"
    sent: list[bytes] = []

    def produce(count: int, keys: int) -> None:
        start = len(sent)
        sent.extend(b"%06d " % number + b"x" * 90 for number in range(start, start + count))
        client.produce("tailed", [Message(v, b"%d" % (n % keys)) for n, v in enumerate(sent[start:])], batch=10)

    def first_segment() -> int:
        return min(int(path.stem) for path in log.glob("*.log"))

    with tail(live.path / "tailed/0/messages.txt", tmp_path / "tailed") as printed:
        produce(300, 7)  # nearly retention.bytes: from here on each round removes segments that tail has read
        wait_for("the first messages", lambda: len(printed()) >= len(sent))
        for _ in range(10):
            start = len(sent)
            produce(200, 7)
            wait_for("this round's messages", lambda: len(printed()) >= len(sent))
            # at most retention.bytes and a segment remain: about 430 messages
            wait_for("a retention pass", lambda: first_segment() > start - 300)  # noqa: B023 - called at once
            wait_for("the files' deletion", lambda: not list(log.glob("*.deleted")))
            assert deleted_files_open(live.pid) == []
            assert printed() == sent
        client.alter_topic("tailed", COMPACT)
        batches = sum(path.stat().st_size for path in log.glob("*.log"))
        produce(300, 3)
        wait_for("the messages before the compaction", lambda: len(printed()) >= len(sent))
        wait_for("a compaction", lambda: sum(path.stat().st_size for path in log.glob("*.log")) < batches)
        wait_for("the files' deletion", lambda: not list(log.glob("*.deleted")))
        produce(150, 3)
        wait_for("the messages after the compaction", lambda: len(printed()) >= len(sent))
        assert deleted_files_open(live.pid) == []
        time.sleep(1.5)  # one more poll of tail, which must not print anything twice
        assert printed() == sent

    # all handles are closed: positions begin again at the log start, and what remains is what a consumer gets
    def left() -> bytes:
        return b"".join((record.value or b"") + b"\n" for record in client.consume("tailed"))

    wait_for("the compacted view", lambda: (live.path / "tailed/0/messages.txt").read_bytes() == left())

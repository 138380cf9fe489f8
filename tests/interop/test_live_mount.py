"""A running broker's directory, mounted read-only while producers write: files hold what a consumer gets."""

from __future__ import annotations

import random
import threading
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.fixtures import Golden, read_jsonl
from tests.support.mounts import Mounted, requires_fuse, run_kafkafs
from tests.support.waiting import wait_for

pytestmark = [requires_kafka, requires_fuse]
CODECS = (None, "gzip", "snappy", "lz4", "zstd")


def any_messages(rng: random.Random, count: int) -> list[Message]:
    """Nulls, empty values, bytes that are not UTF-8, headers; never both a null key and a null value (aiokafka)."""
    keys = (None, b"", b"k", "ключ".encode(), b"\xff\x00")
    headers = ((), (("h", b"x"),), (("", None), ("größe", b"\xfe"), ("h", b"")))
    values = (None, b"", b"plain", b'quo"te\\\n\t', b"\x80\x81", rng.randbytes(500), b"text " * 40)
    pairs = [(rng.choice(values), rng.choice(keys)) for _ in range(count)]
    return [Message(v, b"" if v is None and k is None else k, rng.choice(headers)) for v, k in pairs]


def as_txt(records: list[Golden]) -> bytes:
    return b"".join((record.value or b"") + b"\n" for record in records)


def test_readers_beside_producers(broker: Broker, client: Client, live: Mounted) -> None:
    """Five codecs into two partitions, segments rolling; every read is a prefix of what a consumer gets."""
    client.create_topic("busy", 2, {"internal.segment.bytes": 30_000, "index.interval.bytes": 500})
    seen: list[tuple[int, list[Golden]]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            for partition in (0, 1):
                data = (live.path / "busy" / str(partition) / "messages.jsonl").read_bytes()
                seen.append((partition, read_jsonl(data)))

    def seen_since(count: int) -> bool:
        return {partition for partition, _ in seen[count + 1 :]} == {0, 1} or not reader.is_alive()

    reader = threading.Thread(target=read)
    reader.start()
    try:
        rng = random.Random(1)
        for round_ in range(30):
            client.produce("busy", any_messages(rng, 60), round_ % 2, batch=7, compression_type=CODECS[round_ % 5])
            if round_ % 6 == 5:  # however slow the reader is, it sees several states of each
                wait_for("both were read", partial(seen_since, len(seen)))
    finally:
        stop.set()
        reader.join()
    for partition in (0, 1):
        consumed = client.consume("busy", partition)
        assert len(consumed) == 900
        tree = live.path / "busy" / str(partition)
        assert read_jsonl((tree / "messages.jsonl").read_bytes()) == consumed
        assert (tree / "messages.txt").read_bytes() == as_txt(consumed)
        assert len(list((tree / "segments").glob("*.log"))) > 2
        reads = [records for number, records in seen if number == partition]
        assert len({len(records) for records in reads}) > 2  # it really grew under the reader
        assert all(records == consumed[: len(records)] for records in reads)
    for name in ("messages.jsonl", "messages.txt"):
        assert (live.path / "busy" / "0" / name).stat().st_size == len((live.path / "busy/0" / name).read_bytes())
    assert run_kafkafs("count", broker.log_dir, "busy").stdout.split()[-1] == b"1800"


def test_the_segments_are_the_brokers_own(broker: Broker, client: Client, live: Mounted) -> None:
    """messages.log and segments/*.log hold the broker's bytes; nothing of the active segment's zero-filled indexes."""
    client.create_topic("verbatim", 1, {"internal.segment.bytes": 10_000})
    client.produce("verbatim", any_messages(random.Random(2), 300), batch=5)
    files = sorted((broker.log_dir / "verbatim-0").glob("*.log"))
    assert len(files) > 2
    whole = b"".join(path.read_bytes() for path in files)
    assert (live.path / "verbatim/0/messages.log").read_bytes() == whole
    assert {path.name: path.read_bytes() for path in (live.path / "verbatim/0/segments").glob("*.log")} == {
        path.name: path.read_bytes() for path in files
    }
    assert run_kafkafs("cat", broker.log_dir, "verbatim/0", "--format", "log").stdout == whole


def test_transactions(broker: Broker, client: Client, live: Mounted, live_committed: Mounted) -> None:
    """Committed and aborted transactions, records without one between them, in both isolations."""
    client.create_topic("tx", 1, {"internal.segment.bytes": 5_000})
    rng = random.Random(3)
    for _ in range(8):
        client.transactions("tx", [(rng.random() < 0.6, any_messages(rng, rng.randrange(1, 30))) for _ in range(3)])
        client.produce("tx", any_messages(rng, 5))
    uncommitted, committed = client.consume("tx"), client.consume("tx", committed=True)
    assert 0 < len(committed) < len(uncommitted)
    assert read_jsonl((live.path / "tx/0/messages.jsonl").read_bytes()) == uncommitted
    assert read_jsonl((live_committed.path / "tx/0/messages.jsonl").read_bytes()) == committed
    cat = run_kafkafs("cat", broker.log_dir, "tx", "--format", "jsonl", "--isolation", "read_committed")
    assert read_jsonl(cat.stdout) == committed
    assert run_kafkafs("count", broker.log_dir, "tx").stdout.split()[-1] == str(len(uncommitted)).encode()


def test_new_messages_at_once(client: Client, live: Mounted) -> None:
    """Acknowledged messages are there at the next look, also through a handle that was opened before."""
    client.create_topic("prompt")
    view = live.path / "prompt/0/messages.txt"
    expected = b""
    with view.open("rb", buffering=0) as opened:
        for number in range(3):
            client.produce("prompt", [Message(b"message %d" % number)])
            expected += b"message %d\n" % number
            assert view.stat().st_size == len(expected)
            assert opened.read() == b"message %d\n" % number
    assert view.read_bytes() == expected


def test_delete_records_moves_the_log_start(broker: Broker, client: Client, live: Mounted) -> None:
    """Once the broker has checkpointed its log start offset, a fresh open begins there."""
    client.create_topic("started")
    client.produce("started", [Message(b"%d" % number) for number in range(100)], batch=10)
    client.delete_records("started", 0, 37)
    starts = broker.log_dir / "log-start-offset-checkpoint"
    wait_for("the checkpoint", lambda: "started 0 37" in starts.read_text())
    view = live.path / "started/0/messages.txt"
    assert view.read_bytes() == as_txt(client.consume("started"))
    with pytest.raises(OSError, match="Numerical result out of range"):
        (live.path / "started/0/offsets/36.txt").read_bytes()


def test_new_topics_are_there_at_once(client: Client, live: Mounted) -> None:
    """Immediately after creation, also several within one tick of the directory's mtime."""
    for number in range(12):
        missing = live.path / f"new-{number}"
        assert not missing.exists()
        client.create_topic(f"new-{number}")
        assert (missing / "0/messages.txt").read_bytes() == b""
        assert missing.name in {path.name for path in live.path.iterdir()}


def test_internal_topics_and_deleted_ones(client: Client, live: Mounted) -> None:
    """__consumer_offsets and __transaction_state are readable like any topic; a deleted topic disappears."""
    client.create_topic("short-lived")
    client.transactions("short-lived", [(True, [Message(b"x")])], id="for-state")
    assert (live.path / "short-lived").is_dir()
    internal = "__transaction_state"
    view = live.path / internal / "0/messages.jsonl"
    # The broker writes that a transaction is complete after it has answered the commit.
    wait_for("both show the same", lambda: read_jsonl(view.read_bytes()) == client.consume(internal))
    client.delete_topic("short-lived")
    wait_for("the topic is gone", lambda: "short-lived" not in {path.name for path in live.path.iterdir()})
    assert not [path.name for path in live.path.iterdir() if path.name.endswith("-delete")]


def test_nothing_is_held_open(client: Client, live: Mounted) -> None:
    """Between reads kafkafs has none of the broker's files open, and no lock on the directory."""
    client.create_topic("unheld")
    client.produce("unheld", [Message(b"x")])
    with (live.path / "unheld/0/messages.txt").open("rb") as opened:
        assert opened.read() == b"x\n"
        held = [Path(file.path) for file in psutil.Process(live.pid).open_files()]
        assert not [path for path in held if path.suffix in (".log", ".index", ".timeindex") or path.name == ".lock"]


def test_after_a_kill(tmp_path: Path) -> None:
    """A broker killed with -9 leaves no clean shutdown and full-size indexes; everything acknowledged is readable."""
    broker = Broker(tmp_path / "killed")
    try:
        client = Client(broker.start().address)
        client.create_topic("acked", 1, {"internal.segment.bytes": 8_000})
        client.produce("acked", any_messages(random.Random(5), 200), batch=9, compression_type="lz4")
        client.transactions("acked", [(True, [Message(b"in")]), (False, [Message(b"out")])])
        consumed, committed = client.consume("acked"), client.consume("acked", committed=True)
    finally:
        broker.kill()
    cat = ("cat", broker.log_dir, "acked", "--format", "jsonl", "--isolation")
    assert read_jsonl(run_kafkafs(*cat, "read_uncommitted").stdout) == consumed
    assert read_jsonl(run_kafkafs(*cat, "read_committed").stdout) == committed

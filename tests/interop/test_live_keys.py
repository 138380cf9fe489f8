"""`keys/<key>.EXT` on a live broker's directory, mounted read-only."""

from __future__ import annotations

import pytest

from storage.append.partitioner import in_order_for_key
from tests.interop.client import Client, Message
from tests.interop.kafka import requires_kafka
from tests.support.fixtures import Golden, read_jsonl
from tests.support.mounts import Mounted, requires_fuse

pytestmark = [requires_kafka, requires_fuse]
START = 1_795_000_000_000
KEYS = 40


def of_key(client: Client, key: bytes) -> list[list[Golden]]:
    """What consumers see of a key, by partition."""
    return [[record for record in client.consume("keyed", number) if record.key == key] for number in range(2)]


def test_a_key_shows_as_soon_as_its_message_is_acknowledged(client: Client, live: Mounted) -> None:
    """Of a compacted topic under load that rolls: what a consumer gets of the key, in the partitions' order."""
    settings = {"cleanup.policy": "compact", "internal.segment.bytes": 20_000, "min.cleanable.dirty.ratio": 0.99}
    client.create_topic("keyed", 2, settings)
    keys = live.path / "keyed" / "keys"
    for turn in range(3):
        messages = [
            Message(b"%d of turn %d" % (number, turn), b"key-%d" % (number % KEYS), (), START + number)
            for number in range(400)
        ]
        for number in range(2):
            client.produce("keyed", messages[number::2], partition=number)
        key = b"new-%d" % turn
        assert not (keys / f"new-{turn}.txt").exists()
        for number in range(2):
            client.produce("keyed", [Message(b"first in %d" % number, key, (), START)], partition=number)
            lines = read_jsonl((live.path / "keyed" / str(number) / "keys" / f"new-{turn}.jsonl").read_bytes())
            assert [line.value for line in lines] == [b"first in %d" % number]
        order = in_order_for_key(key, [0, 1], 2)
        assert (keys / f"new-{turn}.txt").read_bytes() == b"".join(b"first in %d\n" % number for number in order)
        for known in (b"key-0", b"key-39"):
            parts = of_key(client, known)
            expected = [record for number in in_order_for_key(known, [0, 1], 2) for record in parts[number]]
            assert read_jsonl((keys / f"{known.decode()}.jsonl").read_bytes()) == expected
    names = {path.name for path in keys.iterdir()}
    assert names == {f"key-{number}.txt" for number in range(KEYS)} | {f"new-{turn}.txt" for turn in range(3)}


def test_an_open_file_gets_what_is_produced(client: Client, live: Mounted) -> None:
    client.create_topic("keyed-open", 1, {})
    client.produce("keyed-open", [Message(b"0", b"k", (), START)])
    with (live.path / "keyed-open" / "keys" / "k.txt").open("rb", buffering=0) as file:
        assert file.read(100) == b"0\n"
        for number in range(1, 6):
            client.produce("keyed-open", [Message(b"other", b"o", (), START), Message(b"%d" % number, b"k", (), START)])
            assert file.read(100) == b"%d\n" % number


def test_a_key_that_nobody_has(client: Client, live: Mounted) -> None:
    client.create_topic("keyed-none", 1, {})
    client.produce("keyed-none", [Message(b"0", b"k", (), START)])
    with pytest.raises(FileNotFoundError):
        (live.path / "keyed-none" / "keys" / "nobody.txt").read_bytes()

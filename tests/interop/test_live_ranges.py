"""Offset and time ranges on a live broker's directory, against a consumer that seeks and ListOffsets by time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.interop.client import Client, Message
from tests.interop.kafka import Broker, requires_kafka
from tests.support.fixtures import Golden, read_jsonl
from tests.support.mounts import Mounted, requires_fuse, run_kafkafs

pytestmark = [requires_kafka, requires_fuse]
START = 1_795_000_000_000
COUNT = 2_000


@pytest.fixture(scope="module")
def disordered(client: Client) -> list[Golden]:
    """Topic `ranges`: timestamps spread over two hours, in segments of about a hundred messages."""
    rng = random.Random(4)
    settings = {"internal.segment.bytes": 12_000, "index.interval.bytes": 300, "retention.ms": -1}
    client.create_topic("ranges", 1, settings)
    messages = [
        Message(b"%d" % number, b"k", (), START + number * 3_600 + rng.randrange(-400_000, 400_000))
        for number in range(COUNT)
    ]
    client.produce("ranges", messages, batch=17)
    return client.consume("ranges")


@pytest.fixture
def partition(live: Mounted) -> Path:
    return live.path / "ranges" / "0"


def test_offset_ranges(client: Client, disordered: list[Golden], partition: Path, broker: Broker) -> None:
    rng = random.Random(5)
    for _ in range(25):
        first = rng.randrange(COUNT)
        last = min(COUNT - 1, first + rng.randrange(300))
        sought = client.consume("ranges", start=first, end=last + 1)
        assert sought == disordered[first : last + 1]
        assert read_jsonl((partition / f"offsets/{first}-{last}.jsonl").read_bytes()) == sought
        assert read_jsonl((partition / f"offsets/{first}+{last + 1 - first}.jsonl").read_bytes()) == sought
    for tail in (1, 10, 777, COUNT, COUNT + 5):
        assert read_jsonl((partition / f"offsets/last-{tail}.jsonl").read_bytes()) == disordered[-tail:]
    assert read_jsonl((partition / "offsets/1990-.jsonl").read_bytes()) == disordered[1990:]
    assert read_jsonl((partition / "offsets/5.jsonl").read_bytes()) == [disordered[5]]
    cat = run_kafkafs("cat", broker.log_dir, "ranges/0", "--offsets", "100-199", "--format", "jsonl")
    assert read_jsonl(cat.stdout) == disordered[100:200]


def test_time_ranges(disordered: list[Golden], partition: Path, broker: Broker) -> None:
    """Exactly the messages whose timestamp is in the range, in offset order."""
    rng = random.Random(6)
    times = sorted(record.timestamp for record in disordered)
    for _ in range(25):
        start, end = sorted(rng.sample(range(times[0] - 10, times[-1] + 10), 2))
        wanted = [record for record in disordered if start <= record.timestamp < end]
        assert read_jsonl((partition / f"time/{start}--{end}.jsonl").read_bytes()) == wanted
    middle = times[COUNT // 2]
    after = [record for record in disordered if record.timestamp >= middle]
    before = [record for record in disordered if record.timestamp < middle]
    assert read_jsonl((partition / f"time/{middle}--.jsonl").read_bytes()) == after
    assert read_jsonl((partition / f"time/until-{middle}.jsonl").read_bytes()) == before
    cat = run_kafkafs("cat", broker.log_dir, "ranges/0", "--time", f"{middle}--", "--format", "jsonl")
    assert read_jsonl(cat.stdout) == after


def test_the_first_message_of_a_time_range_is_list_offsets_answer(
    client: Client, disordered: list[Golden], partition: Path
) -> None:
    rng = random.Random(7)
    least, greatest = min(r.timestamp for r in disordered), max(r.timestamp for r in disordered)
    for asked in [least - 5, least, greatest, greatest + 1, *(rng.randrange(least, greatest) for _ in range(15))]:
        answer = client.offset_for_time("ranges", asked)
        found = read_jsonl((partition / f"time/{asked}--.jsonl").read_bytes())
        assert ((found[0].offset, found[0].timestamp) if found else None) == answer

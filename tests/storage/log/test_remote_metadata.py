"""`__remote_log_metadata`: the states of remote segments, whatever is in the topic."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.remote_metadata import KnownSegment, RemoteMetadata, RemoteState, ascending_epochs
from storage.types import TopicPartition
from tests.support.fixtures import requires_fixtures
from tests.support.readers import read_past_damage
from tests.support.tiers import TIERS, copied, golden_of, opened, partitions


@requires_fixtures
def test_states_are_those_of_the_broker() -> None:
    log_dir = LogDir.open_read_only(TIERS / "log")
    golden = json.loads((TIERS / "golden" / "segments.json").read_text())
    for one in golden:
        assert one["topic_id"] == log_dir.topic_info(one["topic"]).topic_id
        found = (log_dir.remote_metadata.segments(one["topic_id"], one["partition"]) or {})[one["id"]]
        assert (found.base_offset, found.end_offset - 1, found.size_bytes) == (one["start"], one["end"], one["size"])
        assert found.state == one["states"][-1]
        if found.state is not RemoteState.DELETE_FINISHED:
            assert dict(found.epochs) == {int(epoch): start for epoch, start in one["epochs"].items()}
    assert len(golden) > 30
    assert log_dir.remote_metadata.segments("AAAAAAAAAAAAAAAAAAAAAA", 0) is None


@requires_fixtures
def test_events_that_are_added_are_followed(tmp_path: Path) -> None:
    directory = copied(TIERS / "log", tmp_path / "log")
    keep = TopicPartition("keep", 0)
    log_dir = LogDir.open_read_only(directory)
    topic_id = log_dir.topic_info("keep").topic_id or ""
    whole = log_dir.remote_metadata.segments(topic_id, 0)
    file = next(
        path
        for path in directory.glob(f"{names.REMOTE_LOG_METADATA_TOPIC}-*/*0.log")
        if b"\x05keep" in path.read_bytes()
    )
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    log_dir = LogDir.open_read_only(directory)
    half = log_dir.remote_metadata.segments(topic_id, keep.partition) or {}
    assert _states(half) != _states(whole)
    with file.open("ab") as more:
        more.write(data[len(data) // 2 :])
    assert _states(log_dir.remote_metadata.segments(topic_id, keep.partition)) == _states(whole)


def _states(found: dict[str, KnownSegment] | None) -> dict[str, RemoteState]:
    return {name: one.state for name, one in (found or {}).items()}


def test_transitions_are_kafkas() -> None:
    """Random events: only the transitions that Kafka allows happen."""
    rng = random.Random(3)
    of = {"name": "t", "id": "x", "partition": 0}
    for _ in range(300):
        metadata = RemoteMetadata(list)
        expected: int | None = None
        for _ in range(rng.randrange(12)):
            state, first = rng.randrange(-1, 6), rng.random() < 0.4
            data = {"remoteLogSegmentId": {"topicIdPartition": of, "id": "s"}, "remoteLogSegmentState": state}
            if first:
                data |= {"startOffset": 5, "endOffset": 9, "segmentSizeInBytes": 1, "segmentLeaderEpochs": []}
            metadata._apply_locked(data)
            if expected is None:
                expected = 0 if first and state == 0 else None
            elif (expected, state) in {(0, 1), (0, 2), (1, 2), (2, 3)}:
                expected = state
        found = metadata.segments("x", 0)
        assert (found or {}).get("s") is None if expected is None else found["s"].state is RemoteState(expected)  # type: ignore[index]


@given(st.lists(st.tuples(st.integers(-5, 2**31), st.integers(-5, 2**63 - 1)), max_size=6))
def test_epochs_ascend_or_count_for_nothing(entries: list[tuple[int, int]]) -> None:
    found = ascending_epochs(entries)
    if found is not None:
        assert found == tuple(sorted(entries))
        assert all(one[0] < other[0] and one[1] <= other[1] for one, other in pairwise(found))


@requires_fixtures
def test_damaged_events_crash_nothing(tmp_path: Path) -> None:
    """Bytes of the metadata topic changed anywhere: each message that is shown is one of the log."""
    rng = random.Random(7)
    directory = copied(TIERS / "log", tmp_path / "log")
    files = list(directory.glob(f"{names.REMOTE_LOG_METADATA_TOPIC}-*/*0.log"))
    whole = {path: path.read_bytes() for path in files}
    tps = list(partitions())
    for _ in range(12):
        for path, data in whole.items():
            damaged = bytearray(data)
            for _ in range(rng.randrange(1, 20)):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            path.write_bytes(bytes(damaged[: rng.randrange(len(damaged))] if rng.random() < 0.3 else damaged))
        log_dir = opened(directory, TIERS / "tier-local")
        for tp in rng.sample(tps, 2):
            golden = {record.offset: record for record in golden_of(tp)}
            records, _ = read_past_damage(log_dir.log(tp).snapshot())
            assert all(golden.get(record.offset) == record for record in records)
            assert [record.offset for record in records] == sorted({record.offset for record in records})

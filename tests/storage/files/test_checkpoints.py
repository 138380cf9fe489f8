"""The offset checkpoints and leader epochs: round trips, damage, and what a broker makes of odd files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptCheckpoint
from storage.files import checkpoints, leader_epochs
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.types import MAX_OFFSET, TopicPartition
from tests.support.fixtures import FIXTURES, requires_fixtures

partitions = st.builds(
    TopicPartition, st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 2**31 - 1)
)


@given(st.dictionaries(partitions, st.integers(-1, MAX_OFFSET), max_size=20))
def test_round_trip(offsets: dict[TopicPartition, int]) -> None:
    data = checkpoints.encode(offsets)
    assert checkpoints.parse(data) == offsets
    assert data.startswith(f"0\n{len(offsets)}\n".encode())


def test_format() -> None:
    data = checkpoints.encode({TopicPartition("b", 1): 7, TopicPartition("a", 10): 0, TopicPartition("a", 2): 5})
    assert data == b"0\n3\na 2 5\na 10 0\nb 1 7\n"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", {}),
        (b"0", {}),
        (b"0\n", {}),
        (b"0\n0\n", {}),
        (b"0\n0", {}),
        (b"0\r\n1\r\nt 0 5\r\n", {TopicPartition("t", 0): 5}),
        (b"0\r1\rt 0 5", {TopicPartition("t", 0): 5}),
        (b"0\n1\nt  \t0 5  \n", {TopicPartition("t", 0): 5}),
        (b"+0\n1\nt +0 -5\n", {TopicPartition("t", 0): -5}),
        (b"0\n2\nt 0 5\nt 0 6\n", {TopicPartition("t", 0): 6}),
    ],
)
def test_accepted(data: bytes, expected: dict[TopicPartition, int]) -> None:
    assert checkpoints.parse(data) == expected


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"1\n0\n", "unknown version"),
        (b"x\n0\n", "malformed line"),
        (b"\n0\n", "malformed line"),
        (b"0\nx\n", "malformed line"),
        (b"0\n\n", "malformed line"),
        (b"0\n1\n", "count does not match"),
        (b"0\n2\nt 0 5\n", "count does not match"),
        (b"0\n0\nt 0 5\n", "count does not match"),
        (b"0\n1\nt 0 5\n\n", "malformed line"),
        (b"0\n1\nt 0\n", "malformed line"),
        (b"0\n1\nt 0 5 6\n", "malformed line"),
        (b"0\n1\n t 0 5\n", "malformed line"),
        (b"0\n1\nt 0 5.0\n", "malformed line"),
        (b"0\n1\nt 0 1_0\n", "malformed line"),
        (b"0\n1\nt 2147483648 5\n", "malformed line"),
        (b"0\n1\nt 0 9223372036854775808\n", "malformed line"),
        (b"0\n99999999999\n", "malformed line"),
        (b"0\n1\nt\xff 0 5\n", "not UTF-8"),
    ],
)
def test_refused(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(data)
    with pytest.raises(CorruptCheckpoint, match=what) as refused:
        checkpoints.read(path)
    assert refused.value.path == path


def test_no_file(tmp_path: Path) -> None:
    assert checkpoints.read(tmp_path / "none") == {}
    assert leader_epochs.read(tmp_path / "none") == LeaderEpochs()


@given(st.binary(max_size=60) | st.text("0123456789 \nt-", max_size=40).map(str.encode))
def test_any_bytes(data: bytes) -> None:
    with contextlib.suppress(CorruptCheckpoint):
        offsets = checkpoints.parse(data)
        assert checkpoints.parse(checkpoints.encode(offsets)) == offsets
    with contextlib.suppress(CorruptCheckpoint):
        epochs = leader_epochs.parse(data)
        assert leader_epochs.parse(leader_epochs.encode(epochs.entries)) == epochs


@requires_fixtures
def test_every_checkpoint_that_a_broker_wrote() -> None:
    offsets = epochs = 0
    for path in FIXTURES.rglob("*-checkpoint"):
        if path.name == "leader-epoch-checkpoint":
            found = leader_epochs.read(path)
            assert leader_epochs.encode(found.entries) == path.read_bytes()
            epochs += 1
        else:
            # A broker writes them in the order of its hash map.
            data = path.read_bytes()
            assert sorted(checkpoints.encode(checkpoints.read(path)).splitlines()) == sorted(
                data.splitlines() or [b"0", b"0"]
            )
            offsets += 1
    assert offsets > 20
    assert epochs > 50


EPOCHS = LeaderEpochs((EpochEntry(0, 0), EpochEntry(2, 10), EpochEntry(5, 30)))


def test_latest_epoch() -> None:
    assert EPOCHS.latest_epoch == 5
    assert LeaderEpochs().latest_epoch is None


@pytest.mark.parametrize(
    ("epoch", "start", "expected"),
    [
        (6, 40, [(0, 0), (2, 10), (5, 30), (6, 40)]),
        (5, 30, [(0, 0), (2, 10), (5, 30)]),
        (5, 40, [(0, 0), (2, 10), (5, 30)]),  # the first start offset of an epoch counts
        (5, 20, [(0, 0), (2, 10), (5, 20)]),
        (6, 30, [(0, 0), (2, 10), (6, 30)]),
        (1, 40, [(0, 0), (1, 40)]),
        (9, 0, [(9, 0)]),
    ],
)
def test_assign(epoch: int, start: int, expected: list[tuple[int, int]]) -> None:
    assert EPOCHS.assign(EpochEntry(epoch, start)).entries == tuple(EpochEntry(*entry) for entry in expected)


def test_truncation() -> None:
    assert EPOCHS.truncate_from_end(30).entries == EPOCHS.entries[:2]
    assert EPOCHS.truncate_from_end(31) == EPOCHS
    assert EPOCHS.truncate_from_end(0) == LeaderEpochs()
    assert EPOCHS.truncate_from_start(0) == EPOCHS
    assert EPOCHS.truncate_from_start(10).entries == EPOCHS.entries[1:]
    assert EPOCHS.truncate_from_start(29).entries == (EpochEntry(2, 29), EpochEntry(5, 30))
    assert EPOCHS.truncate_from_start(99).entries == (EpochEntry(5, 99),)
    late = LeaderEpochs((EpochEntry(3, 50),))
    assert late.truncate_from_start(40) == late


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=20))
def test_epochs_round_trip(steps: list[tuple[int, int]]) -> None:
    entries = tuple(
        EpochEntry(sum(a for a, _ in steps[: n + 1]), sum(b for _, b in steps[: n + 1])) for n in range(len(steps))
    )
    assert leader_epochs.parse(leader_epochs.encode(entries)) == LeaderEpochs(entries)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"0\n1\n-1 0\n", "malformed line"),
        (b"0\n1\n0 -1\n", "malformed line"),
        (b"0\n1\n0\n", "malformed line"),
        (b"0\n1\n2147483648 0\n", "malformed line"),
        (b"2\n0\n", "unknown version"),
    ],
)
def test_refused_epochs(data: bytes, what: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=what):
        leader_epochs.parse(data)


def test_contradicting_epochs_are_settled_as_a_broker_does() -> None:
    assert leader_epochs.parse(b"0\n3\n0 0\n5 30\n2 10\n").entries == (EpochEntry(0, 0), EpochEntry(2, 10))

"""Segments whose offsets pass 32 bits: split when they are opened, as a broker does, and whatever stops it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.append.batch_encoder import encode
from storage.directory.owned_dir import Opening
from storage.files import names, time_index, transaction_index
from storage.files.names import FileKind
from storage.files.transaction_index import AbortedTxn
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import BatchFields, encode_batch
from storage.recovery.recovery import RecoveryPlan, rehearse
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir
from tests.support.crash_points import Sessions, every_crash
from tests.support.owned_dirs import StandingClock, append, close_clean, opened, read, tree_of

TP = TopicPartition("t", 0)
SPAN = 2**31
TIME = 1_763_700_000_000
# By name: offsets of the batches of two messages each; the segments that come of it.
SHAPES: dict[str, tuple[list[int], list[int]]] = {
    "beyond": ([0, 2, SPAN - 2, SPAN, SPAN + 7, 3 * SPAN, 3 * SPAN + 2], [0, SPAN, 3 * SPAN]),
    "late": ([SPAN + 1, SPAN + 3, 3 * SPAN], [SPAN + 1, 3 * SPAN]),
    "named wrongly": ([5, 7, SPAN - 1], [5]),
}


def batch(offset: int, *, magic: int = 2) -> bytes:
    records = [Record(None, b"%d" % (offset + n), (), TIME + offset % 1000 + n) for n in range(2)]
    if magic == 2:
        return encode_batch(records, base_offset=offset, fields=BatchFields(leader_epoch=0))
    return encode(records, magic=magic, codec=Codec.GZIP, base_offset=offset)


def values(offsets: list[int]) -> list[bytes]:
    return [b"%d" % (offset + n) for offset in offsets for n in range(2)]


def made(path: Path, offsets: list[int], *, clean: bool, later: bool = False, magic: int = 2) -> None:
    """A log with one segment of these batches, as an old broker left it; `later`: and another one after it."""
    owned = opened(path)
    owned.create_topic("t", 1, {"index.interval.bytes": "100"})
    close_clean(owned)
    data = b"".join(batch(offset, magic=magic) for offset in offsets)
    (path / "t-0" / names.segment_file(0, FileKind.LOG)).write_bytes(data)
    if later:
        base = 4 * SPAN
        times = b"" if magic == 0 else time_index.encode([TIME + base % 1000 + 1], [base + 1], base)
        contents = {FileKind.LOG: batch(base, magic=magic), FileKind.OFFSET_INDEX: b"", FileKind.TIME_INDEX: times}
        for kind, content in contents.items():
            (path / "t-0" / names.segment_file(base, kind)).write_bytes(content)
    if not clean:
        (path / names.CLEAN_SHUTDOWN).unlink()


def bases(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in (path / "t-0").glob("*.log"))


def segments_in(path: Path) -> dict[str, bytes]:
    """The segments' files. (How many producer snapshots are written depends on how the directory was found.)"""
    return {name: data for name, data in tree_of(path / "t-0").items() if not name.endswith(".snapshot")}


@pytest.mark.parametrize("later", [False, True], ids=["the last", "not the last"])
@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_split(tmp_path: Path, shape: str, clean: bool, later: bool) -> None:
    offsets, expected = SHAPES[shape]
    made(tmp_path / "dir", offsets, clean=clean, later=later)
    more = [4 * SPAN] if later else []
    owned = opened(tmp_path / "dir", Opening(gentle=True))
    assert read(owned, "t") == values(offsets + more)
    assert bases(tmp_path / "dir") == expected + more
    assert any("splits" in change for change in owned.reports()[TP].changes)
    append(owned.log(TP), [b"after"])
    assert read(owned, "t") == [*values(offsets + more), b"after"]
    close_clean(owned)
    owned = opened(tmp_path / "dir")
    assert read(owned, "t") == [*values(offsets + more), b"after"]
    assert not owned.reports()[TP].changes
    close_clean(owned)


def test_the_snapshot_at_its_base_stays(tmp_path: Path) -> None:
    """As in a broker, although the producer in it has expired by now."""
    path = tmp_path / "dir"
    records = [Record(None, b"x", (), StandingClock().now_ms() - 2 * 86_400_000)]
    items = [Batch(records, producer_id=7), ROLL, Batch(records), ROLL, Batch(records)]
    build_log_dir(path, {"t": [Partition(items, recovery_point=2)]}, clean=False)
    with (path / "t-0" / names.segment_file(2, FileKind.LOG)).open("ab") as file:
        file.write(batch(SPAN + 3))
    snapshot = path / "t-0" / names.segment_file(2, FileKind.PRODUCER_SNAPSHOT)
    before = snapshot.read_bytes()
    owned = opened(path)
    assert any("splits" in change for change in owned.reports()[TP].changes)
    assert bases(path) == [0, 1, 2, SPAN + 3]
    assert snapshot.read_bytes() == before
    close_clean(owned)


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_are_named_by_their_first_message(tmp_path: Path, magic: int) -> None:
    offsets = [0, SPAN + 10, SPAN + 12]
    made(tmp_path / "dir", offsets, clean=False, magic=magic)
    owned = opened(tmp_path / "dir")
    assert bases(tmp_path / "dir") == [0, SPAN + 10]
    assert read(owned, "t") == values(offsets)
    close_clean(owned)


@pytest.mark.leaves_damage("txn-index-invented")  # its log has no transactions
def test_aborted_transactions_go_with_their_markers(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    made(path, SHAPES["beyond"][0], clean=True, later=True)
    aborted = [
        AbortedTxn(1, 0, 1, 2),
        AbortedTxn(2, 3, SPAN, SPAN + 1),
        AbortedTxn(3, SPAN, 3 * SPAN + 2, 3 * SPAN + 3),
    ]
    index = path / "t-0" / names.segment_file(0, FileKind.TRANSACTION_INDEX)
    index.write_bytes(transaction_index.encode(aborted))
    owned = opened(path)
    owned.log(TP)
    for base, entry in zip([0, SPAN, 3 * SPAN], aborted, strict=True):
        found = transaction_index.load(index.with_name(names.segment_file(base, FileKind.TRANSACTION_INDEX)), base)
        assert found.entries() == [entry]
    owned.close()


def test_what_is_not_sound_behind_the_span_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    offsets = SHAPES["beyond"][0]
    made(path, offsets, clean=False, later=True)
    log = path / "t-0" / names.segment_file(0, FileKind.LOG)
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)
    before = tree_of(path)
    owned = opened(path, Opening(gentle=True))
    assert list(owned.failures()) == [TP]
    owned.close()
    assert tree_of(path / "t-0") == {name[4:]: data for name, data in before.items() if name.startswith("t-0/")}
    owned = opened(path)
    assert owned.reports()[TP].removed_segments == [4 * SPAN]
    assert read(owned, "t") == values(offsets[:-1])
    close_clean(owned)


def test_a_rehearsal_tells_of_it(tmp_path: Path) -> None:
    path = tmp_path / "dir"
    made(path, SHAPES["late"][0], clean=False)
    owned = opened(path, Opening(only=()))
    config = owned.topic_info("t").config
    owned.close()
    before = tree_of(path)
    told = rehearse(RecoveryPlan(TP, path / "t-0", config, clean=False), clock=StandingClock())
    assert tree_of(path) == before
    owned = opened(path)
    assert told.changes == owned.reports()[TP].changes
    close_clean(owned)


@pytest.mark.parametrize("clean", [False, True], ids=["unclean", "clean"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.leaves_damage("batch-range")  # before it is opened
def test_stopped_anywhere(tmp_path: Path, shape: str, clean: bool) -> None:
    offsets, expected = SHAPES[shape]
    before = tmp_path / "before"
    made(before, offsets, clean=clean, later=True)
    whole = shutil.copytree(before, tmp_path / "whole")
    owned = opened(whole)
    owned.log(TP)
    close_clean(owned)
    after = segments_in(whole)

    def work(sessions: Sessions, _notes: None) -> None:
        sessions.open(opening=Opening()).log(TP)

    stopped = None
    for stopped, _ in every_crash(tmp_path, before, work, lambda: None):
        owned = opened(stopped.path)
        assert read(owned, "t") == values([*offsets, 4 * SPAN]), str(stopped)
        assert bases(stopped.path) == [*expected, 4 * SPAN], str(stopped)
        close_clean(owned, stopped)
        assert segments_in(stopped.path) == after, str(stopped)
    assert stopped is not None
    assert stopped.stop_at > 30

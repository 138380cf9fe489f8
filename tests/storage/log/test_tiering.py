"""Logs whose beginning is in tiered storage: what is known of it, and that writing keeps it known."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage.directory.owned_dir import OwnedDir
from storage.errors import OffsetOutOfRange
from storage.files import checkpoints, leader_epochs, names
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.log.log_dir import LogDir
from storage.log.offset_lookup import SpecialTimestamp, list_offset
from storage.log.tiering import remote_offsets
from storage.types import OffsetRange, TopicPartition
from storage.upkeep.retention import TIERED, brokers_retention, preview_partition, retain_partition
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.owned_dirs import StandingClock
from tests.support.tiers import TIERS, opened

GONE, CUT = TopicPartition("gone", 0), TopicPartition("cut", 0)

pytestmark = requires_fixtures


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """A broker's directory, to be written to."""
    copy = tmp_path / "log"
    shutil.copytree(FIXTURES / "tiered" / "log", copy)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def _without_metadata(directory: Path) -> None:
    shutil.rmtree(directory / "__cluster_metadata-0")
    (directory / names.META_PROPERTIES).unlink()


def _ends(directory: Path, tp: TopicPartition) -> tuple[OffsetRange | None, int, int]:
    snapshot = LogDir.open_read_only(directory).log(tp).snapshot()
    return snapshot.remote_offsets, snapshot.log_start_offset, snapshot.log_end_offset


@pytest.mark.parametrize("known", [True, False])
def test_where_a_tiered_log_begins(tiered: Path, known: bool) -> None:
    if not known:
        _without_metadata(tiered)
    assert _ends(tiered, GONE) == (OffsetRange(0, 1260), 1260, 1260)
    assert _ends(tiered, CUT) == (OffsetRange(517, 724), 724, 1252)


def test_a_lost_checkpoint_leaves_the_first_leader_epoch(tiered: Path) -> None:
    (tiered / names.LOG_START_CHECKPOINT).unlink()
    assert _ends(tiered, CUT) == (OffsetRange(517, 724), 724, 1252)
    _without_metadata(tiered)
    assert _ends(tiered, CUT) == (None, 724, 1252)


def test_the_rule() -> None:
    def remote(checkpointed: int | None, first_epoch: int | None, tiered: bool | None) -> tuple[int, int] | None:
        epochs = LeaderEpochs(() if first_epoch is None else (EpochEntry(3, first_epoch),))
        found = remote_offsets(300, checkpointed, epochs, lambda: tiered)
        return None if found is None else (found.start, found.end)

    assert remote(150, 150, True) == (150, 300)
    assert remote(150, None, True) == (150, 300)
    assert remote(150, 150, False) is None  # an old line: segments were removed since
    assert remote(150, 300, None) is None  # so is this one: the epochs were moved up with the log start
    assert remote(150, None, None) is None
    assert remote(150, 0, None) == (150, 300)
    assert remote(None, 0, True) == (0, 300)
    assert remote(None, 0, None) is None
    assert remote(None, 300, True) is None
    assert remote(300, 0, True) is None
    assert remote(310, 0, True) is None


def test_an_old_line_of_another_topic_is_not_believed(tiered: Path) -> None:
    path = tiered / names.LOG_START_CHECKPOINT
    shutil.copytree(tiered / "cut-0", tiered / "other-0")
    lines = checkpoints.read(path) | {TopicPartition("other", 0): 100}
    path.write_bytes(checkpoints.encode(lines))
    (tiered / "other-0" / names.LEADER_EPOCH_CHECKPOINT).write_text("0\n1\n0 724\n")
    assert _ends(tiered, TopicPartition("other", 0)) == (None, 724, 1252)


def test_offsets_in_tiered_storage_are_out_of_range(tiered: Path) -> None:
    snapshot = LogDir.open_read_only(tiered).log(CUT).snapshot()
    for offset in (517, 723):
        with pytest.raises(OffsetOutOfRange, match="in tiered storage"):
            snapshot.check_offset(offset)
    for offset in (516, 1253):
        with pytest.raises(OffsetOutOfRange) as raised:
            snapshot.check_offset(offset)
        assert "tiered" not in str(raised.value)
    snapshot.check_offset(724)
    earliest, local = (
        list_offset(snapshot, special) for special in (SpecialTimestamp.EARLIEST, SpecialTimestamp.EARLIEST_LOCAL)
    )
    assert earliest is not None
    assert local is not None
    assert (earliest.offset, local.offset) == (517, 724)


def test_a_later_log_start_is_seen(tiered: Path) -> None:
    log = LogDir.open_read_only(tiered).log(CUT)
    before = log.snapshot()
    assert log.snapshot() is before
    path = tiered / names.LOG_START_CHECKPOINT
    path.write_bytes(checkpoints.encode(checkpoints.read(path) | {CUT: 600}))
    assert log.snapshot().remote_offsets == OffsetRange(600, 724)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_opening_for_writing_keeps_where_the_log_begins(tiered: Path, clean: bool, known: bool) -> None:
    if not clean:
        (tiered / names.CLEAN_SHUTDOWN).unlink()
    if not known:
        _without_metadata(tiered)
    before = checkpoints.read(tiered / names.LOG_START_CHECKPOINT)
    for _ in range(2):
        owned = OwnedDir.open(tiered, clock=StandingClock())
        for tp in before:
            log = owned.log(tp)
            remote = log.snapshot().remote_offsets
            assert remote is not None
            assert remote.start == before[tp]
            assert not log.is_empty
        owned.checkpoint()
        assert not owned.close().errors
    assert checkpoints.read(tiered / names.LOG_START_CHECKPOINT) == before
    for tp in before:
        epochs = leader_epochs.read(tiered / tp.dir_name / names.LEADER_EPOCH_CHECKPOINT)
        assert epochs.entries[0] == EpochEntry(0, before[tp])


def test_a_tiered_log_that_is_all_here_keeps_its_line(tiered: Path) -> None:
    path = tiered / names.LOG_START_CHECKPOINT
    path.write_bytes(checkpoints.encode(checkpoints.read(path) | {CUT: 724}))
    owned = OwnedDir.open(tiered, clock=StandingClock())
    assert owned.log(CUT).snapshot().remote_offsets is None
    owned.close()
    assert checkpoints.read(path)[CUT] == 724  # a broker would take 0 for its start


def test_retention_leaves_tiered_logs_alone(tiered: Path) -> None:
    (tiered / "cut-0" / names.TOPIC_PROPERTIES).write_text("retention.bytes=1\nretention.ms=1\n")

    def none_free() -> int:
        return 0

    shown = preview_partition(LogDir.open_read_only(tiered, clock=StandingClock()), CUT, free_bytes=none_free)
    assert shown is not None
    assert shown.segments == ()
    assert [one.kept_by for one in shown.kept] == [(TIERED,)] * 3
    owned = OwnedDir.open(tiered, clock=StandingClock())
    result = retain_partition(owned, CUT, free_bytes=none_free)
    assert result is not None
    assert result.segments == ()
    with pytest.raises(OffsetOutOfRange, match="in tiered storage"):
        retain_partition(owned, CUT, free_bytes=none_free, before=600)
    # As DeleteRecords beyond the remote part: the log begins here from now on.
    retain_partition(owned, CUT, free_bytes=none_free, before=1000)
    assert owned.log(CUT).snapshot().remote_offsets is None
    owned.close()
    assert checkpoints.read(tiered / names.LOG_START_CHECKPOINT)[CUT] == 1000


def test_what_a_broker_would_remove_of_the_whole_log_and_of_what_is_here() -> None:
    log_dir, part = opened(TIERS / "log", TIERS / "tier-local"), TopicPartition("part", 0)
    snapshot, config = log_dir.log(part).snapshot(), log_dir.topic_info("part").config
    sizes = [snapshot.end_position(segment) for segment in snapshot.segments]
    limited = replace(config, retention_bytes=sum(sizes[2:]), other={**config.other, "local.retention.bytes": "1"})
    found = brokers_retention(snapshot, limited, 0)
    assert [(one.base_offset, one.reason) for one in found.total] == [(0, "retention.bytes"), (247, "retention.bytes")]
    assert [one.base_offset for one in found.local] == [698, 932, 1163]
    assert {one.reason for one in found.local} == {"local.retention.bytes"}
    other = {**config.other, "local.retention.bytes": "-2", "local.retention.ms": "no number"}
    as_total = replace(limited, other=other)
    assert brokers_retention(snapshot, as_total, 0).local == ()

"""Our cleaner on the logs of `compaction-before`: what Kafka's cleaner made of them (`compaction-after`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from storage.compaction.cleaner import compact_partition, preview_partition
from storage.compaction.compaction import CompactionResult
from storage.directory.owned_dir import Opening, OwnedDir
from storage.files import checkpoints, names
from storage.files.names import FileKind, FileState, parse_segment_file, segment_file
from storage.format.batches import BatchTable, Column, scan
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.support.fixtures import FIXTURES, copy_log_dir, log_dir_of, read_golden, requires_fixtures, topics_of
from tests.support.owned_dirs import HastyDisk, StandingClock
from tests.support.readers import read_all

pytestmark = [requires_fixtures]

PARTITIONS = (
    ["cmp-codecs-0", "cmp-empty-0", "cmp-lat-0", "cmp-nullkey-0", "cmp-plain-0", "cmp-plain-1", "cmp-sparse-0",
     "cmp-tomb-0", "cmp-txn-0"]
)  # fmt: skip
# Among the producers' and the markers' times: when the broker's cleaner ran, where no batch tells.
_THEN_MS = 1_795_254_398_300
# What a later encoder makes of the same records may have other bytes.
_ENCODED = (Column.POSITION, Column.SIZE, Column.CRC)


def table_of(path: Path) -> BatchTable:
    data = path.read_bytes()
    table = BatchTable.empty(4096)
    assert scan(data, 0, table).next_start == len(data)
    return table


def horizons(directory: Path) -> set[int]:
    tables = [table_of(path) for path in sorted(directory.glob("*.log"))]
    return {int(t) for table in tables for t in table.base_timestamp[table.has_delete_horizon]}


def cleaned_at(name: str) -> int:
    """When the broker's cleaner ran on a partition: its new horizons less delete.retention.ms."""
    new = horizons(log_dir_of("compaction-after") / name) - horizons(log_dir_of("compaction-before") / name)
    retention_ms = int(topics_of("compaction-before")[name[:-2]]["config"].get("delete.retention.ms", 86_400_000))
    return new.pop() - retention_ms if new else _THEN_MS


def prepared(tmp_path: Path, name: str) -> Path:
    """A copy of one partition's log directory, with its topic's configuration."""
    path = copy_log_dir(log_dir_of("compaction-before"), tmp_path / "log")
    topic = name[:-2]
    config = topics_of("compaction-before")[topic]["config"]
    for other in PARTITIONS:
        if other[:-2] == topic:
            lines = "".join(f"{key}={value}\n" for key, value in config.items())
            (path / other / names.TOPIC_PROPERTIES).write_text(lines)
        else:
            shutil.rmtree(path / other)
    return path


def compacted(path: Path, name: str, now_ms: int) -> CompactionResult:
    tp = TopicPartition(name[:-2], int(name[-1]))
    owned = OwnedDir.open(path, Opening(only=[tp]), disk=HastyDisk(), clock=StandingClock(now_ms))
    result = compact_partition(owned, tp)
    for file in result.files:
        owned.disk.unlink(file)
    assert owned.close().clean
    return result


def segment_files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if parse_segment_file(path.name)}


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_as_kafkas_cleaner(tmp_path: Path, name: str) -> None:
    path, after = prepared(tmp_path, name), log_dir_of("compaction-after") / name
    result = compacted(path, name, cleaned_at(name))
    assert result.is_complete
    ours, theirs = segment_files(path / name), segment_files(after)
    assert set(ours) == set(theirs)
    for file in sorted(ours):
        kind = parse_segment_file(file).kind  # type: ignore[union-attr]
        if kind is FileKind.PRODUCER_SNAPSHOT:
            continue  # who is forgotten when depends on when the broker was last started
        if kind is not FileKind.LOG or name not in ("cmp-codecs-0", "cmp-empty-0"):
            if name != "cmp-codecs-0" and (name != "cmp-empty-0" or kind is not FileKind.OFFSET_INDEX):
                assert ours[file] == theirs[file], file
            continue
        mine, other = table_of(path / name / file), table_of(after / file)
        for column in Column:
            if column not in _ENCODED:
                ours_here, theirs_here = mine.data[column, : mine.rows], other.data[column, : other.rows]
                assert ours_here.tolist() == theirs_here.tolist(), (file, column)
        plain = np.flatnonzero(other.codec == 0)
        assert mine.crc[plain].tolist() == other.crc[plain].tolist(), file
    tp = TopicPartition(name[:-2], int(name[-1]))
    there = checkpoints.read(log_dir_of("compaction-after") / names.CLEANER_CHECKPOINT)
    assert checkpoints.read(path / names.CLEANER_CHECKPOINT)[tp] == there[tp]
    golden = read_golden(FIXTURES / "compaction-after" / "golden" / f"{name}.jsonl.gz")
    assert read_all(LogDir.open_read_only(path).log(tp).snapshot()) == golden
    assert not verify_log_dir(path, [tp])


@pytest.mark.parametrize("name", PARTITIONS)
def test_a_dry_run_tells_the_same_and_changes_nothing(tmp_path: Path, name: str) -> None:
    path = prepared(tmp_path, name)
    tp = TopicPartition(name[:-2], int(name[-1]))
    before = {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}
    clock = StandingClock(cleaned_at(name))
    told = preview_partition(LogDir.open_read_only(path, clock=clock), tp)
    assert {file: file.read_bytes() for file in path.rglob("*") if file.is_file()} == before
    done = compacted(path, name, clock.time_ms)
    assert told.dry_run
    assert (told.end_offset, told.segments_before, told.segments_after) == (
        done.end_offset, done.segments_before, done.segments_after
    )  # fmt: skip
    for field in ("records_read", "records_kept", "bytes_read", "keys_gone", "null_keys"):
        assert getattr(told.counts, field) == getattr(done.counts, field), field
    # Headers that stay for their producers' sake are 61 bytes each.
    assert (done.counts.bytes_kept - told.counts.bytes_kept) % 61 == 0


def test_a_second_pass_finds_nothing_dirty(tmp_path: Path) -> None:
    path = prepared(tmp_path, "cmp-plain-0")
    now_ms = cleaned_at("cmp-plain-0")
    compacted(path, "cmp-plain-0", now_ms)
    before = segment_files(path / "cmp-plain-0")
    again = compacted(path, "cmp-plain-0", now_ms)
    assert (again.first_dirty, again.end_offset, again.segments_before) == (654, 654, 0)
    assert segment_files(path / "cmp-plain-0") == before
    assert not [file for file in before if file.endswith(FileState.DELETED.value)]
    assert segment_file(654, FileKind.LOG) in before


def test_the_fixtures_have_all_of_these() -> None:
    assert {p.name for p in log_dir_of("compaction-after").iterdir() if p.is_dir()} == set(PARTITIONS)

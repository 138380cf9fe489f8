"""Staged files read back some bytes at a time, wherever a window ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.errors import CorruptBatch
from storage.files.commit_ledger import StagedBatchFile, WriteId
from storage.format.block import Record, RecordColumns
from storage.format.decoder import Decoder
from storage.log.log_dir import LogDir
from storage.staged_writes import staging
from storage.staged_writes.staging import StagedFileWriter, windows
from storage.types import TopicPartition
from tests.support.owned_dirs import HastyDisk, StandingClock, opened

# One batch each, the third larger than most windows here.
BATCHES = [[b"a"], [b"b", b"c"], [b"d" * 3000], [b"e"] * 50, [b"f"], [b"g"]]
VALUES = [value for batch in BATCHES for value in batch]


@pytest.fixture
def staged(tmp_path: Path) -> StagedBatchFile:
    owned = opened(tmp_path)
    owned.create_topic("t", 1, {})
    owned.close()
    config = LogDir.open_read_only(tmp_path).topic_info("t").config
    tp = TopicPartition("t", 0)
    writer = StagedFileWriter(HastyDisk(), tmp_path, tp, WriteId("job", None), config=config, clock=StandingClock())
    for batch in BATCHES:
        writer.append(RecordColumns.from_records([Record(None, value) for value in batch]))
    file = writer.finish()
    assert file is not None
    return file


def read_back(path: Path, file: StagedBatchFile) -> list[bytes | None]:
    values: list[bytes | None] = []
    decoder = Decoder()
    for data, table in windows(path, file):
        row = 0
        while row < table.rows:
            block = decoder.decode(data, table, row, origin=0)
            values += [block.value(number) for number in range(len(block))]
            row = block.next_row
    return values


@pytest.mark.parametrize("rows", [1, 2, 4096])
@pytest.mark.parametrize("size", [1, 69, 100, 257, 1000, 3073, 1 << 20])
def test_windows_of_any_size(
    tmp_path: Path, staged: StagedBatchFile, size: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "_WINDOW_BYTES", size)
    monkeypatch.setattr(staging, "_WINDOW_ROWS", rows)
    assert read_back(tmp_path, staged) == VALUES


@pytest.mark.parametrize("size", [100, 1 << 20])
def test_what_is_missing_or_flipped_is_noticed(
    tmp_path: Path, staged: StagedBatchFile, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = staging.path_of(tmp_path, staged)
    whole = path.read_bytes()
    # Of each batch, since what lies before its checksum may be anything.
    (ends,) = [(table.position + table.size).tolist() for _, table in windows(tmp_path, staged)]
    monkeypatch.setattr(staging, "_WINDOW_BYTES", size)
    spoilt = [whole[:kept] for kept in range(0, len(whole), 61)]
    spoilt += [whole[: end - 1] + bytes([whole[end - 1] ^ 1]) + whole[end:] for end in ends]
    assert len(ends) == len(BATCHES)
    for content in spoilt:
        path.write_bytes(content)
        with pytest.raises(CorruptBatch, match="staged file"):
            read_back(tmp_path, staged)
    path.write_bytes(whole)
    assert read_back(tmp_path, staged) == VALUES

"""Checkpoints of KRaft records are byte for byte those of a broker, except for their times."""

from __future__ import annotations

import pytest

from storage.files import metadata_checkpoint
from storage.files.cluster_metadata import FeatureLevelRecord, read_bootstrap
from storage.format.batches import BatchTable, scan
from storage.format.control_records import ControlType, control_records
from storage.format.decoder import Decoder
from tests.support.fixtures import FIXTURES, requires_fixtures

DIRECTORY_ID = "VOLPpBNpQfaPKS6f4L_SkA"


@requires_fixtures
@pytest.mark.golden
def test_as_a_broker_writes_it() -> None:
    log_dir = FIXTURES / "groups" / "log"
    golden = (log_dir / "bootstrap.checkpoint").read_bytes()
    metadata = read_bootstrap(log_dir)
    assert metadata is not None
    assert metadata.features["metadata.version"] == 30
    records = [FeatureLevelRecord(name, level) for name, level in metadata.features.items()]
    ours = metadata_checkpoint.bootstrap(records, 0)
    assert len(ours) == len(golden)
    # Of each batch: the checksum, and two times.
    starts = _starts(golden)
    assert starts == _starts(ours)
    different = {at for at, pair in enumerate(zip(golden, ours, strict=True)) if pair[0] != pair[1]}
    allowed = {start + at for start in starts for at in (*range(17, 21), *range(27, 43))}
    assert different <= allowed


def _starts(data: bytes) -> list[int]:
    table = BatchTable.empty(8)
    scan(data, 0, table)
    return [int(position) for position in table.position]


def test_voters() -> None:
    data = metadata_checkpoint.voters(metadata_checkpoint.Voter(1, DIRECTORY_ID, "CONTROLLER", "localhost", 9093), 5)
    table = BatchTable.empty(8)
    scan(data, 0, table)
    block = Decoder().decode(data, table, origin=0, control=True)
    assert block.damage is None
    kinds = [record.type for record in control_records(block)]
    assert kinds == [
        ControlType.SNAPSHOT_HEADER, ControlType.KRAFT_VERSION, ControlType.KRAFT_VOTERS, ControlType.SNAPSHOT_FOOTER,
    ]  # fmt: skip
    assert block.value(1) == b"\0\0\0\1\0"
    assert b"\x0bCONTROLLER\x0alocalhost\x23\x85" in (block.value(2) or b"")

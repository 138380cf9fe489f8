"""Which offsets a query reads of a log whose beginning is in tiered storage."""

from __future__ import annotations

import pytest

from kafkafs.arrow.log_dirs import open_log_dirs
from kafkafs.spark.options import parse
from kafkafs.spark.ranges import DataLoss, batch_ranges
from tests.support.fixtures import FIXTURES, requires_fixtures


def _ranges(**options: str) -> list[tuple[int, int]]:
    path = str(FIXTURES / "tiered" / "log")
    chosen = parse({"path": path, "assign": '{"cut":[0]}', **options})
    return [(one.start_offset, one.end_offset) for one in batch_ranges(open_log_dirs(chosen.paths), chosen)]


@requires_fixtures
def test_messages_in_tiered_storage_are_lost_unless_that_is_allowed() -> None:
    with pytest.raises(DataLoss, match=r"517 to 723 .* in tiered storage"):
        _ranges()
    with pytest.raises(DataLoss, match=r"600 to 723 .* in tiered storage"):
        _ranges(startingOffsets='{"cut":{"0":600}}')
    assert _ranges(failOnDataLoss="false") == [(724, 1252)]
    assert _ranges(startingOffsets='{"cut":{"0":724}}') == [(724, 1252)]

"""Names of an export's files, and the day of a timestamp."""

from datetime import UTC, datetime

import numpy as np
import pytest

from kafkafs.spark.jobs.export_layout import NO_DAY, data_file, day_name, days_of, quarantine_file
from storage.types import TopicPartition

TP = TopicPartition("_orders", 7)


@pytest.mark.parametrize(
    ("timestamp", "name"),
    [
        (0, "1970-01-01"),
        (86_399_999, "1970-01-01"),
        (86_400_000, "1970-01-02"),
        (-1, "__HIVE_DEFAULT_PARTITION__"),
        (-2, "1969-12-31"),
        (int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 999, "9999-12-31"),
        (int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()) * 1000 + 1000, "__HIVE_DEFAULT_PARTITION__"),
        (int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1000, "0001-01-01"),
        (int(datetime(1, 1, 1, tzinfo=UTC).timestamp()) * 1000 - 1, "__HIVE_DEFAULT_PARTITION__"),
        (2**63 - 1, "__HIVE_DEFAULT_PARTITION__"),
        (-(2**63), "__HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_days(timestamp, name):
    (day,) = days_of(np.array([timestamp], np.int64)).tolist()
    assert day_name(day) == name


def test_files():
    assert data_file(TP, 0, 5, 12) == (
        "topic=_orders/day=1970-01-01/part-00007-00000000000000000005-00000000000000000012.parquet"
    )
    assert data_file(TP, NO_DAY, 5, 12).startswith("topic=_orders/day=__HIVE_DEFAULT_PARTITION__/part-")
    hidden = quarantine_file(TP, 5, 12)
    assert hidden == "_quarantine/topic=_orders/part-00007-00000000000000000005-00000000000000000012.parquet"

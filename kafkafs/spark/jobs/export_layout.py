"""The names of files in an export's directory, and the day of a message. Pure functions.

    topic=orders/day=2026-11-20/part-00000-00000000000000000000-00000000000000004999.parquet
    topic=orders/day=__HIVE_DEFAULT_PARTITION__/…    messages without a timestamp; `day` reads as null
    _quarantine/topic=orders/…                       batches that failed their checks
    _export/…                                        the commit list and what is staged (`commits`)

Directories have Hive's layout, which Spark, pyarrow and DuckDB read as columns `topic` and `day`; they ignore names
that begin with `_` or `.`. A file is named by its partition and its first and last offset, both included.
"""

from __future__ import annotations

from datetime import date
from typing import TYPE_CHECKING, Final

import numpy as np

from storage.types import NO_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Int64s = NDArray[np.int64]

DAY_MS: Final = 86_400_000
NO_DAY: Final = -(2**62)
_NO_DAY_NAME: Final = "__HIVE_DEFAULT_PARTITION__"
_EPOCH: Final = date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = 1 - _EPOCH  # 0001-01-01
_LAST_DAY: Final = date.max.toordinal() - _EPOCH

QUARANTINE: Final = "_quarantine"
BOOKS: Final = "_export"


def days_of(timestamps: Int64s) -> Int64s:
    """The UTC day of each timestamp (epoch milliseconds), in days since 1970.

    NO_DAY without a timestamp, or if the year does not have four digits, which no reader supports.
    """
    days = timestamps // DAY_MS
    unknown = (timestamps == NO_TIMESTAMP) | (days < _FIRST_DAY) | (days > _LAST_DAY)
    return np.where(unknown, NO_DAY, days)


def day_name(day: int) -> str:
    """`2026-11-20`, or Hive's name for null."""
    return _NO_DAY_NAME if day == NO_DAY else date.fromordinal(_EPOCH + day).isoformat()


def data_file(tp: TopicPartition, day: int, first_offset: int, last_offset: int) -> str:
    """The path of a file with messages of one partition and day, relative to the export's directory."""
    return f"topic={tp.topic}/day={day_name(day)}/{_name(tp, first_offset, last_offset)}"


def quarantine_file(tp: TopicPartition, first_offset: int, last_offset: int) -> str:
    """The path of a file with the damage found among these offsets, relative to the export's directory."""
    return f"{QUARANTINE}/topic={tp.topic}/{_name(tp, first_offset, last_offset)}"


def _name(tp: TopicPartition, first_offset: int, last_offset: int) -> str:
    return f"part-{tp.partition:05}-{first_offset:020}-{last_offset:020}.parquet"

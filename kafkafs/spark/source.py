"""Reading with a batch query: not there yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType


def schema_of(options: Mapping[str, str]) -> StructType:
    """The columns that a query with these options has."""
    raise NotImplementedError("kafkafs does not read from Spark yet")


def batch_reader(options: Mapping[str, str], schema: StructType, cores: int) -> DataSourceReader:
    """The reader of `spark.read.format("kafkafs")`."""
    raise NotImplementedError("kafkafs does not read from Spark yet")

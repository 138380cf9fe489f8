"""Reading with a streaming query: not there yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.types import StructType


def stream_reader(options: Mapping[str, str], schema: StructType, cores: int) -> DataSourceStreamReader:
    """The reader of `spark.readStream.format("kafkafs")`."""
    raise NotImplementedError("kafkafs does not stream to Spark yet")

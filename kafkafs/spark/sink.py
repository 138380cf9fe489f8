"""Writing from Spark: not there yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceWriter:
    """The writer of `df.write.format("kafkafs")`."""
    raise NotImplementedError("kafkafs does not write from Spark yet")


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """The writer of `df.writeStream.format("kafkafs")`."""
    raise NotImplementedError("kafkafs does not stream from Spark yet")

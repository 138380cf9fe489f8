"""The Python data source that Spark calls; each method delegates to the module that does the work.

Spark creates and calls it in Python processes next to the driver, never in the process that registered it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

FORMAT = "kafkafs"


class KafkafsDataSource(DataSource):
    """The format `kafkafs`. `cores`: the number of tasks that the session runs at once; 0 if unknown."""

    cores: int = 0

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from kafkafs.spark.source import schema_of

        return schema_of(self.options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from kafkafs.spark.source import batch_reader

        return batch_reader(self.options, schema, self.cores or os.cpu_count() or 1)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from kafkafs.spark.stream import stream_reader

        return stream_reader(self.options, schema, self.cores or os.cpu_count() or 1)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from kafkafs.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from kafkafs.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


def data_source_for(spark: SparkSession) -> type[KafkafsDataSource]:
    """The data source class that knows the session's number of cores, which the planning processes cannot find out.

    The class belongs to no module, so that Spark pickles it by value, with the number.
    """
    try:
        cores = int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context, and raises errors of its own
        return KafkafsDataSource
    return type(KafkafsDataSource.__name__, (KafkafsDataSource,), {"cores": cores})

"""Kafka log directories in Spark: `register(spark)` adds the format `kafkafs` to a session.

    from kafkafs.spark import register
    register(spark)
    spark.read.format("kafkafs").option("subscribe", "clicks").load("/var/lib/kafka")

Needs the extra `spark`. Reading takes no lock, changes nothing and needs no broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafs.spark.progress import offsets_behind_latest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["offsets_behind_latest", "register"]


def register(spark: SparkSession) -> None:
    """Make `kafkafs` a format of `spark.read`, `readStream`, `write` and `writeStream` in this session.

    WrongWorkerPython if the Python of the workers on this machine cannot run kafkafs.
    """
    from kafkafs.spark.data_source import data_source_for
    from kafkafs.spark.python_workers import check_python

    check_python(spark)
    spark.dataSource.register(data_source_for(spark))

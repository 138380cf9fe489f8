"""Keeps the latest message of each key in a Delta table: MERGE in foreachBatch.

    spark-submit --packages io.delta:delta-spark_2.13:VERSION examples/spark_merge.py LOGDIR TOPIC TABLE CHECKPOINT

A message without a value (a tombstone) deletes its key. A batch that Spark repeats after a crash changes nothing more,
because a row of the table is never replaced by a message with a lower offset. For Iceberg, name its catalog in place of
Delta's and write USING iceberg: the MERGE is the same.
"""

import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from kafkafs.spark import register

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need kafkafs too

DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
CREATE = """
    CREATE TABLE IF NOT EXISTS {table} (key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP)
    USING delta
"""
MERGE = """
    MERGE INTO {table} AS kept USING {changes} AS new ON kept.key = new.key
    WHEN MATCHED AND new.offset > kept.offset AND new.value IS NULL THEN DELETE
    WHEN MATCHED AND new.offset > kept.offset THEN UPDATE SET *
    WHEN NOT MATCHED AND new.value IS NOT NULL THEN INSERT *
"""


def latest_by_key(messages: DataFrame) -> DataFrame:
    """One row for each key: MERGE refuses several. All messages of a key are in one partition, in offset order."""
    newest_first = Window.partitionBy("key").orderBy(f.desc("offset"))
    columns = messages.select("key", "value", "partition", "offset", "timestamp").where("key IS NOT NULL")
    return columns.withColumn("rank", f.row_number().over(newest_first)).where("rank = 1").drop("rank")


def merge(batch: DataFrame, table: str) -> None:
    """Brings a table up to date with a batch of messages."""
    latest_by_key(batch).createOrReplaceTempView("changes")
    batch.sparkSession.sql(MERGE.format(table=table, changes="changes"))


if __name__ == "__main__":
    log_dir, topic, table, checkpoint = sys.argv[1:]
    builder = SparkSession.builder.appName(f"{topic} to {table}")
    for name, value in DELTA.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    spark.sql(CREATE.format(table=table))
    messages = spark.readStream.format("kafkafs").option("subscribe", topic).option("startingOffsets", "earliest")
    query = (
        messages.load(log_dir)
        .writeStream.foreachBatch(lambda batch, _: merge(batch, table))
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()

"""Maintains a table of a topic's messages: a streaming query that continues, each time it is run, where it stopped.

    python examples/spark_stream.py LOGDIR TOPIC OUTPUT

OUTPUT/messages gets Parquet files, and OUTPUT/checkpoint records how far they go: no message is written twice or
omitted, however the query ends. Without `.trigger(availableNow=True)` it runs until it is stopped.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from kafkafs.spark import register

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need kafkafs too
log_dir, topic, output = sys.argv[1:]

spark = SparkSession.builder.appName(f"{topic} to Parquet").getOrCreate()
register(spark)

messages = (
    spark.readStream.format("kafkafs")
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "1000000")
    .load(log_dir)
)
query = (
    messages.selectExpr("partition", "offset", "timestamp", "cast(value as string) as value")
    .writeStream.format("parquet")
    .option("path", str(Path(output) / "messages"))
    .option("checkpointLocation", str(Path(output) / "checkpoint"))
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()

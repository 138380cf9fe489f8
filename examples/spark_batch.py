"""The number and size of a topic's messages for each day: a batch query over a log's files, without a broker.

python examples/spark_batch.py [LOGDIR [TOPIC]]
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from kafkafs.spark import register

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need kafkafs too
arguments = sys.argv[1:]
log_dir = arguments[0] if arguments else str(Path(__file__).parent / "sample-log")
topic = arguments[1] if len(arguments) > 1 else "orders"

spark = SparkSession.builder.appName("messages a day").getOrCreate()
register(spark)

messages = (
    spark.read.format("kafkafs")
    .option("subscribe", topic)
    .option("columns", "value,timestamp")  # other columns are not read
    .load(log_dir)
)
days = (
    messages.groupBy(f.to_date("timestamp").alias("day"))
    .agg(f.count("*").alias("messages"), f.sum(f.length("value")).alias("bytes"))
    .orderBy("day")
)
days.show()

"""How far each consumer group is behind, as a DataFrame: committed offsets against the ends of the logs.

    python examples/spark_lag.py [LOGDIR]

The directory's `__consumer_offsets` and logs are read, no broker is asked. For a streaming query's own lag see
`kafkafs.spark.offsets_behind_latest(query.lastProgress.sources[0])`.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from storage.coordinators.groups import GroupOffsets
from storage.log.log_dir import LogDir
from storage.types import TopicPartition

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need kafkafs too
SAMPLE = Path(__file__).resolve().parent / "sample-log"


def lag(spark: SparkSession, log_dir: str) -> DataFrame:
    """A row for each group and partition that is in this directory."""
    logs = LogDir.open_read_only(log_dir)
    rows = []
    for group in GroupOffsets(logs).groups().values():
        for topic, partitions in group.offsets.items():
            here = logs.partitions(topic) if topic in logs.topics() else []
            for partition in set(here) & set(partitions):
                end = logs.log(TopicPartition(topic, partition)).snapshot().log_end_offset
                committed = partitions[partition].offset
                rows.append((group.name, topic, partition, committed, end, end - committed))
    return spark.createDataFrame(
        rows, "group string, topic string, partition int, committed bigint, end bigint, lag bigint"
    )


if __name__ == "__main__":
    session = SparkSession.builder.appName("lag").getOrCreate()
    table = lag(session, sys.argv[1] if len(sys.argv) > 1 else str(SAMPLE))
    table.orderBy("group", "topic", "partition").show(truncate=False)

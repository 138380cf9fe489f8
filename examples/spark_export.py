#!/usr/bin/env python
"""Export a log directory to Parquet and read it back: messages and bytes by topic and day.

    python examples/spark_export.py [LOGDIR [DIRECTORY]]

Without arguments: the sample log, to a temporary directory. Needs Java and `pip install 'kafkafs[spark]'`. A second run
with the same DIRECTORY exports only new messages. On the command line:

    kafkafs spark export LOGDIR DIRECTORY
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession, functions

from kafkafs.spark.jobs.export import export

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need kafkafs too
SAMPLE = Path(__file__).resolve().parent / "sample-log"


def main(log_dir: Path, directory: Path) -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("export")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    done = export(spark, log_dir, directory)
    sys.stdout.write(f"{done.messages} messages in {done.files} files\n")
    # The schema is given, because topics whose names are all numbers would otherwise be read as numbers.
    columns = "topic string, day date, partition int, offset bigint, timestamp timestamp, key binary, value binary"
    table = spark.read.schema(columns).parquet(str(directory))
    (
        table.groupBy("topic", "day")
        .agg(functions.count("*").alias("messages"), functions.sum(functions.length("value")).alias("bytes"))
        .orderBy("topic", "day")
        .show(truncate=False)
    )
    spark.stop()


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:3]]
    with tempfile.TemporaryDirectory() as temporary:
        main(*given[:1] or [SAMPLE], *given[1:] or [Path(temporary)])

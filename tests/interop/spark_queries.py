"""Runs batch queries in a new Spark, with the Python that has the pyspark of the queried source.

    python spark_queries.py FORMAT QUERIES.json ANSWERS.json [JAR…]

QUERIES is a list of options; ANSWERS gets, for each, its schema and its rows by topic, partition and offset (bytes in
base64, timestamps in epoch milliseconds), or its error. Imports nothing else of the tests: Spark's own Kafka source
runs on an older pyspark, in an environment without kafkafs.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def main(source: str, queries: str, answers: str, *jars: str) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    for name, value in {
        "spark.jars": ",".join(jars),
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if source == "kafkafs":
        from kafkafs.spark import register

        register(spark)
    found = []
    for options in json.loads(Path(queries).read_text()):
        try:
            frame = spark.read.format(source).options(**options).load()
            found.append({"schema": json.loads(frame.schema.json()), "rows": rows(frame)})
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            found.append({"error": str(error)})
    Path(answers).write_text(json.dumps(found))
    spark.stop()


def rows(frame):
    exact = frame.withColumn("timestamp", frame.timestamp.cast("double") * 1000)
    found = [[plain(value) for value in row] for row in exact.collect()]
    return sorted(found, key=lambda row: row[2:5])  # sorted by Spark, each query would read its messages twice


def plain(value):
    if isinstance(value, (bytes, bytearray)):
        return base64.b64encode(value).decode()
    if isinstance(value, list):
        return [[header["key"], plain(header["value"])] for header in value]
    return round(value) if isinstance(value, float) else value


if __name__ == "__main__":
    main(*sys.argv[1:])

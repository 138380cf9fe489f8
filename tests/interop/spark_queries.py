"""Runs batch queries of Spark's own Kafka source in a new Spark, with the Python that has the pyspark for its jars.

    python spark_queries.py QUERIES.json ANSWERS.json JAR…

QUERIES is a list of options; ANSWERS gets, for each, its schema and its rows by topic, partition and offset (bytes in
base64, timestamps in epoch milliseconds), or its error. Imports nothing else of the tests: the source runs on an older
pyspark, in an environment without kafkafs.
"""

import base64
import json
import os
import sys
from pathlib import Path


def main(queries, answers, *jars):
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
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
    found = []
    for options in json.loads(Path(queries).read_text()):
        try:
            found.append(answer(spark.read.format("kafka").options(**options).load()))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            text = "\n".join(line for line in str(error).splitlines() if not line.startswith("\tat "))
            found.append({"error": text[:1000]})
    Path(answers).write_text(json.dumps(found))
    spark.stop()


def answer(frame):
    return {"schema": json.loads(frame.schema.json()), "rows": rows(frame)}


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

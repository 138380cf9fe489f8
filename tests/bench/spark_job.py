"""One job in a Spark of its own, done again for each line on stdin; its seconds go to stdout.

    python spark_job.py '{"job": "kafka export", "broker": "…", "topic": "…", "target": "…", "jars": […]}'

Stands alone: Spark's own Kafka source runs on an older pyspark, in an environment without kafkafs.
"""

import json
import os
import shutil
import sys
import time

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"


def main(text):
    given = json.loads(text)
    if "processors" in given:
        os.sched_setaffinity(0, given["processors"])
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        "spark.driver.memory": "1g",
        "spark.jars": ",".join(given.get("jars", ())),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    run = JOBS[given["job"]](spark, given)
    for _ in sys.stdin:
        if "target" in given:
            shutil.rmtree(given["target"], ignore_errors=True)
        start = time.perf_counter()
        run()
        sys.stdout.write(f"{time.perf_counter() - start}\n")
        sys.stdout.flush()
    spark.stop()


def kafka_export(spark, given):
    """Spark's own Kafka source, written as Parquet."""
    frame = spark.read.format("kafka").option("kafka.bootstrap.servers", given["broker"])
    return lambda: frame.option("subscribe", given["topic"]).load().write.parquet(given["target"])


def kafkafs_export(spark, given):
    """Ours."""
    from kafkafs.spark.jobs.export import export
    from storage.types import TopicPartition

    return lambda: export(spark, given["log_dir"], given["target"], [TopicPartition(given["topic"], 0)])


def file_sink(spark, given):
    """What an export would be by Spark's own means: our stream, its file sink and checkpoint, the same directories."""
    from pyspark.sql import functions

    from kafkafs.spark import register

    register(spark)

    def run():
        frame = spark.readStream.format("kafkafs").options(subscribe=given["topic"], startingOffsets="earliest")
        frame = frame.load(given["log_dir"])
        writer = frame.withColumn("day", functions.to_date("timestamp")).writeStream.format("parquet")
        writer = writer.option("checkpointLocation", f"{given['target']}/_checkpoint").partitionBy("topic", "day")
        writer.trigger(availableNow=True).start(given["target"]).awaitTermination()

    return run


def kafka_write(spark, given):
    """Appends messages to a broker's topic with Spark's own sink."""
    options = {"kafka.bootstrap.servers": given["broker"], "topic": given["topic"]}
    return lambda: _messages(spark, given).write.format("kafka").options(**options).save()


def kafkafs_write(spark, given):
    """Ours, to a topic of a log directory."""
    from kafkafs.spark import register

    register(spark)
    written = {"format": "kafkafs", "mode": "append", "path": given["log_dir"], "topic": given["topic"]}
    return lambda: _messages(spark, given).write.save(**written)


def dropping_write(spark, given):
    """What Spark takes to pass the messages to a sink in Python, which drops them."""
    from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

    from kafkafs.spark.worker_start import WorkerStart

    class Writer(DataSourceArrowWriter):
        def __init__(self):
            self._start = WorkerStart()

        def write(self, iterator):
            for _ in iterator:
                pass
            return WriterCommitMessage()

    class Dropped(DataSource):
        def writer(self, _schema, _overwrite):
            return Writer()

    spark.dataSource.register(Dropped)
    return lambda: _messages(spark, given).write.format("Dropped").mode("append").save()


def _messages(spark, given):
    """As many values of 100 bytes."""
    return spark.range(given["messages"]).selectExpr("cast(lpad(cast(id as string), 100, 'message ') as binary) value")


def scan(spark, given):
    """Counts messages and sums the lengths of their values, from either source."""
    if given["source"] == "kafkafs":
        from kafkafs.spark import register

        register(spark)
    return _counted(spark, given)


def _counted(spark, given):
    from pyspark.sql import functions

    def run():
        frame = spark.read.format(given["source"]).options(**given["options"]).load()
        (row,) = frame.agg(functions.count("*"), functions.sum(functions.length("value"))).collect()
        if row[0] != given["messages"]:
            raise AssertionError(f"{row[0]} messages")

    return run


def grouped(spark, given):
    """Counts the messages of each key."""
    from kafkafs.spark import register

    register(spark)
    frame = spark.read.format("kafkafs").options(**given["options"]).load()
    return lambda: frame.groupBy("key").count().write.format("noop").mode("overwrite").save()


JOBS = {
    "kafka export": kafka_export,
    "kafkafs export": kafkafs_export,
    "file sink": file_sink,
    "kafka write": kafka_write,
    "kafkafs write": kafkafs_write,
    "dropping write": dropping_write,
    "scan": scan,
    "grouped": grouped,
}

if __name__ == "__main__":
    main(sys.argv[1])

"""A Spark driver that copies the topic `in` of one log directory to `out` of another, with a checkpoint, and ends when
everything is copied. Tests kill it: `streaming_driver.py PLACE MESSAGES_A_BATCH`."""

import sys
from pathlib import Path


def copying(spark, place, batch, **options):
    """The query; `place` has the directories source, sink and checkpoint. `options`: of the sink."""
    return (
        spark.readStream.format("kafkafs")
        .option("subscribe", "in")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(batch))
        .load(str(place / "source"))
        .selectExpr("key", "value")
        .writeStream.format("kafkafs")
        .option("topic", "out")
        .options(**options)
        .option("checkpointLocation", str(place / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(place / "sink"))
    )


def main(place, batch):
    from tests.spark.session import run_to_end, start_session

    spark = start_session(place / "spark")

    def start():
        query = copying(spark, place, batch)
        sys.stdout.write("query started\n")
        sys.stdout.flush()
        return query

    run_to_end(start, 24 * 3600)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))

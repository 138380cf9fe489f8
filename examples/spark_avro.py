"""Messages in Avro as Confluent's serializers write them: byte 0, the schema's id in four bytes, then the record.

    spark-submit --packages org.apache.spark:spark-avro_2.13:VERSION examples/spark_avro.py LOGDIR TOPIC SCHEMA.avsc ID

VERSION is Spark's. Only messages with the schema ID are decoded, each id with its own schema; others are counted. A
registry has the schema: curl http://registry/schemas/ids/ID/schema
"""

import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro

from kafkafs.spark import register

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers need kafkafs too


def with_schema_ids(messages: DataFrame) -> DataFrame:
    """Adds `schemaId`, null where a value is not in this format."""
    is_framed = (f.length("value") > 5) & (f.substring("value", 1, 1) == f.lit(b"\x00"))
    schema_id = f.conv(f.hex(f.substring("value", 2, 4)), 16, 10).cast("int")
    return messages.withColumn("schemaId", f.when(is_framed, schema_id))


def decoded(messages: DataFrame, schema_id: int, schema: str) -> DataFrame:
    """The messages with this id, `value` decoded into a struct. A value that does not parse is an error; the option
    {"mode": "PERMISSIVE"} makes it null."""
    avro = f.expr("substring(value, 6)")
    return with_schema_ids(messages).where(f.col("schemaId") == schema_id).withColumn("value", from_avro(avro, schema))


if __name__ == "__main__":
    log_dir, topic, schema_file, number = sys.argv[1:]
    spark = SparkSession.builder.appName(f"{topic} from Avro").getOrCreate()
    register(spark)
    read = spark.read.format("kafkafs").option("subscribe", topic).load(log_dir)
    with_schema_ids(read).groupBy("schemaId").count().orderBy("schemaId").show()
    rows = decoded(read, int(number), Path(schema_file).read_text())
    rows.select("partition", "offset", "timestamp", "value.*").show(truncate=False)

"""From a log to Arrow: scans for Python programs, SQL over them, and modules that Spark's data source uses too.

In: one or several log directories, and a choice of messages. Out: record batches of pyarrow, or messages one by one.
"""

from typing import Final

# The columns of Spark's Kafka source, in its order.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DECODED: Final = ("key_json", "value_json", "key_schema_id", "value_schema_id", "decode_error")
NOT_PICKLED: Final = "a scan cannot be copied or pickled: pickle the topic instead, and call its scan() there"

"""Messages of a log directory in pandas, polars and DuckDB, and a plot of them: cells for a notebook, or run as it is.

    python examples/notebook.py [LOGDIR [TOPIC [PLOT.png]]]

Needs kafkafs[arrow], pandas, polars, duckdb and matplotlib. Without arguments it reads the sample here.
"""

# %% A log directory is opened as it is: no broker, nothing is changed.
import sys
import tempfile
from pathlib import Path

import duckdb
import matplotlib.pyplot as plt
import pandas as pd
import polars as pl
import pyarrow.dataset as pads

import kafkafs

given = dict(enumerate(sys.argv))
log = kafkafs.open(given.get(1, Path(__file__).parent / "sample-log"))
topic, plot = given.get(2, "orders"), given.get(3, "orders.png")
for name, each in log.topics.items():
    print(f"{name}: {each.offsets}")

# %% The first messages, one by one. They are plain values: pickle them, or make a frame of them.
for message in log[topic].messages(offsets=(0, 2)):
    print(message.time, message.partition, message.offset, message.key, message.value)

# %% The last messages of each partition. Offsets and times may be texts, as after --offsets and --time.
print(pd.DataFrame(log[topic].messages(offsets="last-2"))[["partition", "offset", "key", "timestamp"]])

# %% pandas: how many messages there are in each hour.
scan = log[topic].scan(columns=("partition", "timestamp"))
frame = scan.to_pandas()
by_hour = frame.groupby([frame["timestamp"].dt.floor("h"), "partition"]).size().unstack(fill_value=0)
print(by_hour.tail(3))

# %% The same as a picture.
axes = by_hour.plot(kind="bar", stacked=True, figsize=(10, 5), title=f"messages of {topic} by hour")
axes.figure.savefig(plot, bbox_inches="tight")
plt.close(axes.figure)

# %% polars: the keys with the most bytes of values. It takes the scan as it is.
sizes = pl.DataFrame(log[topic].scan(columns=("key", "value"))).group_by("key")
print(sizes.agg(pl.len().alias("messages"), pl.col("value").bin.size().sum().alias("bytes")).sort("bytes").tail(3))

# %% DuckDB: of a dataset it reads only the columns and messages that the query needs.
messages = log[topic].scan(text="replace").to_dataset()
query = """
    SELECT partition, count(*) AS messages, min(timestamp) AS first, max(timestamp) AS last
    FROM messages WHERE "offset" BETWEEN 100 AND 199 GROUP BY partition ORDER BY partition
"""
print(duckdb.sql(query))

# %% Parquet: a dataset of one file or more for each partition, in a directory that is removed again here.
with tempfile.TemporaryDirectory() as directory:
    pads.write_dataset(log[topic].scan().to_dataset(), directory, format="parquet", partitioning=["partition"])
    print(pads.dataset(directory, format="parquet", partitioning=["partition"]).count_rows())

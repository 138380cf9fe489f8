"""How far a streaming query is behind its log: the metrics that Spark's Kafka source puts into the query's progress.

Spark never asks a Python source for metrics (PythonMicroBatchStream is not a ReportsSourceMetrics), so `metrics` in the
query's progress is empty. The progress does have the latest offsets, from which the same numbers follow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kafkafs.spark.options import decoded_offsets


def offsets_behind_latest(source: Mapping[str, Any]) -> dict[str, str]:
    """Return the metrics of one of `query.lastProgress.sources`: `minOffsetsBehindLatest`, `maxOffsetsBehindLatest` and
    `avgOffsetsBehindLatest` over its partitions. They count offsets from the end of the batch to the end of the log
    when the batch was planned. Empty before the first batch. Source: KafkaMicroBatchStream.metrics.
    """
    consumed, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if consumed is None or not latest:
        return {}
    behind = [end - consumed.get(tp, 0) for tp, end in latest.items()]
    return {
        "minOffsetsBehindLatest": str(min(behind)),
        "maxOffsetsBehindLatest": str(max(behind)),
        "avgOffsetsBehindLatest": str(sum(behind) / len(behind)),
    }


def _offsets(given: object) -> dict[Any, int] | None:
    """The offsets in a progress, which are JSON text or already parsed."""
    topics = json.loads(given) if isinstance(given, str) else given
    return decoded_offsets(topics) if isinstance(topics, Mapping) else None

"""A log directory that Spark reads, and what is appended to it meanwhile."""

from storage.append.appender import Appender
from storage.clock import SystemClock
from storage.directory.owned_dir import OwnedDir
from storage.format.block import Record
from tests.support.builders import ROLL, Batch, build_log_dir, many


def two_partitions(path, **others):
    """The topic `t`, with two partitions of 30 and 10 messages in segments of 10."""
    items = [Batch(many(10)), ROLL, Batch(many(10)), ROLL, Batch(many(10))]
    return build_log_dir(path, {"t": [items, [Batch(many(10))]], **others}, broker=False)


def append(built, tp, count=1):
    owned = OwnedDir.open(built.path)
    appended = Appender(owned.log(tp), clock=SystemClock()).append([Record(None, b"more")] * count)
    assert appended.error is None
    owned.close()

"""Marks of how far a streaming query has read. They show whether the log has lost these messages since.

An end offset in a checkpoint holds, under "@read", {"topic":{"id":…,"epochs":{"partition":epoch}}}: the topic's id, and
the leader epoch of the message before the end. Unknown ids and epochs are left out. storage.log.lineage gives reasons.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafkafs.arrow.log_dirs import LogDirs
from storage.errors import UnknownTopicOrPartition
from storage.log.snapshot import LogSnapshot
from storage.types import TopicPartition


def read_marks(log_dirs: LogDirs, ends: Mapping[TopicPartition, int]) -> dict[str, Any]:
    """Return the marks for these end offsets. StorageError, OSError."""
    topics: dict[str, Any] = {}
    for tp, end in sorted(ends.items()):
        with suppress(UnknownTopicOrPartition):  # it was just removed; `partitions` reports that
            marks = topics.setdefault(tp.topic, {"id": _topic_id(log_dirs, tp), "epochs": {}})
            epoch = log_dirs.log(tp).snapshot().epochs.epoch_at(end - 1) if end else None
            if epoch is not None:
                marks["epochs"][str(tp.partition)] = epoch
    return topics


def end_of_what_was_read(log_dirs: LogDirs, snapshot: LogSnapshot, end: int, marks: Mapping[str, Any]) -> int:
    """The offset up to which the log still holds the messages read up to `end`; 0 if the topic was created again."""
    tp = snapshot.tp
    known = marks.get(tp.topic, {})
    topic_id, epoch = known.get("id"), known.get("epochs", {}).get(str(tp.partition))
    now = _topic_id(log_dirs, tp)
    if topic_id is not None and now is not None and topic_id != now:
        return 0
    if epoch is None or snapshot.epochs.epoch_at(end - 1) in (None, epoch):
        return end
    # Like OffsetsForLeaderEpoch: the messages end where the next leader that the log knows began.
    return min((entry.start_offset for entry in snapshot.epochs.entries if entry.epoch > epoch), default=end)


def _topic_id(log_dirs: LogDirs, tp: TopicPartition) -> str | None:
    return log_dirs.directories[log_dirs.place(tp)].topic_info(tp.topic).topic_id

"""Replication of logs into a copy, batch by batch and byte for byte, as a follower does it.

The mirror decides what to copy; a destination writes it: a log directory (storage.backup.directory_copy) or an object
store (storage.backup.store_copy). With a moment, each partition is cut at the moment (storage.log.time_cut); with a
recorder, a manifest lists everything that was copied (storage.backup.manifest_recorder).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from storage.backup.manifest_recorder import ManifestRecorder
from storage.errors import InvalidRecord, InvalidTopic, SegmentGone, StorageError
from storage.files import names
from storage.log import reader
from storage.log.batch_choice import check_tail
from storage.log.log_dir import LogDir
from storage.log.rereads import Rereads
from storage.log.segment_gaps import is_cleaned
from storage.log.snapshot import LogSnapshot
from storage.log.time_cut import MixedBatch, cut_at
from storage.progress import NoProgress, Progress, working
from storage.types import TopicPartition


@dataclass(slots=True)
class Mirrored:
    """The part of one partition that was copied: batches' bytes, from `first_offset` to below `log_end_offset`.

    `tp`: its name in the copy. `mixed`: the last batch before the cut, if it also has messages from after the moment.
    `remote_note`: LogSnapshot.remote_note of the source.
    """

    tp: TopicPartition
    first_offset: int
    log_end_offset: int
    size_bytes: int = 0
    mixed: MixedBatch | None = None
    remote_note: str | None = None
    error: Exception | None = None


class Chosen(NamedTuple):
    """A partition to copy: its name in the source, and in the copy; its log, cut if a moment is given (`is_cut`), or
    the error of cutting; and whether its topic is compacted."""

    source_tp: TopicPartition
    tp: TopicPartition
    snapshot: LogSnapshot
    compacted: bool
    is_cut: bool = False
    mixed: MixedBatch | None = None
    error: Exception | None = None


class Destination(Protocol):
    """Where a mirror writes. A copied partition can be read there only after the destination is closed."""

    def begin(
        self, source: LogDir, snapshots: Mapping[TopicPartition, LogSnapshot], renamed: Mapping[str, str]
    ) -> None:
        """Begin a pass: create the topics of these logs of `source`, under the names in `renamed`. InvalidRecord if the
        copy has logs of another cluster."""

    def end_offset(self, tp: TopicPartition) -> int:
        """The offset where the copy of a partition ends; 0 if there is none, or it cannot be read."""

    def copy(self, chosen: Chosen, result: Mirrored, recorder: ManifestRecorder | None) -> Iterator[int]:
        """Copy the new batches of a partition, and yield their bytes. Sets the offsets in `result`. StorageError if the
        copy is not one of this log, or the source is damaged or its files have gone; OSError."""


@dataclass(slots=True)
class Mirror:
    """Copies the partitions that `wanted` chooses from `source` to `target`, in passes.

    Partitions begin at the source's first segment. A failing partition does not stop the others.
    `until_ms`: where to cut each partition, epoch milliseconds. `renamed`: names in the copy, by topic of the source.
    `recorder`: digests what is copied. `results`: by partition of the copy.
    """

    source: LogDir
    target: Destination
    wanted: Callable[[LogDir], Collection[TopicPartition]]
    progress: Progress = field(default_factory=NoProgress)
    until_ms: int | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    recorder: ManifestRecorder | None = None
    results: dict[TopicPartition, Mirrored] = field(default_factory=dict)

    def run(self) -> int:
        """Copy all partitions once; return the number of bytes. Errors of a partition are in `results`; errors of the
        directories, and of topics that cannot be created (NotPermitted in a broker's directory), are raised."""
        self.source.refresh()
        partitions = [tp for tp in sorted(self.wanted(self.source)) if tp.topic != names.CLUSTER_METADATA_TOPIC]
        self._check_names({tp.topic for tp in partitions})
        if self.recorder is not None:
            self.recorder.see_cluster(self.source)
            # before the logs, so that no group is ahead of its log
            self.recorder.see_groups(self.source, self.until_ms)
        whole = dict(self._snapshots(partitions))
        self.target.begin(self.source, whole, self.renamed)
        chosen = [self._chosen(tp, snapshot) for tp, snapshot in whole.items()]
        if self.recorder is not None:
            self.recorder.see_topics(self.source, whole, self.renamed)
        total = sum(_bytes_from(partition.snapshot, self.target.end_offset(partition.tp)) for partition in chosen)
        if not total:
            for partition in chosen:
                self._copy(partition)
            return 0
        with working(self.progress, "mirror", total):
            return sum(self._copy(partition) for partition in chosen)

    def _snapshots(self, partitions: Collection[TopicPartition]) -> Iterator[tuple[TopicPartition, LogSnapshot]]:
        """The logs to copy whose topics are known; errors of others are in `results`."""
        for tp in partitions:
            try:
                self.source.topic_info(tp.topic)
                snapshot = self.source.log(tp).snapshot()
            except (StorageError, OSError) as error:
                self._result(self._renamed(tp)).error = error
                continue
            yield tp, snapshot

    def _renamed(self, tp: TopicPartition) -> TopicPartition:
        return TopicPartition(self.renamed.get(tp.topic, tp.topic), tp.partition)

    def _result(self, tp: TopicPartition) -> Mirrored:
        """The result for a partition of the copy, which begins where the copy ends now."""
        if tp not in self.results:
            end = self.target.end_offset(tp)
            self.results[tp] = Mirrored(tp, end, end)
        return self.results[tp]

    def _check_names(self, topics: Collection[str]) -> None:
        """InvalidTopic if two topics would have the same name in the copy, or an internal topic would be renamed."""
        for topic in sorted(topics):
            name = self.renamed.get(topic, topic)
            if name != topic and names.INTERNAL_TOPICS & {topic, name}:
                raise InvalidTopic("an internal topic keeps its name", expected=topic, found=name)
            same = [other for other in sorted(topics) if other != topic and self.renamed.get(other, other) == name]
            if same:
                raise InvalidTopic(f"two topics would have the name {name} in the copy", found=f"{topic}, {same[0]}")

    def _chosen(self, tp: TopicPartition, snapshot: LogSnapshot) -> Chosen:
        renamed = self._renamed(tp)
        try:
            compacted = is_cleaned(self.source, tp)
            if self.until_ms is None:
                return Chosen(tp, renamed, snapshot, compacted)
            cut = cut_at(snapshot, self.until_ms)
        except (StorageError, OSError) as error:
            return Chosen(tp, renamed, snapshot, compacted=False, error=error)
        return Chosen(tp, renamed, cut.snapshot, compacted, is_cut=True, mixed=cut.mixed)

    def _copy(self, chosen: Chosen) -> int:
        """Copy one partition. If compaction or retention of the source removes a segment meanwhile, continue with a
        newer snapshot."""
        copied, rereads = 0, Rereads()
        while True:
            copied += self._copy_snapshot(chosen)
            result = self.results[chosen.tp]
            if not isinstance(result.error, SegmentGone) or rereads.are_exhausted(result.log_end_offset):
                return copied
            try:
                chosen = self._chosen(chosen.source_tp, self.source.log(chosen.source_tp).snapshot())
            except (StorageError, OSError) as error:
                result.error = error
                return copied

    def _copy_snapshot(self, chosen: Chosen) -> int:
        """Copy one partition, and return the bytes. Errors are in `results`."""
        result = self._result(chosen.tp)
        before = result.size_bytes
        try:
            if chosen.error is not None:
                raise chosen.error
            result.mixed, result.remote_note = chosen.mixed, chosen.snapshot.remote_note
            for size in self.target.copy(chosen, result, self.recorder):
                result.size_bytes += size
                self.progress.advance(size)
            if self.until_ms is None:
                check_tail(chosen.snapshot)
            result.error = None
        except (StorageError, OSError) as error:
            result.error = error
        return result.size_bytes - before


def check_topic_id(known: str | None, source: str | None, path: Path | str) -> None:
    """InvalidRecord if the copy at `path` has messages of another topic of that name, which was deleted since."""
    if None not in (source, known) and source != known:
        raise InvalidRecord(
            "the copy is of another topic of that name, which was deleted",
            path=path,
            expected=f"topic id {known}",
            found=source,
            advice="Mirror into another directory, or remove the topic there first",
        )


def check_cut(chosen: Chosen, end_offset: int, path: Path | str) -> None:
    """InvalidRecord if the copy at `path`, which ends at this offset, has messages from after the cut: a mirror never
    shortens a copy."""
    if chosen.is_cut and end_offset > chosen.snapshot.log_end_offset:
        raise InvalidRecord(
            "the copy already holds messages from after the cut",
            path=path,
            expected=f"a log end offset of at most {chosen.snapshot.log_end_offset}",
            found=end_offset,
            advice="Mirror into another directory",
        )


def first_batch(snapshot: LogSnapshot, offset: int) -> reader.BatchPosition | None:
    """The first batch from `offset` on, even below the log start offset: whole segments are copied."""
    if not snapshot.segments:
        return None
    if offset <= snapshot.segments[0].base_offset:
        return reader.BatchPosition(0, snapshot.segments[0], 0)
    return reader.find_batch(replace(snapshot, log_start_offset=snapshot.segments[0].base_offset), offset)


def _bytes_from(snapshot: LogSnapshot, offset: int) -> int:
    """Bytes of the batches from an offset on, for a progress bar; 0 if copying will report an error."""
    with suppress(StorageError, OSError):
        place = first_batch(snapshot, offset)
        if place is not None:
            later = snapshot.segments[place.segment_index :]
            return sum(snapshot.end_position(segment) for segment in later) - place.position
    return 0

"""A scan: the messages that a Python program asked for, as record batches, as often as it likes.

Creating a scan fixes the offsets to read in each partition. Messages that are appended later do not belong to it, and
messages that are removed before they are read are an error.

pyarrow is imported only for a schema or batches: single messages, and their number, do not need it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, Literal

from kafkafs.arrow import NOT_PICKLED
from kafkafs.arrow.keywords import check_keywords
from kafkafs.arrow.log_dirs import LogDirs
from kafkafs.reading.selection import ChosenOffsets, RecordFilter
from kafkafs.reading.split_reader import ALL, Split, read_split
from storage.errors import OffsetOutOfRange, StorageError
from storage.format.decoder import Decoder
from storage.log.counting import count_messages
from storage.types import Isolation, OffsetRange, TimeRange, TopicPartition

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from kafkafs.arrow.block_texts import Decoding, Side
    from kafkafs.arrow.dataset import ScanDataset
    from kafkafs.arrow.typed_values import TypedForm, TypedValues
    from kafkafs.schemas.places import SchemaPlaces
    from storage.format.block import BatchDamage, RecordBlock
    from storage.log.log_dir import LogDir


Text = bool | Literal["strict", "replace"]

TYPED: Final = "value_bytes"  # a column that only typed values have: the bytes that could not be decoded


@dataclass(frozen=True, slots=True)
class Skipped:
    """A place that was skipped, and why. `offsets`: the lost offsets, if known; `position`: where damage begins in the
    file that `why` names."""

    partition: TopicPartition
    why: str
    offsets: OffsetRange | None = None
    position: int | None = None


class ScanStopped(Exception):
    """The scan was stopped."""


class ScanProgress:
    """The bytes that all passes of a scan have read, the places that they have skipped, and whether to stop them.
    Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bytes_read = 0
        self._stopped = False
        self._skipped: dict[Skipped, None] = {}  # in order, each once

    def add(self, size_bytes: int) -> None:
        """Count bytes that were read. ScanStopped."""
        with self._lock:
            self._bytes_read += size_bytes
        if self._stopped:
            raise ScanStopped

    def stop(self) -> None:
        self._stopped = True

    def skip(self, place: Skipped) -> None:
        with self._lock:
            self._skipped[place] = None

    @property
    def bytes_read(self) -> int:
        return self._bytes_read

    @property
    def skipped(self) -> list[Skipped]:
        with self._lock:
            return list(self._skipped)


@dataclass(frozen=True, slots=True)
class Source:
    """The arguments of `kafkafs.open`, which say where scans read."""

    log_dirs: LogDirs
    paths: tuple[Path, ...]
    isolation: Isolation
    schemas: SchemaPlaces


@dataclass(frozen=True, slots=True)
class Part:
    """A scan's share of one partition: the messages of `split` that pass `record_filter`. `latest`: of these only the
    last message of each key."""

    split: Split
    log_dir: LogDir
    record_filter: RecordFilter
    latest: ChosenOffsets | None = None

    def narrowed(self, record_filter: RecordFilter) -> Part:
        """Return the messages of this part that also pass `record_filter`. If the scan itself has a key, that key
        stays."""
        first, last = self.split.start_offset, self.split.end_offset
        start, end = (
            max(first, record_filter.first),
            last if record_filter.end is None else min(last, record_filter.end),
        )
        split = replace(self.split, start_offset=start, end_offset=max(start, end))
        own, times = self.record_filter.times, record_filter.times
        if times is not None and own is not None:
            starts = [ms for ms in (own.start_ms, times.start_ms) if ms is not None]
            ends = [ms for ms in (own.end_ms, times.end_ms) if ms is not None]
            times = TimeRange(max(starts, default=None), min(ends, default=None))
        key = record_filter.key if self.record_filter.key is None else self.record_filter.key
        return replace(self, split=split, record_filter=RecordFilter(times=own if times is None else times, key=key))

    @property
    def is_whole(self) -> bool:
        """Whether the part has all messages between its offsets."""
        return self.record_filter == ALL and self.latest is None


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Messages of one topic, as record batches. Made by `scan` of a topic or partition; it never changes. Threads may
    share it, but not an iterator over it. It has no length: iteration gives batches, and `count` counts messages.

    Rows come partition by partition, in the order of offsets. `bytes_read` and `skipped` cover all passes so far.
    """

    _source: Source = field(repr=False)
    topic: str
    _parts: tuple[Part, ...] = field(repr=False)
    columns: tuple[str, ...]
    _form: TypedForm | None = field(default=None, repr=False)
    _text: Text = field(default=False, repr=False)
    _fail: bool = field(default=True, repr=False)
    _progress: ScanProgress = field(default_factory=ScanProgress, repr=False, compare=False)

    @property
    def bytes_read(self) -> int:
        """The bytes of the log's batches that all passes of this scan and its datasets have read together."""
        return self._progress.bytes_read

    @property
    def skipped(self) -> list[Skipped]:
        """The places skipped so far with `on_damage="skip"`, each once: damage, and messages that are gone."""
        return self._progress.skipped

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """The first offset to read of each partition, and the one after the last."""
        return {part.split.tp.partition: (part.split.start_offset, part.split.end_offset) for part in self._parts}

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches. ImportError without pyarrow."""
        require_pyarrow()
        import pyarrow as pa

        from kafkafs.arrow.rows import MILLISECONDS, arrow_schema

        types = {"timestamp": MILLISECONDS}
        if self._text:
            types |= {"key": pa.string(), "value": pa.string()}
        if self._form is not None:
            types |= {"value": _typed(self._form).type, TYPED: pa.binary()}
        return arrow_schema(self.columns, types)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches of 10,000 to 20,000 messages, fewer if messages are large; each owns its memory.

        StorageError for damage and for missing messages, with their place, unless the scan skips them; OSError.
        """
        schema = self.schema
        import pyarrow as pa

        from kafkafs.arrow.rows import arrow_batches, arrow_schema

        columns, typed = list(self.columns), None
        if self._form is not None and not {"value", TYPED, "decode_error"}.isdisjoint(columns):
            typed = _typed(self._form)
            columns = list(dict.fromkeys(("value", "headers", *(name for name in columns if name != TYPED))))
        read = arrow_schema(columns, {name: schema.field(name).type for name in columns if name in self.columns})
        if typed is not None:
            read = read.set(0, pa.field("value", pa.binary()))
        for batch in arrow_batches(self.blocks(), read, _decoding(self), replace_errors=self._text == "replace"):
            yield batch if typed is None else typed(batch).select(schema.names)

    def count(self) -> int:
        """Return the number of messages. It comes from batch headers, and records are not checked, if the scan takes
        all messages between two offsets and skips nothing. The errors are those of iteration."""
        return sum(self._count(part) for part in self._parts)

    def to_arrow(self) -> pa.Table:
        """Return all messages, in memory."""
        schema = self.schema
        import pyarrow as pa

        return pa.Table.from_batches(iter(self), schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return a stream of batches, which are read as they are taken."""
        schema = self.schema
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(schema, iter(self))

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Return all messages as a DataFrame. `options`: those of `pyarrow.Table.to_pandas`; TypeError for an unknown
        one."""
        # Checked before anything is read: pyarrow's own message for an unknown option does not name the nearest one.
        known = signature(self.schema.empty_table().to_pandas).parameters
        check_keywords("Scan.to_pandas", options, list(known))
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """Return all messages as a DataFrame of polars."""
        import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_dataset(self) -> ScanDataset:
        """Return a `pyarrow.dataset.Dataset`, of which DuckDB and polars read only the columns and messages that they
        need."""
        require_pyarrow()
        from kafkafs.arrow.dataset import ScanDataset

        return ScanDataset(self)

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLED)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: every user of Arrow streams accepts a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def blocks(self) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        """Yield the chosen records; a block is valid until the next is taken. The errors are those of iteration."""
        decoder = Decoder()
        for part in self._parts:
            for block in read_split(
                part.log_dir,
                part.split,
                decoder,
                on_loss=self._on_loss,
                on_damage=self._on_damage,
                isolation=self._source.isolation,
                record_filter=part.record_filter,
                latest=part.latest,
            ):
                self._progress.add(_file_bytes(block))
                block = part.record_filter.apply(block)
                if len(block):
                    yield part.split.tp, block

    def stop(self) -> None:
        """End all passes, also those in other threads, with ScanStopped."""
        self._progress.stop()

    def narrowed(self, columns: Sequence[str], filters: Mapping[int, RecordFilter]) -> Scan:
        """Return a scan of the messages of each partition that pass its filter, with these columns."""
        parts = (
            part.narrowed(filters[number]) for part in self._parts if (number := part.split.tp.partition) in filters
        )
        return replace(self, columns=tuple(columns), _parts=tuple(parts))

    def _count(self, part: Part) -> int:
        split = part.split
        if part.is_whole and self._fail:
            # Reading will report the error.
            with suppress(StorageError):
                log = part.log_dir.log(split.tp).snapshot()
                planned, current = split.identity, log.identity
                same = planned is None or current is None or planned.may_be_seen_elsewhere_as(current)
                if same and log.log_start_offset <= split.start_offset and log.log_end_offset >= split.end_offset:
                    return count_messages(log, split.start_offset, split.end_offset, self._source.isolation)
        return sum(len(block) for _, block in replace(self, _parts=(part,)).blocks())

    def _on_loss(self, tp: TopicPartition, offsets: OffsetRange, why: str) -> None:
        lose(self._progress, tp, offsets, why, fail=self._fail)

    def _on_damage(self, tp: TopicPartition, damage: BatchDamage) -> None:
        if self._fail:
            raise damage.error
        self._progress.skip(Skipped(tp, str(damage.error), position=damage.position))


def lose(progress: ScanProgress, tp: TopicPartition, offsets: OffsetRange, why: str, *, fail: bool) -> None:
    """Report messages that cannot be read: OffsetOutOfRange if `fail`, otherwise a skipped place."""
    text = f"messages {offsets.start} to {offsets.end - 1} of {tp} are missing: {why}"
    if fail:
        raise OffsetOutOfRange(text, advice="on_damage='skip' reads the rest")
    progress.skip(Skipped(tp, text, offsets))


def require_pyarrow() -> None:
    """Raise ImportError, which names the extra, unless pyarrow is installed."""
    if find_spec("pyarrow") is None:
        raise ImportError("batches and typed columns need pyarrow: pip install 'kafkafs[arrow]'")


def _typed(form: TypedForm) -> TypedValues:
    from kafkafs.arrow.typed_values import TypedValues

    return TypedValues(form)


def _decoding(scan: Scan) -> Decoding | None:
    """The decoder for the scan's columns of texts; None if it has none."""
    from kafkafs.arrow.block_texts import SIDES, Decoding
    from kafkafs.arrow.topic_schemas import schemas_of_topic

    sides: list[Side] = [side for side in SIDES if {f"{side}_json", f"{side}_schema_id"} & set(scan.columns)]
    if "decode_error" in scan.columns:
        sides = list(SIDES)
    return Decoding(schemas_of_topic(scan.topic, scan._source.paths, scan._source.schemas), sides) if sides else None


def _file_bytes(block: RecordBlock) -> int:
    """The bytes of the batches that contain the block's records."""
    if not len(block):
        return 0
    return int(block.table.size[int(block.batch[0]) : int(block.batch[-1]) + 1].sum())

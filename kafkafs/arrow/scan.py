"""A scan: the messages that a Python program asked for, as record batches, as often as it likes.

What is read is decided when the scan is made: of each partition the offsets from where to where. So what is appended
later does not belong to it, and messages that are removed before they are read are an error.

pyarrow is imported when a schema or batches are wanted: messages one by one, and their number, need none of it.
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

TYPED: Final = "value_bytes"  # a column that only typed values have: what could not be decoded


@dataclass(frozen=True, slots=True)
class Skipped:
    """Where something was skipped, and why. `offsets`: those that are lost, as far as they are known; `position`: of
    damage, in the file that `why` names."""

    partition: TopicPartition
    why: str
    offsets: OffsetRange | None = None
    position: int | None = None


class ScanStopped(Exception):
    """The scan is no longer wanted."""


class ScanProgress:
    """What all passes of a scan have read and skipped, and whether they go on. Thread-safe."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._bytes_read = 0
        self._stopped = False
        self._skipped: dict[Skipped, None] = {}  # in order, each once

    def add(self, size_bytes: int) -> None:
        """Counts bytes that were read. ScanStopped."""
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
    """Where scans read: what `kafkafs.open` was told."""

    log_dirs: LogDirs
    paths: tuple[Path, ...]
    isolation: Isolation
    schemas: SchemaPlaces


@dataclass(frozen=True, slots=True)
class Part:
    """What a scan reads of one partition: the messages from `split` that are `wanted`. `latest`: of these the last ones
    of keys."""

    split: Split
    log_dir: LogDir
    wanted: RecordFilter
    latest: ChosenOffsets | None = None

    def narrowed(self, wanted: RecordFilter) -> Part:
        """The part of it that is wanted; if the scan has chosen a key itself, with that."""
        first, last = self.split.start_offset, self.split.end_offset
        start, end = max(first, wanted.first), last if wanted.end is None else min(last, wanted.end)
        split = replace(self.split, start_offset=start, end_offset=max(start, end))
        own, times = self.wanted.times, wanted.times
        if times is not None and own is not None:
            starts = [ms for ms in (own.start_ms, times.start_ms) if ms is not None]
            ends = [ms for ms in (own.end_ms, times.end_ms) if ms is not None]
            times = TimeRange(max(starts, default=None), min(ends, default=None))
        key = wanted.key if self.wanted.key is None else self.wanted.key
        return replace(self, split=split, wanted=RecordFilter(times=own if times is None else times, key=key))

    @property
    def is_whole(self) -> bool:
        """Whether all messages between its offsets belong to it."""
        return self.wanted == ALL and self.latest is None


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """Messages of one topic, as record batches. Made by `scan` of a topic or partition; it never changes. Threads may
    share it, but not an iterator over it. It has no length: iteration gives batches, and `count` counts messages.

    Rows come partition by partition, in the order of offsets. `bytes_read` and `skipped` tell about all passes so far.
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
        """Bytes of the log's batches that were read, by all passes of this scan and its datasets together."""
        return self._progress.bytes_read

    @property
    def skipped(self) -> list[Skipped]:
        """What was skipped so far with `on_damage="skip"`, each place once: damage, and messages that are gone."""
        return self._progress.skipped

    @property
    def offsets(self) -> dict[int, tuple[int, int]]:
        """Of each partition the first offset that is read, and the one after the last."""
        return {part.split.tp.partition: (part.split.start_offset, part.split.end_offset) for part in self._parts}

    @property
    def schema(self) -> pa.Schema:
        """The columns as batches have them. ImportError without pyarrow."""
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
        """Record batches of 10,000 to 20,000 messages, fewer where messages are large; each owns its memory.

        StorageError for damage and for messages that are gone, with their place, unless they are skipped; OSError.
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
        """The number of messages: from the headers of batches, where all between two offsets are wanted and nothing is
        skipped; records are not checked then. Errors as of iteration."""
        return sum(self._count(part) for part in self._parts)

    def to_arrow(self) -> pa.Table:
        """All of it in memory."""
        schema = self.schema
        import pyarrow as pa

        return pa.Table.from_batches(iter(self), schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """A stream of its batches, read as they are taken."""
        schema = self.schema
        import pyarrow as pa

        return pa.RecordBatchReader.from_batches(schema, iter(self))

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """All of it as a DataFrame. `options`: those of `pyarrow.Table.to_pandas`; TypeError for an unknown one."""
        # Before anything is read. What pyarrow says of an unknown option does not name the nearest one.
        known = signature(self.schema.empty_table().to_pandas).parameters
        check_keywords("Scan.to_pandas", options, list(known))
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """All of it as a DataFrame of polars."""
        import polars

        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame

    def to_dataset(self) -> ScanDataset:
        """A `pyarrow.dataset.Dataset` of which DuckDB and polars read only the columns and messages that they need."""
        require_pyarrow()
        from kafkafs.arrow.dataset import ScanDataset

        return ScanDataset(self)

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLED)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface: whatever takes Arrow streams takes a scan."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def blocks(self) -> Iterator[tuple[TopicPartition, RecordBlock]]:
        """The wanted records; a block is valid until the next is taken. Errors as of iteration."""
        decoder = Decoder()
        for part in self._parts:
            for block in read_split(
                part.log_dir,
                part.split,
                decoder,
                on_loss=self._on_loss,
                on_damage=self._on_damage,
                isolation=self._source.isolation,
                wanted=part.wanted,
                latest=part.latest,
            ):
                self._progress.add(_file_bytes(block))
                block = part.wanted.apply(block)
                if len(block):
                    yield part.split.tp, block

    def stop(self) -> None:
        """Ends all passes, also of other threads, with ScanStopped."""
        self._progress.stop()

    def narrowed(self, columns: Sequence[str], wanted: Mapping[int, RecordFilter]) -> Scan:
        """Of these partitions what is wanted of each, with these columns."""
        parts = (part.narrowed(wanted[number]) for part in self._parts if (number := part.split.tp.partition) in wanted)
        return replace(self, columns=tuple(columns), _parts=tuple(parts))

    def _count(self, part: Part) -> int:
        split = part.split
        if part.is_whole and self._fail:
            # What is wrong is told by reading.
            with suppress(StorageError):
                log = part.log_dir.log(split.tp).snapshot()
                planned, found = split.identity, log.identity
                same = planned is None or found is None or planned.may_be_seen_elsewhere_as(found)
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
    """Reports messages that cannot be read: OffsetOutOfRange if `fail`, otherwise a skipped place."""
    text = f"messages {offsets.start} to {offsets.end - 1} of {tp} are missing: {why}"
    if fail:
        raise OffsetOutOfRange(text, advice="on_damage='skip' reads what is left")
    progress.skip(Skipped(tp, text, offsets))


def require_pyarrow() -> None:
    """ImportError, which names the extra, where pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise ImportError("batches and typed columns need pyarrow: pip install 'kafkafs[arrow]'")


def _typed(form: TypedForm) -> TypedValues:
    from kafkafs.arrow.typed_values import TypedValues

    return TypedValues(form)


def _decoding(scan: Scan) -> Decoding | None:
    """What decodes the columns of texts that are wanted."""
    from kafkafs.arrow.block_texts import SIDES, Decoding, schemas_of_topic

    sides: list[Side] = [side for side in SIDES if {f"{side}_json", f"{side}_schema_id"} & set(scan.columns)]
    if "decode_error" in scan.columns:
        sides = list(SIDES)
    return Decoding(schemas_of_topic(scan.topic, scan._source.paths, scan._source.schemas), sides) if sides else None


def _file_bytes(block: RecordBlock) -> int:
    """Bytes of the batches that the block's records are in."""
    if not len(block):
        return 0
    return int(block.table.size[int(block.batch[0]) : int(block.batch[-1]) + 1].sum())

"""A scan as a `pyarrow.dataset.Dataset`: readers name the columns and the filter, and only those messages are read.

DuckDB and polars take an instance of a subclass like pyarrow's own: they call `scanner` or `to_batches` with names of
columns and an expression. pyarrow does not show an expression's parts, but it can say whether the expression may be
true under a condition ("may it be true, with an offset below 100?"). So bisection finds the offsets and times between
which a filter may hold, and only these messages are read; then the filter is applied to the batches. A key that the
filter demands is taken from the filter's text, and confirmed by such a question.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from kafkafs.arrow import NOT_PICKLED
from kafkafs.arrow.arguments import whole_number
from kafkafs.arrow.keywords import checked_keywords
from kafkafs.arrow.rows import MILLISECONDS, TYPES
from kafkafs.reading.selection import RecordFilter
from storage.types import NO_TIMESTAMP, TimeRange


class NarrowedMessages(Protocol):
    """The messages of a scan that a query needs."""

    def count(self) -> int: ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


class Narrowable(Protocol):
    """The parts of a scan (`kafkafs.arrow.scan`) that a dataset uses."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def offsets(self) -> Mapping[int, tuple[int, int]]: ...

    def narrowed(self, columns: Sequence[str], filters: Mapping[int, RecordFilter]) -> NarrowedMessages: ...


Columns = Sequence[str] | dict[str, pc.Expression] | None
"""Names, in an order, or expressions by the names of the columns that they become; None: all columns."""

# pyarrow's arguments that say how files are read.
_TUNING: Final = (
    "batch_readahead",
    "fragment_readahead",
    "fragment_scan_options",
    "use_threads",
    "cache_metadata",
    "memory_pool",
)
_FORMAT: Final = ds.ParquetFileFormat()
_NOWHERE: Final = fs.LocalFileSystem()  # a dataset needs a filesystem; nothing is read from this one
_KEY_IS: Final = re.compile(r'\bkey == ("(?:[^"\\]|\\.)*")')
_YEARS_MS: Final = -62_135_596_800_000, 253_402_300_800_000  # the years 1 to 9999: microseconds can express them too
_SIDES: Final[dict[str, Callable[[str, Any], pc.Expression]]] = {
    "below": lambda name, bound: pc.field(name) < bound,
    "from": lambda name, bound: pc.field(name) >= bound,
}


class ScanDataset(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """The messages of a scan. Other operations of a Dataset (fragments, joins) are not possible.

    The methods take pyarrow's arguments. `batch_size` is the greatest number of messages in a batch; arguments that
    tune how files are read have no effect.
    """

    def __init__(self, scan: Narrowable) -> None:
        # Dataset's own __init__ refuses to be called, and the C++ object behind it does not exist: every method that
        # would use it is overridden here.
        self._scan = scan

    @property
    def schema(self) -> pa.Schema:
        """The columns of the scan."""
        return self._scan.schema

    @checked_keywords(*_TUNING)
    def scanner(
        self, columns: Columns = None, filter: Any = None, batch_size: int | None = None, **tuning: object
    ) -> Scanner:
        """Return a reader of these columns (None: all) of the messages for which the filter is true. ArrowInvalid."""
        return Scanner(self._scan, columns, filter, batch_size)

    @checked_keywords(*_TUNING)
    def to_batches(
        self, columns: Columns = None, filter: Any = None, batch_size: int | None = None, **tuning: object
    ) -> Iterator[pa.RecordBatch]:
        """Yield record batches of these columns of the messages for which the filter is true; none is empty."""
        return Scanner(self._scan, columns, filter, batch_size).to_batches()

    @checked_keywords(*_TUNING)
    def to_table(
        self, columns: Columns = None, filter: Any = None, batch_size: int | None = None, **tuning: object
    ) -> pa.Table:
        """Return these columns of all messages for which the filter is true, in memory."""
        return Scanner(self._scan, columns, filter, batch_size).to_table()

    @checked_keywords(*_TUNING)
    def count_rows(self, filter: Any = None, batch_size: int | None = None, **tuning: object) -> int:
        """The number of messages for which the filter is true."""
        return Scanner(self._scan, None, filter, batch_size).count_rows()

    @checked_keywords(*_TUNING)
    def head(
        self,
        num_rows: int,
        columns: Columns = None,
        filter: Any = None,
        batch_size: int | None = None,
        **tuning: object,
    ) -> pa.Table:
        """The first messages for which the filter is true."""
        return Scanner(self._scan, columns, filter, batch_size).head(num_rows)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The Arrow PyCapsule interface, by which `pyarrow.dataset.write_dataset` and other users of Arrow streams read
        all messages."""
        return self.scanner().to_reader().__arrow_c_stream__(requested_schema)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_") or name in _THERE:
            return super().__getattribute__(name)
        raise AttributeError(f"a scan as a Dataset has no {name!r}; to_table() returns all messages")

    def __reduce__(self) -> Any:
        raise TypeError(NOT_PICKLED)


_THERE: Final = frozenset({"schema", "scanner", "to_batches", "to_table", "count_rows", "head"})


class Scanner:
    """Reads columns of the messages for which a filter is true, with the methods of pyarrow's Scanner that DuckDB and
    polars use."""

    def __init__(
        self, scan: Narrowable, columns: Columns, filter_: pc.Expression | None, batch_size: int | None
    ) -> None:
        schema = scan.schema
        self._batch_size = None if batch_size is None else whole_number("batch_size", batch_size, 1)
        names = schema.names if columns is None else list(columns)
        self.dataset_schema = schema
        self._columns: Any = names if columns is None or not isinstance(columns, dict) else columns
        self._filter = filter_
        projected = _scanned(schema.empty_table(), self._columns, filter_)  # ArrowInvalid for an unknown column
        self.projected_schema: pa.Schema = projected.schema
        expressions = [] if filter_ is None else [filter_]
        if isinstance(columns, dict):
            expressions += columns.values()
            names = []
        needed = [name for name in schema.names if name in names or any(_uses(e, name, schema) for e in expressions)]
        self._scan = scan.narrowed(needed or schema.names[:1], _bounds(scan, filter_))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield record batches; none is empty."""
        for batch in self._scan:
            table = _scanned(pa.Table.from_batches([batch]), self._columns, self._filter)
            if table.num_rows:
                yield from table.to_batches(self._batch_size)

    def to_reader(self) -> pa.RecordBatchReader:
        """The record batches as a stream."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_table(self) -> pa.Table:
        """Return all messages, in memory."""
        return self.to_reader().read_all()

    def count_rows(self) -> int:
        """The number of messages."""
        return self._scan.count() if self._filter is None else sum(batch.num_rows for batch in self.to_batches())

    def head(self, num_rows: int) -> pa.Table:
        """The first messages."""
        missing, first = whole_number("num_rows", num_rows), []
        for batch in self.to_batches() if missing else ():
            first.append(batch.slice(0, missing))
            missing -= first[-1].num_rows
            if not missing:
                break
        return pa.Table.from_batches(first, self.projected_schema)


def _scanned(table: pa.Table, columns: list[str] | dict[str, pc.Expression], filter_: pc.Expression | None) -> pa.Table:
    if filter_ is not None and isinstance(columns, list):
        return table.filter(filter_).select(columns)
    if isinstance(columns, list):
        return table.select(columns)
    return ds.dataset(table).to_table(columns=columns, filter=filter_, use_threads=False)


def _uses(expression: pc.Expression, name: str, schema: pa.Schema) -> bool:
    """Whether an expression refers to a column, so that it cannot be evaluated without the column."""
    others = schema.remove(schema.get_field_index(name)).empty_table()
    try:
        others.filter(pc.is_valid(expression))
    except pa.ArrowInvalid:
        return True
    return False


def _bounds(scan: Narrowable, filter_: pc.Expression | None) -> dict[int, RecordFilter]:
    """By partition: the offsets and times between which the filter may be true, and the key that it demands."""
    schema, key = scan.schema, _key(scan.schema, filter_)
    used = {
        name
        for name in ("partition", "offset", "timestamp")
        if filter_ is not None and name in schema.names and _uses(filter_, name, schema)
    }
    may_be = _Possible(filter_, schema)
    times = _times(may_be, schema.field("timestamp").type) if "timestamp" in used else None
    bounds = {}
    for partition, (first, end) in scan.offsets.items():
        in_partition = (
            pc.field("partition") == pa.scalar(partition, pa.int32()) if "partition" in used else pc.scalar(True)
        )
        if "partition" in used and not may_be(in_partition):
            continue
        if "offset" in used:
            first, end = _hull(first, end, partial(_may_be_at, may_be, in_partition))
        bounds[partition] = RecordFilter(first, end, times, key)
    return bounds


def _key(schema: pa.Schema, filter_: pc.Expression | None) -> bytes | None:
    """The key that a message must have for the filter to be true; None if there is no such key."""
    if filter_ is None or "key" not in schema.names:
        return None
    kind, may_be = schema.field("key").type, _Possible(filter_, schema)
    for text in dict.fromkeys(_KEY_IS.findall(str(filter_))):
        try:
            name = json.loads(text)
            key = bytes.fromhex(name) if kind == pa.binary() else name.encode()
        except ValueError:  # not printed as expected
            continue
        column, literal = pc.field("key"), pa.scalar(key if kind == pa.binary() else name, kind)
        others = (column < literal, column > literal, column.is_null())
        if not any(may_be(other) for other in others) and "\N{REPLACEMENT CHARACTER}" not in name:
            return key
    return None


def _may_be_at(may_be: _Possible, in_partition: pc.Expression, offset: int, side: str) -> bool:
    return may_be(in_partition & _SIDES[side]("offset", offset))


def _times(may_be: _Possible, kind: pa.DataType) -> TimeRange | None:
    """The times between which the filter may be true; None: also for messages without a time. `kind`: the column's
    type."""
    least, most = _YEARS_MS

    def moment(ms: int) -> pa.Scalar:
        return pa.scalar(ms, MILLISECONDS).cast(kind)

    def at(ms: int, side: str) -> bool:
        return may_be(_SIDES[side]("timestamp", moment(ms)))

    try:
        # A message without a timestamp has -1, and is in no range of times.
        if may_be(pc.field("timestamp") == moment(NO_TIMESTAMP)):
            return None
        start, end = _hull(least, most, at)
    except pa.ArrowInvalid:  # a unit so fine that it cannot express these years
        return None
    return TimeRange(None if start == least else start, None if end == most else end)


def _hull(least: int, most: int, may_be: Callable[[int, str], bool]) -> tuple[int, int]:
    """The numbers from `least` (included) to `most` (excluded), without those at both ends for which the filter cannot
    be true. `may_be`: whether the filter may be true "below" a number, or "from" a number on."""
    start, end = least, most
    while start < end:
        middle = (start + end + 1) // 2
        if may_be(middle, "below"):
            end = middle - 1
        else:
            start = middle
    low, high = start, most
    while low < high:
        middle = (low + high) // 2
        if may_be(middle, "from"):
            low = middle + 1
        else:
            high = middle
    return start, high


class _Possible:
    """Whether a filter may be true under a condition. Asks pyarrow whether it would read a fragment for which that
    condition is known to hold."""

    def __init__(self, filter_: pc.Expression | None, schema: pa.Schema) -> None:
        self._filter = filter_
        for name in ("partition", "offset", "timestamp"):
            if name not in schema.names:
                schema = schema.append(pa.field(name, TYPES[name]))
        self._schema = schema

    def __call__(self, condition: pc.Expression) -> bool:
        fragment = _FORMAT.make_fragment("", _NOWHERE, partition_expression=condition)
        dataset = ds.FileSystemDataset([fragment], self._schema, _FORMAT, _NOWHERE)
        return any(True for _ in dataset.get_fragments(filter=self._filter))

"""SQL over log directories: DuckDB, in which each topic is a table; and its expressions as a filter of records.

A topic becomes a table, which is a view over a dataset (`kafkafs.arrow.dataset`), when DuckDB first misses a table of
that name. So views, macros and prepared statements find topics too, and unused topics cost nothing. A statement sees
one snapshot: DuckDB asks the datasets for the columns, offsets, partitions, times and keys that it needs. Nothing but
these tables can be reached: files, other databases, extensions and DuckDB's settings are locked, unless permitted.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from kafkafs.arrow import COLUMNS
from kafkafs.arrow.error_places import in_text
from kafkafs.arrow.interruptible import Caller
from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.result_forms import literal, quoted
from storage.errors import StorageError
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.types import TopicPartition

if TYPE_CHECKING:
    from types import TracebackType

    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkafs.arrow.opened_log import Log
    from kafkafs.arrow.result_forms import Form
    from kafkafs.arrow.scan import Scan, Text
    from kafkafs.reading.selection import RecordFilter
    from kafkafs.schemas.registry import SchemaLookup
    from storage.format.block import RecordBlock

_LISTED: Final = 20  # topics, in a message
_ROWS: Final = 2048  # of a batch of results: the size of DuckDB's own batches
_DECODED: Final = ("key_json", "value_json", "value_schema_id", "decode_error")
# The value as JSON: without schemas; and with schemas, for a value that is not in the wire format.
_AS_JSON: Final = "CASE WHEN json_valid(value) THEN value::JSON END AS value_json"
_BYTES_AS_JSON: Final = "CASE WHEN json_valid(TRY(decode(value))) THEN decode(value)::JSON END AS value_json"
_KEY_JSON: Final = "key_json::JSON AS key_json"
_VALUE_JSON: Final = (
    "CASE WHEN value_schema_id IS NULL AND json_valid(value) THEN value::JSON ELSE value_json::JSON END AS value_json"
)
# The timestamps of DuckDB, in milliseconds; earlier and later ones become infinite.
_LEAST_MS, _MOST_MS = -9_223_372_022_400_000, (2**63 - 1) // 1000
_INFINITY: Final = 2**63 - 1


# The word `offset`, unless a number follows as in LIMIT 10 OFFSET 5; texts, names and comments are matched to skip it
# in them.
_OFFSET: Final = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/)|\boffset\b(?!\s+\d)""", re.I | re.S)
_WORD: Final = re.compile(r'"((?:[^"]|"")*)"|(\w+)')
_MISSING: Final = re.compile(r"Table with name (.+) does not exist!", re.S)
_MEANT: Final = re.compile(r'(?<=does not exist!)\nDid you mean "[^\n]*')
_SHOW_TABLES: Final = re.compile(r"\s*show\s+tables\s*;?\s*", re.I)
_LISTING: Final = re.compile(
    r"\bshow\s+all\b|information_schema|duckdb_(tables|views|columns)|\bpg_|sqlite_master", re.I
)
_IS_LOCKED: Final = re.compile(r"^Permission Error: |operations are disabled|configuration has been locked")
_LOCKED: Final = "--allow-files permits files, other databases, extensions and settings"
_LASTING: Final = re.compile(r"\s*(prepare\b|create\b.*\b(view|macro|function)\b)", re.I | re.S)


class BadQuery(Exception):
    """DuckDB refuses a statement; its message says why."""


def require_duckdb() -> None:
    """Raise ImportError, which names the extra, unless duckdb and pyarrow are installed."""
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        raise ImportError("SQL needs duckdb and pyarrow: pip install 'kafkafs[sql]'")


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement; whether it has a result (CREATE, INSERT and SET have none), whether the result comes from EXPLAIN,
    and the line of the whole text where it begins."""

    text: str
    has_result: bool
    is_plan: bool
    line: int


class Database:
    """The topics of a log as tables. For one thread, in which ^C interrupts the running statement.

    `key` and `value` are text, with U+FFFD for bytes that are not UTF-8; with `binary` they are the bytes.
    `value_json` is NULL for a value that is not JSON. If there are schemas, and in Kafka's own topics, tables also have
    the columns `key_json`, `value_schema_id` and `decode_error`.
    """

    def __init__(self, log: Log, *, binary: bool = False, allow_files: bool = False) -> None:
        """ImportError if the extra is not installed."""
        require_duckdb()
        self._log, self._binary, self._is_locked = log, binary, not allow_files
        self._spill = tempfile.TemporaryDirectory(prefix="kafkafs-sql-", ignore_cleanup_errors=True)
        self._connection = _connection(self._spill.name, allow_files=allow_files)
        self._call = Caller(self._interrupt)
        # Names of topics in the form in which DuckDB compares names.
        self._topics: dict[str, str] = {}
        self._has_schemas: bool | None = None
        self._tables: dict[str, _Table] = {}
        self._lasting: set[str] = set()
        self._lock = Lock()  # of the log

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self.is_busy:
            self._call(self._connection.close)
        self._call.close()
        self._spill.cleanup()

    @property
    def is_busy(self) -> bool:
        """Whether an interrupted statement is still running: then the database cannot be used, and Python cannot
        end."""
        return self._call.is_busy

    @property
    def bytes_read(self) -> int:
        """The bytes of the log's batches that the last statement has read."""
        return sum(table.bytes_read for table in list(self._tables.values()))

    def topics(self) -> list[str]:
        """The names of the tables."""
        return sorted(self._log.topics)

    def statements(self, text: str) -> list[Statement]:
        """The statements of a text. BadQuery."""
        return _parsed(text)

    def run(self, statement: str, form: Form | None = None, *, line: int = 1) -> Iterator[pa.RecordBatch]:
        """Return the result of one statement: at least one batch, the first at once. `form`: converts each column.
        `line`: where the statement begins, for errors. Columns of the same name are numbered: `value`, `value_1`.

        BadQuery; StorageError and OSError of the log; InvalidOption for topics whose names differ only in case;
        KeyboardInterrupt.
        """
        import duckdb
        import pyarrow as pa

        text = statement
        try:
            self._call(lambda: self._begin(statement))
            if _SHOW_TABLES.fullmatch(statement):
                statement = self._listing()
            reader = self._call(lambda: self._reader(statement, form))
        except (duckdb.Error, RuntimeError) as error:
            raise self._failure(error, text, line) from None
        if reader is None:
            return
        batches = 0
        while True:
            try:
                batch = self._call(lambda: next(reader, None))
            except (duckdb.Error, RuntimeError, OSError, pa.ArrowException) as error:
                raise self._failure(error, text, line) from None
            if batch is None:
                break
            batches += 1
            yield batch
        if not batches:
            yield pa.RecordBatch.from_pylist([], reader.schema)

    def _reader(self, statement: str, form: Form | None) -> pa.RecordBatchReader | None:
        """The reader of a statement's result; None if the statement has no result."""
        relation = self._bound(statement)
        if relation is None:
            return None
        names = _distinct(relation.columns)
        numbered = relation.project(", ".join(f"#{number} AS c{number}" for number in range(1, len(names) + 1)))
        columns = []
        for number, (name, kind) in enumerate(zip(names, relation.types, strict=True), 1):
            value = f"c{number}" if form is None else form(f"c{number}", kind)
            columns.append(f"{value} AS {quoted(name)}")
        return numbered.project(", ".join(columns)).to_arrow_reader(_ROWS)

    def _begin(self, statement: str) -> None:
        """Forget the previous statement's snapshots, and take those of the topics that this statement names."""
        self._topics, self._has_schemas = self._chosen(statement), None
        for name, table in list(self._tables.items()):
            table.begin()
            if self._topics.get(name) != table.topic:
                self._drop(name)
        words = {(quote.replace('""', '"') or word).casefold() for quote, word in _WORD.findall(statement)}
        if _LASTING.match(statement):
            self._lasting |= words & self._topics.keys()
        # Create the tables first: the error of a statement that misses a table may end a transaction.
        for name in self._topics if _LISTING.search(statement) else self._topics.keys() & words:
            self._make_table(name)
        for name in self._tables.keys() & (words | self._lasting):
            if self._tables[name].schema != self._schema(self._tables[name].topic):
                self._drop(name)
                self._make_table(name)
            self._tables[name].scan()

    def _chosen(self, statement: str) -> dict[str, str]:
        """The topics by their names as DuckDB compares them, without regard to case. Of several topics with the same
        name, the topic that the statement spells exactly; none if it spells several of them."""
        chosen: dict[str, list[str]] = {}
        for topic in self._log.topics:
            chosen.setdefault(topic.casefold(), []).append(topic)
        for name, topics in chosen.items():
            if len(topics) > 1:
                table = self._tables.get(name)
                written = [topic for topic in topics if topic in statement]
                if table is not None and name in self._lasting:
                    written = [topic for topic in topics if topic == table.topic or topic in written]
                chosen[name] = written
        return {name: topics[0] for name, topics in chosen.items() if len(topics) == 1}

    def _bound(self, statement: str) -> duckdb.DuckDBPyRelation | None:
        """The relation of a statement; topics that are missing as tables become tables."""
        import duckdb

        missed = set()
        while True:
            try:
                return self._connection.sql(statement)
            except duckdb.CatalogException as error:
                missing = _MISSING.search(str(error))
                name = missing[1].casefold() if missing else ""
                if name in missed:
                    raise
                if name not in self._topics:
                    same = sorted(topic for topic in self._log.topics if topic.casefold() == name)
                    if same:
                        names = " and ".join(same)
                        advice = "name one of them, as it is written"
                        raise InvalidOption(f"SQL does not tell the topics {names} apart: {advice}") from None
                    raise
                missed.add(name)
                self._tables.pop(name, None)  # the table was dropped, or created in a transaction that was rolled back
                self._make_table(name)
                self._tables[name].scan()

    def _make_table(self, name: str) -> None:
        if name in self._tables:
            return
        # Imported only when needed, because its classes need pyarrow.
        from kafkafs.arrow.dataset import ScanDataset

        topic = self._topics[name]
        schema = self._schema(topic)
        table = _Table(topic, schema, lambda: self._scan(topic, schema), self._lock)
        columns = [quoted(column) for column in COLUMNS]  # `offset` is a word of SQL
        if "value_json" in schema.names:
            value = "value_json::JSON AS value_json" if self._binary else _VALUE_JSON
            columns += [_KEY_JSON, value, *_DECODED[2:]]
        else:
            columns.append(_BYTES_AS_JSON if self._binary else _AS_JSON)
        relation = self._connection.from_arrow(ScanDataset(table))
        relation.project(", ".join(columns)).create_view(topic, replace=True)
        self._tables[name] = table

    def _drop(self, name: str) -> None:
        topic = self._tables.pop(name).topic
        self._connection.execute(f"DROP VIEW IF EXISTS main.{quoted(topic)}")

    def _schema(self, topic: str) -> pa.Schema:
        """The columns to read from a topic's messages."""
        from kafkafs.arrow.rows import arrow_schema

        import pyarrow as pa  # isort: skip

        if self._has_schemas is None:
            self._has_schemas = self._log.has_schemas
        columns = [*COLUMNS, *(_DECODED if self._has_schemas or topic in KAFKAS_OWN_TOPICS else ())]
        kind = pa.binary() if self._binary else pa.string()
        return arrow_schema(columns, {"key": kind, "value": kind})

    def _scan(self, topic: str, schema: pa.Schema) -> Scan:
        text: Text = False if self._binary else "replace"
        decoded = "value_json" in schema.names
        return self._log[topic].scan(decode="json" if decoded else False, text=text, columns=schema.names)

    def _interrupt(self) -> None:
        for table in list(self._tables.values()):
            table.stop()
        self._connection.interrupt()

    def _failure(self, error: Exception, statement: str, line: int) -> Exception:
        """The error that ended a statement: that of a topic's scan, or else DuckDB's, which then suggests a topic
        instead of a table of DuckDB's own, and names the option for what is locked."""
        for table in self._tables.values():
            if table.failure is not None:
                return table.failure
        message = in_text(error, statement, line)
        missing = _MISSING.search(message)
        if missing is None:
            return BadQuery(f"{message}\n\n{_LOCKED}" if self._is_locked and _IS_LOCKED.search(message) else message)
        near = get_close_matches(missing[1], [*self._topics.values(), *self._own_tables()], n=1)
        if near:
            return BadQuery(_MEANT.sub(lambda _: f'\nDid you mean "{near[0]}"?', message))
        topics = sorted(self._topics.values())
        listed = f"The topics here: {', '.join(topics[:_LISTED])}{' …' if topics[_LISTED:] else ''}"
        return BadQuery(f"{_MEANT.sub('', message)}\n\n{listed}")

    def _listing(self) -> str:
        """SQL of the result of SHOW TABLES. Creating a table for each of thousands of topics would take seconds."""
        names = sorted({*self._topics.values(), *self._own_tables()})
        return f"SELECT unnest([{', '.join(map(literal, names))}]::VARCHAR[]) AS name"

    def _own_tables(self) -> list[str]:
        """The tables and views that this session has created, and the topics that it has used."""
        import duckdb

        with suppress(duckdb.Error):
            rows = self._connection.execute("SELECT table_name FROM information_schema.tables").fetchall()
            return [name for (name,) in rows]
        return []


class Where:
    """DuckDB's expression over a record's columns as a filter. For one thread."""

    def __init__(self, expression: str, schemas: SchemaLookup | None) -> None:
        """`schemas`: decode `key_json` and `value_json`; None: `value_json` is the value if that is JSON. BadQuery;
        ImportError if the extra is not installed."""
        require_duckdb()
        from kafkafs.arrow.block_texts import Decoding
        from kafkafs.arrow.rows import MILLISECONDS, arrow_schema

        import pyarrow as pa  # isort: skip

        columns = [*COLUMNS, *(_DECODED if schemas is not None else ())]
        self._decoding = None if schemas is None else Decoding(schemas)
        self._schema = arrow_schema(columns, {"timestamp": MILLISECONDS, "key": pa.string(), "value": pa.string()})
        self._connection = _connection("", allow_files=False)
        casts = "" if schemas is None else f" REPLACE ({_KEY_JSON}, {_VALUE_JSON})"
        more = f", {_AS_JSON}" if schemas is None else ""
        self._expression = expression
        # The expression has lines of its own, which errors show.
        query = f"SELECT row FROM (SELECT *{casts}{more} FROM records) WHERE (\n{expression}\n) ORDER BY row"
        self._query = "; ".join(statement.text for statement in _parsed(query, expression))
        self._chosen(self._schema.empty_table())

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> RecordBlock:
        """The records of the block for which the expression is true. BadQuery, also if it fails for a record."""
        from kafkafs.arrow.rows import arrow_batches

        import pyarrow as pa  # isort: skip

        batches = arrow_batches(iter([(tp, block)]), self._schema, self._decoding, replace_errors=True)
        rows = self._chosen(pa.Table.from_batches(batches, self._schema))
        return block if len(rows) == len(block) else block.select(rows)

    def _chosen(self, records: pa.Table) -> NDArray[np.int64]:
        import duckdb
        import numpy as np
        import pyarrow as pa

        batches = [_in_microseconds(batch) for batch in records.to_batches()]
        timely = pa.Table.from_batches(batches, _with_microseconds(records.schema))
        numbered = timely.append_column("row", pa.array(np.arange(len(records))))
        try:
            self._connection.register("records", numbered)
            return self._connection.execute(self._query).fetchnumpy()["row"].astype(np.int64)
        except duckdb.Error as error:
            raise BadQuery(in_text(error, self._expression)) from None


class _Table:
    """A topic as a dataset's scan: each statement sees the topic's messages as of its first use."""

    def __init__(self, topic: str, schema: pa.Schema, make: Callable[[], Scan], lock: Lock) -> None:
        self.topic, self.schema = topic, schema
        self.failure: Exception | None = (
            None  # the error that ended a scan, of which DuckDB reports only its own version
        )
        self._make, self._lock = make, lock
        self._scan: Scan | None = None

    def begin(self) -> None:
        """Begin a statement."""
        self._scan = self.failure = None

    def scan(self) -> Scan:
        """The scan of this statement. StorageError, OSError."""
        with self._lock:  # DuckDB has several threads
            if self._scan is None:
                with self.watched():
                    self._scan = self._make()
            return self._scan

    def stop(self) -> None:
        """End the passes of the scan."""
        if self._scan is not None:
            self._scan.stop()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Remember the error that ends the block."""
        try:
            yield
        except (StorageError, OSError) as error:
            self.failure = error
            raise

    @property
    def bytes_read(self) -> int:
        return 0 if self._scan is None else self._scan.bytes_read

    @property
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        return self.scan().offsets

    def narrowed(self, columns: Sequence[str], filters: Mapping[int, RecordFilter]) -> _Narrowed:
        return _Narrowed(self, self.scan().narrowed(columns, filters))


class _Narrowed:
    """The part of a table that a query needs."""

    def __init__(self, table: _Table, scan: Scan) -> None:
        self._table, self._scan = table, scan

    def count(self) -> int:
        with self._table.watched():
            return self._scan.count()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        with self._table.watched():
            yield from map(_in_microseconds, self._scan)


def _with_microseconds(schema: pa.Schema) -> pa.Schema:
    from kafkafs.arrow.rows import TYPES

    place = schema.get_field_index("timestamp")
    return schema if place < 0 else schema.set(place, schema.field(place).with_type(TYPES["timestamp"]))


def _in_microseconds(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with DuckDB's timestamps: those out of its range are infinite."""
    schema = _with_microseconds(batch.schema)
    if schema == batch.schema:
        return batch
    import numpy as np
    import pyarrow as pa

    place = schema.get_field_index("timestamp")
    ms = batch.column(place).cast(pa.int64()).to_numpy(zero_copy_only=False)
    us = np.clip(ms, _LEAST_MS, _MOST_MS) * 1000
    us[ms > _MOST_MS] = _INFINITY
    us[ms < _LEAST_MS] = -_INFINITY
    return batch.set_column(place, schema.field(place), pa.array(us).cast(schema.field(place).type))


def _connection(spill: str, *, allow_files: bool) -> duckdb.DuckDBPyConnection:
    """A new database in memory. `spill`: a directory for data that does not fit into memory, "": none."""
    import duckdb

    connection = duckdb.connect(
        ":memory:",
        config={
            "temp_directory": spill,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        },
    )
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET enable_progress_bar = false")
    if not allow_files:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def _parsed(text: str, written: str | None = None) -> list[Statement]:
    """The statements of a text. OFFSET is a word of SQL, so a column of that name is quoted if the text is otherwise
    invalid. `written`: the part of it that a user wrote, by default everything. BadQuery."""
    import duckdb

    def parsed(text: str) -> list[Statement]:
        position, statements = 0, []
        for statement in duckdb.extract_statements(text):
            query = statement.query.strip()
            position = max(position, text.find(query, position))
            statements.append(_statement(statement, query, text.count("\n", 0, position) + 1))
            position += 1
        return statements

    try:
        text.encode()  # surrogates stand for bytes of a command line that are not UTF-8; DuckDB refuses them
        return parsed(text)
    except UnicodeEncodeError as error:
        raise BadQuery(str(error)) from None
    except duckdb.Error as error:
        with suppress(duckdb.Error):
            return parsed(_OFFSET.sub(lambda found: found[1] or '"offset"', text))
        raise BadQuery(in_text(error, text if written is None else written)) from None


def _statement(parsed: duckdb.Statement, text: str, line: int) -> Statement:
    import duckdb

    kinds, results = duckdb.StatementType, duckdb.ExpectedResultType
    expected = parsed.expected_result_type
    # DuckDB returns the number of changed rows like a row of a result.
    has_result = results.QUERY_RESULT in expected and results.CHANGED_ROWS not in expected
    if parsed.type == kinds.MULTI:  # PIVOT
        has_result = True
    elif parsed.type in (kinds.INSERT, kinds.UPDATE, kinds.DELETE, kinds.MERGE_INTO):
        has_result = "returning" in text.casefold()
    return Statement(text, has_result, parsed.type == kinds.EXPLAIN, line)


def _distinct(names: Iterable[str]) -> list[str]:
    """The names, with numbers added to repeated ones."""
    taken = set(names)
    distinct: list[str] = []
    for name in names:
        number, unique = 0, name
        while unique in distinct or (number and unique in taken):
            number += 1
            unique = f"{name}_{number}"
        distinct.append(unique)
    return distinct

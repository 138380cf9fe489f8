"""SQL over log directories: DuckDB, in which each topic is a table.

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
from difflib import get_close_matches
from threading import Lock
from typing import TYPE_CHECKING, Final, Self

from kafkafs.arrow import COLUMNS
from kafkafs.arrow.duckdb_connection import connect, require_duckdb
from kafkafs.arrow.error_places import in_text
from kafkafs.arrow.interruptible import Caller
from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.result_forms import literal, quoted
from kafkafs.arrow.sql_columns import AS_JSON, BYTES_AS_JSON, DECODED_COLUMNS, KEY_JSON, VALUE_JSON, in_microseconds
from kafkafs.arrow.statements import BadQuery, Statement, statements_of
from storage.errors import StorageError
from storage.files.names import KAFKAS_OWN_TOPICS

if TYPE_CHECKING:
    from types import TracebackType

    import duckdb
    import pyarrow as pa

    from kafkafs.arrow.opened_log import Log
    from kafkafs.arrow.result_forms import Form
    from kafkafs.arrow.scan import Scan, Text
    from kafkafs.reading.selection import RecordFilter

_LISTED: Final = 20  # topics, in a message
_ROWS: Final = 2048  # of a batch of results: the size of DuckDB's own batches
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
        self._connection = connect(self._spill.name, allow_files=allow_files)
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
        return statements_of(text)

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
            value = "value_json::JSON AS value_json" if self._binary else VALUE_JSON
            columns += [KEY_JSON, value, *DECODED_COLUMNS[2:]]
        else:
            columns.append(BYTES_AS_JSON if self._binary else AS_JSON)
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
        columns = [*COLUMNS, *(DECODED_COLUMNS if self._has_schemas or topic in KAFKAS_OWN_TOPICS else ())]
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
            yield from map(in_microseconds, self._scan)


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

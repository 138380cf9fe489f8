"""SQL over log directories: DuckDB, in which each topic is a table; and its expressions as a filter of records.

A statement sees one snapshot: the topics that it names become tables when it begins (`kafkafs.arrow.scan`), and DuckDB
asks their datasets for the columns, offsets, partitions, times and keys that it needs. Nothing but these tables can be
reached: files, other databases, extensions and DuckDB's settings are locked, unless that is permitted.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Self

from kafkafs.arrow import COLUMNS
from kafkafs.arrow.log_dirs import InvalidOption
from storage.errors import StorageError
from storage.types import OffsetRange, TimeRange, TopicPartition

if TYPE_CHECKING:
    from types import TracebackType

    import duckdb
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkafs.arrow.opened_log import Log
    from kafkafs.arrow.scan import Scan, Text
    from kafkafs.schemas.registry import SchemaLookup
    from storage.format.block import RecordBlock

_ROWS: Final = 10_000  # of a batch of results
_DECODED: Final = ("key_json", "value_json", "value_schema_id", "decode_error")
# The value as JSON where no schema makes it so; and by schemas, where a value that is in no wire format may be JSON.
_AS_JSON: Final = "CASE WHEN json_valid(value) THEN value::JSON END AS value_json"
_KEY_JSON: Final = "key_json::JSON AS key_json"
_VALUE_JSON: Final = (
    "CASE WHEN value_schema_id IS NULL AND json_valid(value) THEN value::JSON ELSE value_json::JSON END AS value_json"
)


# The word, unless a number follows as in LIMIT 10 OFFSET 5; and texts, names and comments, in which it is another.
_OFFSET: Final = re.compile(r"""('(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/)|\boffset\b(?!\s+\d)""", re.I | re.S)
_SHOW_TABLES: Final = re.compile(r"\s*show\s+(all\s+)?tables\s*;?\s*", re.I)


class BadQuery(Exception):
    """DuckDB refuses a statement; its message says why."""


def require_duckdb() -> None:
    """ImportError, which names the extra, where duckdb or pyarrow is not installed."""
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        raise ImportError("SQL needs duckdb and pyarrow: pip install 'kafkafs[sql]'")


class Database:
    """The topics of a log as tables. For one thread.

    `key` and `value` are text, with U+FFFD for bytes that are not UTF-8; with `binary` they are the bytes. Where there
    are schemas, and in Kafka's own topics, `key_json`, `value_json` and `decode_error` are there too; where the last
    value of a topic is JSON, `value_json` alone.
    """

    def __init__(self, log: Log, *, binary: bool = False, allow_files: bool = False) -> None:
        """ImportError where the extra is not installed."""
        require_duckdb()
        self._log, self._binary = log, binary
        self._spill = tempfile.TemporaryDirectory(prefix="kafkafs-sql-")
        self._connection = _connection(self._spill.name, allow_files=allow_files)
        self._tables: list[str] = []
        self._scans: list[_Watched] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection.close()
        self._spill.cleanup()

    @property
    def bytes_read(self) -> int:
        """Of the log's batches, by the last statement."""
        return sum(scan.bytes_read for scan in self._scans)

    def topics(self) -> list[str]:
        """The names of the tables."""
        return sorted(self._log.topics)

    def statements(self, text: str) -> list[str]:
        """The statements of a text. BadQuery."""
        return [statement.strip() for statement in _parsed(text)]

    def run(self, statement: str) -> Iterator[pa.RecordBatch]:
        """The result of one statement, the first batch at once; nothing from a statement without a result.

        BadQuery; StorageError and OSError of the log; InvalidOption for topics that cannot be told apart;
        KeyboardInterrupt.
        """
        import duckdb

        if _SHOW_TABLES.fullmatch(statement):  # DuckDB knows those alone that a statement names
            names = ", ".join("'" + topic.replace("'", "''") + "'" for topic in self.topics())
            statement = f"SELECT unnest([{names}]::VARCHAR[]) AS name"
        self._make_tables(statement)
        try:
            relation = self._connection.sql(statement)
            if relation is not None:
                yield from relation.to_arrow_reader(_ROWS)
        except (duckdb.Error, RuntimeError, OSError) as error:
            for scan in self._scans:
                if scan.failure is not None:
                    raise scan.failure from None
            if isinstance(error, duckdb.InterruptException) or "interrupt" in str(error).lower():
                raise KeyboardInterrupt from None
            raise BadQuery(str(error)) from None

    def _make_tables(self, statement: str) -> None:
        """Makes tables of the topics that the statement names, and of no others."""
        for name in self._tables:
            self._connection.execute(f"DROP VIEW IF EXISTS temp.{_quoted(name)}")
        self._tables, self._scans = [], []
        for number, topic in enumerate(_named(statement, self.topics())):
            scan, expressions = self._scan(topic)
            self._scans.append(_Watched(scan))
            # Imported here, since its classes need pyarrow.
            from kafkafs.arrow.dataset import ScanDataset

            self._connection.register(f"kafkafs_{number}", ScanDataset(self._scans[-1]))
            self._connection.execute(
                f"CREATE OR REPLACE TEMP VIEW {_quoted(topic)} AS SELECT {', '.join(expressions)} FROM kafkafs_{number}"
            )
            self._tables.append(topic)

    def _scan(self, topic: str) -> tuple[Scan, list[str]]:
        """The scan of a topic, and what its table has of each message."""
        found = self._log[topic]
        text: Text = False if self._binary else "replace"
        columns, expressions = list(COLUMNS), [_quoted(name) for name in COLUMNS]  # `offset` is a word of SQL
        with suppress(InvalidOption):  # there are no schemas
            scan = found.scan(decode="json", text=text, columns=[*columns, *_DECODED])
            value = "value_json::JSON AS value_json" if self._binary else _VALUE_JSON
            return scan, [*expressions, _KEY_JSON, value, *_DECODED[2:]]
        if not self._binary and _is_json(found):
            expressions.append(_AS_JSON)
        return found.scan(text=text), expressions


class Where:
    """DuckDB's expression over a record's columns as a filter. For one thread."""

    def __init__(self, expression: str, schemas: SchemaLookup | None) -> None:
        """`schemas`: those by which `key_json` and `value_json` are decoded; None: `value_json` is the value where that
        is JSON. BadQuery; ImportError where the extra is not installed."""
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
        query = f"SELECT row FROM (SELECT *{casts}{more} FROM records) WHERE ({expression}\n) ORDER BY row"
        self._query = "; ".join(_parsed(query))
        self._chosen(self._schema.empty_table())

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> RecordBlock:
        """The records of the block for which it is true. BadQuery, also where an expression fails for a record."""
        from kafkafs.arrow.rows import arrow_batches

        import pyarrow as pa  # isort: skip

        batches = arrow_batches(iter([(tp, block)]), self._schema, self._decoding, replace_errors=True)
        rows = self._chosen(pa.Table.from_batches(batches, self._schema))
        return block if len(rows) == len(block) else block.select(rows)

    def _chosen(self, records: pa.Table) -> NDArray[np.int64]:
        import duckdb
        import numpy as np
        import pyarrow as pa

        numbered = records.append_column("row", pa.array(np.arange(len(records))))
        try:
            self._connection.register("records", numbered)
            return self._connection.execute(self._query).fetchnumpy()["row"].astype(np.int64)
        except duckdb.Error as error:
            raise BadQuery(str(error)) from None


class _Watched:
    """A scan that remembers what ended it: DuckDB tells it in its own words."""

    def __init__(self, scan: Scan, whole: _Watched | None = None) -> None:
        self._scan, self._whole = scan, whole or self
        self.failure: Exception | None = None

    @property
    def schema(self) -> pa.Schema:
        return self._scan.schema

    @property
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        return self._scan.offsets

    @property
    def bytes_read(self) -> int:
        return self._scan.bytes_read

    def narrowed(
        self,
        columns: Sequence[str],
        partitions: Mapping[int, tuple[OffsetRange, TimeRange | None]],
        key: bytes | None,
    ) -> Any:
        return _Watched(self._scan.narrowed(columns, partitions, key), self._whole)

    def count(self) -> int:
        return self._scan.count()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._scan
        except (StorageError, OSError) as error:
            self._whole.failure = error
            raise


def _connection(spill: str, *, allow_files: bool) -> duckdb.DuckDBPyConnection:
    """A database of its own in memory. `spill`: a directory for what does not fit, "": none."""
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


def _parsed(text: str) -> list[str]:
    """The statements of a text. OFFSET is a word of SQL, so a column of that name is quoted where it must be: where the
    text means nothing without. BadQuery."""
    import duckdb

    def parsed(text: str) -> list[str]:
        return [statement.query for statement in duckdb.extract_statements(text)]

    try:
        text.encode()  # DuckDB takes no surrogates, which stand for bytes of a command line that are not UTF-8
        return parsed(text)
    except UnicodeEncodeError as error:
        raise BadQuery(str(error)) from None
    except duckdb.Error as error:
        with suppress(duckdb.Error):
            return parsed(_OFFSET.sub(lambda found: found[1] or '"offset"', text))
        raise BadQuery(str(error)) from None


def _named(statement: str, topics: Sequence[str]) -> list[str]:
    """The topics whose names occur in the statement. DuckDB does not tell names apart by their case: of topics that
    differ in nothing else, the one that is written as the topic is."""
    text = statement.casefold()
    found: dict[str, str] = {}
    for topic in topics:
        name = topic.casefold()
        if name not in text:
            continue
        other = found.get(name)
        if other is not None and (topic in statement) == (other in statement):
            raise InvalidOption(
                f"SQL does not tell the topics {other} and {topic} apart: name one of them, as it is written"
            )
        if other is None or topic in statement:
            found[name] = topic
    return list(found.values())


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_json(topic: Any) -> bool:
    """Whether the last value of a partition is a JSON object or array; of the first partition that has one."""
    import json

    with suppress(StorageError, OSError):
        for message in topic.messages(offsets="last-1"):
            if message.value is not None:
                try:
                    return isinstance(json.loads(message.value.decode()), dict | list)
                except (ValueError, RecursionError):
                    return False
    return False

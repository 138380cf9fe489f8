"""`kafkafs sql`: statements over topics, from the command line, a pipe or a prompt."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from kafkafs.cli import echo, say
from kafkafs.cli.process import interrupt_quietly, name_of_failed
from kafkafs.cli.shared_options import ISOLATION, LOGDIR, SCHEMAS, TIER, check_destination, open_log_dir, tier
from kafkafs.cli.terminal import bytes_json, print_table

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafs.arrow.database import Database

_MOST_ROWS: Final = 1000  # of a table for people
_MOST_CHARACTERS: Final = 100_000  # of a cell of a table
_HELP: Final = """\
.tables           the topics
.schema TOPIC     its columns
.help  .quit      this text; the end (or ^D)
Other lines are SQL, up to a semicolon at the end of a line."""


@click.command()
@LOGDIR
@click.argument("query", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "jsonl", "parquet"]),
    default="table",
    show_default=True,
    help=f"How results are printed. A table has at most {_MOST_ROWS} rows.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there, not to stdout.")
@click.option("--binary", is_flag=True, help="Keys and values are BLOBs, not text.")
@SCHEMAS
@TIER
@ISOLATION
@click.option("--allow-files", is_flag=True, help="Permit what reads and writes files: COPY, ATTACH, read_csv, SET …")
@click.pass_context
def sql(
    ctx: click.Context,
    logdir: Path,
    query: str | None,
    form: str,
    output: Path | None,
    binary: bool,
    schemas_path: Path | None,
    isolation: str,
    allow_files: bool,
) -> None:
    """Run SQL over topics, with DuckDB; without QUERY, statements from stdin or a prompt.

    Each topic is a table with the columns key, value, topic, partition, offset, timestamp (TIMESTAMP WITH TIME ZONE;
    the session is in UTC), timestampType and headers. Keys and values are text, with U+FFFD for bytes that are not
    UTF-8. Where schemas are, and in Kafka's own topics, there are also key_json, value_json, value_schema_id and
    decode_error; elsewhere value_json, if the topic's last value is a JSON object or array (a value that is none is
    NULL). A name with other characters than letters, digits and _ needs quotes: "my-topic"; offset needs none. A filter
    on offset, partition or timestamp, or for one key, reads only what it needs, and a query only the columns that it
    names. A statement sees the messages that are there when it begins.

    QUERY may have several statements, or be .tables or .schema TOPIC. A prompt has these too, .help, .quit, and a
    history ($XDG_STATE_HOME/kafkafs/sql_history). A table escapes control characters, cuts cells of more than 100,000,
    and says when there are more rows. In csv and jsonl bytes that are not UTF-8 are {"base64":"..."}, timestamps ISO
    8601; in csv lists and structs are JSON. What exceeds DuckDB's memory goes to a temporary directory that is not in
    LOGDIR.

    \b
    kafkafs sql /var/kafka "SELECT max(offset) FROM orders WHERE timestamp >= '2026-11-20'"
    kafkafs sql /var/kafka "SELECT value_json->>'item' AS item, count(*) FROM orders GROUP BY item"
    kafkafs sql /var/kafka 'SELECT * FROM orders JOIN "orders-dlq" USING (key)' -o joined.txt

    Exit code: 2 what DuckDB refuses; 4 damage and lost messages, with their place.
    """
    from kafkafs.arrow.database import BadQuery, Database
    from kafkafs.arrow.log_dirs import InvalidOption
    from kafkafs.arrow.opened_log import open_log

    interrupt_quietly(ctx)
    if output is not None:
        check_destination(output, logdir)
    elif form == "parquet" and sys.stdout.isatty():
        raise click.UsageError("--format parquet is not for a terminal: -o FILE")
    log_dir = open_log_dir(logdir)
    try:
        with Database(
            open_log(logdir, isolation, schemas_path, tier()), binary=binary, allow_files=allow_files
        ) as database:
            if query is None and sys.stdin.isatty():
                _prompt(database, form)
                return
            text = query if query is not None else sys.stdin.read()
            with _destination(output) as out:
                if query is not None and query.startswith("."):
                    with _stdout(out):
                        _dot(database, query.split())
                    return
                for statement in database.statements(text):
                    with _progress(database):
                        _write(database.run(statement), form, out)
    except ImportError as error:
        raise click.UsageError(str(error)) from None
    except BadQuery as error:
        raise click.UsageError(_with_hint(str(error), log_dir.topics())) from None
    except InvalidOption as error:
        raise click.UsageError(str(error)) from None


def _with_hint(message: str, topics: list[str]) -> str:
    if "does not exist" in message and "Table" in message:
        message += f"\n\nThe topics here: {', '.join(topics[:20])}{' …' if len(topics) > 20 else ''}"
    return message


@contextmanager
def _destination(path: Path | None) -> Iterator[BinaryIO]:
    """Where results go; a file that could not be completed is removed."""
    if path is None:
        yield sys.stdout.buffer
        return
    with path.open("wb") as file:
        try:
            yield file
        except BaseException:
            with suppress(OSError):
                path.unlink()
            raise


@contextmanager
def _progress(database: Database) -> Iterator[None]:
    """How much was read, on a terminal, while a statement runs for long."""
    if not sys.stderr.isatty():
        yield
        return
    import threading

    ended = threading.Event()

    def tell() -> None:
        shown = False
        while not ended.wait(1 if not shown else 0.2):
            shown = True
            with suppress(OSError):
                sys.stderr.write(f"\r\x1b[K{database.bytes_read / 1e6:,.0f} MB read")
                sys.stderr.flush()
        if shown:
            with suppress(OSError):
                sys.stderr.write("\r\x1b[K")

    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(batches: Iterator[pa.RecordBatch], form: str, out: BinaryIO) -> None:
    try:
        _WRITERS[form](batches, out)
        out.flush()
    except OSError as error:
        if out is sys.stdout.buffer:
            error.filename = error.filename or name_of_failed(error)
        raise


def _rows(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[list[str], list[Any]]]:
    for batch in batches:
        columns = [_values(column) for column in batch.columns]
        for row in zip(*columns, strict=True):
            yield batch.schema.names, list(row)


def _values(column: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        # Beyond what Python's datetime has, the number.
        try:
            return [None if value is None else _moment(value) for value in column.to_pylist()]
        except (ValueError, OverflowError):
            return column.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    return column.to_pylist()  # type: ignore[no-any-return]


def _moment(value: datetime) -> str:
    zone = value.tzinfo is not None
    text = (value.astimezone(UTC).replace(tzinfo=None) if zone else value).isoformat(timespec="milliseconds")
    return text + "Z" * zone


def _plain(value: Any) -> Any:
    """A value as JSON has it: bytes that are no text as in jsonl."""
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and value not in (value, float("inf"), float("-inf")):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return _moment(value) if isinstance(value, datetime) else str(value)


def _text(value: Any) -> str | None:
    """Of a cell: text as it is, everything else as JSON has it."""
    plain = _plain(value)
    if plain is None or isinstance(plain, str):
        return plain
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _texts(column: pa.Array) -> list[Any]:
    """The cells of a column; a CSV writer makes the text of numbers itself, as JSON has it."""
    import pyarrow as pa

    values = _values(column)
    if pa.types.is_string(column.type) or pa.types.is_integer(column.type):
        return values
    return [_text(value) for value in values]


def _table(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    rows: list[list[str | None]] = []
    names, more = None, False
    for batch in batches:
        names = batch.schema.names
        for _, row in _rows([batch.slice(0, _MOST_ROWS - len(rows))]):
            cells = map(_text, row)
            rows.append([f"{cell[:_MOST_CHARACTERS]}…" if cell and cell[_MOST_CHARACTERS:] else cell for cell in cells])
        if len(rows) == _MOST_ROWS:
            more = True
            break
    if names is None:
        return
    if out is sys.stdout.buffer:
        print_table(names, rows)
    else:
        with _stdout(out):
            print_table(names, rows)
    if more:
        say(f"note: a table has at most {_MOST_ROWS} rows; --format csv, jsonl or parquet has all")


@contextmanager
def _stdout(out: BinaryIO) -> Iterator[None]:
    """What is printed goes to `out`."""
    before, sys.stdout = sys.stdout, io.TextIOWrapper(out, "utf-8", write_through=True)
    try:
        yield
    finally:
        sys.stdout.detach()
        sys.stdout = before


def _csv(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    text = io.TextIOWrapper(out, "utf-8", newline="")
    writer, headed = csv.writer(text, lineterminator="\n"), False
    try:
        for batch in batches:
            if not headed:
                writer.writerow(batch.schema.names)
                headed = True
            writer.writerows(zip(*map(_texts, batch.columns), strict=True))
        text.flush()
    finally:
        with suppress(OSError, ValueError):
            text.detach()


def _jsonl(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    for names, row in _rows(batches):
        line = json.dumps(dict(zip(names, map(_plain, row), strict=True)), ensure_ascii=False, separators=(",", ":"))
        out.write(line.encode(errors="surrogatepass") + b"\n")


def _parquet(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    import pyarrow.parquet as pq

    writer = None
    try:
        for batch in batches:
            if writer is None:
                writer = pq.ParquetWriter(out, batch.schema)
            writer.write_batch(batch)
    finally:
        if writer is not None:
            writer.close()


_WRITERS: Final[dict[str, Callable[[Iterator[Any], BinaryIO], None]]] = {
    "table": _table,
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
}


def _prompt(database: Database, form: str) -> None:
    """Reads statements from a terminal until ^D. ^C ends a statement, or what was typed of one."""
    from kafkafs.arrow.database import BadQuery
    from kafkafs.arrow.log_dirs import InvalidOption
    from storage.errors import StorageError

    history = _history()
    typed: list[str] = []
    echo("SQL over topics (DuckDB). .tables lists them, .help helps.")
    while True:
        try:
            line = input("   ...> " if typed else "kafkafs> ")
            if not typed and line.strip().startswith("."):
                if line.strip() in (".quit", ".exit"):
                    break
                _dot(database, line.split())
                continue
            typed.append(line)
            if not line.rstrip().endswith(";"):
                typed = typed if "".join(typed).strip() else []
                continue
            text, typed = "\n".join(typed), []
            for statement in database.statements(text):
                with _progress(database):
                    _write(database.run(statement), form, sys.stdout.buffer)
        except EOFError:
            echo()
            break
        except KeyboardInterrupt:
            typed = []
            echo()
        except (BadQuery, InvalidOption, StorageError) as error:
            echo(_with_hint(str(error), database.topics()))
    if history is not None:
        import readline

        with suppress(OSError):
            readline.write_history_file(history)
            history.chmod(0o600)


def _history() -> Path | None:
    """The file of earlier lines, which are then at hand; None where there is no readline, or no place for it."""
    try:
        import readline
    except ImportError:
        return None
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kafkafs"
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = state / "sql_history"
        file.touch(0o600)
        readline.read_history_file(file)
    except OSError:
        return None
    readline.set_history_length(1000)
    return file


def _dot(database: Database, words: list[str]) -> None:
    if words[0] == ".tables":
        echo("\n".join(database.topics()))
    elif words[0] == ".schema" and len(words) == 2:
        name = words[1].strip('"').replace('"', '""')
        _write(database.run(f'SELECT column_name, column_type FROM (DESCRIBE "{name}")'), "table", sys.stdout.buffer)
    else:
        echo(_HELP)

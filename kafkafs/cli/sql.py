"""`kafkafs sql`: statements over topics, from the command line, a pipe or a prompt."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from kafkafs.cli import echo, say
from kafkafs.cli.process import INTERRUPTED, interrupt_quietly, leave_at_once, name_of_failed
from kafkafs.cli.shared_options import ISOLATION, SCHEMAS, TIER, check_destination, tier
from kafkafs.cli.targets import LOGDIR, open_log_dir
from kafkafs.cli.terminal import print_table
from kafkafs.cli.whole_file import whole_file

if TYPE_CHECKING:
    import pyarrow as pa

    from kafkafs.arrow.database import Database
    from kafkafs.arrow.statements import Statement
    from kafkafs.schemas.places import SchemaPlaces

_MOST_ROWS: Final = 1000  # of a table for people
_MOST_CHARACTERS: Final = 100_000  # of a cell of a table
_GROUP_ROWS: Final = 122_880  # of a row group of Parquet
_GROUP_BYTES: Final = 64 << 20
_QUOTED: Final = re.compile(r'[",\r\n]|^$')  # a cell that CSV has in quotes
_HELP: Final = """\
.tables           the topics
.schema TOPIC     its columns
.help  .quit      this text; the end (also quit, or ^D)
Other lines are SQL, up to a semicolon at the end of a line."""


@click.command()
@LOGDIR
@click.argument("query", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "csv", "jsonl", "parquet"]),
    help=f"The format of results. By default that of FILE's suffix (.csv, .jsonl, .parquet); without FILE, and for"
    f" .txt, a table of at most {_MOST_ROWS} rows.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Write there, not to stdout.")
@click.option("--binary", is_flag=True, help="Keys and values are BLOBs, not text.")
@SCHEMAS
@TIER
@ISOLATION
@click.option("--allow-files", is_flag=True, help="Permit statements that use files: COPY, ATTACH, read_csv, SET …")
@click.pass_context
def sql(
    ctx: click.Context,
    logdir: Path,
    query: str | None,
    form: str | None,
    output: Path | None,
    binary: bool,
    schemas: SchemaPlaces,
    isolation: str,
    allow_files: bool,
) -> None:
    """Run SQL over topics, with DuckDB; without QUERY, statements from stdin or a prompt.

    Each topic is a table with the columns key, value, topic, partition, offset, timestamp (UTC), timestampType, headers
    and value_json (NULL if the value is not JSON). Keys and values are text, with U+FFFD for bytes that are not UTF-8.
    If schemas are available, and for Kafka's internal topics, there are also key_json, value_schema_id and
    decode_error. Quote names that contain anything but letters, digits and _: "my-topic". A filter on offset, partition
    or timestamp, or for one key, reads only what it needs.

    QUERY, or stdin, may have several statements; its first lines may be .tables or .schema TOPIC. A prompt has these
    too, .help, quit, and a history ($XDG_STATE_HOME/kafkafs/sql_history). ^C ends a statement, and a second ^C the
    program.

    FILE gets the result of one statement. It appears when the result is complete; if the query fails, the previous
    FILE stays. In csv, NULL is an empty field, and an empty text is "".

    \b
    kafkafs sql /var/kafka "SELECT max(offset) FROM orders WHERE timestamp >= '2026-11-20'"
    kafkafs sql /var/kafka "SELECT value_json->>'item' AS item, count(*) FROM orders GROUP BY item"
    kafkafs sql /var/kafka 'SELECT * FROM orders JOIN "orders-dlq" USING (key)' -o joined.parquet

    Exit code: 2 DuckDB refuses the statement; 4 damage and lost messages, with their place.
    """
    from kafkafs.arrow.database import Database
    from kafkafs.arrow.invalid_option import InvalidOption
    from kafkafs.arrow.opened_log import open_log
    from kafkafs.arrow.statements import BadQuery

    interrupt_quietly(ctx)
    chosen = _form(form, output)
    if output is not None:
        check_destination(output, logdir)
    elif chosen == "parquet" and sys.stdout.isatty():
        raise click.UsageError("--format parquet is not for a terminal: -o FILE")
    open_log_dir(logdir)
    opened: list[Database] = []

    def database() -> Database:
        log = open_log(logdir, isolation, schemas, tier())
        opened.append(Database(log, binary=binary, allow_files=allow_files))
        return opened[-1]

    try:
        if query is None and sys.stdin.isatty():
            _prompt(database, chosen, output)
            return
        text = query if query is not None else sys.stdin.read()
        with database() as session:
            lines = text.lstrip().split("\n")
            dots = list(takewhile(lambda line: line.startswith("."), lines))
            rest = "\n".join(lines[len(dots) :])
            if output is not None and len(dots) + bool(rest.strip()) > 1:
                raise click.UsageError("-o FILE takes the result of one statement, or of .tables or .schema alone")
            for line in dots:
                with _destination(output) as out, _stdout(out):
                    _dot(session, line.split())
            if rest.strip() or not dots:
                _run(session, "\n" * len(dots) + rest if dots else text, chosen, output)
    except ImportError as error:
        raise click.UsageError(str(error)) from None
    except (BadQuery, InvalidOption) as error:
        raise click.UsageError(str(error)) from None
    except KeyboardInterrupt:
        if any(session.is_busy for session in opened):
            say("interrupted")
            leave_at_once(INTERRUPTED)
        raise
    finally:
        if any(session.is_busy for session in opened):
            leave_at_once(0)


def _form(form: str | None, output: Path | None) -> str:
    """The form of results: as it is named, or as FILE ends."""
    suffix = "" if output is None else output.suffix
    if form is not None or suffix in ("", ".txt"):
        return form or "table"
    if suffix not in (".csv", ".jsonl", ".parquet"):
        expected = ".csv, .jsonl, .parquet or .txt; or name its --format"
        raise click.UsageError(f"-o: FILE ends in {suffix}, expected {expected}")
    return suffix[1:]


def _run(database: Database, text: str, form: str, output: Path | None) -> None:
    """Runs the statements of a text. For FILE or Parquet, raises UsageError and runs nothing unless exactly one
    statement has a result."""
    statements = database.statements(text)
    results = sum(statement.has_result for statement in statements)
    if results != 1 and (output is not None or form == "parquet"):
        what = "-o FILE" if output is not None else "--format parquet"
        raise click.UsageError(
            f"{what} takes the result of one statement, and {results or 'none'} of these {len(statements)} have one. "
            + ("Give each its own FILE" if results else "SELECT has a result, CREATE, INSERT and SET have none")
        )
    with _destination(output) as out:
        for statement in statements:
            with _progress(database):
                if statement.has_result:
                    write_result(database, statement, form, out)
                else:
                    for _ in database.run(statement.text, line=statement.line):
                        pass


@contextmanager
def _destination(path: Path | None) -> Iterator[BinaryIO]:
    """Where results go."""
    if path is None:
        yield sys.stdout.buffer
        return
    with whole_file(path) as file:
        yield file


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


def write_result(database: Database, statement: Statement, form: str, out: BinaryIO) -> None:
    """Writes the result of a statement."""
    from kafkafs.arrow import result_forms

    forms = {"jsonl": result_forms.json, "parquet": result_forms.parquet}
    write = _plan if statement.is_plan and form == "table" else _WRITERS[form]
    try:
        write(database.run(statement.text, forms.get(form, result_forms.text), line=statement.line), out)
        out.flush()
    except OSError as error:
        if out is sys.stdout.buffer:
            error.filename = error.filename or name_of_failed(error)
        raise


def _rows(batch: pa.RecordBatch) -> Iterator[tuple[str | None, ...]]:
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _table(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    rows: list[list[str | None]] = []
    names, more = [], False
    for batch in batches:
        names = batch.schema.names
        for row in islice(_rows(batch), _MOST_ROWS + 1 - len(rows)):
            rows.append([f"{cell[:_MOST_CHARACTERS]}…" if cell and cell[_MOST_CHARACTERS:] else cell for cell in row])
        if len(rows) > _MOST_ROWS:
            more = True
            break
    with _stdout(out):
        print_table(names, rows[:_MOST_ROWS])
    if more:
        say(f"note: a table has at most {_MOST_ROWS} rows; --format csv, jsonl or parquet has all")


def _plan(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    """The plan of EXPLAIN, as DuckDB has drawn it."""
    with _stdout(out):
        for batch in batches:
            for cell in batch.columns[-1].to_pylist():
                echo(cell)


@contextmanager
def _stdout(out: BinaryIO) -> Iterator[None]:
    """Send printed text to `out`."""
    if out is sys.stdout.buffer:
        yield
        return
    before, sys.stdout = sys.stdout, io.TextIOWrapper(out, "utf-8", write_through=True)
    try:
        yield
    finally:
        sys.stdout.detach()
        sys.stdout = before


def _csv(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    for number, batch in enumerate(batches):
        lines = [_csv_line(batch.schema.names)] if not number else []
        lines += map(_csv_line, _rows(batch))
        out.write("".join(lines).encode())


def _csv_line(cells: Sequence[str | None]) -> str:
    """A line of RFC 4180. NULL is an empty field, an empty text is `""`. A line that would be empty is `""` too."""
    return (",".join(map(_csv_cell, cells)) or '""') + "\n"


def _csv_cell(text: str | None) -> str:
    if text is None:
        return ""
    return '"' + text.replace('"', '""') + '"' if _QUOTED.search(text) else text


def _jsonl(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    for batch in batches:
        names = (json.dumps(name, ensure_ascii=False).replace("%", "%%") for name in batch.schema.names)
        line = "{" + ",".join(f"{name}:%s" for name in names) + "}\n"
        rows = (tuple("null" if value is None else value for value in row) for row in _rows(batch))
        out.write("".join(line % row for row in rows).encode())


def _parquet(batches: Iterator[pa.RecordBatch], out: BinaryIO) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = next(batches)
    with pq.ParquetWriter(out, first.schema) as writer:
        group, rows, size_bytes = [first], first.num_rows, first.nbytes
        for batch in batches:
            if rows >= _GROUP_ROWS or size_bytes >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(group))
                group, rows, size_bytes = [], 0, 0
            group.append(batch)
            rows, size_bytes = rows + batch.num_rows, size_bytes + batch.nbytes
        writer.write_table(pa.Table.from_batches(group, first.schema))


_WRITERS: Final[dict[str, Callable[[Iterator[Any], BinaryIO], None]]] = {
    "table": _table,
    "csv": _csv,
    "jsonl": _jsonl,
    "parquet": _parquet,
}


def _prompt(open_database: Callable[[], Database], form: str, output: Path | None) -> None:
    """Reads statements from a terminal until ^D. ^C ends a statement, or clears typed text; a second ^C raises
    KeyboardInterrupt."""
    from kafkafs.arrow.invalid_option import InvalidOption
    from kafkafs.arrow.statements import BadQuery
    from storage.errors import StorageError

    if form == "parquet" and output is None:
        raise click.UsageError("--format parquet at the prompt needs -o FILE")
    history = _history()
    typed: list[str] = []
    is_written = was_interrupted = False
    with ExitStack() as sessions:
        sessions.callback(_keep_history, history)
        database = sessions.enter_context(open_database())
        echo("SQL over topics (DuckDB). .tables lists them, .help helps.")
        while True:
            try:
                line = input("   ...> " if typed else "kafkafs> ")
                was_interrupted = False
                if not typed and line.strip(" ;") in ("quit", "exit", ".quit", ".exit"):
                    break
                if not typed and line.strip().startswith("."):
                    _dot(database, line.split())
                    continue
                typed.append(line)
                if not line.rstrip().endswith(";"):
                    typed = typed if "".join(typed).strip() else []
                    continue
                text, typed = "\n".join(typed), []
                for statement in database.statements(text):
                    if statement.has_result and is_written:
                        raise BadQuery(f"{output} has the result of a statement already: begin anew with another FILE")
                    _run(database, statement.text, form, output if statement.has_result else None)
                    is_written |= statement.has_result and output is not None
            except EOFError:
                echo()
                break
            except KeyboardInterrupt as interrupt:
                if was_interrupted or isinstance(interrupt.__context__, KeyboardInterrupt):
                    raise
                typed, was_interrupted = [], True
                echo()
                if database.is_busy:
                    echo("The statement does not end yet. A new session begins, without its tables, views and macros.")
                    database = sessions.enter_context(open_database())
            except (BadQuery, InvalidOption, StorageError, click.UsageError) as error:
                echo(error)


def _keep_history(file: Path | None) -> None:
    if file is not None:
        import readline

        with suppress(OSError):
            readline.write_history_file(file)
            file.chmod(0o600)


def _history() -> Path | None:
    """Loads the lines of earlier prompts; returns their file. None without readline, or a place for the file."""
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
        _run(database, f'SELECT column_name, column_type FROM (DESCRIBE "{name}")', "table", None)
    else:
        echo(_HELP)

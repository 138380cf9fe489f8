"""Tables, drawn on a terminal and as plain aligned columns in a pipe; and JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import click

from kafkafs.file_names import printable

_ANY_WIDTH = 1000
_ALIGNED = 48  # a longer text moves only its own row to the right, not all others


def print_json(value: object) -> None:
    """Print a document, indented on a terminal, on one line in a pipe."""
    import json
    from itertools import islice

    parts = json.JSONEncoder(indent=2 if sys.stdout.isatty() else None, ensure_ascii=False).iterencode(value)
    # The whole text of a large document may take more memory than the document.
    while text := "".join(islice(parts, 65536)):
        # Only texts have characters that JSON allows but a terminal must not get. There JSON has escapes for them.
        if not text.isprintable():
            text = "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)
        click.echo(text, nl=False)
    click.echo()


_FIELDS = {"path": "file", "size_bytes": "bytes"}  # fields that have another name in JSON


def facts(value: Any) -> Any:
    """A value for JSON: a dataclass as an object of its fields, with those of its `tp` among them, and bytes as
    `bytes_json` returns them."""
    if isinstance(value, bytes):
        return bytes_json(value)
    if isinstance(value, list | tuple):
        return [facts(item) for item in value]
    if not is_dataclass(value):
        return str(value) if isinstance(value, Path) else value
    shown: dict[str, Any] = {}
    for name in (field.name for field in fields(value)):
        of_field = facts(getattr(value, name))
        shown |= of_field if name == "tp" else {_FIELDS.get(name, name): of_field}
    return shown


def bytes_json(data: bytes | None) -> object:
    """Bytes in the form of the jsonl views: text, or base64 where the bytes are not UTF-8."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        import base64

        return {"base64": base64.b64encode(data).decode()}


def moment(timestamp_ms: int) -> str | None:
    """A timestamp in epoch ms as text in UTC; None for a negative timestamp: missing."""
    from kafkafs.reading.range_names import timestamp_text

    return None if timestamp_ms < 0 else timestamp_text(timestamp_ms)


def size_text(size_bytes: int) -> str:
    """A number of bytes for people, in the largest unit that fits."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size:,.{0 if unit == 'B' else 1}f} {unit}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table, with numbers aligned right. In a pipe, it has a line of headings, and two spaces between columns;
    on a terminal too, if a text is too long to align the others with it."""
    texts = [["" if cell is None else printable(str(cell)) for cell in row] for row in rows]
    numeric = [all(_is_number(row[i]) for row in texts) for i in range(len(columns))]
    columns = [printable(column) for column in columns]  # SQL may name them
    lines = [columns, *texts]
    widths = [
        max(len(line[i]) for line in lines if numeric[i] or line is lines[0] or len(line[i]) <= _ALIGNED)
        for i in range(len(columns))
    ]
    if sys.stdout.isatty() and all(len(row[i]) <= widths[i] for row in texts for i in range(len(columns) - 1)):
        _draw(columns, texts, numeric)
        return
    for line in lines:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def _is_number(text: str) -> bool:
    return not text or text.lstrip("-").isdigit()


def _draw(columns: Sequence[str], rows: list[list[str]], numeric: list[bool]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, right in zip(columns, numeric, strict=True):
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    # Each row is one line: a narrow terminal wraps it, which is easier to read than folded cells.
    Console(width=_ANY_WIDTH).print(table)

"""Options that several commands have, and numbers that they parse in the same way."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from storage.types import Isolation

AS_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
ISOLATION: Final = click.option(
    "--isolation",
    type=click.Choice([isolation.value for isolation in Isolation]),
    default=Isolation.READ_UNCOMMITTED.value,
    show_default=True,
    help="read_committed leaves out aborted messages and stops at open transactions.",
)

SCHEMAS: Final = click.option(
    "--schemas",
    "schemas_path",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="PATH",
    help="Where the schemas are: another log directory with _schemas, or a directory of files like 12.avsc, 13.proto or"
    " 14.json. By default LOGDIR.",
)


def whole_number(text: str, most: int) -> int | None:
    """The number from 0 to `most` in ASCII digits, leading zeros allowed; None if `text` is not one."""
    if not text.isascii() or not text.isdigit():
        return None
    digits = text.lstrip("0") or "0"
    # The length first: int() refuses thousands of digits with an error of its own.
    return int(digits) if len(digits) <= len(str(most)) and int(digits) <= most else None

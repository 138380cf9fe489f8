"""A connection to a DuckDB in memory, in which files, other databases, extensions and settings are locked."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


def require_duckdb() -> None:
    """Raise ImportError, which names the extra, unless duckdb and pyarrow are installed."""
    if find_spec("duckdb") is None or find_spec("pyarrow") is None:
        raise ImportError("SQL needs duckdb and pyarrow: pip install 'kafkafs[sql]'")


def connect(spill: str, *, allow_files: bool) -> duckdb.DuckDBPyConnection:
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

"""The JSON lines that `kafkafs dump` prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.errors import StorageError

if TYPE_CHECKING:
    from kafkafs.cli.output import Output


Facts = dict[str, Any]


def put(output: Output, path: Path, kind: str, facts: Facts) -> None:
    """Prints one line."""
    line = json.dumps({"file": str(path), "kind": kind, **facts}, separators=(",", ":"), ensure_ascii=False)
    output.put(memoryview(line.encode(errors="backslashreplace") + b"\n"))


def put_damage(output: Output, path: Path, error: StorageError, **more: object) -> None:
    """Prints the line of a damaged part."""
    put(output, path, "damage", {**damage_facts(error), **more})


def damage_facts(error: StorageError | OSError) -> Facts:
    """An error as the facts of a line."""
    if isinstance(error, OSError):
        return {"error": error.strerror or str(error)}
    facts = {"position": error.position, "offset": error.offset, "expected": error.expected, "found": error.found}
    plain = {
        name: value if isinstance(value, int) else str(value) for name, value in facts.items() if value is not None
    }
    return {"error": error.what, **plain}

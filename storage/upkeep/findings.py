"""What a check of a log directory finds: one value a fault, with where it is and what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from storage.errors import StorageError

REINDEX = "kafkafs reindex"
RECOVER = "kafkafs recover"
SALVAGE = "kafkafs salvage"


class Severity(Enum):
    """How bad it is."""

    DAMAGE = "damage"  # messages are lost, or questions may be answered wrongly
    UNFINISHED = "unfinished"  # work that stopped half-way: the next opening for writing mends it


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault. `position`: a byte position in `path`; `offset`: a record offset; None where there is none.

    `repair`: the command, or what else, that mends it.
    """

    severity: Severity
    path: Path
    what: str
    position: int | None = None
    offset: int | None = None
    expected: object = None
    found: object = None
    repair: str | None = None

    def __str__(self) -> str:
        error = StorageError(
            self.what,
            path=self.path,
            position=self.position,
            offset=self.offset,
            expected=self.expected,
            found=self.found,
            advice=None if self.repair is None else f"Mended by: {self.repair}",
        )
        return f"{self.severity.value}: {error}"


class Findings:
    """A list of findings that grows."""

    __slots__ = ("_list",)

    def __init__(self) -> None:
        self._list: list[Finding] = []

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._list)

    def __len__(self) -> int:
        return len(self._list)

    def add(
        self,
        path: Path,
        what: str,
        *,
        position: int | None = None,
        offset: int | None = None,
        expected: object = None,
        found: object = None,
        repair: str | None = None,
        severity: Severity = Severity.DAMAGE,
    ) -> None:
        """Notes one fault."""
        self._list.append(Finding(severity, path, what, position, offset, expected, found, repair))

    def add_error(
        self,
        error: StorageError | OSError,
        path: Path,
        *,
        repair: str | None = None,
        severity: Severity = Severity.DAMAGE,
    ) -> None:
        """Notes what reading a file raised; `path` where the error names none."""
        if isinstance(error, StorageError):
            self.add(
                error.path or path,
                error.what,
                position=error.position,
                offset=error.offset,
                expected=error.expected,
                found=error.found,
                repair=repair,
                severity=severity,
            )
        else:
            self.add(path, f"cannot be read: {error.strerror or error}", repair=repair, severity=severity)

    def list(self) -> list[Finding]:
        """All of them, by path and position."""
        return sorted(
            self._list, key=lambda one: (str(one.path), -1 if one.position is None else one.position, one.what)
        )

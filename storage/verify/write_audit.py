"""Writes that are pending (storage.staged_writes.commit), and what is staged beside the segments."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, WriteId
from storage.log.log_dir import LogDir
from storage.staged_writes.pending_writes import pending_writes
from storage.verify.findings import DROP_LOST_WRITES, OPENING, RECOVER, Findings, Kind
from storage.verify.partition_audit import read_small


def check_writes(findings: Findings, path: Path, staged: Iterable[Path], *, held: bool) -> None:
    """Of a log directory and what is `staged` in it, listed before. `held`: somebody writes to it."""
    ledger = read_small(
        findings,
        Kind.WRITES_CORRUPT,
        path,
        commit_ledger.read,
        Ledger(),
        repair=f"move {names.COMMITS} elsewhere: a query that then starts again may write its last micro-batch twice",
    )
    for write in pending_writes(LogDir.open_read_only(path), ledger):
        if held and write.commit not in commit_ledger.read(path).pending:
            continue  # it has been carried out meanwhile
        stuck = write.is_stuck
        findings.add(
            Kind.WRITE_STUCK if stuck else Kind.WRITE_PENDING,
            path / names.COMMITS,
            found=str(write),
            recovery="finishes what it can" if stuck else "finishes it",
            repair=f"{RECOVER} {DROP_LOST_WRITES}" if stuck else OPENING,
            note=not stuck,
        )
    for file in staged:
        name = names.parse_staged(file.name)
        if name is not None and file.name not in ledger.staged_names() and file.exists():
            late = ledger.is_done(WriteId(name.write, name.batch))
            findings.add(
                Kind.STAGED_ORPHAN,
                file,
                recovery="removes it" if late else "leaves it for a week: its write may be under way",
                repair=OPENING if late else f"{RECOVER}, if no write from Spark is under way",
                note=True,
            )

"""Checks pending writes (storage.staged_writes.commit) and staged files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from storage.files import commit_ledger, names
from storage.files.commit_ledger import Ledger, WriteId
from storage.files.opening import exists
from storage.log.log_dir import LogDir
from storage.staged_writes.pending_writes import pending_writes
from storage.verify.findings import DROP_LOST_WRITES, OPENING, RECOVER, FaultKind, Finding, Findings, Repair
from storage.verify.partition_audit import read_small


def check_writes(findings: Findings, path: Path, staged: Iterable[Path], *, held: bool) -> None:
    """For a log directory and the files `staged` in it, listed before. `held`: another process writes to it."""
    ledger = read_small(
        findings,
        FaultKind.WRITES_CORRUPT,
        path,
        commit_ledger.read,
        Ledger(),
        Repair(
            "leaves it",
            f"move {names.COMMITS} elsewhere: a query that then starts again may write its last micro-batch twice",
        ),
    )
    for write in pending_writes(LogDir.open_read_only(path), ledger):
        if held and write.commit not in commit_ledger.read(path).pending:
            continue  # it has been carried out meanwhile
        kind, how = FaultKind.WRITE_PENDING, Repair("finishes it", OPENING, note=True)
        if write.is_stuck:
            kind, how = FaultKind.WRITE_STUCK, Repair("finishes what it can", f"{RECOVER} {DROP_LOST_WRITES}")
        findings.add(Finding(kind, path / names.COMMITS, how, found=str(write)))
    for file in staged:
        name = names.parse_staged(file.name)
        if name is not None and file.name not in ledger.staged_names() and exists(file):
            if ledger.is_done(WriteId(name.write, name.batch)):
                how = Repair("removes it", OPENING, note=True)
            else:
                command = f"{RECOVER}, if no write from Spark is under way"
                how = Repair("leaves it for a week: its write may be under way", command, note=True)
            findings.add(Finding(FaultKind.STAGED_ORPHAN, file, how))

"""The commit list of an export: which files belong to it, and up to which offset each partition was exported.

A *set* is what one round of tasks wrote: files, and for each partition the offsets that they hold. On disk, below the
export's directory:

    _export/.lock                  one export at a time
    _export/sets/<number>.json     a committed set; the last one has each partition's next offset
    _export/sets/<number>.pending  the set that is being committed
    _export/staging/<number>/      files of the set that is being written

How a set is committed, and what the next opening does after a crash (kill or power loss) in each step:

1. tasks stage their files and sync each          → removes the staged files
2. the staging directory is synced, the directories of the final names are created and synced
                                                  → the same; empty directories may remain
3. `<number>.pending` is written and synced       → repeats all steps below: the set will be committed
4. each staged file is renamed to its final name  → renames the files that are still staged
5. the directories of the final names are synced  → the same
6. `<number>.pending` is renamed to `.json`, synced → nothing: the set is committed
7. the staging directory is removed               → removes it

A reader that lists directories instead of reading this list can see a part of a set only during step 4, or from a crash
in it until the next opening. Every visible file is complete at any time, and no message is in two of them.

Spark's own file sink writes each file under its final name, and only Spark reads the list beside them: after a kill
other readers meet half-written files. Also, its rows pass through the JVM, which takes about four times as long
(`python -m tests.bench --only spark-export`).

A pending set with a file that is neither staged nor in place (somebody removed it) is dropped: its other files are
removed, and its offsets are exported again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from kafkafs.spark.jobs.export_layout import BOOKS
from storage.errors import CorruptCheckpoint, LogLocked
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk, make_directories, replace_file
from storage.files.disk_protocol import Disk
from storage.types import OffsetRange, TopicPartition

_FORMAT: Final = 1
_PENDING: Final = ".pending"
_COMMITTED: Final = ".json"


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A written file. `staged`: its name in the staging directory; `path`: relative to the export's directory."""

    staged: str
    path: str
    rows: int
    size_bytes: int


class Position(NamedTuple):
    """A partition's next offset, and its topic's id (None: unknown) when it was exported."""

    next_offset: int
    topic_id: str | None


@dataclass(frozen=True, slots=True)
class ExportedRange:
    """Offsets of a partition that a set covers, from `start` to `end` (excluded). `lost`: those among them that were
    removed before they could be read."""

    tp: TopicPartition
    start: int
    end: int
    topic_id: str | None = None
    lost: tuple[OffsetRange, ...] = ()


class ExportForm(NamedTuple):
    """The properties that all files of an export share: whether they have a column of headers, the isolation level (its
    text) with which they were read, and the id of the schema whose fields are columns (None: values are bytes)."""

    headers: bool
    isolation: str
    value_schema: int | None = None

    def __str__(self) -> str:
        decoded = "" if self.value_schema is None else f", values decoded as schema {self.value_schema}"
        return f"{'with' if self.headers else 'without'} headers, {self.isolation}{decoded}"


@dataclass(frozen=True, slots=True)
class ExportSet:
    """A set that is or will be committed. `form`: None in sets of older versions, which did not store it."""

    number: int
    files: tuple[ExportFile, ...]
    ranges: tuple[ExportedRange, ...]
    positions: dict[TopicPartition, Position] = field(default_factory=dict)
    form: ExportForm | None = None

    def to_json(self) -> bytes:
        """The content of the set's file."""
        document = {
            "format": _FORMAT,
            "set": self.number,
            "form": None if self.form is None else self.form._asdict(),
            "files": [asdict(file) for file in self.files],
            "ranges": [
                {
                    **asdict(covered.tp),
                    "start": covered.start,
                    "end": covered.end,
                    "topicId": covered.topic_id,
                    "lost": [[lost.start, lost.end] for lost in covered.lost],
                }
                for covered in self.ranges
            ],
            "positions": [
                {**asdict(tp), "next": position.next_offset, "topicId": position.topic_id}
                for tp, position in sorted(self.positions.items())
            ],
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @staticmethod
    def load(path: Path) -> ExportSet:
        """Reads a set's file. CorruptCheckpoint; OSError."""
        try:
            document: dict[str, Any] = json.loads(path.read_bytes())
            if document["format"] != _FORMAT:
                raise CorruptCheckpoint(
                    "the set has an unknown format", path=path, expected=_FORMAT, found=document["format"]
                )
            form = document.get("form")
            return ExportSet(
                number=document["set"],
                form=None
                if form is None
                else ExportForm(bool(form["headers"]), str(form["isolation"]), form.get("value_schema")),
                files=tuple(ExportFile(**file) for file in document["files"]),
                ranges=tuple(
                    ExportedRange(
                        TopicPartition(covered["topic"], covered["partition"]),
                        covered["start"],
                        covered["end"],
                        covered["topicId"],
                        tuple(OffsetRange(*lost) for lost in covered["lost"]),
                    )
                    for covered in document["ranges"]
                ),
                positions={
                    TopicPartition(at["topic"], at["partition"]): Position(at["next"], at["topicId"])
                    for at in document["positions"]
                },
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptCheckpoint("a set of the export cannot be parsed", path=path, found=repr(error)) from None


def committed_sets(directory: Path) -> list[ExportSet]:
    """The committed sets, oldest first: for readers that need complete sets only. Takes no lock."""
    sets = directory / BOOKS / "sets"
    return [ExportSet.load(sets / name) for name in sorted(_names(sets)) if name.endswith(_COMMITTED)]


class CommitList:
    """An export's directory, locked for writing. Opening it finishes or drops what a crash left. Not thread-safe."""

    def __init__(self, directory: Path, disk: Disk | None = None) -> None:
        """Creates the directory if necessary. LogLocked while another export holds it; CorruptCheckpoint; OSError."""
        self.directory = directory
        self.disk: Disk = RealDisk() if disk is None else disk
        self._books = directory / BOOKS
        self._sets = self._books / "sets"
        self._staging = self._books / "staging"
        directory.mkdir(parents=True, exist_ok=True)
        for books in (self._sets, self._staging):
            make_directories(self.disk, books)
        try:
            self._lock = DirLock(self.disk, self._books)
        except LogLocked as error:
            raise LogLocked("another export is writing here", path=directory, found=error.found) from None
        try:
            self.positions: dict[TopicPartition, Position] = {}
            self.form: ExportForm | None = None  # of the exported files
            self._number = 1
            self._recover()
        except BaseException:
            self._lock.release()
            raise

    def close(self) -> None:
        """Releases the directory's lock."""
        self._lock.release()

    def begin(self) -> Path:
        """Creates the staging directory of the next set, which is empty."""
        staging = self._staging / f"{self._number:012}"
        self._remove_staging()
        make_directories(self.disk, staging)
        return staging

    def commit(
        self, files: Iterable[ExportFile], ranges: Iterable[ExportedRange], form: ExportForm | None = None
    ) -> ExportSet:
        """Commits the staged files: steps 2 to 7. `form`: None for the form of the earlier sets.

        OSError: before step 3 nothing was committed; after it the next opening completes the commit.
        """
        covered = tuple(ranges)
        positions = dict(self.positions)
        for part in covered:
            before = positions.get(part.tp)
            positions[part.tp] = Position(max(part.end, before.next_offset if before else 0), part.topic_id)
        done = ExportSet(self._number, tuple(files), covered, positions, form or self.form)
        staging = self._staging / f"{done.number:012}"
        self.disk.sync_dir(staging)
        for parent in sorted({(self.directory / file.path).parent for file in done.files}):
            make_directories(self.disk, parent)
        pending = self._sets / f"{done.number:012}{_PENDING}"
        replace_file(self.disk, pending, done.to_json())
        self._finish(done, pending)
        return done

    def _finish(self, done: ExportSet, pending: Path) -> None:
        """Steps 4 to 7."""
        staging = self._staging / f"{done.number:012}"
        into = set()
        for file in done.files:
            target = self.directory / file.path
            into.add(target.parent)
            if (staging / file.staged).exists():
                self.disk.rename(staging / file.staged, target)
        for parent in sorted(into):
            self.disk.sync_dir(parent)
        self.disk.rename(pending, pending.with_suffix(_COMMITTED))
        self.disk.sync_dir(self._sets)
        self.positions, self.form = done.positions, done.form
        self._number = done.number + 1
        self._remove_staging()

    def _recover(self) -> None:
        names = sorted(_names(self._sets))
        committed = [name for name in names if name.endswith(_COMMITTED)]
        if committed:
            last = ExportSet.load(self._sets / committed[-1])
            self.positions, self.form, self._number = last.positions, last.form, last.number + 1
        for name in names:
            path = self._sets / name
            if name.endswith(_PENDING):
                self._finish_or_drop(ExportSet.load(path), path)
            elif not name.endswith(_COMMITTED):
                self.disk.unlink(path)  # a `.tmp` of step 3
        self._remove_staging()

    def _finish_or_drop(self, pending: ExportSet, path: Path) -> None:
        staging = self._staging / f"{pending.number:012}"
        placed = [self.directory / file.path for file in pending.files if not (staging / file.staged).exists()]
        if all(target.exists() for target in placed):
            self._finish(pending, path)
            return
        for target in placed:
            with contextlib.suppress(FileNotFoundError):
                self.disk.unlink(target)
        for parent in sorted({target.parent for target in placed if target.parent.exists()}):
            self.disk.sync_dir(parent)
        self.disk.unlink(path)
        self.disk.sync_dir(self._sets)

    def _remove_staging(self) -> None:
        """Removes everything staged. A task that Spark gave up may still write there; the next opening removes that."""
        for name in _names(self._staging):
            staging = self._staging / name
            for file in _names(staging):
                self.disk.unlink(staging / file)
            with contextlib.suppress(OSError):
                self.disk.rmdir(staging)


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - names are wanted, not paths
    except FileNotFoundError:
        return []

"""The log directories written by real brokers, and what real consumers read from them (the golden files).

They are kept compressed in `tests/fixtures/` (its README says what is in them) and unpacked into the user's cache
directory when this module is first imported. KAFKAFS_FIXTURES names a directory of unpacked ones instead.
"""

from __future__ import annotations

import base64
import fcntl
import gzip
import hashlib
import json
import os
import shutil
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
ARCHIVES = ROOT / "tests" / "fixtures"
REQUIRED = os.environ.get("CI", "").lower() in ("true", "1")

# It skips nothing; `-m golden` selects the tests that read the fixtures.
requires_fixtures = pytest.mark.golden

READ_UNCOMMITTED = "read_uncommitted"
READ_COMMITTED = "read_committed"

# Kafka 4.3's own consumer may skip data after these garbage indexes; our readers must not (tests/fixtures/README.md).
KAFKA_SKIPS_DATA = frozenset(
    {"rec-f3-garbage-index-below-recovery-point", "rec-f4-plausible-index-below-recovery-point"}
)


def _digest(archives: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for archive in archives:
        with archive.open("rb") as file:
            digest.update(f"{archive.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def _remove(tree: Path) -> None:
    """Fixtures are read-only, directories too, so that shutil.rmtree alone could not remove them."""
    for folder, _, _ in os.walk(tree):
        Path(folder).chmod(0o755)
    shutil.rmtree(tree)


def unpacked(archives_dir: Path, cache: Path) -> Path:
    """The directory below `cache` with the contents of all `*.tar.xz` of `archives_dir`, unpacked if it is missing.

    It is named after the archives' digest: other archives are unpacked into another directory. Several processes may
    call this at once; one unpacks and the others wait for its lock. The directory appears by a rename, so that it is
    complete wherever it exists; what an interrupted process has left is removed by the next.
    """
    archives = sorted(archives_dir.glob("*.tar.xz"))
    if not archives:
        raise FileNotFoundError(f"no fixtures: expected archives *.tar.xz in {archives_dir}, found none")
    wanted = cache / f"fixtures-{_digest(archives)}"
    if wanted.is_dir():
        return wanted
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fixtures.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if wanted.is_dir():
            return wanted
        partial = wanted.with_suffix(".partial")
        if partial.exists():
            _remove(partial)
        partial.mkdir()
        # Early releases of Python 3.11 have no filters. "data" would add permission to write.
        chosen: Any = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
        for archive in archives:
            with tarfile.open(archive) as tar:
                tar.extractall(partial, **chosen)
        partial.chmod(0o555)
        return partial.rename(wanted)


def _fixtures() -> Path:
    named = os.environ.get("KAFKAFS_FIXTURES")
    if not named:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return unpacked(ARCHIVES, Path(home) / "kafkafs")
    if not Path(named).is_dir():
        raise FileNotFoundError(f"no fixtures: KAFKAFS_FIXTURES is {named}, which is not a directory")
    return Path(named)


FIXTURES = _fixtures()


class Golden(NamedTuple):
    """One record as a consumer saw it. `timestamp` in epoch ms; header names as UTF-8 bytes, None is null."""

    offset: int
    timestamp: int
    timestamp_type: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """A partition of a fixture under one isolation, and where its golden file is."""

    fixture: str
    log_dir: Path
    topic: str
    partition: int
    isolation: str
    golden: Path

    @property
    def partition_dir(self) -> Path:
        return self.log_dir / f"{self.topic}-{self.partition}"

    def records(self) -> list[Golden]:
        """What the consumer saw, in offset order."""
        return read_golden(self.golden)

    def __str__(self) -> str:
        committed = ":committed" if self.isolation == READ_COMMITTED else ""
        return f"{self.fixture}:{self.topic}-{self.partition}{committed}"


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def read_golden(path: Path) -> list[Golden]:
    """The records of a golden `.jsonl.gz`."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [
            Golden(
                record["offset"],
                record["timestamp"],
                record["timestamp_type"],
                _bytes(record["key"]),
                _bytes(record["value"]),
                tuple((name.encode(), _bytes(value)) for name, value in record["headers"]),
            )
            for record in map(json.loads, lines)
        ]


def read_jsonl(text: bytes) -> list[Golden]:
    """The records of a `messages.jsonl` (kafkafs/CONTRACT.md, "Formats"). KeyError unless keys are in that order."""
    records = []
    for line in text.splitlines(keepends=True):
        assert line.endswith(b"\n"), f"a line without its end: {line!r}"
        record = json.loads(line)
        fields = ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
        assert list(record) == fields, line
        headers = tuple((name.encode(), _json_bytes(value)) for name, value in record["headers"])
        key, value = _json_bytes(record["key"]), _json_bytes(record["value"])
        records.append(Golden(record["offset"], record["timestamp"], record["timestampType"], key, value, headers))
    return records


def _json_bytes(value: str | dict[str, str] | None) -> bytes | None:
    if isinstance(value, dict):
        return base64.b64decode(value["base64"], validate=True)
    return None if value is None else value.encode()


def log_dir_of(fixture: str) -> Path:
    """The log directory that a fixture's golden files describe (for `recovery`: the recovered one)."""
    return FIXTURES / fixture / ("after" if fixture == "recovery" else "log")


def topics_of(fixture: str) -> dict[str, Any]:
    """`topics` of the fixture's topics.json: config, effective_config and counts by topic."""
    topics: dict[str, Any] = json.loads((FIXTURES / fixture / "topics.json").read_text())["topics"]
    return topics


@cache
def golden_cases() -> tuple[GoldenCase, ...]:
    """Every (fixture, topic, partition, isolation) that has a golden file."""
    cases = []
    described = [path for path in FIXTURES.iterdir() if (path / "topics.json").is_file() and (path / "golden").is_dir()]
    for fixture in sorted(path.name for path in described):
        for golden in sorted((FIXTURES / fixture / "golden").glob("*.jsonl.gz")):
            name = golden.name.removesuffix(".jsonl.gz")
            if name.endswith(".decoded"):
                continue  # The same records, decoded by schemas; the plain golden file is there too.
            partition_dir = name.removesuffix(".read_committed")
            isolation = READ_UNCOMMITTED if partition_dir == name else READ_COMMITTED
            topic, _, partition = partition_dir.rpartition("-")
            if topic not in KAFKA_SKIPS_DATA:
                cases.append(GoldenCase(fixture, log_dir_of(fixture), topic, int(partition), isolation, golden))
    return tuple(cases)


def case_params(cases: Iterable[GoldenCase] | None = None) -> list[Any]:
    """For `@pytest.mark.parametrize("case", case_params())`: named cases."""
    chosen = golden_cases() if cases is None else cases
    return [pytest.param(case, id=str(case), marks=requires_fixtures) for case in chosen]


def copy_log_dir(source: Path, destination: Path) -> Path:
    """A copy that may be written to (fixtures are read-only), with the files' times kept."""
    shutil.copytree(source, destination, symlinks=True)
    for folder, _, names in os.walk(destination):
        Path(folder).chmod(0o755)
        for name in names:
            (Path(folder) / name).chmod(0o644)
    return destination

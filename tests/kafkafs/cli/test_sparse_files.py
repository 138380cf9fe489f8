"""Files of a terabyte that take no space on disk: their size is not believed, and they are named."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from storage.files import manifest
from tests.support.commands import run

SIZE = 1 << 40


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    shutil.copytree(Path(__file__).parents[3] / "examples/sample-log", path)
    (path / ".kafka_cleanshutdown").unlink(missing_ok=True)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "log-start-offset-checkpoint",
        "cleaner-offset-checkpoint",
        "kafkafs-commits",
        "orders-0/topic.properties",
        "orders-0/leader-epoch-checkpoint",
        "orders-0/partition.metadata",
        "orders-0/00000000000000000480.txnindex",
        "orders-0/00000000000000000480.snapshot",
    ],
)
def test_verify_names_a_file_that_is_too_large(directory: Path, name: str) -> None:
    (directory / name).touch()
    os.truncate(directory / name, SIZE)
    result = run("verify", directory)
    assert result.exit_code != 0
    assert f"has {SIZE} bytes, and such a file at most" in result.output
    assert name in result.output
    assert run("doctor", directory).exit_code in (0, 1, 4)  # 0 where brokers do not read the file


@pytest.mark.parametrize("kind", ["index", "timeindex"])
def test_an_index_of_any_size_is_rebuilt(directory: Path, kind: str) -> None:
    os.truncate(directory / f"orders-0/00000000000000000480.{kind}", SIZE // 12 * 12 * 2)
    result = run("recover", directory, "--dry-run")
    assert result.exit_code == 0, result.output
    assert "orders/0: 0 to 500" in result.output


def test_the_end_of_a_log_of_any_size_is_found(directory: Path) -> None:
    log = directory / "orders-0/00000000000000000480.log"
    size = log.stat().st_size
    os.truncate(log, SIZE)
    result = run("recover", directory, "--dry-run")
    assert result.exit_code == 0, result.output
    assert f"{SIZE - size} bytes are removed" in result.output.replace(",", "")
    assert run("verify", directory).exit_code == 1


def test_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "manifest"
    path.touch()
    os.truncate(path, SIZE)
    with pytest.raises(OSError, match="at most 67108864"):
        manifest.read(path)

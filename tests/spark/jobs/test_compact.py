"""Compaction on Spark has the same result as `kafkafs compact`, and a failure leaves the log unchanged."""

from __future__ import annotations

import json
import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kafkafs.spark.jobs.compact import CompactOptions, compact
from storage.directory.owned_dir import OwnedDir
from storage.errors import CorruptBatch, StorageError
from storage.files import names
from storage.files.disk import RealDisk
from tests.storage.compaction.test_compaction import any_batches
from tests.storage.compaction.test_divided_pass import any_transactions
from tests.support import compacted_logs
from tests.support.commands import output_of, process, run
from tests.support.compacted_logs import TP, contents, opened, put, updates
from tests.support.divided_passes import both_ways
from tests.support.owned_dirs import HastyDisk, StandingClock, close_clean, tree_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Several tasks and buckets even for these small logs.
SMALL = CompactOptions(keys_per_scan=10, keys_per_bucket=20, task_bytes=10_000)


def on_spark(spark: SparkSession, owned: OwnedDir, disk: RealDisk | None = None) -> None:
    for path in compact(spark, owned, TP, SMALL, disk=disk or HastyDisk()).files:
        owned.disk.unlink(path)


def a_log(path: Path) -> list[tuple[int, bytes | None, bytes | None]]:
    """Writes messages of every kind, in several groups; returns them."""
    dice = random.Random(7)
    owned = opened(path, segment_bytes="10000")
    any_batches(owned.log(TP), dice, 50)
    any_transactions(owned.log(TP), dice)
    owned.log(TP).roll()
    found = contents(owned)
    close_clean(owned)
    return found


def test_the_same_as_without_spark(spark: SparkSession, tmp_path: Path) -> None:
    """In two rounds: the second one has a clean part."""
    clock = StandingClock()
    path = tmp_path / "log"
    for number in range(2):
        a_log(path)

        def once(copy: Path) -> None:
            owned = opened(copy, clock=clock)
            compacted_logs.compact(owned)
            close_clean(owned)

        def with_spark(copy: Path) -> None:
            owned = opened(copy, clock=clock)
            on_spark(spark, owned)
            close_clean(owned)

        both_ways(path, once, with_spark)
        path = tmp_path / f"log-{number}"
        clock.time_ms += 100_000_000


class DeadlyDisk(HastyDisk):
    """Kills the worker that finishes a file: the first one to do so, or all."""

    def __init__(self, once: Path | None) -> None:
        self._once = once

    def set_mtime(self, path: Path, mtime_ns: int) -> None:
        if self._once is None or not self._once.exists():
            if self._once is not None:
                self._once.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        super().set_mtime(path, mtime_ns)


def test_workers_that_are_killed(spark: SparkSession, tmp_path: Path) -> None:
    """Spark replaces one worker; if all are killed, nothing has changed."""
    a_log(tmp_path / "log")
    owned = opened(tmp_path / "log")
    before = tree_of(tmp_path)
    with pytest.raises(StorageError, match="Spark gave up"):
        on_spark(spark, owned, disk=DeadlyDisk(None))
    ours = {name: data for name, data in tree_of(tmp_path).items() if not name.endswith(names.STAGED_SUFFIX)}
    assert ours == before
    on_spark(spark, owned, disk=DeadlyDisk(tmp_path / "killed"))
    assert (tmp_path / "killed").exists()
    assert not list((tmp_path / "log" / "t-0").glob("*" + names.STAGED_SUFFIX))
    close_clean(owned)


@pytest.mark.leaves_damage("batch-crc")
def test_damage(spark: SparkSession, tmp_path: Path) -> None:
    a_log(tmp_path / "log")
    owned = opened(tmp_path / "log")
    log = owned.log(TP).snapshot().segments[2].log.path
    data = log.read_bytes()
    log.write_bytes(data[:90] + bytes([data[90] ^ 1]) + data[91:])
    before = tree_of(tmp_path)
    with pytest.raises(CorruptBatch):
        on_spark(spark, owned)
    assert tree_of(tmp_path) == before
    owned.close()


def test_the_command(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = tmp_path / "log"
    owned = opened(log_dir)
    for n in range(60):
        put(owned.log(TP), updates([(b"k%d" % (n % 7), b"%d" % n)]))
    owned.log(TP).roll()
    close_clean(owned)
    before = tree_of(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("storage.latest.offset_map_kernel.__file__", "offset_map_kernel.py")
        refused = run("spark", "compact", log_dir, "t/0", "--dry-run")
        assert (refused.exit_code, "--allow-uncompiled" in refused.stderr) == (4, True)
    told = json.loads(output_of("spark", "compact", log_dir, "t/0", "--dry-run", "--json"))
    assert tree_of(tmp_path) == before
    (rehearsed,) = told["partitions"]
    assert (rehearsed["records"], rehearsed["removed_records"], rehearsed["mapped_keys"]) == (60, 53, 7)
    assert json.loads(output_of("compact", log_dir, "t/0", "--dry-run", "--json")) == told
    found = run("spark", "compact", log_dir, "t/0")
    assert (found.exit_code, found.stdout.splitlines()[0]) == (
        0, f"t/0: 53 of 60 records, {rehearsed['removed_bytes']} of {rehearsed['bytes']} bytes and 0 deleted key(s) "
        "removed",
    )  # fmt: skip
    again = run("spark", "compact", log_dir, "t/0")
    assert again.stdout == "t/0: nothing to compact below offset 60\n"
    assert not list(log_dir.glob("t-0/*.deleted"))
    owned = opened(log_dir)
    assert [value for _, _, value in contents(owned)] == [b"%d" % n for n in range(53, 60)]
    held = process("spark", "compact", log_dir, "t/0")
    try:
        out, err = held.communicate(timeout=60)  # it has not started Spark
    finally:
        held.kill()
    assert (held.returncode, out) == (3, b"")
    assert f"(process {os.getpid()})" in err.decode()
    close_clean(owned)

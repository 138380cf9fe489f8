"""The benchmarks run on a small scale: whether they work, not how fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.mounts import requires_fuse

ROOT = Path(__file__).resolve().parent.parent


@requires_fuse
def test_a_small_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench", "--messages", "20000", "--runs", "1", "--gigabytes", "0.005"]
    done = subprocess.run(
        [*command, "--only", "process,arrow,mount,decoded-mount,keys,large,writing,paced,recover,backup,topics"],
        cwd=ROOT,
        # Without a broker, which starts slowly.
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path), "KAFKAFS_KAFKA": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("| ")]
    assert {"du cold", "find -newermt, no-op mount"} <= set(rows)
    assert {"decode, CRC", "aiokafka", "no-op mount", "txt cold", "jsonl warm", "kafkafs cat txt"} <= set(rows)
    assert {"to Arrow, all columns", "to Arrow, value alone", "DuckDB, GROUP BY key"} <= set(rows)
    assert {"a key, no index", "a key, the index is there", "the first key after a remount"} <= set(rows)
    assert {"line by line, no-op", "open, write, close, kafkafs", "paced at 100 MB/s", "recover", "mirror"} <= set(rows)
    assert {"cp, synced", "mirror --manifest", "verify_manifest", "digest", "diff, lz4"} <= set(rows)
    assert {"jsonl of Avro warm", "decoded.jsonl of Avro cold"} <= set(rows)
    assert {"revive", "revive --link"} <= set(rows)
    assert list((tmp_path / "kafkafs" / "bench").glob("partial-*")) == []

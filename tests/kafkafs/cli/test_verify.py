"""`kafkafs verify`: its output, as text and as JSON, and its exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from storage.files import names
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.owned_dirs import tree_of


def _damaged(path: Path) -> Path:
    """t/0 with a flipped byte in the second of three batches, t/1 sound."""
    build_log_dir(path, {"t": [Partition([Batch(many(3))] * 3), Partition([b"x"])]})
    log = path / "t-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    return log


def test_a_finding_for_people_and_for_programs(tmp_path: Path) -> None:
    log = _damaged(tmp_path)
    before = tree_of(tmp_path)
    result = run("verify", tmp_path)
    assert result.exit_code == 1
    lines = result.output.splitlines()
    position = len(log.read_bytes()) // 3
    assert lines[0].startswith(f"{log}: finding batch-crc: ")
    assert lines[0].endswith(f"(position {position}, offset 3)")
    assert [line.split(":")[0] for line in lines[1:5]] == ["  expected", "  found", "  recovery", "  repaired by"]
    assert lines[-1] == "1 finding: 1 batch-crc"
    result = run("verify", tmp_path, "t/0", "--json")
    assert result.exit_code == 1
    (one,) = json.loads(result.output)["findings"]
    assert (one["name"], one["file"], one["position"], one["offset"]) == ("batch-crc", str(log), position, 3)
    assert one["severity"] == "finding"
    assert one["repair"] == "kafkafs salvage"
    assert tree_of(tmp_path) == before


def test_notes_are_counted_and_listed_when_asked_for(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]}, clean=False)
    counted = "3 notes: 1 index-not-trimmed, 1 log-cut-off, 1 time-index-not-trimmed"
    assert output_of("verify", tmp_path).decode() == f"nothing wrong; {counted}\n"
    listed = output_of("verify", tmp_path, "--notes").decode().splitlines()
    assert listed[-1] == f"nothing wrong; {counted}"
    assert sum(": note " in line for line in listed) == 3


def test_a_directory_that_is_held_is_looked_at_all_the_same(tmp_path: Path) -> None:
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]})
    assert run("verify", tmp_path).exit_code == 1
    (tmp_path / names.LOCK).touch()
    lock = DirLock(RealDisk(), tmp_path)
    try:
        assert b"nothing wrong; 1 note: 1 log-cut-off" in output_of("verify", tmp_path)
    finally:
        lock.release()


def test_start_is_lean(tmp_path: Path) -> None:
    """Modules for consumers and for writing are not imported: that would take as long as importing numpy."""
    build_log_dir(tmp_path, {"t": [[b"a"]]})
    script = (
        "import sys\nfrom kafkafs.cli import main\n"
        f"main(['verify', {str(tmp_path)!r}, 't'], standalone_mode=False)\n"
        "needless = {'json', 'psutil', 'rich', 'storage.format.record_batch', 'storage.staged_writes.commit',"
        " 'storage.directory.owned_dir', 'storage.log.read_only_log', 'storage.recovery.recovery'}\n"
        "print(sorted(needless & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert found.stdout.splitlines()[-1] == "[]"

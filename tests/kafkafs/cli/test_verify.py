"""`kafkafs verify` and `salvage`: their output, as text and as JSON, exit codes, and that they change nothing."""

from __future__ import annotations

import json
import subprocess
import sys

from storage.files import names
from storage.files.dir_lock import DirLock
from storage.files.disk import RealDisk
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip_middle
from tests.support.owned_dirs import tree_of


def _damaged(path):
    """t/0 with a flipped byte in the second of three batches, t/1 sound."""
    build_log_dir(path, {"t": [Partition([Batch(many(3))] * 3), Partition([b"x"])]})
    log = path / "t-0" / "00000000000000000000.log"
    flip_middle(log)
    return log


def test_a_finding_for_people_and_for_programs(tmp_path):
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


def test_notes_are_counted_and_listed_when_asked_for(tmp_path):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]}, clean=False)
    counted = "3 notes: 1 index-not-trimmed, 1 log-cut-off, 1 time-index-not-trimmed"
    assert output_of("verify", tmp_path).decode() == f"nothing wrong; {counted}\n"
    listed = output_of("verify", tmp_path, "--notes").decode().splitlines()
    assert listed[-1] == f"nothing wrong; {counted}"
    assert sum(": note " in line for line in listed) == 3


def test_a_directory_that_is_held_is_looked_at_all_the_same(tmp_path):
    build_log_dir(tmp_path, {"t": [Partition([Batch(many(5))], tail=b"\0" * 7)]})
    assert run("verify", tmp_path).exit_code == 1
    (tmp_path / names.LOCK).touch()
    lock = DirLock(RealDisk(), tmp_path)
    try:
        assert b"nothing wrong; 1 note: 1 log-cut-off" in output_of("verify", tmp_path)
    finally:
        lock.release()


def test_start_is_lean(tmp_path):
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


# `kafkafs salvage`


def _damaged_and_cut_off(path):
    """Also with garbage behind its last batch."""
    log = _damaged(path)
    log.write_bytes(log.read_bytes() + b"garbage")
    return log


def test_what_is_left_is_a_sound_log(tmp_path):
    log = _damaged_and_cut_off(tmp_path / "logs")
    before = tree_of(tmp_path / "logs")
    size = (len(log.read_bytes()) - 7) // 3
    text = output_of("salvage", tmp_path / "logs", "t", "--to", tmp_path / "rescued").decode()
    assert text.splitlines() == [
        f"t/0: 0 to 9, 2 batches, {2 * size} bytes copied",
        "  offsets 3 to 5 lost",
        f"    {log}: position {size} to {2 * size}: batch fails its CRC",
        "  offsets from 9 on are lost, if there were any",
        f"    {log}: position {3 * size} to {3 * size + 7}: batch is cut off",
        f"t/1: 0 to 1, 1 batches, {(tmp_path / 'logs/t-1/00000000000000000000.log').stat().st_size} bytes copied",
        "  nothing lost",
    ]
    assert tree_of(tmp_path / "logs") == before
    assert output_of("verify", tmp_path / "rescued") == b"nothing wrong\n"
    offsets = output_of("cat", tmp_path / "rescued", "t/0", "--format", "%o ").split()
    assert offsets == [b"0", b"1", b"2", b"6", b"7", b"8"]


def test_for_programs(tmp_path):
    log = _damaged_and_cut_off(tmp_path / "logs")
    told = json.loads(output_of("salvage", tmp_path / "logs", "t/0", "--to", tmp_path / "rescued", "--json"))
    (one,) = told["partitions"]
    assert told["failed"] == []
    assert (one["topic"], one["partition"], one["first_offset"], one["log_end_offset"]) == ("t", 0, 0, 9)
    assert [(lost["first_offset"], lost["last_offset"]) for lost in one["lost"]] == [(3, 5), (9, None)]
    assert {damage["file"] for lost in one["lost"] for damage in lost["damages"]} == {str(log)}


def test_twice_into_the_same_directory_is_refused(tmp_path):
    _damaged_and_cut_off(tmp_path / "logs")
    output_of("salvage", tmp_path / "logs", "t/1", "--to", tmp_path / "rescued")
    before = tree_of(tmp_path / "rescued")
    result = run("salvage", tmp_path / "logs", "t/1", "--to", tmp_path / "rescued")
    assert result.exit_code == 4
    assert "already holds messages" in result.output
    assert tree_of(tmp_path / "rescued") == before

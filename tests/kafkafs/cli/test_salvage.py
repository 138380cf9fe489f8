"""`kafkafs salvage`: its output, its copy, and that it does not change the damaged log."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.owned_dirs import tree_of


def _damaged(path: Path) -> Path:
    """t/0 with a flipped byte in the second of three batches of three messages, and garbage after it; t/1 is sound."""
    build_log_dir(path, {"t": [Partition([Batch(many(3))] * 3), Partition([b"x"])]})
    log = path / "t-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data + b"garbage")
    return log


def test_what_is_left_is_a_sound_log(tmp_path: Path) -> None:
    log = _damaged(tmp_path / "logs")
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


def test_for_programs(tmp_path: Path) -> None:
    log = _damaged(tmp_path / "logs")
    told = json.loads(output_of("salvage", tmp_path / "logs", "t/0", "--to", tmp_path / "rescued", "--json"))
    (one,) = told["partitions"]
    assert told["failed"] == []
    assert (one["topic"], one["partition"], one["first_offset"], one["log_end_offset"]) == ("t", 0, 0, 9)
    assert [(lost["first_offset"], lost["last_offset"]) for lost in one["lost"]] == [(3, 5), (9, None)]
    assert {damage["file"] for lost in one["lost"] for damage in lost["damages"]} == {str(log)}


def test_twice_into_the_same_directory_is_refused(tmp_path: Path) -> None:
    _damaged(tmp_path / "logs")
    output_of("salvage", tmp_path / "logs", "t/1", "--to", tmp_path / "rescued")
    before = tree_of(tmp_path / "rescued")
    result = run("salvage", tmp_path / "logs", "t/1", "--to", tmp_path / "rescued")
    assert result.exit_code == 4
    assert "already holds messages" in result.output
    assert tree_of(tmp_path / "rescued") == before

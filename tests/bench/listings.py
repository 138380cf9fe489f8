"""Listing a directory of 2,000 topics, beside a filesystem that shows the same names and does nothing for them.

The floor is fusepy as it comes, and its answers are looked up in a dict by path. `find -newermt`, `ls -lR` and `du`
stat each entry, which takes the kernel two requests (a lookup, and a getattr since sizes are not to be cached), and its
directory three more.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil

from storage.format.block import Record
from storage.format.record_batch import encode_batch
from tests.bench.case import Context
from tests.bench.data import CACHE, START_MS
from tests.bench.measure import Report, Row, run_seconds
from tests.bench.noop_fuse import noop_mount
from tests.bench.through_mount import fresh

MESSAGES_A_TOPIC = 2_500  # of those asked for; there are fewer in it, but it scales this case too
SEGMENTS = 2
_MESSAGES = 20  # of a segment
_COMMANDS = {
    "ls -lR": ["ls", "-lR"],
    "du": ["du", "-a"],
    "find -newermt": ["find", "-newermt", "2020-01-01"],
}


def write_topics(log_dir: Path, topics: int) -> None:
    """Topics of one partition of two small segments each, as a broker would have left them."""
    model = log_dir / "topic-0000-0"
    model.mkdir(parents=True)
    for segment in range(SEGMENTS):
        base = segment * _MESSAGES
        records = [Record(None, b"message", (), START_MS + base + number) for number in range(_MESSAGES)]
        stem = f"{base:020}"
        (model / f"{stem}.log").write_bytes(encode_batch(records, base_offset=base))
        (model / f"{stem}.index").write_bytes(b"")
        last = (START_MS + base + _MESSAGES - 1).to_bytes(8, "big") + (_MESSAGES - 1).to_bytes(4, "big")
        (model / f"{stem}.timeindex").write_bytes(last)
    (model / "partition.metadata").write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAQ")
    (model / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    for number in range(1, topics):
        shutil.copytree(model, log_dir / f"topic-{number:04}-0")
    tps = "".join(f"topic-{number:04} 0 0\n" for number in range(topics))
    for checkpoint in ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint"):
        (log_dir / checkpoint).write_text(f"0\n{topics}\n{tps}")


def many_topics(context: Context) -> None:
    """Cold (a fresh mount, which has opened no partition) and warm."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="topics-") as temporary:
        log_dir, shape = Path(temporary) / "log", Path(temporary) / "shape"
        write_topics(log_dir, max(1, context.messages // MESSAGES_A_TOPIC))
        with fresh(log_dir) as tree:
            found = subprocess.run(
                ["find", ".", "-printf", "%y %P\n"], cwd=tree.path, check=True, capture_output=True
            ).stdout
        shape.write_bytes(found)
        entries = len(found.splitlines())
        for _ in range(context.runs):
            for name, command in _COMMANDS.items():
                with noop_mount(shape=shape) as point:
                    _take(context.report, f"{name}, no-op mount", command, point, None, entries)
                with fresh(log_dir) as tree:
                    _take(context.report, f"{name} cold", command, tree.path, tree.pid, entries)
                    _take(context.report, f"{name} warm", command, tree.path, tree.pid, entries)


def _take(report: Report, name: str, command: list[str], point: Path, pid: int | None, entries: int) -> None:
    program, *arguments = command
    whole = [program, str(point), *arguments] if program == "find" else [*command, str(point)]
    before = _processor_seconds(pid)
    seconds = run_seconds(whole)
    used = _processor_seconds(pid) - before
    floor = f"{name.removesuffix(' cold').removesuffix(' warm')}, no-op mount"
    row = Row(name, " ".join("MNT" if part == str(point) else part for part in whole), compare=(floor,))
    report.add(row, seconds)
    row = report.rows[name]
    row.note = f"{row.median / entries * 1e3:.3f} ms an entry of {entries:,}"
    if pid is not None:
        row.note += f"; processor time of the mount {used / entries * 1e3:.3f} ms an entry in the last run"


def _processor_seconds(pid: int | None) -> float:
    if pid is None:
        return 0.0
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system

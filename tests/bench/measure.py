"""Taking times: commands and calls, medians, and a row of the report for each case."""

import os
import statistics
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass(slots=True)
class Row:
    """One case: `seconds` of each run, the bytes and messages that a run delivers, and its command."""

    name: str
    command: str = ""
    seconds: list[float] = field(default_factory=list)
    bytes: int = 0
    messages: int = 0
    note: str = ""
    compare: tuple[str, ...] = ()  # names of rows that its median is divided by

    @property
    def median(self):
        return statistics.median(self.seconds)

    @property
    def least(self):
        return min(self.seconds)


class Report:
    """The rows so far, in the order in which they were first taken."""

    def __init__(self):
        self.rows = {}

    def add(self, row, seconds):
        self.rows.setdefault(row.name, row).seconds.append(seconds)

    def markdown(self):
        lines = [
            "| case | median s | least s | MB/s | messages/s | ratios | note |",
            "|---|---|---|---|---|---|---|",
        ]
        for row in self.rows.values():
            ratios = "; ".join(
                f"{row.median / self.rows[name].median:.2f} x {name}" for name in row.compare if name in self.rows
            )
            rate = f"{row.bytes / row.median / 1e6:,.0f}" if row.bytes else ""
            messages = _per_second(row.messages / row.median) if row.messages else ""
            lines.append(
                f"| {row.name} | {row.median:.3f} | {row.least:.3f} | {rate} | {messages} | {ratios} | {row.note} |"
            )
        return "\n".join(lines)

    def commands(self):
        return "\n".join(f"- {row.name}: `{row.command}`" for row in self.rows.values() if row.command)


def _per_second(count):
    return f"{count / 1e6:,.2f} M" if count >= 100_000 else f"{count:,.0f}"


def run_seconds(command, *, environment=None):
    """Wall time of a command whose output is thrown away; it must succeed."""
    start = time.perf_counter()
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return time.perf_counter() - start


def call_seconds(work):
    """Wall time of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bytes_read(pid):
    """What a process has read so far by read calls, the page cache included (rchar of /proc/PID/io)."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


@contextmanager
def greatest_rss(pid):
    """Samples a process's resident set; the call gives the greatest so far, in bytes."""
    process = psutil.Process(pid)
    greatest = process.memory_info().rss
    stop = threading.Event()

    def sample():
        nonlocal greatest
        while not stop.wait(0.02):
            greatest = max(greatest, process.memory_info().rss)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield lambda: greatest
    finally:
        stop.set()
        sampler.join()


def machine():
    """One line on what this ran on."""
    models = {
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    }
    memory = psutil.virtual_memory().total / 2**30
    load = os.getloadavg()[0]
    system = os.uname()
    return (
        f"{psutil.cpu_count()} x {', '.join(models) or system.machine}, {memory:.0f} GiB, {system.sysname}"
        f" {system.release}, load {load:.1f} at the start"
    )

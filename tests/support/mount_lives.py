"""A mount that is started, measured, killed, and started again."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from tests.support.mounts import KAFKAFS, detach, end_serving, kafkafs_mounts, run_kafkafs, wait_mounted


@dataclass(frozen=True, slots=True)
class Sample:
    life: int
    age_s: float
    rss_mib: float
    descriptors: int
    threads: int

    def __str__(self) -> str:
        return (
            f"life {self.life}, {self.age_s:.0f} s old: {self.rss_mib:.0f} MiB RSS, {self.descriptors} descriptors, "
            f"{self.threads} threads"
        )


class Lives:
    """One mountpoint and the processes that serve it, one after the other. Only one thread starts and kills."""

    def __init__(self, log_dir: Path, mountpoint: Path, messages: Path, options: Sequence[str]) -> None:
        self.path = mountpoint
        self.kills = 0
        # Set while a process serves.
        self.serving = Event()
        self._command = [*KAFKAFS, "mount", str(log_dir), str(mountpoint), "-f", *options]
        self._messages = messages
        self._cache = mountpoint.with_name("cache")
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._life = 0
        mountpoint.mkdir(parents=True, exist_ok=True)

    def start(self) -> None:
        """Mounts; AssertionError with the log if that fails."""
        environment = {**os.environ, "XDG_CACHE_HOME": str(self._cache)}
        with self._messages.open("ab") as log:
            process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        self._process = process
        wait_mounted(self.path, process, self._messages)
        self._started = time.monotonic()
        self._life += 1
        self.serving.set()

    def kill(self) -> None:
        """SIGKILL, and what the killed process left mounted is removed."""
        assert self._process is not None
        self.serving.clear()
        self._process.kill()
        self._process.wait()
        detach(self.path)
        while self.path in kafkafs_mounts():
            time.sleep(0.02)
        self.kills += 1

    def sample(self) -> Sample:
        assert self._process is not None
        process = Path("/proc", str(self._process.pid))
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        return Sample(
            self._life,
            time.monotonic() - self._started,
            int(status["VmRSS"].split()[0]) / 1024,
            len(list((process / "fd").iterdir())),
            int(status["Threads"]),
        )

    def end(self) -> None:
        """An orderly unmount; AssertionError unless the process ends with exit code 0."""
        assert self._process is not None
        self.serving.clear()
        run_kafkafs("umount", self.path, timeout=300)
        assert self._process.wait(300) == 0, self._messages.read_text()[-4000:]

    def abandon(self) -> None:
        """Nothing stays mounted and no process stays, whatever happened."""
        if self._process is not None:
            end_serving(self.path, self._process)

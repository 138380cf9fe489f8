"""The commands that README and the manual show. `python -m tests.shown_commands --write` writes what they print now.

A block that begins with `$ ` is a session in a terminal of 80 columns. The sessions of a page share a directory, which
has `examples` and `tests` of the repository and an empty directory `mnt`.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.mounts import kafkafs_mounts, run_kafkafs

ROOT = Path(__file__).resolve().parent.parent
MANUAL = ROOT / "kafkafs" / "manual"
PAGES = [ROOT / "README.md", ROOT / "examples" / "recipes.md", *sorted(MANUAL.glob("*.md"))]
SESSION = re.compile(r"^```\n(\$ .*?)^```$", re.DOTALL | re.MULTILINE)


def carried_out(page, directory):
    """The text of a page with what its commands print, and the exit codes of those that fail, in `directory`."""
    for name in ("examples", "tests"):
        (directory / name).symlink_to(ROOT / name)
    mountpoint = directory / "mnt"
    mountpoint.mkdir()
    try:
        return SESSION.sub(lambda session: f"```\n{_session(session[1], directory)}```", page.read_text())
    finally:
        if mountpoint in kafkafs_mounts():
            run_kafkafs("umount", mountpoint)


def _session(text, directory):
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    return "".join(f"$ {command}\n{_printed(command, directory)}" for command in commands)


def _printed(command, directory):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "80"}
    done = subprocess.run(
        ["bash", "-c", re.sub(r"^ls ", "ls -C -T 0 -w 80 ", command)], cwd=directory, env=environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=120,
    )  # fmt: skip
    printed = re.sub(r"^kafkafs: the log of this mount goes nowhere.*\n", "", done.stdout)
    return printed + (f"(exit code {done.returncode})\n" if done.returncode else "")


if __name__ == "__main__":
    for changed in [ROOT / name for name in sys.argv[2:]] or PAGES if sys.argv[1:2] == ["--write"] else []:
        with tempfile.TemporaryDirectory() as scratch:
            changed.write_text(carried_out(changed, Path(scratch)))

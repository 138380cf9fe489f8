#!/usr/bin/env python3
"""Make the README's picture: mounts the sample, runs commands in a terminal, and draws what the terminal shows.

    examples/picture.py [FILE]      by default examples/picture.svg; needs FUSE and kafkafs

The same sample gives the same picture. It names only fonts that need not be downloaded.
"""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path

from rich.console import CONSOLE_SVG_FORMAT, Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
WIDTH = 106
FONTS = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
COMMANDS = (
    "kafkafs mount shop-log mnt",
    "ls mnt mnt/orders/0",
    "cat mnt/orders/0/offsets/100-102.txt",
    "cat mnt/orders/1/time/2026-11-20T10.txt | wc -l",
    "tail -n 1 mnt/clicks/0/messages.jsonl",
    "grep -h größe mnt/orders/*/messages.txt | tail -n 2",
    "kafkafs groups shop-log billing",
    "kafkafs verify shop-log",
    "kafkafs umount mnt",
)
SHELL = "alias ls='ls --color=auto'\n"


def in_terminal(command: str, directory: Path) -> str:
    """What a terminal shows while bash runs `command`. CalledProcessError if it fails."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CACHE_HOME": str(directory / "cache"),
        "LC_ALL": "C.UTF-8",
        "TERM": "xterm-256color",
        "TZ": "UTC",
    }
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, WIDTH, 0, 0))
    script = f"shopt -s expand_aliases\n{SHELL}{command}"
    with subprocess.Popen(
        ["bash", "-c", script], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
        except OSError as error:  # the end of a terminal's output
            if error.errno != errno.EIO:
                raise
        finally:
            os.close(ours)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, shown)
    return shown.decode().replace("\r\n", "\n")


def session() -> Text:
    """All commands, one after the other, with their output."""
    text = Text()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        shutil.copytree(HERE / "sample-log", directory / "shop-log")
        (directory / "mnt").mkdir()
        try:
            for command in COMMANDS:
                text.append("$ ", "bold green").append(f"{command}\n", "bold")
                shown = Text.from_ansi(in_terminal(command, directory))
                shown.rstrip()
                if shown:
                    text.append_text(shown).append("\n")
                text.append("\n")
        finally:
            if os.path.ismount(directory / "mnt"):
                tool = shutil.which("fusermount") or "fusermount3"
                subprocess.run([tool, "-u", "-z", str(directory / "mnt")], check=False)
    text.rstrip()
    return text


def drawn(text: Text) -> str:
    """The text as SVG, in fonts of the viewer's system."""
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in text.split("\n", allow_blank=True):
            for part in line.divide(range(WIDTH, len(line), WIDTH)):  # a terminal breaks lines within words
                console.print(part, no_wrap=True)
    form = re.sub(r"\s*@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = re.sub(r"\s*<!--.*?-->", "", form, flags=re.DOTALL)
    form = form.replace("Fira Code, monospace", FONTS).replace("font-family: arial", "font-family: sans-serif")
    svg = console.export_svg(title="kafkafs", code_format=form, unique_id="kafkafs")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "picture.svg"
    target.write_text(drawn(session()))


if __name__ == "__main__":
    main()

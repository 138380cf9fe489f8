"""The system calls with which a program names files, according to strace(1), and those that a log directory forbids."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from storage.files.names import DirKind, parse_dir
from tests.support.fixtures import REQUIRED

requires_strace = pytest.mark.skipif(
    shutil.which("strace") is None and not REQUIRED, reason="no strace: system calls cannot be watched"
)

_LINE: Final = re.compile(r"(\w+)\((.*)\) += (-?\d+|\?)(.*)")
# A path as an argument, with the descriptor of the directory before it, if the call takes one.
_PATH: Final = re.compile(r'(?:(AT_FDCWD|\d+)(?:<((?:[^>\\]|\\.)*)>)?, )?"((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(rb"\\([0-7]{1,3}|.)")
_LETTERS: Final = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"v": b"\v", b"f": b"\f"}

_OPENS: Final = frozenset({"open", "openat", "openat2", "creat"})
_LOOKS: Final = frozenset(
    {"stat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "statfs", "getxattr", "listxattr"}
)
# These look at a link itself.
_LOOKS_AT_LINKS: Final = frozenset({"lstat", "readlink", "readlinkat", "lgetxattr", "llistxattr"})


class Naming(NamedTuple):
    """A path in a call. `path`: absolute. `relative`: it is one name in a directory given by its descriptor."""

    path: str
    relative: bool


class Call(NamedTuple):
    """A system call with paths; `arguments` as strace writes them."""

    name: str
    arguments: str
    namings: tuple[Naming, ...]


def traced(command: Sequence[str | Path], output: Path) -> list[str]:
    """A command that runs another one, and all its children, with their calls in files that `calls` reads."""
    output.mkdir()
    # Only calls that name files stop a process (--seccomp-bpf). -y: descriptors with their paths.
    strace = ["strace", "-ff", "--seccomp-bpf", "-qq", "-y", "-s", "8192", "-e", "trace=%file", "-e", "signal=none"]
    return [*strace, "-o", str(output / "calls"), *map(str, command)]


def calls(output: Path, directory: Path) -> Iterator[Call]:
    """The calls that were recorded in `output` and name something in a directory, or the directory itself."""
    within = str(directory)
    for file in sorted(output.iterdir()):
        for line in file.read_text(errors="surrogateescape").splitlines():
            if within not in _unescaped(line):
                continue
            match = _LINE.match(line)
            assert match, line  # the last call of a process that was killed in the middle
            namings = tuple(_namings(match[1], match[2]))
            if any(naming.path == within or naming.path.startswith(f"{within}/") for naming in namings):
                yield Call(match[1], match[2], namings)


def _namings(name: str, arguments: str) -> Iterator[Naming]:
    if name == "execve":
        arguments = arguments.partition(", [")[0]  # without the words of the command line
    elif name in ("symlink", "symlinkat", "mount"):
        arguments = arguments.partition(", ")[2]  # without what a link leads to, and the name of what is mounted
    for fd, place, entry in _PATH.findall(arguments):
        path = os.path.normpath(Path(_unescaped(place), _unescaped(entry)))
        yield Naming(path, fd.isdigit() and "/" not in entry)


def _unescaped(text: str) -> str:
    def bytes_of(match: re.Match[bytes]) -> bytes:
        return bytes([int(match[1], 8)]) if match[1].isdigit() else _LETTERS.get(match[1], match[1])

    return os.fsdecode(_ESCAPE.sub(bytes_of, os.fsencode(text)))


def objections(output: Path, directory: Path) -> dict[str, str]:
    """The forbidden calls that were recorded in `output`, with what is wrong with each."""
    found = ((f"{call.name}({call.arguments})", objection(call, directory)) for call in calls(output, directory))
    return {text: wrong for text, wrong in found if wrong is not None}


def objection(call: Call, directory: Path) -> str | None:
    """What is wrong with a call that names something in a log directory; None if nothing is.

    A directory may be opened by its path, without following a link that is in its place. What is in it is named in the
    directory that was opened so, and is opened without following and without waiting. Nothing is run.
    """
    flags = call.arguments
    inside = [naming for naming in call.namings if naming.path.startswith(f"{directory}/")]
    if not inside and call.name in (*_OPENS, *_LOOKS, *_LOOKS_AT_LINKS):
        return None  # the log directory itself, which a person has named
    if call.name in _LOOKS_AT_LINKS:
        return None
    if call.name in _LOOKS:
        if all(_is_partition(Path(naming.path), directory) for naming in inside):
            return None
        return None if "AT_SYMLINK_NOFOLLOW" in flags or "AT_EMPTY_PATH" in flags else "looks through a link"
    if call.name in _OPENS:
        if "O_NOFOLLOW" not in flags and not (inside[0].relative and '"."' in flags):
            return "follows a link"
        if "O_DIRECTORY" in flags or "O_PATH" in flags:
            return None
        if not inside[0].relative:
            return "opens a file by its path"
        return None if "O_NONBLOCK" in flags else "waits for a FIFO"
    if call.name in ("chdir", "execve", "execveat"):
        return "runs a program of the directory, or in it"
    if call.name in ("fchownat", "utimensat", "fchmodat", "linkat"):
        if (call.name == "linkat") == ("AT_SYMLINK_FOLLOW" in flags) and "AT_SYMLINK_NOFOLLOW" not in flags:
            return "changes what a link leads to"
    elif call.name not in ("unlinkat", "renameat", "renameat2", "mkdirat", "symlinkat"):
        return "is a call that this test does not know"
    return None if all(naming.relative for naming in inside) else "changes something by its path"


def _is_partition(path: Path, directory: Path) -> bool:
    """A directory of the log directory: it may be a link to one that is followed."""
    return path.parent == directory and parse_dir(path.name).kind is not DirKind.UNPARSABLE

"""One seed: a hostile directory, and what commands and a mount do with it."""

import codecs
import importlib
import json
import os
import pkgutil
import random
import re
import resource
import shutil
import signal
import stat
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import kafkafs
import storage
from kafkafs.cli import main
from tests.hostile import commands, mutations
from tests.hostile.replaced_files import SECRET as OUTSIDE_SECRET
from tests.support.fixtures import FIXTURES
from tests.support.mounts import mounted

SECRET = OUTSIDE_SECRET.encode()
_HANG_S = 60
_WALK_S = 30  # of a tree, in which each of hundreds of files may take a second
_MOST_RSS_BYTES = 1 << 30
_MOST_FILE_BYTES = 1 << 30  # of what a command writes
_NOBODY = 65534
_LOGS = ("groups", "tiered", "schemas", "transactions", "compaction-after")
_MOST_PARTITIONS = 4
_EXIT_CODES = (0, 1, 2, 3, 4)
# For a terminal: C0 without tab and newline, DEL, and C1 in UTF-8.
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]")
_CALLS_A_SEED = 8
_ENCODINGS = (
    "utf-8-sig", "utf-16-le", "utf-16-be", "latin-1", "ascii", "idna", "unicode_escape", "raw_unicode_escape", "cp437",
)  # fmt: skip
_ABOUT_THE_MOUNT = ("@help", "@metrics", "@status.json")
_NOT_LOADED = ("kafkafs.__main__", "kafkafs.spark", "kafkafs.mounting", "kafkafs.cli.spark")


@dataclass
class Result:
    """What a seed came to. `faults`: in words, with the command; `calls`: how many commands ran; `read_files`: how many
    files could be read in a mount that came up."""

    seed: int
    made: list[str] = field(default_factory=list)
    calls: int = 0
    read_files: int | None = None
    faults: list[str] = field(default_factory=list)
    most_rss_bytes: int = 0


def load_modules():
    """Imports what commands import later: another user may not be able to read this Python's files."""
    for package in (kafkafs, storage):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(_NOT_LOADED):
                importlib.import_module(module.name)
    for name in ("descriptor_pb2", "descriptor_pool", "json_format", "message_factory", "text_format"):
        importlib.import_module(f"google.protobuf.{name}")
    for encoding in _ENCODINGS:
        codecs.lookup(encoding)


def run_seed(seed, scratch, *, mounts=False):
    """Makes the directory of a seed below `scratch`, tries commands, or with `mounts` a mount, and removes it."""
    dice, result = random.Random(seed), Result(seed)
    place = _made(dice, scratch)
    try:
        result.made = mutations.mutate(place)
        before = _state(place.outside)
        if mounts:
            _mount(place, scratch, result)
        else:
            for name, text in _calls(dice):
                _call(name, text, place, scratch, result)
        if _state(place.outside) != before:
            result.faults.append("something outside was changed")
    finally:
        for path in (place.log_dir, *place.log_dir.rglob("*")):
            if stat.S_ISDIR(path.lstat().st_mode):
                path.chmod(0o755)
        shutil.rmtree(scratch)
    return result


def _made(dice, scratch):
    """A small copy of a fixture, and a tree outside with a secret."""
    source = FIXTURES / dice.choice(_LOGS) / "log"
    log_dir, outside = scratch / "log", scratch / "outside"
    log_dir.mkdir()
    partitions = sorted(path for path in source.iterdir() if path.is_dir())
    for path in dice.sample(partitions, min(len(partitions), _MOST_PARTITIONS)):
        shutil.copytree(path, log_dir / path.name)
    for path in source.iterdir():
        if path.is_file():
            shutil.copyfile(path, log_dir / path.name)
    outside.mkdir()
    (outside / "secret").write_bytes(SECRET + b"\n")
    shutil.copytree(dice.choice(partitions), outside / "t-0")
    owner = dice.choice((0, _NOBODY))
    for path in (scratch, *scratch.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if outside not in (path, *path.parents) and os.geteuid() == 0:
            os.chown(path, owner, owner)
    (outside / "secret").chmod(0o600)
    return mutations.Place(log_dir, outside, dice)


def _state(tree):
    """Everything about the files of a tree but access times."""
    states = []
    for folder, directories, files in os.walk(os.fsencode(tree)):
        for name in (b".", *directories, *files):
            status = os.lstat(path := folder + b"/" + name)
            kept = status.st_mode, status.st_uid, status.st_size, status.st_mtime_ns, status.st_ino
            states.append((path, *kept))
    return sorted(states)


def _calls(dice):
    """Commands with their arguments, those that change something last."""
    reads, changes = (
        [(name, text) for name, texts in calls.items() for text in texts]
        for calls in (commands.READS, commands.CHANGES)
    )
    return [*dice.sample(reads, _CALLS_A_SEED), dice.choice(changes)]


def _call(name, text, place, scratch, result):
    topics = [path.name for path in sorted(place.log_dir.iterdir()) if re.fullmatch(r".*-[0-9]{1,5}", path.name)]
    topic, _, number = place.dice.choice(topics or ["t-0"]).rpartition("-")
    files = sorted(path for path in place.log_dir.rglob("*") if path.suffix) or [place.log_dir / "x.log"]
    file, out = place.dice.choice(files), scratch / "out"
    values = {"log": place.log_dir, "tp": f"{topic}/{number}", "topic": topic, "out": out, "file": file}
    arguments = [*name.split(), *(word.format_map(values) for word in text.split())]
    uid = place.dice.choice((0, _NOBODY)) if os.geteuid() == 0 else None
    reads = text in commands.READS.get(name, ())
    before = _state(place.log_dir) if reads else []
    ended = _in_a_child(lambda: main(arguments, prog_name="kafkafs"), scratch, _HANG_S, uid)
    result.calls += 1
    result.most_rss_bytes = max(result.most_rss_bytes, ended.rss_bytes)
    faults = list(_judged(name, ended))
    if reads and _state(place.log_dir) != before:
        faults.append("changed the directory")
    if out.exists():
        copied = [path for path in out.rglob("*") if stat.S_ISREG(path.lstat().st_mode) and _holds_secret(path)]
        faults += [f"copied what is outside to {path}" for path in copied]
        shutil.rmtree(out)
    out.with_name("out.json").unlink(missing_ok=True)
    shown = f"kafkafs {' '.join(map(repr, arguments))} as {'this user' if uid is None else uid}"
    result.faults += [f"{shown}: {fault}" for fault in faults]


def _holds_secret(path):
    return path.stat().st_size < _MOST_FILE_BYTES and SECRET in path.read_bytes()


@dataclass(frozen=True)
class _Ended:
    """How a child ended: `code` None when it was killed for taking too long, negative for a signal."""

    code: int | None
    stdout: bytes
    stderr: bytes
    rss_bytes: int


def _judged(name, ended):
    if ended.code is None:
        yield f"did not end within {_HANG_S} s"
    elif ended.code not in _EXIT_CODES:
        yield f"exit code {ended.code}: {ended.stderr[-300:]!r}"
    if ended.rss_bytes > _MOST_RSS_BYTES:
        yield f"took {ended.rss_bytes} bytes of memory"
    yield from _wrong_text(ended.stderr)
    yield from _wrong_text(ended.stdout, is_raw=name.split()[0] in commands.RAW)


def _wrong_text(text, *, is_raw=False):
    """What must not be in what is printed or logged. `is_raw`: it is the content of files."""
    if b"Traceback" in text and not is_raw:
        yield f"a traceback: {text[-800:]!r}"
    if SECRET in text:
        yield "showed what is outside"
    if not is_raw and (control := _CONTROL.search(text)):
        yield f"control characters: {control[0]!r}"


def _in_a_child(work, scratch, seconds, uid=None):
    """Does something in a child of this process, whose modules are loaded already."""
    stdout, stderr = scratch / "stdout", scratch / "stderr"
    with stdout.open("wb") as out, stderr.open("wb") as err:
        pid = os.fork()
        if not pid:
            _child(work, out.fileno(), err.fileno(), uid)
    code, deadline = None, time.monotonic() + seconds
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            ended = os.wait4(pid, 0)
            break
        time.sleep(0.002)
    else:
        code = os.waitstatus_to_exitcode(ended[1])
    return _Ended(code, stdout.read_bytes(), stderr.read_bytes(), ended[2].ru_maxrss * 1024)


def _child(work, stdout, stderr, uid):
    code = 70
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for number, fd in enumerate((null, stdout, stderr)):
            os.dup2(fd, number)
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_FILE_BYTES, _MOST_FILE_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if uid:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
        os.environ["XDG_CACHE_HOME"] = "/nonexistent"
        work()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the fault that is looked for
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _mount(place, scratch, result):
    """A mount, read-only or writable: everything in it is listed and its beginning read."""
    write, mnt = place.dice.random() < 0.5, scratch / "mnt"
    before = [] if write else _state(place.log_dir)
    try:
        with mounted(place.log_dir, mnt, write=write) as tree:
            status = json.loads((mnt / "@status.json").read_bytes())
            assert status["mode"]
            _walk(mnt, scratch, result)
            memory = Path(f"/proc/{tree.pid}/status").read_text()
            result.most_rss_bytes = int(re.findall(r"VmHWM:\s+(\d+) kB", memory)[0]) * 1024
            if result.most_rss_bytes > _MOST_RSS_BYTES:
                result.faults.append(f"a mount took {result.most_rss_bytes} bytes of memory")
    except AssertionError as error:
        # Refused with a message is an answer; what it says is judged below.
        if "exit 4" not in str(error) and "exit 3" not in str(error):
            result.faults.append(f"a mount failed: {error}")
    result.calls += 1
    result.faults += [f"a mount's log: {fault}" for fault in _wrong_text(mnt.with_name("mnt.messages").read_bytes())]
    if not write and _state(place.log_dir) != before:
        result.faults.append("a read-only mount changed the directory")


def _walk(mnt, scratch, result):
    """Reads the tree in another process, which is killed if a call of it hangs. The files about the mount itself can be
    read whatever the log directory holds."""
    ended = _in_a_child(lambda: _read_all(mnt), scratch, _WALK_S + _HANG_S)
    if ended.code != 0:
        how = "did not end" if ended.code is None else f"failed: {ended.stderr[-800:]!r}"
        result.faults.append(f"reading a mount {how}")
        return
    names = ended.stdout.decode().splitlines()
    result.read_files = len(names)
    result.faults += [f"{name} could not be read" for name in _ABOUT_THE_MOUNT if repr(name) not in names]


def _read_all(mnt):
    """Opens everything, as far as it comes in its time, and prints the names of what could be read; errors are
    answers."""
    end = time.monotonic() + _WALK_S
    for folder, _, names in os.walk(os.fsencode(mnt)):
        for name in (*names[:200], b"keys/k.txt", b"offsets/0-3.jsonl", b"time/2026-11-20.txt"):
            if time.monotonic() > end:
                return
            try:
                with open(folder + b"/" + name, "rb") as file:  # noqa: PTH123 - names are bytes
                    if SECRET in file.read(1 << 16):
                        raise RuntimeError("a mount shows what is outside")
                os.write(1, f"{os.fsdecode(name)!a}\n".encode())
                os.listxattr(folder + b"/" + name)
            except OSError:
                continue

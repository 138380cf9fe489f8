"""Views of a log that somebody writes, cleans and truncates meanwhile: nothing twice, nothing lost, nothing held."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many
from tests.support.mounted_logs import Appender, txt
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched
from tests.support.waiting import wait_for

pytestmark = requires_fuse


@pytest.fixture
def built(tmp_path):
    """Three segments of 200 messages each; the active one as a running broker has it."""
    items = [Batch(many(100)), Batch(many(100)), ROLL] * 2 + [Batch(many(100)), Batch(many(100))]
    return build_log_dir(tmp_path / "logs", {"t": [Partition(items, preallocated=True)]}, clean=False)


@pytest.fixture
def mount(built):
    with watched(built.path, built.path.with_name("mnt")) as mounted:
        yield mounted


@pytest.fixture
def appender(built):
    partition = built["t", 0]
    return Appender(partition.log(-1), partition.log_end_offset)


class Tail:
    """What a `tail -f` has printed: `lines` while it runs, `complaints` after it has ended."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self.complaints = b""

    def read(self):
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)

    def wait_for(self, line):
        wait_for(f"{line!r} after {self.lines[-3:]}", lambda: line + b"\n" in self.lines[-1000:])


@contextmanager
def tail(*arguments):
    """`tail` in the background, looking twenty times a second."""
    command = ["tail", "-s", "0.05", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        running = Tail(process)
        thread = threading.Thread(target=running.read)
        thread.start()
        try:
            yield running
        finally:
            process.terminate()
            assert process.stderr is not None
            running.complaints = process.stderr.read()
            thread.join()


def wait_until_at(process, view, position):
    """Until a process has the view open and has gone to this position: `tail -n 0` to its end."""

    def is_there():
        for number in os.listdir(f"/proc/{process.pid}/fd"):  # noqa: PTH208 - names, of what may go meanwhile
            try:
                if os.readlink(f"/proc/{process.pid}/fd/{number}") == str(view):  # noqa: PTH115
                    return f"pos:\t{position}\n" in Path(f"/proc/{process.pid}/fdinfo/{number}").read_text()
            except FileNotFoundError:
                continue
        return False

    wait_for(f"it reads from {position} on", is_there)


def handles(mount):
    """How many views are open."""
    return int(json.loads((mount.path / "@status.json").read_bytes())["views"]["handles"])


def numbered(first, count):
    return [b"new-%d" % number for number in range(first, first + count)]


VIEWS = {
    "messages": "messages.txt",
    "offsets": "offsets/0-.txt",
    "times": "time/2020--.txt",
}


@pytest.mark.parametrize("flag", ["-f", "-F"])
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_tail_f_prints_each_new_message_once(mount, appender, view, flag):
    with tail(flag, "-n", "2", mount.path / "t/0" / view) as running:
        running.wait_for(many(100)[-1].value or b"")
        for number in range(3):
            appender.append(numbered(number * 10, 10))
            running.wait_for(b"new-%d" % (number * 10 + 9))
    assert running.lines[2:] == [line + b"\n" for line in numbered(0, 30)]
    assert running.complaints == b""


def test_readers_see_an_exact_prefix_while_it_grows(mount, built, appender):
    view = mount.path / "t/0/messages.txt"
    content = txt(built["t", 0].records)
    done = threading.Event()
    sizes = []
    reads = []

    def append():
        nonlocal content
        try:
            while len(sizes) < 300 or (len(reads) <= 10 and threading.main_thread().is_alive()):
                number = len(sizes)
                content += txt(appender.append(numbered(number * 20, 20)))
                sizes.append(len(content))
                time.sleep(0.002)
        finally:
            done.set()

    thread = threading.Thread(target=append)
    thread.start()
    commands = (["cat"], ["tail", "-n", "+1"], ["dd", "status=none", "bs=10007"], ["cp", "/dev/stdin", "/dev/stdout"])
    while not done.is_set():
        command = commands[len(reads) % len(commands)]
        before = sizes[-1] if sizes else 0
        with view.open("rb") as file:
            read = subprocess.run(command, stdin=file, capture_output=True, check=True, timeout=120).stdout
        reads.append((before, read))
    thread.join()
    assert len(reads) > 10
    for before, read in reads:
        assert len(read) >= before
        assert content.startswith(read)
        assert read.endswith(b"\n")
    assert view.read_bytes() == content


def test_retention_under_a_reader(mount, built, appender):
    """Positions stay while the file is open; what is gone is ERANGE, its space is free; then they begin anew."""
    view = mount.path / "t/0/messages.txt"
    partition = built["t", 0]
    content = txt(partition.records)
    with view.open("rb", buffering=0) as file:
        assert file.read(10) == content[:10]
        _remove(partition.log(0))
        assert view.stat().st_size == len(content)
        wait_for("the place of the removed messages cannot be read", lambda: _fails(file, errno.ERANGE))
        third = len(content) // 3
        assert os.pread(file.fileno(), 100, third) == content[third : third + 100]
        appender.append([b"new"])
        assert os.pread(file.fileno(), 100, len(content)) == b"new\n"
        held = [os.readlink(fd) for fd in Path(f"/proc/{mount.pid}/fd").iterdir()]  # noqa: PTH115
        assert not [name for name in held if "(deleted)" in name and ".log" in name]
    wait_for("the release has come, after close has returned", lambda: handles(mount) == 0)
    assert view.read_bytes() == content[third:] + b"new\n"


def test_one_forgotten_tail_f_keeps_nobody_from_what_retention_has_left(mount, built, appender, tmp_path):
    """The file begins anew for who opens it, whatever he uses; tail goes on where it was."""
    view = mount.path / "t/0/messages.txt"
    partition = built["t", 0]
    whole = txt(partition.records)
    with tail("-f", "-n", "0", view) as running, view.open("rb", buffering=0) as held:
        wait_for("both are open", lambda: handles(mount) == 2)
        _remove(partition.log(0))
        for number in range(2):
            appender.append(numbered(number, 1))
            running.wait_for(b"new-%d" % number)
            fresh = whole[len(whole) // 3 :] + b"".join(line + b"\n" for line in numbered(0, number + 1))
            for name, wanted in _reads_of(view, fresh, tmp_path).items():
                assert wanted == subprocess.run(["bash", "-c", name], capture_output=True, check=True).stdout, name
            assert view.stat().st_size == os.fstat(held.fileno()).st_size == len(whole) + 6 * (number + 1)
            assert held.seek(0, os.SEEK_END) == len(whole) + 6 * (number + 1)
            with view.open("rb", buffering=0) as other:
                assert os.fstat(other.fileno()).st_size == other.seek(0, os.SEEK_END) == len(fresh)
                assert held.seek(-6, os.SEEK_END) == len(whole) + 6 * number
                assert held.read() == b"new-%d\n" % number
    assert running.lines == [line + b"\n" for line in numbered(0, 2)]
    assert running.complaints == b""


def _reads_of(view, content, scratch):
    """Commands in which a process reads the file that it, or its parent, has opened; and what they must print."""
    lines = content.splitlines(keepends=True)
    size = b"%d\n" % len(content)
    file, copy, parent = (shlex.quote(str(path)) for path in (view, scratch / "copy", view.parent))
    return {
        f"cat {file}": content,
        f"wc -c < {file}": size,
        f"wc -l < {file}": b"%d\n" % len(lines),
        f"tail -n 2 {file}": b"".join(lines[-2:]),
        f"tail -c 20 {file}": content[-20:],
        f"tail -n +3 {file}": b"".join(lines[2:]),
        f"head -c -7 {file}": content[:-7],
        f"tac {file}": b"".join(reversed(lines)),
        f"cp {file} {copy}; cat {copy}": content,
        f"rsync {file} {copy}; cat {copy}": content,
        f"tar cf - -C {parent} {view.name} | tar xf - -O": content,
        f"exec 3< {file}; wc -c <&3; (cat <&3)": size + content,
        f"python3 -c 'import shutil, sys; shutil.copyfile(*sys.argv[1:])' {file} {copy}; cat {copy}": content,
    }


def test_tail_f_over_retention(mount, built, appender):
    view = mount.path / "t/0/messages.txt"
    with tail("-f", "-n", "0", view) as running:
        wait_until_at(running.process, view, len(txt(built["t", 0].records)))
        for number in range(10):
            appender.append(numbered(number, 1))
            running.wait_for(b"new-%d" % number)
            appender.log = built["t", 0].path / f"{appender.next_offset:020}.log"
            appender.log.touch()
            logs = sorted(built["t", 0].path.glob("*.log"))
            if len(logs) > 2:
                _remove(logs[0])
    assert running.lines == [line + b"\n" for line in numbered(0, 10)]
    assert running.complaints == b""


def _fails(file, number):
    try:
        os.pread(file.fileno(), 100, 0)
    except OSError as error:
        return error.errno == number
    return False


def _remove(log):
    """As Kafka's retention: rename to .deleted, then unlink."""
    for path in sorted(log.parent.glob(f"{log.stem}.*")):
        path.rename(path.with_name(path.name + ".deleted"))
    for path in log.parent.glob("*.deleted"):
        path.unlink()

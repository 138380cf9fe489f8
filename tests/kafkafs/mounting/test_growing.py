"""Views of a log that somebody writes and cleans meanwhile: nothing twice, nothing lost, nothing held."""

import errno
import json
import os
import shlex
import signal
import subprocess
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.live_log import LiveLog
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import fails_with, watched
from tests.support.waiting import wait_for

pytestmark = requires_fuse


@pytest.fixture
def live(tmp_path):
    """Three segments of 200 messages each."""
    log = LiveLog(tmp_path / "logs")
    log.write_segments(200, 200, 200)
    return log


@pytest.fixture
def mount(live, tmp_path):
    with watched(live.path.parent, tmp_path / "mnt") as mounted:
        yield mounted


@pytest.fixture
def view(mount):
    return mount.path / "t/0/messages.txt"


class Tail:
    """What a `tail -f` has printed: `lines` while it runs, `complaints` after it has ended."""

    def __init__(self, process):
        self.process = process
        self.lines = []
        self.complaints = b""

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)

    def wait_for(self, live):
        """Until it has printed the newest message."""
        newest = live.messages[-1][2] + b"\n"
        wait_for(f"{newest!r} after {self.lines[-3:]}", lambda: newest in self.lines[-1000:])

    @contextmanager
    def held_up(self):
        """While it asks for no size: the kernel keeps one size of a file, for whoever seeks to its end."""
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


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
            running.complaints = process.stderr.read()
            thread.join()


def handles(mount):
    """How many views are open."""
    return int(json.loads((mount.path / "@status.json").read_bytes())["views"]["handles"])


def fails(file, position):
    """Whether what was at a position is gone."""
    try:
        os.pread(file.fileno(), 100, position)
    except OSError as error:
        return error.errno == errno.ERANGE
    return False


def test_tail_f_prints_each_new_message_once(mount, live):
    """Across retention and compaction."""
    views = (("-f", "messages.txt"), ("-F", "messages.txt"), ("-f", "offsets/0-.txt"), ("-F", "time/2020--.txt"))
    with ExitStack() as stack:
        tails = [stack.enter_context(tail(flag, "-n", "2", mount.path / "t/0" / name)) for flag, name in views]
        for number in range(12):
            for running in tails:
                running.wait_for(live)
            live.roll()
            live.write(5)
            if number % 3 == 1:
                live.retain()
            elif number % 3 == 2:
                live.compact(lambda offset: offset % 2 == 0)
        for running in tails:
            running.wait_for(live)
    expected = [b"%d %s\n" % (offset, b"x" * (40 + offset % 7)) for offset in range(598, 660)]
    for running in tails:
        assert (running.lines, running.complaints) == (expected, b"")


@pytest.mark.parametrize("command", [["cat"], ["tail", "-n", "+1"], ["dd", "status=none", "bs=10007"]])
def test_readers_see_an_exact_prefix_while_it_grows(view, live, tmp_path, command):
    for _ in range(3):
        before = len(live.text())
        with view.open("rb") as file, (tmp_path / "output").open("wb") as output:
            reader = subprocess.Popen(command, stdin=file, stdout=output)
            for _ in range(300):
                live.write(20)
                if reader.poll() is not None:
                    break
            assert reader.wait(timeout=120) == 0
        read = (tmp_path / "output").read_bytes()
        assert len(read) >= before
        assert live.text().startswith(read)
        assert read.endswith(b"\n")
    assert view.read_bytes() == live.text()


@pytest.mark.parametrize(
    ("remove", "there"), [(LiveLog.retain, 200), (lambda live: live.compact(lambda offset: offset % 2), 400)]
)
def test_messages_are_removed_under_a_reader(mount, view, live, remove, there):
    """Positions stay while the file is open; what is gone is ERANGE, its space is free; then they begin anew."""
    content = live.text()
    kept = len(live.text(lambda offset, _: offset < there))
    with view.open("rb", buffering=0) as file:
        assert file.read(10) == content[:10]
        remove(live)
        assert view.stat().st_size == os.fstat(file.fileno()).st_size == len(content)
        wait_for("the place of the removed messages cannot be read", lambda: fails(file, 0))
        assert os.pread(file.fileno(), 100, kept) == content[kept : kept + 100]
        live.append(b"new")
        assert os.pread(file.fileno(), 100, len(content)) == b"new\n"
        held = [os.readlink(fd) for fd in Path(f"/proc/{mount.pid}/fd").iterdir()]  # noqa: PTH115
        assert not [name for name in held if "(deleted)" in name and ".log" in name]
    wait_for("the release has come, after close has returned", lambda: handles(mount) == 0)
    assert view.read_bytes() == live.text()


def reads_of(view, content, copy):
    """Commands in which a process reads the file that it, or its parent, has opened; and what they must print."""
    lines = content.splitlines(keepends=True)
    size = b"%d\n" % len(content)
    file, copy, parent = (shlex.quote(str(path)) for path in (view, copy, view.parent))
    return {
        f"cat {file}": content,
        f"wc -c < {file}": size,
        f"tail -n 2 {file}": b"".join(lines[-2:]),
        f"tail -c 20 {file}": content[-20:],
        f"tac {file}": b"".join(reversed(lines)),
        f"cp {file} {copy}; cat {copy}": content,
        f"rsync {file} {copy}; cat {copy}": content,
        f"tar cf - -C {parent} {view.name} | tar xf - -O": content,
        f"exec 3< {file}; wc -c <&3; (cat <&3)": size + content,
    }


def test_one_forgotten_tail_f_keeps_nobody_from_what_retention_has_left(mount, view, live, tmp_path):
    """The file begins anew for who opens it, whatever he uses; tail goes on where it was."""
    whole, last = len(live.text()), live.text().splitlines(keepends=True)[-1]
    with tail("-f", "-n", "1", view) as running, view.open("rb", buffering=0) as held:
        running.wait_for(live)  # it knows where the file ends
        wait_for("both are open", lambda: handles(mount) == 2)
        live.retain()
        for number in range(2):
            live.append(b"new-%d" % number)
            running.wait_for(live)
            fresh, size = live.text(), whole + 6 * (number + 1)
            with running.held_up():
                for command, printed in reads_of(view, fresh, tmp_path / "copy").items():
                    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
                    assert done.stdout == printed, command
                assert view.stat().st_size == os.fstat(held.fileno()).st_size == held.seek(0, os.SEEK_END) == size
                with view.open("rb", buffering=0) as other:
                    assert os.fstat(other.fileno()).st_size == other.seek(0, os.SEEK_END) == len(fresh)
                    assert held.seek(-6, os.SEEK_END) == size - 6
                    assert held.read() == b"new-%d\n" % number
    assert running.lines == [last, b"new-0\n", b"new-1\n"]
    assert running.complaints == b""


@pytest.mark.parametrize("more", [0, 5, 300], ids=["shorter", "regrown", "longer than before"])
def test_a_truncation_ends_every_open_view_and_another_open_shows_the_new_log(mount, view, live, more):
    """`tail -f` with an error; a closed range, of which the page cache has a part, too."""
    closed = mount.path / "t/0/offsets/10-450.txt"
    with ExitStack() as stack:
        running = stack.enter_context(tail("-f", "-n", "2", view))
        growing, ranged = (stack.enter_context(path.open("rb", buffering=0)) for path in (view, closed))
        running.wait_for(live)
        old = live.text()
        own = live.text(lambda offset, _: 10 <= offset <= 450)
        assert growing.read(100) == old[:100]
        assert ranged.read(100) == own[:100]
        live.truncate(430)
        if more:
            live.write(more, size=70)
        wait_for("tail's end", lambda: running.process.poll() is not None)
        assert running.process.returncode != 0
        with fails_with(errno.ESTALE):
            growing.read(100)
        with fails_with(errno.ESTALE):
            while part := ranged.read(1 << 16):
                assert part in own
        assert view.read_bytes() == live.text()
    assert b"Stale file handle" in running.complaints
    assert b"".join(running.lines) == b"".join(old.splitlines(keepends=True)[-2:])
    for path, text in ((view, live.text()), (closed, live.text(lambda offset, _: 10 <= offset <= 450))):
        wait_for("the kernel tells the mount of a close(2) later", lambda path=path: is_shown(path))
        assert path.read_bytes() == text
        assert path.stat().st_size == len(text)


def is_shown(path):
    """False while the path may not be looked at, because somebody has its larger content open."""
    try:
        path.stat()
    except OSError:
        return False
    return True

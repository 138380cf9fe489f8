"""Mounting and unmounting as people do it: in the background, by mount(8), with signals, and what may go wrong."""

import contextlib
import errno
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

from kafkafs.reading.block_cache import DEFAULT_CACHE_BYTES
from tests.support.builders import build_log_dir
from tests.support.mounts import KAFKAFS, detach, kafkafs_mounts, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with
from tests.support.waiting import wait_for

pytestmark = requires_fuse

READ_ONLY = "kafkafs: read-only; --write to append"


@pytest.fixture
def log_dir(tmp_path):
    return build_log_dir(tmp_path / "logs", {"t": [[b"one", b"two"]]}).path


@pytest.fixture
def mnt(tmp_path):
    """An empty directory; whatever is mounted there at the end goes, and its processes are ended."""
    path = tmp_path / "mnt"
    path.mkdir()
    before = {process.pid for process in psutil.process_iter()}
    yield path
    for _ in range(3):
        if path in kafkafs_mounts():
            detach(path)
    for process in psutil.process_iter(["cmdline"]):
        if process.pid not in before and str(path) in " ".join(process.info["cmdline"] or ()):
            process.kill()


def mount(log_dir, mnt, *options, exit_code=0):
    """`kafkafs mount --read-only` in the background; what it said on stderr."""
    result = run_kafkafs("mount", log_dir, mnt, "--read-only", *options, check=False)
    assert (result.returncode, result.stdout) == (exit_code, b""), result.stderr.decode()
    return result.stderr.decode()


def umount(mnt, exit_code=0):
    """What `kafkafs umount` said."""
    result = run_kafkafs("umount", mnt, check=False)
    assert result.returncode == exit_code, result.stderr.decode()
    return result.stderr.decode()


def status(mnt):
    return json.loads((mnt / "@status.json").read_bytes())


def server(mnt):
    """The process behind a mount."""
    return psutil.Process(status(mnt)["process"]["pid"])


def has_ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def messages(mnt):
    return (mnt / "t/0/messages.txt").read_bytes()


def test_background(log_dir, mnt):
    """When the command has returned the tree is there; the server has left the terminal and its directory."""
    assert mount(log_dir, mnt) == ""
    assert messages(mnt) == b"one\ntwo\n"
    shown = status(mnt)
    process = psutil.Process(shown["process"]["pid"])
    assert (process.cwd(), os.getsid(process.pid), process.terminal()) == ("/", process.pid, None)
    assert {os.readlink(f"/proc/{process.pid}/fd/{fd}") for fd in (0, 1)} == {"/dev/null"}  # noqa: PTH115
    assert (shown["mode"], shown["log_directory"], shown["mountpoint"]) == ("read-only", str(log_dir), str(mnt))
    assert shown["block_cache"]["max_bytes"] == DEFAULT_CACHE_BYTES
    requests = shown["requests"]
    assert (requests["opens"] >= 1, requests["reads"] >= 1, requests["read_bytes"]) == (True, True, 8)
    listed = subprocess.check_output(["findmnt", "--json", "-o", "SOURCE,FSTYPE,OPTIONS", mnt])
    (named,) = json.loads(listed)["filesystems"]
    assert (named["source"], named["fstype"]) == (str(log_dir), "fuse.kafkafs")
    assert {"ro", "nosuid", "nodev"} <= set(named["options"].split(","))
    assert f"{log_dir} is mounted there" in mount(log_dir, mnt, exit_code=4)
    with (mnt / "t/0/messages.txt").open("rb", buffering=0) as file:
        process.terminate()
        wait_for("the server ends", lambda: has_ended(process))
        assert mnt not in kafkafs_mounts()
        with fails_with(errno.ENOTCONN):
            file.read(10)
    assert list(mnt.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["-o", "rw,noatime,nofail"]])
def test_a_mount_is_read_only_unless_told_otherwise(log_dir, mnt, options):
    """A crashed broker's directory: no lock, no recovery, no retention, and no write through the tree."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    assert run_kafkafs("mount", log_dir, mnt, *options).stderr.decode() == f"{READ_ONLY}\n"
    assert status(mnt)["mode"] == "read-only"
    for path in ("t/0/@append", "t/@config"):
        with fails_with(errno.EROFS):
            os.open(mnt / path, os.O_WRONLY | os.O_CREAT)
    umount(mnt)
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("options", [["--write"], ["-o", "rw,write"], ["--create"]])
def test_a_mount_that_writes(log_dir, mnt, tmp_path, options):
    assert run_kafkafs("mount", log_dir, mnt, *options, "-o", f"log={tmp_path}/mount.log").stderr == b""
    (mnt / "t/0/@append").write_bytes(b"three\n")
    shown = status(mnt)
    assert (shown["mode"], shown["requests"]["writes"], shown["requests"]["written_bytes"]) == ("read-write", 1, 6)
    umount(mnt)
    assert run_kafkafs("cat", log_dir, "t").stdout == b"one\ntwo\nthree\n"


def test_a_writable_mount_says_where_its_log_goes(log_dir, mnt):
    """It is where a person finds out why a line was refused, and there may be no syslog."""
    said = run_kafkafs("mount", "--write", log_dir, mnt).stderr.decode()
    place = str(status(mnt)["log"])
    if Path("/dev/log").exists():
        assert (said, place) == ("kafkafs: the log of this mount goes to syslog\n", "syslog")
    else:
        assert said == f"kafkafs: the log of this mount goes {place}\n"
        assert place.startswith("nowhere")
        assert "-o log=FILE" in place
    umount(mnt)


def test_what_is_odd_about_a_configuration_is_said(log_dir, mnt, tmp_path):
    """After the line that says that the mount is read-only, in the background and in the foreground."""
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/elsewhere\nlog.segment.bites=1\nzookeeper.connect=x\n")
    said = run_kafkafs("mount", log_dir, mnt, "--server-properties", config).stderr.decode().splitlines()
    umount(mnt)
    command = [*KAFKAFS, "mount", "-f", log_dir, mnt, "--config", config]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        wait_for("it mounts", lambda: mnt in kafkafs_mounts())
        umount(mnt)
        _, output = child.communicate(timeout=120)
    assert output.splitlines()[: len(said)] == said
    assert len(said) == 4
    assert said[0] == READ_ONLY
    assert [line for line in said if "/elsewhere" in line]
    assert [line for line in said if "log.segment.bites" in line and "log.segment.bytes" in line]
    assert "kafkafs: not used by kafkafs: zookeeper.connect" in said


def test_odd_names(tmp_path):
    names = "a b,c\\d größe e'f\"g"
    log_dir = build_log_dir(tmp_path / f"logs {names}", {"t": [[b"one"]]}).path
    mnt = tmp_path / f"mnt {names}"
    mnt.mkdir()
    mount(log_dir, mnt)
    try:
        assert subprocess.check_output(["findmnt", "-n", "-o", "SOURCE", mnt], text=True).rstrip("\n") == str(log_dir)
        assert messages(mnt) == b"one\n"
        umount(mnt)
    finally:
        if mnt in kafkafs_mounts():
            detach(mnt)


@pytest.mark.parametrize("words", [["mount"], []], ids=["mount", "as mount(8) calls it"])
def test_relative_paths(log_dir, mnt, words):
    command = [*KAFKAFS, *words, log_dir.name, mnt.name, "-o", "ro,log=here.log"]
    subprocess.run(command, cwd=mnt.parent, check=True, timeout=120)
    assert messages(mnt) == b"one\ntwo\n"
    assert status(mnt)["log"] == str(mnt.parent / "here.log")
    subprocess.run([*KAFKAFS, "umount", "mnt"], cwd=mnt.parent, check=True, timeout=120)
    assert "serving" in (mnt.parent / "here.log").read_text()


# Unmounting


def test_umount_that_fails_says_why(log_dir, mnt, tmp_path):
    mount(log_dir, mnt)
    process = server(mnt)
    with (mnt / "t/0/messages.txt").open("rb"):
        said = umount(mnt, exit_code=4)
        assert f"(process {os.getpid()}) has {mnt}/t/0/messages.txt open" in said
        assert f"process {process.pid}" not in said
    for name in ("fusermount", "fusermount3"):
        (tmp_path / name).write_text("#!/bin/sh\necho no /etc/mtab >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run([*KAFKAFS, "umount", mnt], env=environment, capture_output=True, timeout=120, check=False)
    assert result.stderr.decode() == f"kafkafs: {mnt}: no /etc/mtab\n"
    assert not has_ended(process)
    subprocess.run(["fusermount", "-u", mnt], check=True, timeout=120)
    wait_for("the server ends", lambda: has_ended(process))


@pytest.fixture
def bind(mnt, tmp_path):
    """Binds a directory of the tree elsewhere, and unmounts that at the end. For root alone."""
    places = []

    def bound(name):
        place = tmp_path / f"bound-{len(places)}"
        place.mkdir()
        if subprocess.run(["mount", "--bind", mnt / name, place], check=False, capture_output=True).returncode:
            pytest.skip("no bind mounts here")
        places.append(place)
        return place

    yield bound
    for place in places:
        subprocess.run(["umount", "-l", place], check=False, capture_output=True)


def test_umount_of_bind_mounts(log_dir, mnt, bind):
    """Each goes alone, at once, and the command says where the tree stays; the last of them ends the process."""
    mount(log_dir, mnt)
    process = server(mnt)
    whole, part, other = bind("."), bind("t"), bind(".")
    said = umount(other)
    assert said == f"kafkafs: {other} is unmounted; {log_dir} is still mounted at {mnt}, {whole}, {part}\n"
    said = umount(mnt, exit_code=4)
    assert f"{mnt} is unmounted, but its process {process.pid} goes on" in said
    assert f"{log_dir} is still mounted at {whole}, {part}" in said
    assert "kill" not in said
    assert messages(whole) == b"one\ntwo\n"
    assert not has_ended(process)
    assert umount(part) == ""
    umount(whole)
    assert has_ended(process)


# A new mount namespace has the mounts of tests that run beside this one, too, and would keep them.
_WITHOUT_OTHERS = """
grep ' fuse.kafkafs ' /proc/mounts | cut -d ' ' -f 2 | while read -r escaped; do
    place=$(printf %b "$escaped")
    [ "$place" = "$0" ] || umount -l "$place"
done
"""


@pytest.fixture
def container(log_dir, mnt):
    """Starts a process with a mount namespace of its own, which has this test's mount too; it runs a shell script."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    mount(log_dir, mnt)

    @contextlib.contextmanager
    def start(script):
        command = ["unshare", "-m", "sh", "-c", f"{_WITHOUT_OTHERS}echo; {script}", mnt]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            process.stdout.readline()
            yield process

    return start


def test_umount_while_a_container_starts(container, mnt):
    """It has a copy of the mount for a moment, here until some time after the unmount."""
    process = server(mnt)
    with container(f'while grep -q " $0 " /proc/{os.getpid()}/mounts; do sleep 0.01; done; sleep 0.3'):
        assert umount(mnt) == ""
    assert has_ended(process)


def test_umount_of_what_another_namespace_has(container, mnt):
    process = server(mnt)
    with container("read line") as other:
        said = umount(mnt, exit_code=4)
        assert f"{mnt} in the mount namespace (a container, say) of " in said
        assert f"(process {other.pid})" in said
        assert not has_ended(process)
        other.communicate(b"\n")
    wait_for("the server ends", lambda: has_ended(process))


def test_the_bind_mounts_that_hold_the_lock_are_named(log_dir, mnt, bind):
    run_kafkafs("mount", "--write", log_dir, mnt)
    bound = bind(".")
    refused = run_kafkafs("recover", log_dir, check=False)
    assert refused.returncode == 3
    words = f"mounted at {mnt} and {bound}: `kafkafs umount {mnt}` and `kafkafs umount {bound}` release it"
    assert words in refused.stderr.decode()
    umount(bound)
    umount(mnt)


# Servers that are killed


def test_a_killed_server_leaves_nothing(log_dir, mnt):
    """auto_unmount: fusermount watches. It looks once, and goes without unmounting where the kernel is still about it
    (ECONNABORTED, not ENOTCONN), which a busy machine makes likelier: the next mount cleans up behind it."""
    for _ in range(10):
        mount(log_dir, mnt)
        watching = [
            process
            for process in psutil.process_iter(["name", "cmdline"])
            if (process.info["name"] or "").startswith("fusermount") and str(mnt) in (process.info["cmdline"] or ())
        ]
        assert watching
        server(mnt).kill()
        wait_for("fusermount ends", lambda watching=watching: all(map(has_ended, watching)))
        if mnt not in kafkafs_mounts():
            break
    assert mnt not in kafkafs_mounts()
    mount(log_dir, mnt)
    umount(mnt)


def test_a_stale_mountpoint_is_explained_and_cleaned(log_dir, mnt):
    mount(log_dir, mnt, "-o", "noauto_unmount")
    process = server(mnt)
    process.kill()
    wait_for("the server is dead", lambda: has_ended(process))
    with contextlib.suppress(OSError):  # ECONNABORTED while the kernel is still about it
        mnt.stat()
    with fails_with(errno.ENOTCONN):
        mnt.stat()
    said = mount(log_dir, mnt)
    assert "stale mountpoint" in said
    assert "has died" in said
    assert messages(mnt) == b"one\ntwo\n"
    umount(mnt)
    assert mnt not in kafkafs_mounts()


# What cannot be mounted


@pytest.mark.parametrize("place", ["log", "tier", "cache", "through a link"])
def test_nothing_that_a_mount_uses_is_within_it(log_dir, mnt, monkeypatch, place):
    """The process would wait for itself."""
    (mnt.parent / "link").symlink_to(mnt)
    options = {"log": ["-o", f"log={mnt}/log"], "tier": ["--tier", str(mnt)], "cache": []}
    options["through a link"] = ["-o", f"log={mnt.parent}/link/log"]
    if place == "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", str(mnt))
    for others in ([], ["-f"], ["--write"]):
        result = run_kafkafs("mount", log_dir, mnt, *options[place], *others, check=False)
        assert (result.returncode, b"is within the mountpoint" in result.stderr) == (2, True)
    assert list(mnt.iterdir()) == []
    assert mnt not in kafkafs_mounts()


def test_what_cannot_be_mounted_is_explained(log_dir, mnt, monkeypatch):
    """In one line, in the background as in the foreground."""
    (mnt.parent / "file").touch()
    (mnt.parent / "full" / "of").mkdir(parents=True)
    (mnt.parent / "server.properties").write_text("log.retention.ms=soon\n")
    for source, target, options, exit_code, words in (
        (mnt.parent / "missing", mnt, [], 4, "no such log directory"),
        (mnt.parent / "missing", mnt, ["-f"], 4, "no such log directory"),
        (mnt.parent / "file", mnt, [], 4, "is not a directory"),
        (log_dir, mnt.parent / "missing", [], 4, "mkdir"),
        (log_dir, mnt.parent / "file", ["-f"], 4, "not a directory"),
        (log_dir, mnt.parent / "full", [], 4, "not empty"),
        (log_dir, log_dir / "t-0", [], 2, "is within"),
        (log_dir, mnt.parent, [], 2, "is within"),
        (log_dir, mnt, ["-o", f"log={mnt}/../no/such/log"], 4, "no/such/log: No such file or directory"),
        (log_dir, mnt, ["--config", str(mnt.parent / "server.properties")], 2, "log.retention.ms"),
    ):
        said = mount(source, target, *options, exit_code=exit_code)
        assert words in said
        assert (said.count("\n"), "Traceback" in said) == (1, False)
    for option in ("--write", "--create"):
        assert "contradict each other" in mount(log_dir, mnt, option, exit_code=2)
    monkeypatch.setenv("FUSE_LIBRARY_PATH", "/nowhere/libfuse.so.2")
    assert "neither libfuse 2 nor libfuse 3 is installed" in mount(log_dir, mnt, exit_code=4)
    assert mnt not in kafkafs_mounts()


# mount(8), as root only: it calls /sbin/mount.fuse, which calls `kafkafs LOGDIR MNT -o …`


@pytest.fixture
def run(log_dir, mnt, tmp_path):
    """Runs a shell script with $LOGDIR and $MNT. mount(8) looks for `kafkafs` where the system has its programs: there
    it is put, in a mount namespace of the script's own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root may mount by mount(8)")
    if not any(Path(directory, "mount.fuse").exists() for directory in ("/sbin", "/usr/sbin")):
        pytest.skip("no mount.fuse here")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "kafkafs").symlink_to(KAFKAFS[0])
    bind = f"mount --bind {shlex.quote(str(tmp_path / 'bin'))} /usr/local/bin"
    if subprocess.run(["unshare", "-m", "bash", "-c", bind], capture_output=True, check=False).returncode != 0:
        pytest.skip("no mount namespaces here")
    environment = {**os.environ, "LOGDIR": str(log_dir), "MNT": str(mnt), "TMP": str(tmp_path)}

    def run(script):
        command = ["unshare", "-m", "bash", "-c", f"{_WITHOUT_OTHERS}set -e; {bind}; {script}"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    return run


def test_mount_8_and_fstab(run):
    """Read-only unless it says `write`: mount(8) passes `rw` where it names neither."""
    result = run(
        """
        echo "$LOGDIR $MNT fuse.kafkafs noauto,nofail,user,_netdev,x-systemd.automount 0 0" >$TMP/fstab
        mount -T $TMP/fstab $MNT 2>&1
        ! mkdir $MNT/new 2>/dev/null
        umount $MNT
        echo "$LOGDIR $MNT fuse.kafkafs write,noauto,log=$TMP/log 0 0" >$TMP/fstab
        mount -T $TMP/fstab $MNT 2>&1
        echo three >$MNT/t/0/@append
        cat $MNT/t/0/messages.txt
        kafkafs umount $MNT
        ! mount -T $TMP/fstab -o ro $MNT 2>&1 | grep -o contradict
        mount -t fuse.kafkafs $LOGDIR $MNT -o ro,noexec,isolation=read_committed
        grep -o '"isolation": "read_committed"' $MNT/@status.json
        findmnt -n -o OPTIONS $MNT | grep -o noexec
        umount $MNT
        ! mount -t fuse.kafkafs $LOGDIR $MNT -o nonsense=1 2>&1 | grep -o 'unknown mount option nonsense'
        """
    )
    lines = [READ_ONLY, "one", "two", "three", "contradict", '"isolation": "read_committed"', "noexec"]
    assert (result.stdout.splitlines(), result.stderr) == ([*lines, "unknown mount option nonsense"], "")


# What options do


def test_owner_group_and_size_of_the_cache(log_dir, mnt):
    mount(log_dir, mnt, "-o", "uid=1234,gid=2345,cache_size=16M")
    for path in (mnt, mnt / "t", mnt / "t/0", mnt / "t/0/messages.txt", mnt / "@status.json"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345), path
    assert status(mnt)["block_cache"]["max_bytes"] == 16 << 20
    umount(mnt)


@pytest.mark.parametrize(("option", "allowed"), [("allow_other", True), ("allow_root", False)])
def test_whom_a_mount_lets_in(log_dir, mnt, option, allowed):
    """With allow_root the kernel lets in all users, and libfuse only root and the one who mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for above in mnt.parents:
        if above == Path(tempfile.gettempdir()):
            break
        above.chmod(0o711)  # pytest has made them for this user alone
    mount(log_dir, mnt, "-o", option)
    options = subprocess.check_output(["findmnt", "-n", "-o", "OPTIONS", mnt], text=True)
    assert "allow_other" in options.strip().split(",")
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", mnt / "t/0/messages.txt"]
    other = subprocess.run(command, capture_output=True, check=False)
    assert (other.returncode == 0, other.stdout) == (allowed, b"one\ntwo\n" if allowed else b""), other.stderr
    assert messages(mnt) == b"one\ntwo\n"
    umount(mnt)

"""Mounting and unmounting as people do it: in the background, by mount(8), with signals, and what may go wrong."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from kafkafs.mounting.mountpoint import mount_at
from kafkafs.reading.block_cache import DEFAULT_CACHE_BYTES
from tests.support.builders import ROLL, build_log_dir
from tests.support.mounts import KAFKAFS, detach, kafkafs_mounts, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with
from tests.support.waiting import wait_for

pytestmark = requires_fuse


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
    result = run_kafkafs("mount", log_dir, mnt, "--read-only", *options, check=False, timeout=120)
    assert result.returncode == exit_code, result.stderr.decode()
    assert result.stdout == b""
    return result.stderr


def status(mnt):
    return json.loads((mnt / "@status.json").read_bytes())


def server(mnt):
    """The process behind a mount."""
    process = status(mnt)["process"]
    assert isinstance(process, dict)
    return psutil.Process(process["pid"])


def has_ended(process):
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_background(log_dir, mnt):
    """When the command has returned the tree is there; the server has left the terminal and its directory."""
    assert mount(log_dir, mnt) == b""
    assert (mnt / "t" / "0" / "messages.txt").read_bytes() == b"one\ntwo\n"
    process = server(mnt)
    assert process.cwd() == "/"
    assert os.getsid(process.pid) == process.pid
    assert process.terminal() is None
    assert status(mnt)["mode"] == "read-only"
    assert status(mnt)["log_directory"] == str(log_dir)
    run_kafkafs("umount", mnt)
    assert has_ended(process)
    assert mnt not in kafkafs_mounts()
    assert list(mnt.iterdir()) == []


@pytest.mark.parametrize("options", [[], ["-o", "rw"], ["-o", "rw,noatime,nofail"]])
def test_a_mount_is_read_only_unless_told_otherwise(log_dir, mnt, options):
    """A crashed broker's directory: no lock, no recovery, no retention, and no write through the tree."""
    (log_dir / ".kafka_cleanshutdown").unlink()
    before = {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()}
    mounting = run_kafkafs("mount", log_dir, mnt, *options)
    assert mounting.stderr == b"kafkafs: read-only; --write to append\n"
    assert status(mnt)["mode"] == "read-only"
    for write in (
        lambda: os.open(mnt / "t/0/@append", os.O_WRONLY | os.O_CREAT),
        lambda: os.open(mnt / "t/@config", os.O_WRONLY),
        lambda: (mnt / "new").mkdir(),
        lambda: (mnt / "t").rmdir(),
    ):
        with fails_with(errno.EROFS):
            write()
    run_kafkafs("umount", mnt)
    assert {path: path.read_bytes() for path in log_dir.rglob("*") if path.is_file()} == before


def test_the_first_line_says_that_it_is_read_only(log_dir, mnt, tmp_path):
    """Whatever else is to be said, in the background and in the foreground."""
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/elsewhere\n")
    said = run_kafkafs("mount", log_dir, mnt, "--config", config).stderr.decode().splitlines()
    assert len(said) == 2
    assert said[0] == "kafkafs: read-only; --write to append"
    run_kafkafs("umount", mnt)
    with subprocess.Popen([*KAFKAFS, "mount", "-f", log_dir, mnt], stderr=subprocess.PIPE) as child:
        wait_for("it mounts", lambda: mnt in kafkafs_mounts())
        run_kafkafs("umount", mnt)
        _, messages = child.communicate(timeout=120)
    assert messages.startswith(b"kafkafs: read-only; --write to append\n")


@pytest.mark.parametrize("options", [["--write"], ["-o", "write"], ["-o", "rw,write"], ["--create"]])
def test_a_mount_that_writes(log_dir, mnt, tmp_path, options):
    log = tmp_path / "mount.log"
    assert run_kafkafs("mount", log_dir, mnt, *options, "-o", f"log={log}").stderr == b""
    assert status(mnt)["mode"] == "read-write"
    (mnt / "t/0/@append").write_bytes(b"three\n")
    run_kafkafs("umount", mnt)
    assert run_kafkafs("cat", log_dir, "t").stdout == b"one\ntwo\nthree\n"


@pytest.mark.parametrize("write", [["--write"], ["-o", "write"], ["--create"]])
@pytest.mark.parametrize("read", [["--read-only"], ["-o", "ro"]])
def test_what_contradicts_itself_is_wrong_usage(log_dir, mnt, write, read):
    for options in ([*write, *read], [*read, *write]):
        refused = run_kafkafs("mount", log_dir, mnt, *options, check=False)
        assert refused.returncode == 2
        assert b"contradict each other" in refused.stderr
    assert mnt not in kafkafs_mounts()


def test_nothing_of_it_holds_the_callers_pipe(log_dir, mnt, tmp_path):
    """`output=$(kafkafs mount …)` returns; neither server nor fusermount keeps stdout or stderr open."""
    command = [*KAFKAFS, "mount", "--write", str(log_dir), str(mnt), "-o", f"log={tmp_path}/mount.log"]
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=True)
    assert result.stdout == b""
    run_kafkafs("umount", mnt)


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
    run_kafkafs("umount", mnt)


def test_what_is_mounted_is_named(log_dir, mnt):
    mount(log_dir, mnt)
    listed = subprocess.check_output(["findmnt", "--json", "-o", "SOURCE,FSTYPE,OPTIONS", mnt])
    (found,) = json.loads(listed)["filesystems"]
    assert (found["source"], found["fstype"]) == (str(log_dir), "fuse.kafkafs")
    assert {"ro", "nosuid", "nodev"} <= set(found["options"].split(","))
    run_kafkafs("umount", mnt)


@pytest.mark.parametrize("name", ["a b", "a,b", "a\\b", "größe", "a'b\"c"])
def test_odd_names(tmp_path, name):
    log_dir = build_log_dir(tmp_path / f"logs {name}", {"t": [[b"one"]]}).path
    mnt = tmp_path / f"mnt {name}"
    mnt.mkdir()
    mount(log_dir, mnt)
    try:
        found = mount_at(mnt)
        assert found is not None
        assert found.source == str(log_dir)
        assert (mnt / "t/0/messages.txt").read_bytes() == b"one\n"
        run_kafkafs("umount", mnt)
    finally:
        if mount_at(mnt):
            detach(mnt)


def test_without_the_word_mount(log_dir, mnt):
    """The form of mount(8), also with names that are relative and have no slash."""
    for options in ([], ["-o", "ro"]):
        subprocess.run([*KAFKAFS, log_dir.name, mnt.name, *options], cwd=mnt.parent, check=True, timeout=120)
        assert (mnt / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
        run_kafkafs("umount", mnt)


@pytest.mark.parametrize("foreground", [[], ["-f"]])
@pytest.mark.parametrize("place", ["log", "tier", "cache", "through a link"])
def test_nothing_that_a_mount_uses_is_within_it(log_dir, mnt, monkeypatch, place, foreground):
    """The process would wait for itself."""
    options = {"log": ["-o", f"log={mnt}/log"], "tier": ["--tier", str(mnt)], "cache": []}.get(place)
    if place == "cache":
        monkeypatch.setenv("XDG_CACHE_HOME", str(mnt))
    if options is None:
        (mnt.parent / "link").symlink_to(mnt)
        options = ["-o", f"log={mnt.parent}/link/log"]
    for write in ([], ["--write"]):
        result = run_kafkafs("mount", log_dir, mnt, *options, *foreground, *write, check=False, timeout=120)
        assert (result.returncode, b"is within the mountpoint" in result.stderr) == (2, True)
    assert list(mnt.iterdir()) == []
    assert mnt not in kafkafs_mounts()


def test_relative_paths(log_dir, mnt):
    command = [*KAFKAFS, "mount", "logs", "mnt", "-o", "ro,log=here.log"]
    subprocess.run(command, cwd=mnt.parent, check=True, timeout=120)
    assert (mnt / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
    subprocess.run([*KAFKAFS, "umount", "mnt"], cwd=mnt.parent, check=True, timeout=120)
    assert "serving" in (mnt.parent / "here.log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("foreground", [False, True], ids=["background", "foreground"])
def test_signals_end_it_cleanly(log_dir, mnt, number, foreground):
    if not foreground:
        mount(log_dir, mnt)
        process = server(mnt)
        process.send_signal(number)
        wait_for("the server ends", lambda: has_ended(process))
    else:
        child = subprocess.Popen([*KAFKAFS, "mount", str(log_dir), str(mnt), "-f", "--read-only"], stderr=-1)
        wait_for("it mounts", lambda: mnt in kafkafs_mounts())
        status(mnt)
        child.send_signal(number)
        _, messages = child.communicate(timeout=120)
        assert child.returncode == 0, messages.decode()
    assert mnt not in kafkafs_mounts()
    run_kafkafs("mount", log_dir, mnt, "--read-only")
    run_kafkafs("umount", mnt)


def test_a_signal_while_files_are_open(log_dir, mnt):
    mount(log_dir, mnt)
    process = server(mnt)
    with (mnt / "t/0/messages.txt").open("rb", buffering=0) as file:
        process.terminate()
        wait_for("the server ends", lambda: has_ended(process))
        assert mnt not in kafkafs_mounts()
        with fails_with(errno.ENOTCONN):
            file.read(10)


def test_umount_of_a_busy_mount_says_who(log_dir, mnt):
    mount(log_dir, mnt)
    process = server(mnt)
    with (mnt / "t/0/messages.txt").open("rb"):
        result = run_kafkafs("umount", mnt, check=False)
        assert result.returncode == 4
        assert f"(process {os.getpid()}) has {mnt}/t/0/messages.txt open".encode() in result.stderr
        assert f"process {process.pid}".encode() not in result.stderr
        assert not has_ended(process)
    run_kafkafs("umount", mnt)
    assert has_ended(process)


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


def test_umount_of_a_bind_mount(log_dir, mnt, bind):
    """It goes alone, at once, and the command says where the tree stays."""
    mount(log_dir, mnt)
    process = server(mnt)
    whole, part = bind("."), bind("t")
    result = run_kafkafs("umount", part)
    assert (result.returncode, result.stderr) == (0, b"")
    result = run_kafkafs("umount", whole)
    assert result.stderr.decode() == f"kafkafs: {whole} is unmounted; {log_dir} is still mounted at {mnt}\n"
    assert {whole, part}.isdisjoint(kafkafs_mounts())
    assert (mnt / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
    run_kafkafs("umount", mnt)
    assert has_ended(process)


def test_umount_of_what_is_bound_elsewhere(log_dir, mnt, bind):
    mount(log_dir, mnt)
    process = server(mnt)
    whole, part = bind("."), bind("t")
    result = run_kafkafs("umount", mnt, check=False)
    assert result.returncode == 4
    said = result.stderr.decode()
    assert f"{mnt} is unmounted, but its process {process.pid} goes on" in said
    assert f"{log_dir} is still mounted at {whole}, {part}" in said
    assert "kill" not in said
    assert (whole / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
    assert not has_ended(process)
    run_kafkafs("umount", part)
    run_kafkafs("umount", whole)
    assert has_ended(process)


def test_umount_of_what_another_namespace_has(log_dir, mnt):
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespaces here")
    mount(log_dir, mnt)
    process = server(mnt)
    command = ["unshare", "-m", "sh", "-c", "echo; read line"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as container:
        assert container.stdout is not None
        container.stdout.readline()
        result = run_kafkafs("umount", mnt, check=False)
        assert result.returncode == 4
        assert f"{mnt} in the mount namespace (a container, say) of " in result.stderr.decode()
        assert f"(process {container.pid})" in result.stderr.decode()
        assert not has_ended(process)
        container.communicate(b"\n")
    wait_for("the server ends", lambda: has_ended(process))


def test_the_bind_mounts_that_hold_the_lock_are_named(log_dir, mnt, bind):
    mount_command = [*KAFKAFS, "mount", "--write", str(log_dir), str(mnt)]
    subprocess.run(mount_command, check=True, capture_output=True, timeout=120)
    bound = bind(".")
    refused = run_kafkafs("recover", log_dir, check=False)
    assert refused.returncode == 3
    words = f"mounted at {mnt} and {bound}: `kafkafs umount {mnt}` and `kafkafs umount {bound}` release it"
    assert words in refused.stderr.decode()
    run_kafkafs("umount", bound)
    run_kafkafs("umount", mnt)


def test_what_fusermount_says_is_told(log_dir, mnt, tmp_path):
    mount(log_dir, mnt)
    for name in ("fusermount", "fusermount3"):
        (tmp_path / name).write_text("#!/bin/sh\necho no /etc/mtab >&2; exit 1\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run([*KAFKAFS, "umount", mnt], env=environment, capture_output=True, timeout=120, check=False)
    assert result.stderr.decode() == f"kafkafs: {mnt}: no /etc/mtab\n"
    run_kafkafs("umount", mnt)


def test_umount_by_others(log_dir, mnt):
    for command in (["fusermount", "-u"], ["umount"]):
        if command == ["umount"] and os.geteuid() != 0:
            continue
        mount(log_dir, mnt)
        process = server(mnt)
        subprocess.run([*command, str(mnt)], check=True, timeout=120)
        wait_for("the server ends", lambda process=process: has_ended(process))


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
    run_kafkafs("umount", mnt)


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
    assert b"stale mountpoint" in said
    assert b"has died" in said
    assert (mnt / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
    run_kafkafs("umount", mnt)
    assert mnt not in kafkafs_mounts()


def test_a_second_mount_is_refused(log_dir, mnt):
    mount(log_dir, mnt)
    said = mount(log_dir, mnt, exit_code=4)
    assert f"{log_dir} is mounted there".encode() in said
    run_kafkafs("umount", mnt)


@pytest.mark.parametrize("background", [True, False])
def test_what_cannot_be_mounted_is_explained(log_dir, mnt, background):
    (mnt.parent / "file").touch()
    (mnt.parent / "full" / "of").mkdir(parents=True)
    for source, target, exit_code, words in (
        (mnt.parent / "missing", mnt, 4, b"no such log directory"),
        (mnt.parent / "file", mnt, 4, b"is not a directory"),
        (log_dir, mnt.parent / "missing", 4, b"mkdir"),
        (log_dir, mnt.parent / "file", 4, b"not a directory"),
        (log_dir, mnt.parent / "full", 4, b"not empty"),
        (log_dir, log_dir / "t-0", 2, b"is within"),
        (log_dir, mnt.parent, 2, b"is within"),
        (log_dir, log_dir, 2, b"is within"),
    ):
        said = mount(source, target, *([] if background else ["-f"]), exit_code=exit_code)
        assert words in said, said
        assert said.count(b"\n") == 1
        assert b"Traceback" not in said


def test_errors_of_the_child_reach_the_parent(log_dir, mnt):
    said = mount(log_dir, mnt, "-o", f"log={mnt.parent}/no/such/dir/log", exit_code=4)
    assert said == f"kafkafs: the log file {mnt.parent}/no/such/dir/log: No such file or directory\n".encode()
    bad = mnt.parent / "server.properties"
    bad.write_text("log.retention.ms=soon\n")
    said = mount(log_dir, mnt, "--config", str(bad), exit_code=2)
    assert b"log.retention.ms" in said
    assert mnt not in kafkafs_mounts()


def test_without_libfuse(log_dir, mnt):
    environment = {**os.environ, "FUSE_LIBRARY_PATH": "/nowhere/libfuse.so.2"}
    result = subprocess.run(
        [*KAFKAFS, "mount", str(log_dir), str(mnt), "--read-only"],
        env=environment, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert result.returncode == 4
    assert b"neither libfuse 2 nor libfuse 3 is installed" in result.stderr


def test_the_log_goes_to_a_file(mnt, tmp_path):
    log = tmp_path / "kafkafs.log"
    built = build_log_dir(tmp_path / "damaged", {"t": [[b"one", ROLL, b"two"]]})
    data = built["t", 0].log(0)
    damaged = bytearray(data.read_bytes())
    damaged[70] ^= 0xFF
    data.write_bytes(damaged)
    mount(built.path, mnt, "-o", f"log={log}")
    with fails_with(errno.EIO):
        (mnt / "t/0/messages.txt").read_bytes()
    assert status(mnt)["log"] == str(log)
    run_kafkafs("umount", mnt)
    lines = log.read_text().splitlines()
    assert any("serving" in line for line in lines)
    (line,) = {line.split("ERROR ")[1] for line in lines if "ERROR" in line}
    assert str(data) in line
    assert "expected" in line
    assert "found" in line


class TestMountCommand:
    """mount(8), as root only: it calls /sbin/mount.fuse, which calls `kafkafs LOGDIR MNT -o …`.

    mount(8) looks for `kafkafs` where the system has its programs: there it is put, in a mount namespace of our own.
    """

    @pytest.fixture
    def run(self, log_dir, mnt, tmp_path):
        """Runs a shell script in that namespace, with $LOGDIR and $MNT."""
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            pytest.skip("only root may mount by mount(8)")
        if not any(Path(directory, "mount.fuse").exists() for directory in ("/sbin", "/usr/sbin")):
            pytest.skip("no mount.fuse here")
        (tmp_path / "bin").mkdir()
        (tmp_path / "bin" / "kafkafs").symlink_to(KAFKAFS[0])
        bind = f"mount --bind {shlex.quote(str(tmp_path / 'bin'))} /usr/local/bin"
        if subprocess.run(["unshare", "-m", "bash", "-c", bind], capture_output=True, check=False).returncode != 0:
            pytest.skip("no mount namespaces here")

        def run(script):
            return subprocess.run(
                ["unshare", "-m", "bash", "-c", f"set -e; {bind}; {script}"],
                env={**os.environ, "LOGDIR": str(log_dir), "MNT": str(mnt)},
                capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip

        return run

    def test_mount(self, run):
        result = run(
            """
            mount -t fuse.kafkafs "$LOGDIR" "$MNT" -o ro,noexec,isolation=read_committed
            cat "$MNT/t/0/messages.txt"
            grep -c '"isolation": "read_committed"' "$MNT/@status.json"
            findmnt -n -o OPTIONS "$MNT" | grep -c noexec
            umount "$MNT"
            """
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "one\ntwo\n1\n1\n", "")

    def test_fstab(self, run):
        result = run(
            r"""
            options=ro,noauto,nofail,user,_netdev,x-systemd.automount
            echo "${LOGDIR// /\\040} ${MNT// /\\040} fuse.kafkafs $options 0 0" >"$MNT.fstab"
            mount -T "$MNT.fstab" "$MNT"
            cat "$MNT/t/0/messages.txt"
            /usr/local/bin/kafkafs umount "$MNT"
            """
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "one\ntwo\n", "")

    def test_it_is_read_only_unless_fstab_says_write(self, run, tmp_path):
        """mount(8) passes `rw` where fstab names neither."""
        result = run(
            f"""
            echo "$LOGDIR $MNT fuse.kafkafs noauto,nofail 0 0" >{tmp_path}/fstab
            mount -T {tmp_path}/fstab $MNT 2>&1
            ! mkdir $MNT/new 2>/dev/null
            umount $MNT
            echo "$LOGDIR $MNT fuse.kafkafs write,noauto,log={tmp_path}/log 0 0" >{tmp_path}/fstab
            mount -T {tmp_path}/fstab $MNT 2>&1
            echo three >$MNT/t/0/@append
            cat $MNT/t/0/messages.txt
            kafkafs umount $MNT
            ! mount -T {tmp_path}/fstab -o ro $MNT 2>&1 | grep -o contradict
            """
        )
        words = "kafkafs: read-only; --write to append\none\ntwo\nthree\ncontradict\n"
        assert (result.stdout, result.stderr) == (words, "")

    def test_errors(self, run):
        result = run('mount -t fuse.kafkafs "$LOGDIR" "$MNT" -o ro,nonsense=1')
        assert result.returncode != 0
        assert "unknown mount option nonsense" in result.stderr
        result = run('mount -t fuse.kafkafs "$LOGDIR/none" "$MNT" -o ro')
        assert result.returncode != 0
        assert "no such log directory" in result.stderr


# What options do


def test_owner_and_group(log_dir, mnt):
    mount(log_dir, mnt, "-o", "uid=1234,gid=2345")
    for path in (mnt, mnt / "t", mnt / "t/0", mnt / "t/0/messages.txt", mnt / "@status.json"):
        assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345), path
    run_kafkafs("umount", mnt)


def test_the_size_of_the_cache(log_dir, mnt):
    for options, size_bytes in (((), DEFAULT_CACHE_BYTES), (("-o", "cache_size=16M"), 16 << 20)):
        mount(log_dir, mnt, *options)
        cache = json.loads((mnt / "@status.json").read_bytes())["block_cache"]
        assert cache["max_bytes"] == size_bytes
        run_kafkafs("umount", mnt)


@pytest.mark.parametrize(("option", "allowed"), [("allow_other", True), ("allow_root", False)])
def test_whom_a_mount_lets_in(log_dir, mnt, option, allowed):
    """With allow_root the kernel lets in all users, and libfuse only root and the one who mounted."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    for above in mnt.parents[:3]:  # which pytest has made for this user alone
        above.chmod(0o711)
    mount(log_dir, mnt, "-o", option)
    options = subprocess.check_output(["findmnt", "-n", "-o", "OPTIONS", mnt], text=True)
    assert "allow_other" in options.strip().split(",")
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "cat", mnt / "t/0/messages.txt"]
    other = subprocess.run(command, capture_output=True, check=False)
    assert (other.returncode == 0, other.stdout) == (allowed, b"one\ntwo\n" if allowed else b""), other.stderr
    assert (mnt / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
    run_kafkafs("umount", mnt)

"""What is said when this machine cannot mount at all."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.mounting import mount, mountpoint
from kafkafs.mounting.mount_options import BadOption, MountOptions, escaped, parse_options
from kafkafs.mounting.mountpoint import FAILED, USAGE, MountError
from storage.progress import NoProgress
from storage.types import Isolation


@pytest.fixture
def request_(tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").touch()
    (tmp_path / "mnt").mkdir()
    return mount.MountRequest(tmp_path / "logs", tmp_path / "mnt", MountOptions(write=False))


def refused(request):
    with pytest.raises(MountError) as caught:
        mount.mount(request, foreground=False, say=lambda _line: None, progress=NoProgress())
    return caught.value


def test_no_fuse_device(request_, monkeypatch):
    monkeypatch.setattr(mount, "FUSE_DEVICE", "/dev/no-such-fuse")
    error = refused(request_)
    assert "modprobe fuse" in str(error)
    assert "--device" in str(error)
    assert error.exit_code == FAILED


def test_a_device_that_the_user_may_not_open(request_, monkeypatch, tmp_path):
    device = tmp_path / "fuse"
    device.mkdir()  # nobody can open a directory for writing, not even root
    monkeypatch.setattr(mount, "FUSE_DEVICE", str(device))
    assert f"you may not open {device} (Is a directory)" in str(refused(request_))


def test_no_fusermount(request_, monkeypatch):
    monkeypatch.setattr(mount, "FUSE_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "apt install fuse3" in str(refused(request_))


def test_a_bad_configuration(request_, monkeypatch, tmp_path):
    monkeypatch.setattr(mount, "FUSE_DEVICE", "/dev/null")
    config = tmp_path / "server.properties"
    config.write_text("log.segment.bytes=much\n")
    request = mount.MountRequest(request_.log_dir, request_.mountpoint, MountOptions(config=config))
    error = refused(request)
    assert "log.segment.bytes" in str(error)
    assert error.exit_code == USAGE
    config.unlink()
    assert refused(request).exit_code == FAILED


def test_what_is_odd_about_a_configuration_is_said(tmp_path):
    config = tmp_path / "server.properties"
    config.write_text("log.dirs=/elsewhere\nlog.segment.bites=1\nzookeeper.connect=x\n")
    lines = []
    request = mount.MountRequest(tmp_path, tmp_path, MountOptions(config=config))
    mount._read_config(request, lines.append)
    assert any("log.segment.bytes" in line for line in lines)
    assert any("/elsewhere" in line for line in lines)
    assert "not used by kafkafs: zookeeper.connect" in lines


# `-o`: what mount(8) hands over, what we know, what nobody knows


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], MountOptions()),
        (["ro"], MountOptions(write=False)),
        (["ro", "ro"], MountOptions(write=False)),
        (["write"], MountOptions(write=True)),
        (["rw"], MountOptions()),
        (["rw,write,nofail"], MountOptions(write=True)),
        # what util-linux's mount and systemd hand over
        (["rw,noexec,nosuid,nodev"], MountOptions(libfuse=frozenset({"noexec", "nosuid", "nodev"}))),
        (["sync"], MountOptions(libfuse=frozenset({"sync"}))),
        (["rw,dev,suid,exec,auto,nouser,async,relatime,_netdev,x-systemd.automount,X-mount.mkdir=0755,comment=a b"],
         MountOptions()),
        (["defaults,user,nofail,ro,noatime"], MountOptions(write=False, libfuse=frozenset({"noatime"}))),
        (["isolation=read_committed,out_of_range=clamp"],
         MountOptions(isolation=Isolation.READ_COMMITTED, clamp=True)),
        (["isolation=read_committed", "isolation=read_uncommitted"], MountOptions()),
        (["log=/var/log/k.log,cache_size=64M"], MountOptions(log=Path("/var/log/k.log"), cache_bytes=64 << 20)),
        (["log=a\\,b\\\\c"], MountOptions(log=Path("a,b\\c"))),
        (["config=server.properties", "uid=0,gid=65534"],
         MountOptions(config=Path("server.properties"), uid=0, gid=65534)),
        (["allow_other"], MountOptions(libfuse=frozenset({"allow_other"}))),
        (["noauto_unmount"], MountOptions(auto_unmount=False)),
        ([",, ro ,"], MountOptions(write=False)),
        (["cache_size=1g"], MountOptions(cache_bytes=1 << 30)),
        (["cache_size=8388608"], MountOptions(cache_bytes=8388608)),
    ],
)  # fmt: skip
def test_known(texts, expected):
    assert parse_options(texts) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("isolaton=read_committed", "did you mean isolation"),
        ("allow_others", "did you mean allow_other"),
        ("nonsense", "there are isolation"),
        ("isolation", "needs a value"),
        ("isolation=", "needs a value"),
        ("isolation=serializable", "read_uncommitted or read_committed"),
        ("out_of_range=wrap", "clamp or error"),
        ("cache_size=lots", "bytes"),
        ("cache_size=-1", "bytes"),
        ("cache_size=1", "at least"),
        ("cache_size=٣M", "bytes"),
        ("uid=root", "a number"),
        ("uid=4294967295", "a number"),
        ("remount,ro", "umount"),
        ("remount,rw", "-o write"),
        ("write,ro", "contradict each other"),
        ("ro,noexec,write", "contradict each other"),
        ("write=off", "takes no value"),
        ("noauto_unmount=yes", "takes no value"),
    ],
)
def test_refused(text, says):
    with pytest.raises(BadOption, match=says):
        parse_options([text])


def test_escaped():
    name = "a,b\\c d"
    assert parse_options([f"log={escaped(name)}"]) == MountOptions(log=Path(name))


# Mountpoints, without mounting: what is refused, and how /proc is read


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o750, 0o555])
def test_a_mountpoint_is_unwritable_while_something_is_mounted_there(tmp_path, mode):
    tmp_path.chmod(mode)
    with mountpoint.write_protected(tmp_path) as protect:
        assert mode_of(tmp_path) == mode | (0o200 if os.geteuid() else 0)  # fusermount asks for it
        protect()
        assert mode_of(tmp_path) == mode & ~0o222
    assert mode_of(tmp_path) == mode | (0o200 if os.geteuid() else 0)
    tmp_path.chmod(0o755)


def test_a_mountpoint_that_a_killed_mount_left_is_its_owners_again(tmp_path, monkeypatch):
    """fusermount mounts for a user only where that user may write. Root needs no permission, and changes none."""
    tmp_path.chmod(0o555)
    owner = tmp_path.stat().st_uid or 65534
    if os.geteuid() == 0:
        os.chown(tmp_path, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    with mountpoint.write_protected(tmp_path) as protect:
        assert mode_of(tmp_path) == 0o755
        protect()
        assert mode_of(tmp_path) == 0o555
    assert mode_of(tmp_path) == 0o755


@pytest.mark.parametrize("mode", [0o755, 0o775, 0o1777, 0o555])
@pytest.mark.parametrize("written", [False, True])
def test_the_mode_that_a_killed_mount_has_changed_is_restored(tmp_path, mode, written):
    """By the next mount that ends, writable or not; one that did not mount anything changes nothing."""
    tmp_path.chmod(mode)

    def kill_a_mount():
        with mountpoint.write_protected(tmp_path) as protect:
            protect()
            os._exit(0)

    if (child := os.fork()) == 0:
        kill_a_mount()
    os.waitpid(child, 0)
    assert mode_of(tmp_path) == mode & ~0o222
    with pytest.raises(MountError), mountpoint.write_protected(tmp_path):
        raise MountError("libfuse could not mount")
    assert mode_of(tmp_path) == mode & ~0o222
    with mountpoint.write_protected(tmp_path) as protect:
        if written:
            protect()
    assert mode_of(tmp_path) == mode | (0o200 if os.geteuid() else 0)
    assert os.listxattr(tmp_path) == []
    tmp_path.chmod(0o755)


def test_the_mode_is_restored_when_a_mount_ends_with_an_error(tmp_path):
    tmp_path.chmod(0o775)

    def fail(protect):
        protect()
        assert mode_of(tmp_path) == 0o555
        raise MountError("not everything could be written to disk")

    with pytest.raises(MountError), mountpoint.write_protected(tmp_path) as protect:
        fail(protect)
    assert mode_of(tmp_path) == 0o775


def test_a_mountpoint_whose_mode_cannot_be_changed(tmp_path, monkeypatch):
    """It is another user's, or immutable, or its disk is read-only."""

    def refuse(_directory, _mode):
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    before = mode_of(tmp_path)
    with mountpoint.write_protected(tmp_path) as protect:
        protect()
    with mountpoint.write_protected(tmp_path / "missing") as protect:
        protect()
    assert mode_of(tmp_path) == before


def test_nesting(tmp_path):
    log_dir, inside, beside = tmp_path / "logs", tmp_path / "logs" / "mnt", tmp_path / "logs2"
    inside.mkdir(parents=True)
    beside.mkdir()
    mountpoint.check_nesting(log_dir, beside)
    for logs, mnt in ((log_dir, inside), (inside, log_dir), (log_dir, log_dir), (log_dir, tmp_path)):
        with pytest.raises(MountError, match="within") as caught:
            mountpoint.check_nesting(logs, mnt)
        assert caught.value.exit_code == USAGE


def test_nesting_through_a_link(tmp_path):
    (tmp_path / "logs" / "mnt").mkdir(parents=True)
    (tmp_path / "link").symlink_to("logs")
    with pytest.raises(MountError, match="within"):
        mountpoint.check_nesting(tmp_path / "link", tmp_path / "logs" / "mnt")


def test_what_is_mounted():
    at = {mount.path: mount for mount in mountpoint.mounts()}
    assert at[Path("/proc")].fs_type == "proc"
    assert mountpoint.mount_at(Path("/proc")) == at[Path("/proc")]
    assert mountpoint.mount_at(Path("/proc/1")) is None


def test_umount_of_what_is_not_ours(tmp_path):
    with pytest.raises(MountError, match="nothing is mounted"):
        mountpoint.unmount(tmp_path)
    with pytest.raises(MountError, match="not of kafkafs"):
        mountpoint.unmount(Path("/proc"))


def test_holders(tmp_path):
    directory = tmp_path / "mnt" / "below"
    directory.mkdir(parents=True)
    (directory / "file").touch()
    code = "import sys; print(flush=True); sys.stdin.read()"
    with (
        (directory / "file").open() as opened,
        subprocess.Popen(
            [sys.executable, "-c", code], cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child,
    ):
        assert child.stdout is not None
        child.stdout.readline()
        users = list(mountpoint.holders(tmp_path / "mnt"))
        assert len(users) == 2
        assert any(f"(process {child.pid}) has {directory} as its working directory" in user for user in users)
        assert any(f"(process {os.getpid()}) has {opened.name} open" in user for user in users)
        assert list(mountpoint.holders(tmp_path / "mn")) == []
        child.communicate()


def test_absolute_of_links(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    assert mountpoint.absolute(tmp_path / "link" / ".." / "link") == (tmp_path / "dir").resolve()

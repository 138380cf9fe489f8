"""Options of a mount, mountpoints, and what is said when this machine cannot mount at all."""

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from kafkafs.mounting import mount, mountpoint
from kafkafs.mounting.mount_options import BadOption, MountOptions, escaped, parse_options
from kafkafs.mounting.mountpoint import FAILED, USAGE, MountError
from storage.progress import NoProgress
from storage.types import Isolation


@pytest.fixture
def refused(tmp_path):
    """Mounts with options; the error that says why that cannot be done."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "meta.properties").touch()
    (tmp_path / "mnt").mkdir()

    def refused(**options):
        request = mount.MountRequest(tmp_path / "logs", tmp_path / "mnt", MountOptions(**options))
        with pytest.raises(MountError) as caught:
            mount.mount(request, foreground=False, say=lambda _line: None, progress=NoProgress())
        return caught.value

    return refused


def test_no_fuse_device(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(mount, "FUSE_DEVICE", "/dev/no-such-fuse")
    error = refused(write=False)
    assert "modprobe fuse" in str(error)
    assert "--device" in str(error)
    assert error.exit_code == FAILED
    # Nobody can open a directory for writing, not even root.
    monkeypatch.setattr(mount, "FUSE_DEVICE", str(tmp_path))
    assert f"you may not open {tmp_path} (Is a directory)" in str(refused(write=False))


def test_no_fusermount(refused, monkeypatch):
    monkeypatch.setattr(mount, "FUSE_DEVICE", "/dev/null")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    assert "apt install fuse3" in str(refused(write=False))


def test_a_bad_configuration(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(mount, "FUSE_DEVICE", "/dev/null")
    config = tmp_path / "server.properties"
    config.write_text("log.segment.bytes=much\n")
    error = refused(config=config)
    assert "log.segment.bytes" in str(error)
    assert error.exit_code == USAGE
    config.unlink()
    assert refused(config=config).exit_code == FAILED


# `-o`: what mount(8) hands over, what we know, what nobody knows


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([], {}),
        (["ro", "ro"], {"write": False}),
        (["rw,write,nofail"], {"write": True}),
        # What util-linux's mount and systemd hand over.
        (["rw,noexec,nosuid,nodev,sync"], {"libfuse": frozenset({"noexec", "nosuid", "nodev", "sync"})}),
        (["rw,dev,suid,exec,auto,nouser,async,relatime,_netdev,x-systemd.automount,X-mount.mkdir=0755", "comment=a b"],
         {}),
        (["defaults,user,nofail,ro,noatime"], {"write": False, "libfuse": frozenset({"noatime"})}),
        (["isolation=read_committed,out_of_range=clamp"], {"isolation": Isolation.READ_COMMITTED, "clamp": True}),
        (["isolation=read_committed", "isolation=read_uncommitted"], {}),
        (["log=/var/log/k.log,cache_size=64M"], {"log": Path("/var/log/k.log"), "cache_bytes": 64 << 20}),
        (["log=a\\,b\\\\c"], {"log": Path("a,b\\c")}),
        (["log=" + escaped("a,b\\c d")], {"log": Path("a,b\\c d")}),
        (["config=server.properties", "uid=0,gid=65534"],
         {"config": Path("server.properties"), "uid": 0, "gid": 65534}),
        (["allow_other,allow_root"], {"libfuse": frozenset({"allow_other", "allow_root"})}),
        (["noauto_unmount"], {"auto_unmount": False}),
        (["keys=off,modes=below"], {"keys": False, "modes_below": True}),
        (["tier=a,tier=s3://b", "tier_key=k=x.pem"],
         {"tier": ("a", "s3://b"), "tier_keys": (("k", Path("x.pem")),)}),
        ([",, ro ,"], {"write": False}),
        (["cache_size=1g,latest_memory=8388608"], {"cache_bytes": 1 << 30, "latest_bytes": 8388608}),
    ],
)  # fmt: skip
def test_known(texts, expected):
    assert parse_options(texts) == MountOptions(**expected)


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
        ("tier_key=x.pem", "ID=FILE"),
        ("modes=below,uid=1", "contradict"),
        ("remount,ro", "umount"),
        ("write,ro", "contradict each other"),
        ("ro,noexec,write", "contradict each other"),
        ("write=off", "takes no value"),
        ("noauto_unmount=yes", "takes no value"),
    ],
)
def test_refused(text, says):
    with pytest.raises(BadOption, match=says):
        parse_options([text])


# Mountpoints, without mounting: what is refused, and how /proc is read


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def directory(tmp_path):
    path = tmp_path / "mnt"
    path.mkdir()
    return path


WRITABLE = 0o200 if os.geteuid() else 0  # fusermount asks for it


def test_a_mountpoint_that_a_killed_mount_left_is_its_owners_again(directory, monkeypatch):
    """fusermount mounts for a user only where that user may write. Root needs no permission, and changes none."""
    directory.chmod(0o555)
    owner = directory.stat().st_uid or 65534
    if os.geteuid() == 0:
        os.chown(directory, owner, -1)
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    with mountpoint.write_protected(directory) as protect:
        assert mode_of(directory) == 0o755
        protect()
        assert mode_of(directory) == 0o555
    assert mode_of(directory) == 0o755


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o555])
@pytest.mark.parametrize("written", [False, True])
def test_the_mode_that_a_killed_mount_has_changed_is_restored(directory, mode, written):
    """By the next mount that ends, writable or not; one that did not mount anything changes nothing."""
    directory.chmod(mode)
    if (child := os.fork()) == 0:
        with mountpoint.write_protected(directory) as protect:
            protect()
            os._exit(0)
    os.waitpid(child, 0)
    assert mode_of(directory) == mode & ~0o222
    with pytest.raises(MountError), mountpoint.write_protected(directory):
        raise MountError("libfuse could not mount")
    assert mode_of(directory) == mode & ~0o222
    with suppress(MountError), mountpoint.write_protected(directory) as protect:
        assert mode_of(directory) & 0o200 == WRITABLE
        if written:
            protect()
            assert mode_of(directory) == mode & ~0o222
            raise MountError("not everything could be written to disk")
    assert mode_of(directory) == mode | WRITABLE
    assert os.listxattr(directory) == []


def test_a_mountpoint_whose_mode_cannot_be_changed(directory, monkeypatch):
    """It is another user's, or immutable, or its disk is read-only."""

    def refuse(_directory, _mode):
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    before = mode_of(directory)
    for path in (directory, directory / "missing"):
        with mountpoint.write_protected(path) as protect:
            protect()
    assert mode_of(directory) == before


def test_nesting(tmp_path):
    log_dir, inside, beside = tmp_path / "logs", tmp_path / "logs" / "mnt", tmp_path / "logs2"
    inside.mkdir(parents=True)
    beside.mkdir()
    (tmp_path / "link").symlink_to("logs")
    mountpoint.check_nesting(log_dir, beside)
    pairs = ((log_dir, inside), (inside, log_dir), (log_dir, log_dir), (log_dir, tmp_path), (tmp_path / "link", inside))
    for logs, mnt in pairs:
        with pytest.raises(MountError, match="within") as caught:
            mountpoint.check_nesting(logs, mnt)
        assert caught.value.exit_code == USAGE
    assert mountpoint.absolute(tmp_path / "link" / ".." / "link") == log_dir.resolve()


def test_what_is_mounted(tmp_path):
    at = {mount.path: mount for mount in mountpoint.mounts()}
    assert at[Path("/proc")].fs_type == "proc"
    assert mountpoint.mount_at(Path("/proc")) == at[Path("/proc")]
    assert mountpoint.mount_at(Path("/proc/1")) is None
    with pytest.raises(MountError, match="nothing is mounted"):
        mountpoint.unmount(tmp_path)
    with pytest.raises(MountError, match="not of kafkafs"):
        mountpoint.unmount(Path("/proc"))

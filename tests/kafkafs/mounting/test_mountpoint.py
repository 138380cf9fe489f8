"""Mountpoints, without mounting: what is refused, and how /proc is read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kafkafs.mounting import mountpoint
from kafkafs.mounting.mountpoint import USAGE, MountError


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o750, 0o555])
def test_a_mountpoint_is_unwritable_while_something_is_mounted_there(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with mountpoint.write_protected(tmp_path) as protect:
        assert mode_of(tmp_path) == mode | (0o200 if os.geteuid() else 0)  # fusermount asks for it
        protect()
        assert mode_of(tmp_path) == mode & ~0o222
    assert mode_of(tmp_path) == mode | (0o200 if os.geteuid() else 0)
    tmp_path.chmod(0o755)


def test_a_mountpoint_that_a_killed_mount_left_is_its_owners_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_mountpoint_whose_mode_cannot_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another user's, or immutable, or its disk is read-only."""

    def refuse(_directory: int, _mode: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "fchmod", refuse)
    before = mode_of(tmp_path)
    with mountpoint.write_protected(tmp_path) as protect:
        protect()
    with mountpoint.write_protected(tmp_path / "missing") as protect:
        protect()
    assert mode_of(tmp_path) == before


def test_nesting(tmp_path: Path) -> None:
    log_dir, inside, beside = tmp_path / "logs", tmp_path / "logs" / "mnt", tmp_path / "logs2"
    inside.mkdir(parents=True)
    beside.mkdir()
    mountpoint.check_nesting(log_dir, beside)
    for logs, mnt in ((log_dir, inside), (inside, log_dir), (log_dir, log_dir), (log_dir, tmp_path)):
        with pytest.raises(MountError, match="within") as caught:
            mountpoint.check_nesting(logs, mnt)
        assert caught.value.exit_code == USAGE


def test_nesting_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "logs" / "mnt").mkdir(parents=True)
    (tmp_path / "link").symlink_to("logs")
    with pytest.raises(MountError, match="within"):
        mountpoint.check_nesting(tmp_path / "link", tmp_path / "logs" / "mnt")


def test_what_is_mounted() -> None:
    at = {mount.path: mount for mount in mountpoint.mounts()}
    assert at[Path("/proc")].fs_type == "proc"
    assert mountpoint.mount_at(Path("/proc")) == at[Path("/proc")]
    assert mountpoint.mount_at(Path("/proc/1")) is None


def test_umount_of_what_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="nothing is mounted"):
        mountpoint.unmount(tmp_path)
    with pytest.raises(MountError, match="not of kafkafs"):
        mountpoint.unmount(Path("/proc"))


def test_holders(tmp_path: Path) -> None:
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


def test_absolute_of_links(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "link").symlink_to("dir")
    assert mountpoint.absolute(tmp_path / "link" / ".." / "link") == (tmp_path / "dir").resolve()

"""A log directory from a stranger: what its names lead to is not opened unless it is a regular file of its owner."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from storage.files.disk import RealDisk, replace_file
from storage.files.log_file import LogFile, open_quietly, paths_in, read_existing, read_whole
from storage.files.opening import is_directory, links_of_ours, open_file, real_place

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")
_STRANGER = 54321


def _raised(path: Path, flags: int = os.O_RDONLY) -> int | None:
    try:
        os.close(open_file(path, flags))
    except OSError as error:
        return error.errno if error.filename in (str(path), str(path.parent)) else None
    return None


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
def test_a_link_to_a_file_is_not_followed(tmp_path: Path, flags: int) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "dir").mkdir()
    for target in ("../secret", tmp_path / "secret", "missing", "link"):
        link = tmp_path / "dir" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert _raised(link, flags) == errno.ELOOP
    assert (tmp_path / "secret").read_text() == "secret"
    assert not (tmp_path / "dir" / "missing").exists()


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path, flags: int) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "dir").mkdir()
    assert _raised(tmp_path / "fifo", flags) == errno.EINVAL
    assert _raised(tmp_path / "dir", flags) in (errno.EINVAL, errno.EISDIR)
    with pytest.raises(OSError, match="not a regular file"):
        read_whole(tmp_path / "fifo")
    with pytest.raises(OSError, match="not a regular file"):
        LogFile(tmp_path / "fifo").read(0, 10)


@as_root
def test_a_device_is_refused(tmp_path: Path) -> None:
    os.mknod(tmp_path / "zero", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    assert _raised(tmp_path / "zero") == errno.EINVAL


def test_a_linked_directory_is_read_if_an_operator_moved_it_there(tmp_path: Path) -> None:
    moved, log_dir = tmp_path / "volume" / "orders-0", tmp_path / "log"
    moved.mkdir(parents=True)
    (moved / "file").write_text("here")
    log_dir.mkdir()
    (log_dir / "orders-0").symlink_to(moved)
    (log_dir / "other-0").symlink_to(moved)
    assert read_existing(log_dir / "orders-0" / "file") == b"here"
    assert [path.name for path in paths_in(log_dir / "orders-0")] == ["file"]
    assert is_directory(log_dir / "orders-0")
    assert not is_directory(log_dir / "other-0")
    assert _raised(log_dir / "other-0" / "file") == errno.ELOOP
    with pytest.raises(OSError, match="only one to a directory of the same name"):
        paths_in(log_dir / "other-0")


@as_root
def test_a_linked_directory_of_another_owner_is_not_read(tmp_path: Path) -> None:
    moved = tmp_path / "volume" / "orders-0"
    moved.mkdir(parents=True)
    (moved / "file").write_text("here")
    link = tmp_path / "orders-0"
    link.symlink_to(moved)
    os.lchown(link, _STRANGER, _STRANGER)
    assert _raised(link / "file") == errno.ELOOP


def test_nothing_is_changed_through_a_linked_directory(tmp_path: Path) -> None:
    moved, link = tmp_path / "volume" / "orders-0", tmp_path / "orders-0"
    moved.mkdir(parents=True)
    (moved / "file").write_text("here")
    link.symlink_to(moved)
    disk = RealDisk()
    for change in (
        lambda: disk.open(link / "file"),
        lambda: disk.open(link / "new", create=True),
        lambda: disk.unlink(link / "file"),
        lambda: disk.rename(link / "file", link / "renamed"),
        lambda: disk.rename(link / "file", tmp_path / "renamed"),
        lambda: disk.mkdir(link / "new"),
        lambda: disk.set_mtime(link / "file", 0),
        lambda: disk.link(link / "file", tmp_path / "second"),
        lambda: replace_file(disk, link / "file", b"new"),
    ):
        with pytest.raises(OSError, match="symbolic link") as caught:
            change()
        assert caught.value.errno == errno.ELOOP
    assert [(path.name, path.read_text()) for path in moved.iterdir()] == [("file", "here")]


@pytest.mark.parametrize("plant", ["symbolic", "hard"])
def test_a_temporary_file_that_was_there_is_not_written_to(tmp_path: Path, plant: str) -> None:
    victim, temporary = tmp_path / "victim", tmp_path / "checkpoint.tmp"
    victim.write_text("precious")
    if plant == "hard":
        temporary.hardlink_to(victim)
    else:
        temporary.symlink_to(victim)
    replace_file(RealDisk(), tmp_path / "checkpoint", b"0\n")
    assert victim.read_text() == "precious"
    assert (tmp_path / "checkpoint").read_bytes() == b"0\n"
    assert not (tmp_path / "checkpoint").is_symlink()


@as_root
def test_a_hard_link_to_another_users_file_shows_nothing_that_the_owner_could_not_read(tmp_path: Path) -> None:
    directory, secret = tmp_path / "dir", tmp_path / "secret"
    directory.mkdir()
    secret.write_text("secret")
    os.chown(directory, _STRANGER, _STRANGER)
    (directory / "file").hardlink_to(secret)
    for mode, reading in ((0o600, errno.EACCES), (0o640, errno.EACCES), (0o644, None)):
        secret.chmod(mode)
        assert _raised(directory / "file") == reading
        assert _raised(directory / "file", os.O_RDWR) == errno.EACCES
    secret.chmod(0o640)
    os.chown(secret, 0, _STRANGER)  # readable to the owner's group
    assert _raised(directory / "file") is None


@as_root
def test_what_root_makes_belongs_to_the_directorys_owner(tmp_path: Path) -> None:
    disk = RealDisk()
    for mode, file_mode in ((0o700, 0o600), (0o750, 0o640), (0o755, 0o644)):
        directory = tmp_path / f"{mode:o}"
        directory.mkdir()
        directory.chmod(mode)
        os.chown(directory, _STRANGER, _STRANGER + 1)
        disk.open(directory / "file", create=True).close()
        replace_file(disk, directory / "checkpoint", b"")
        disk.mkdir(directory / "t-0")
        for name, wanted in (("file", file_mode), ("checkpoint", file_mode)):
            status = (directory / name).stat()
            assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (_STRANGER, _STRANGER + 1, wanted)
        assert (directory / "t-0").stat().st_uid == _STRANGER
        disk.open(directory / "file").close()  # it can be written to afterwards, too


def test_links_of_ours_lead_to_files_that_are_checked_themselves(tmp_path: Path) -> None:
    shadow, log_dir = tmp_path / "shadow", tmp_path / "log"
    shadow.mkdir()
    log_dir.mkdir()
    (log_dir / "file").write_text("here")
    (log_dir / "linked").symlink_to("file")
    for name in ("file", "linked"):
        (shadow / name).symlink_to(log_dir / name)
    with links_of_ours(shadow):
        assert bytes(LogFile(shadow / "file").read(0, 10)) == b"here"
        assert _raised(log_dir / "linked") == errno.ELOOP
        with pytest.raises(OSError, match="symbolic link"):
            os.close(open_quietly(shadow / "linked"))
    assert _raised(shadow / "file") == errno.ELOOP


def test_a_person_may_name_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert real_place(tmp_path / "link") == tmp_path / "real"
    assert real_place(tmp_path / "link" / "below") == tmp_path / "real" / "below"
    assert real_place(Path("relative/log")) == Path("relative/log")

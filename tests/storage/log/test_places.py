"""Which directory is a log directory, and where nothing may be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import BadDestination, NotALogDir
from storage.files import names
from storage.log.log_dir import LogDir
from storage.log.places import check_destination, check_log_dir, is_log_dir
from tests.support.builders import build_log_dir

LOG = f"{0:020d}.log"


def made(path: Path, *files: str) -> Path:
    for name in files:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"")
    path.mkdir(exist_ok=True)
    return path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["meta.properties"], True),
        (["bootstrap.checkpoint"], True),
        ([".kafka_cleanshutdown"], True),
        ([".lock"], True),
        (["recovery-point-offset-checkpoint"], True),
        ([f"orders-0/{LOG}", "notes.txt", "other/file"], True),
        (["orders-0/partition.metadata"], True),
        ([f"orders-0.{32 * 'a'}-stray/{LOG}"], True),
        ([], False),
        (["server.properties", "log"], False),
        (["dbus-1/system.conf", "rc-0.d/x"], False),
        ([LOG, "leader-epoch-checkpoint"], False),
        ([f"kafka-1/orders-0/{LOG}", "kafka-1/meta.properties"], False),
    ],
)
def test_what_is_a_log_directory(tmp_path: Path, files: list[str], expected: bool) -> None:
    path = made(tmp_path / "x", *files)
    assert is_log_dir(path) is expected
    if not expected:
        before = sorted(path.rglob("*"))
        for opened in (
            lambda: check_log_dir(path),
            lambda: LogDir.open_read_only(path),
            lambda: OwnedDir.open(path),
            *([lambda: OwnedDir.open(path, Opening(create=True))] if files else []),
        ):
            with pytest.raises(NotALogDir):
                opened()
        assert sorted(path.rglob("*")) == before


def test_the_directory_that_is_meant(tmp_path: Path) -> None:
    logs = build_log_dir(tmp_path / "one" / "logs", {"t": [[b"x"]]}).path
    (tmp_path / "link").symlink_to(logs / "t-0")
    for wrong in (logs / "t-0", tmp_path / "link", logs / "t-0" / LOG, made(logs / "backup", "file")):
        with pytest.raises(NotALogDir) as caught:
            check_log_dir(wrong)
        assert caught.value.advice == f"The log directory is {logs}"
    with pytest.raises(NotALogDir) as caught:
        check_log_dir(tmp_path / "one")
    assert caught.value.advice == f"There is one in it: {logs}"
    for number in range(4):
        made(tmp_path / "four" / f"kafka-{number}", "meta.properties")
    with pytest.raises(NotALogDir) as caught:
        check_log_dir(tmp_path / "four")
    listed = ", ".join(str(tmp_path / "four" / f"kafka-{number}") for number in range(3))
    assert caught.value.advice == f"There are 4 in it: {listed} …"
    with pytest.raises(NotALogDir, match="is not a directory"):
        check_log_dir(made(tmp_path / "files", "file") / "file")
    with pytest.raises(NotALogDir, match="an empty directory"):
        check_log_dir(made(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError):
        check_log_dir(tmp_path / "none")


def test_what_may_be_created(tmp_path: Path) -> None:
    for name in ("none", "empty"):
        made(tmp_path / "empty")
        check_log_dir(tmp_path / name, create=True)
        OwnedDir.open(tmp_path / name, Opening(create=True)).close()
        check_log_dir(tmp_path / name)


@pytest.mark.parametrize(
    "place",
    ["logs/new", "logs/t-0/new", "logs/a/b/c", "beside/../logs/new", "link/new", "dangling", "lone-0/new", "logs/out"],
)
def test_a_destination_in_a_log_directory(tmp_path: Path, place: str) -> None:
    build_log_dir(tmp_path / "logs", {"t": [[b"x"]]}, broker=False)
    made(tmp_path / "beside")
    made(tmp_path / "lone-0", LOG)  # one that somebody copied
    (tmp_path / "link").symlink_to("logs/t-0")
    (tmp_path / "dangling").symlink_to("logs/new")
    (tmp_path / "logs" / "out").symlink_to("../beside/new")  # which a file that is renamed would replace
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadDestination):
        check_destination(tmp_path / place)
    with pytest.raises(BadDestination):
        OwnedDir.open(tmp_path / place, Opening(create=True))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_destination_around_a_log_directory(tmp_path: Path) -> None:
    build_log_dir(tmp_path / "logs", {"t": [[b"x"]]}, broker=False)
    for place in (tmp_path / "logs" / "..", tmp_path, tmp_path / "new", tmp_path / "logs", tmp_path / "logs2" / "x"):
        check_destination(place)


def test_a_destination_in_the_source(tmp_path: Path) -> None:
    """A directory into which somebody has copied partitions is a source, though nothing marks it."""
    made(tmp_path / "copied", f"t-0/{LOG}")
    check_destination(tmp_path / "copied" / "new")  # otherwise a copy in /tmp would forbid all of /tmp
    for place in ("copied/new", "copied"):
        with pytest.raises(BadDestination):
            check_destination(tmp_path / place, tmp_path / "copied")


def test_a_lock_and_partitions_mark_a_log_directory(tmp_path: Path) -> None:
    """Of a process that was killed before it wrote a checkpoint. A lock alone may be any program's."""
    made(tmp_path, names.LOCK)
    check_destination(tmp_path / "new")
    made(tmp_path, f"t-0/{LOG}")
    with pytest.raises(BadDestination):
        check_destination(tmp_path / "new")


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    check_destination(tmp_path / "a" / "new")
    with pytest.raises(OSError, match="symbolic link"):
        check_log_dir(tmp_path / "a")

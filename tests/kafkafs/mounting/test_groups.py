"""`@groups` through a real mount: the tools people use, and what they are told."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

from storage.coordinators.groups import GroupOffsets
from storage.log.log_dir import LogDir
from storage.verify.verify import verify_log_dir
from tests.storage.coordinators.test_group_offsets import plain
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with, killed_after, watched

pytestmark = requires_fuse


def shell(command: str, where: Path) -> tuple[str, str]:
    """What a command of bash printed; its status must be 0 when nothing is on stderr."""
    done = subprocess.run(["bash", "-c", command], cwd=where, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stdout, done.stderr


def test_a_directory_of_ours(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    run_kafkafs("topics", "create", logs, "t", "--partitions", "8")
    with (
        mounted(logs, tmp_path / "mnt", write=True) as mount,
        killed_after(mount.process),
    ):
        root = mount.path
        assert shell("ls @groups", root) == ("", "")
        assert shell("mkdir -p @groups/g/t && echo 42 > @groups/g/t/0 && cat @groups/g/t/0", root) == ("42\n", "")
        assert shell("printf 43 > @groups/g/t/0; cat @groups/g/t/0", root) == ("43\n", "")
        assert shell("echo 44 >> @groups/g/t/0; cat @groups/g/t/*", root) == ("44\n", "")
        assert shell("mkdir -p @groups/a%2Fb/t && echo 1 > @groups/a%2Fb/t/7; ls @groups", root) == ("a%2Fb\ng\n", "")
        assert shell("touch @groups/g/t/1; stat -c '%s %F' @groups/g/t/*", root) == (
            "3 regular file\n0 regular empty file\n",
            "",
        )
        assert "Invalid argument" in shell("echo nix > @groups/g/t/0", root)[1]
        assert "Invalid argument" in shell("mkdir @groups/100%", root)[1]
        assert "No such file" in shell("echo 1 > @groups/g/t/8", root)[1]
        assert "No such file" in shell("mkdir @groups/g/typo && echo 1 > @groups/g/typo/0", root)[1]
        assert shell("rmdir @groups/g/typo", root) == ("", "")
        refused = [entry["path"] for entry in json.loads((root / "@status.json").read_bytes())["refused_lines"]]
        assert refused == ["@groups/g/t/0", "@groups/g/t/8", "@groups/g/typo/0"]
        assert shell("mkdir -p @groups/h/t; cd @groups/h; echo 1 > t/0; rm t/0; cd ..; rmdir h", root) == ("", "")
        assert shell("ls @groups", root) == ("a%2Fb\ng\n", "")
        assert "Operation not permitted" in shell("mkdir @groups/g/t/2", root)[1]
        assert "Operation not permitted" in shell("echo 1 > @groups/g/file", root)[1]
        assert "Operation not permitted" in shell("mv @groups/g/t/0 @groups/g/t/9", root)[1]
        assert "not empty" in shell("rmdir @groups/g", root)[1]
        assert "not empty" in shell("rmdir @groups/g/t", root)[1]
        # Removed while it is open, as it is for a moment after a close(2): it stays removed.
        with (root / "@groups/g/t/5").open("wb", buffering=0) as file:
            file.write(b"17")
            (root / "@groups/g/t/5").unlink()
        assert shell("printf 18 > @groups/g/t/5; rm @groups/g/t/5; ls @groups/g/t", root) == ("0\n1\n", "")
        handle = os.open(root / "@groups/g/t/0", os.O_WRONLY)
        try:
            assert os.write(handle, b"45") == 2
            os.fsync(handle)
        finally:
            os.close(handle)
        assert (root / "@groups/g/t/0").read_bytes() == b"45\n"
        assert shell("rm -r @groups/a%2Fb; ls @groups", root) == ("g\n", "")
        assert shell("cp @groups/g/t/0 @groups/g/t/3; cat @groups/g/t/3", root) == ("45\n", "")
        assert shell("ls @groups/g/t", root) == ("0\n1\n3\n", "")
    assert plain(GroupOffsets(LogDir.open_read_only(logs)).groups()) == {"g": {"t": {0: 45, 3: 45}}}
    assert not verify_log_dir(logs)


@requires_fixtures
def test_a_brokers_directory(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    shutil.copytree(FIXTURES / "groups" / "log", logs)
    with watched(logs, tmp_path / "ro") as mount:
        assert sorted(os.listdir(mount.path / "@groups")) == [  # noqa: PTH208
            "billing", "größe-групп", "shipping", "simple-committer"
        ]  # fmt: skip
        assert (mount.path / "@groups/billing/orders/1").read_text() == "50\n"
        assert shell("cat @groups/*/payments/*| wc -l", mount.path)[0].strip() == "7"
        for path, flags in (("billing/orders/1", os.O_WRONLY), ("billing/orders/5", os.O_WRONLY | os.O_CREAT)):
            with fails_with(errno.EROFS):
                os.open(mount.path / "@groups" / path, flags)
        with fails_with(errno.EROFS):
            (mount.path / "@groups" / "new").mkdir()
        with fails_with(errno.EROFS):
            (mount.path / "@groups/billing/orders/1").unlink()
        with fails_with(errno.EROFS):
            (mount.path / "@groups/billing/orders").rmdir()
    with mounted(logs, tmp_path / "rw", write=True) as mount:
        assert shell("echo 7 > @groups/billing/orders/1; cat @groups/billing/orders/1", mount.path) == ("7\n", "")
        # where a new group belongs only the broker's metadata would tell
        assert "Invalid argument" in shell("mkdir -p @groups/new/t && echo 7 > @groups/new/t/1", mount.path)[1]
    assert not verify_log_dir(logs)
    group = GroupOffsets(LogDir.open_read_only(logs)).group("billing")
    assert group is not None
    assert group.offsets["orders"][1].offset == 7

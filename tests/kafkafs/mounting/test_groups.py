"""`@groups` through a real mount: the tools people use, and what they are told."""

from __future__ import annotations

import errno
import json
import os
import subprocess

from storage.coordinators.groups import GroupOffsets
from storage.log.log_dir import LogDir
from storage.verify.verify import verify_log_dir
from tests.storage.coordinators.test_group_offsets import plain
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.serving_processes import fails_with, killed_after, watched

pytestmark = requires_fuse


def shell(command, where):
    """What a command of bash printed; its status must be 0 when nothing is on stderr."""
    done = subprocess.run(["bash", "-c", command], cwd=where, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode == 0) == (done.stderr == ""), done.stderr
    return done.stdout, done.stderr


def test_a_directory_of_ours(tmp_path):
    logs = tmp_path / "logs"
    run_kafkafs("topics", "create", logs, "t", "--partitions", "8")
    run_kafkafs("groups", logs, "g", "--reset-to", "0", "--topic", "t")
    run_kafkafs("groups", logs, "a/b", "--reset-to", "latest", "--topic", "t/7")
    with mounted(logs, tmp_path / "mnt", write=True) as mount, killed_after(mount.process):
        root = mount.path
        assert shell("ls @groups", root) == ("a%2Fb\ng\n", "")
        assert shell("cat @groups/g/t/*| sort -u; ls @groups/a%2Fb/t", root) == ("0\n7\n", "")
        for command in (
            "mkdir @groups/new", "mkdir @groups/g/new", "touch @groups/g/t/9", "echo 1 > @groups/g/t/9",
            "echo 1 > @groups/g/file", "rm @groups/g/@state.json", "rm @groups/g/t/0", "rmdir @groups/g/t",
            "rm -r @groups/g", "mv @groups/g/t/0 @groups/g/t/9",
        ):  # fmt: skip
            assert "Operation not permitted" in shell(command, root)[1], command
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):
            with fails_with(errno.EROFS if os.geteuid() == 0 else errno.EACCES):
                os.open(root / "@groups/g/t/0", flags)
        refused = json.loads((root / "@status.json").read_bytes())["refused_lines"]
        assert "@groups/g/t/9" in {entry["path"] for entry in refused}
        assert all("kafkafs groups LOGDIR GROUP --reset-to" in entry["reason"] for entry in refused)
    assert plain(GroupOffsets(LogDir.open_read_only(logs)).groups())["g"] == {"t": dict.fromkeys(range(8), 0)}
    assert not verify_log_dir(logs)


@requires_fixtures
def test_a_brokers_directory(tmp_path):
    logs = tmp_path / "logs"
    copy_log_dir(FIXTURES / "groups" / "log", logs)
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

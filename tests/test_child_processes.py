"""The programs that kafkafs starts run nothing of the working directory, which may be a stranger's log directory."""

import ast
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.builders import Batch, build_log_dir, many
from tests.support.mounts import KAFKAFS, detach, kafkafs_mounts, requires_fuse, run_kafkafs

ROOT = Path(__file__).resolve().parent.parent
STARTING = ("subprocess.", "os.exec", "os.spawn", "os.posix_spawn", "os.system", "os.popen", "os.fork", "pty.")
OTHER_STARTERS = ("multiprocessing", "concurrent.futures.process", "ProcessPoolExecutor", "asyncio")

# Each place that starts a process: what it starts, and what of that must be in the call.
CHILDREN = {
    ("kafkafs/decoding/proto_files.py", "subprocess.run"): ("sys.executable", "'-P'", "cwd=folder"),  # the compiler
    ("kafkafs/mounting/daemon.py", "os.fork"): (),  # goes on with this program
    ("kafkafs/mounting/mountpoint.py", "subprocess.run"): ("cwd='/'",),  # fusermount, umount
    ("kafkafs/spark/python_workers.py", "subprocess.run"): ("'-P'", "cwd='/'"),  # the Python of Spark's workers
    # Connects to the JVM of spark-submit. (The working directory of Spark's own is the user's: so are relative paths.)
    ("kafkafs/spark/jobs/session.py", "launch_gateway"): (),
}


def calls():
    """(file, what is called, the call as a text) of all that may start a process."""
    for path in sorted((*ROOT.glob("kafkafs/**/*.py"), *ROOT.glob("storage/**/*.py"))):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                if name.startswith(STARTING) or name == "launch_gateway":
                    yield str(path.relative_to(ROOT)), name, ast.unparse(node)


def test_every_child_is_known():
    found = list(calls())
    assert {(path, name) for path, name, _ in found} == CHILDREN.keys()
    for path, name, text in found:
        missing = [part for part in CHILDREN[path, name] if part not in text]
        assert not missing, f"{path}: {text}"


def test_no_module_has_them_by_another_name():
    """The table finds calls by the names of their modules."""
    for path in (*ROOT.glob("kafkafs/**/*.py"), *ROOT.glob("storage/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                assert node.module not in ("os", "subprocess", "pty"), path
                names = [node.module or "", *(one.name for one in node.names)]
            else:
                names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith(OTHER_STARTERS) for name in names), path


@requires_fuse
@pytest.mark.parametrize("entry", ["", "."])
def test_a_program_in_the_log_directory_is_not_found(tmp_path, entry):
    """Where the user's PATH has the working directory in it."""
    log_dir, mnt = build_log_dir(tmp_path / "log", {"t": [[Batch(many(3))]]}, broker=False).path, tmp_path / "mnt"
    mnt.mkdir()
    for name in ("fusermount", "fusermount3", "umount"):
        (log_dir / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/was-run\nexit 1\n")
        (log_dir / name).chmod(0o755)
    run_kafkafs("mount", "--read-only", log_dir, mnt, "-o", f"log={tmp_path}/messages")
    try:
        environment = {**os.environ, "PATH": f"{entry}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run([*KAFKAFS, "umount", mnt], cwd=log_dir, env=environment, timeout=120, check=False)
        assert done.returncode == 0
    finally:
        if mnt in kafkafs_mounts():
            detach(mnt)
    assert not (tmp_path / "was-run").exists()

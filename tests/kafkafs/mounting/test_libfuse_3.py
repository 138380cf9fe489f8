"""The same over libfuse 3: the tests of these modules once more, each in a pytest of its own.

Where FUSE_LIBRARY_NAME says which libfuse all tests run over, these are not repeated.
"""

import json
import os
import subprocess
import sys
from ctypes.util import find_library

import pytest

from tests.support.builders import ROLL, build_log_dir
from tests.support.commands import run
from tests.support.fixtures import REQUIRED, ROOT
from tests.support.mounts import mounted, requires_fuse

pytestmark = [
    requires_fuse,
    pytest.mark.skipif(not find_library("fuse3") and not REQUIRED, reason="there is no libfuse 3"),
]

# Every call with a tree in memory, writing, a mount from start to stop, permissions, and files that grow.
MODULES = (
    "test_operations",
    "test_writing",
    "test_writing_ends",
    "test_lifecycle",
    "test_modes_below",
    "test_system_calls",
    "test_growing",
)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif("FUSE_LIBRARY_NAME" in os.environ, reason="FUSE_LIBRARY_NAME is set")
@pytest.mark.parametrize("module", MODULES)
def test_over_libfuse_3(module, tmp_path):
    # Without --basetemp it would take the search permission, which other users need, from all temporary directories.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'base'}"]
    command += [f"tests/kafkafs/mounting/{module}.py"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["FUSE_LIBRARY_NAME"] = "fuse3"
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


@pytest.mark.parametrize(("chosen", "package", "major"), [("fuse", "fusepy", "2"), ("fuse3", "mfusepy", "3")])
def test_a_mount_says_which(chosen, package, major, tmp_path, monkeypatch):
    if not find_library(chosen):
        pytest.skip(f"there is no lib{chosen}")
    monkeypatch.setenv("FUSE_LIBRARY_NAME", chosen)
    built = build_log_dir(tmp_path / "log", {"t": [[b"one"]]})
    with mounted(built.path, tmp_path / "mnt", write=True) as mount:
        versions = json.loads((mount.path / "@status.json").read_bytes())["versions"]
        (mount.path / "t/0/@append").write_bytes(b"two\n")
        assert (mount.path / "t/0/messages.txt").read_bytes() == b"one\ntwo\n"
    assert versions["libfuse"].startswith(f"{major}.")
    assert {"fusepy", "mfusepy"} & set(versions) == {package}


def test_cached_files_are_read_without_asking_for_their_size(tmp_path, monkeypatch):
    """libfuse 3 has the kernel do so by default (AUTO_INVAL_DATA): a request for each read(2)."""
    monkeypatch.setenv("FUSE_LIBRARY_NAME", "fuse3")
    built = build_log_dir(tmp_path / "log", {"t": [[b"x" * 1000] * 1000 + [ROLL, b"end"]]})
    counts = tmp_path / "calls"
    with mounted(built.path, tmp_path / "mnt") as mount:
        sealed = mount.path / "t/0/segments" / f"{0:020}.log"
        assert len(sealed.read_bytes()) > 1_000_000
        command = ["strace", "-f", "-c", "-e", "trace=read", "-o", counts, "-p", str(mount.pid)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE)
        process.stderr.readline()  # it is attached
        with sealed.open("rb", buffering=0) as file:
            while file.read(1000):
                pass
        process.terminate()
        process.communicate(timeout=60)
    assert sum(int(line.split()[3]) for line in counts.read_text().splitlines() if line.endswith("read")) < 100


def test_doctor_tells_what_is_installed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    report = json.loads(run("doctor", "--self", "--json").stdout)
    assert report["problems"] == []
    assert report["kernels"]["uncompiled"] == []
    assert report["fuse"]["libfuse"]
    assert report["cache"] == {"directory": str(tmp_path / "kafkafs" / "views"), "writable": True}
    assert set(report["extras"]) == {"arrow", "plot", "replay", "schemas", "spark", "sql", "store", "tier"}
    assert "libfuse" in run("doctor", "--self").stdout
    assert run("doctor", "--self", tmp_path).exit_code == 2
    assert run("doctor").exit_code == 2

"""The kernels under address and undefined-behaviour sanitizers: their tests find no fault, and a planted one is found.

KAFKAFS_SANITIZE_SECONDS sets how long the tests are repeated (5; with CI=true 30): once at least. The first run builds
all kernels: a minute.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.sanitizers.build import copy_packages
from tests.support.fixtures import REQUIRED, ROOT

SECONDS = os.environ.get("KAFKAFS_SANITIZE_SECONDS") or ("30" if REQUIRED else "5")


def missing():
    """What a sanitizer build lacks on this machine."""
    if shutil.which("gcc") is None:
        return "no gcc"
    for library in ("libasan.so", "libubsan.so"):
        found = subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True)
        if not Path(found.stdout.strip()).is_absolute():
            return f"gcc without {library}"
    return None if (Path(sysconfig.get_path("include")) / "Python.h").is_file() else "no Python.h"


LACK = missing()
# With CI=true what is missing is a failure: then the tests run, and fail by themselves.
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(LACK is not None and not REQUIRED, reason=f"kernels cannot be built with sanitizers: {LACK}"),
    pytest.mark.timeout(3600),
]


def run(*arguments, root=ROOT):
    # One round of random work at a time: it is the time that decides how often everything is repeated.
    once = {"KAFKAFS_FUZZ_ROUNDS": "1", "KAFKAFS_NIGHTLY": ""}
    environment = {**os.environ, **once, "PYTHON": sys.executable, "KAFKAFS_SANITIZE_ROOT": str(root)}
    script = ROOT / "tests" / "sanitizers" / "run.sh"
    return subprocess.run([script, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_no_fault_in_any_kernel():
    finished = run(SECONDS)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "no fault with seeds" in finished.stdout


def test_a_removed_length_check_is_found(tmp_path):
    copy_packages(ROOT, tmp_path)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    kernel = tmp_path / "storage" / "format" / "hashing.py"
    check = " or start > size - length"
    source = kernel.read_text()
    assert source.count(check) == 1
    kernel.write_text(source.replace(check, " or start > size"))
    finished = run("0", "tests/storage/format/test_digests.py", "-k", "outside_the_buffer", root=tmp_path)
    assert finished.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in finished.stderr
    assert "storage/format/hashing.py" in finished.stderr
    assert "in test_keys_outside_the_buffer_are_refused" in finished.stderr
    assert "repeat it with KAFKAFS_FUZZ_SEED=" in finished.stderr

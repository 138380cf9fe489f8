"""The sdist and the wheel: built from what is here, installed into an empty environment, and used there.

What was built is kept in `.cache/packaging` under a digest of its sources, so that a second run only uses it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path

import pytest

from kafkafs.cli.man_page import man_page
from tests.support.mounts import mounted, requires_fuse

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "examples" / "sample-log"
CACHE = ROOT / ".cache" / "packaging"
PACKAGES = ("storage", "kafkafs")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIRED = os.environ.get("CI", "").lower() in ("true", "1")

# The first run compiles all kernels, and then installs without a compiler.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]


@dataclass(frozen=True, slots=True)
class Installed:
    """`environment` has the wheel and its dependencies; `uncompiled` is a wheel that was built without a compiler."""

    sdist: Path
    wheel: Path
    uncompiled: Path
    environment: Path

    def run(self, *arguments, **variables):
        """The output of the installed `kafkafs`."""
        return output([self.environment / "bin" / "kafkafs", *arguments], variables)


def output(command, variables=None, cwd=CACHE):
    """The output of a command; the checkout is not in its path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONWARNINGS": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(variables or {})}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def sources():
    """The files that make up a package, without the results of earlier builds."""
    found = [path for package in PACKAGES for path in (ROOT / package).rglob("*") if path.is_file()]
    kept = [path for path in found if path.suffix not in (".so", ".c", ".pyc", ".1")]
    return [*(ROOT / name for name in ("pyproject.toml", "setup.py", "README.md")), *sorted(kept)]


def digest():
    every = hashlib.sha256(sys.version.encode())
    for path in sources():
        every.update(f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return every.hexdigest()[:16]


def build(directory):
    """Builds into `directory`: the sdist, a wheel of it, one without a compiler, and an environment with the wheel."""
    tree = directory / "tree"
    for path in sources():
        (tree / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, tree / path.relative_to(ROOT))
    # Optimizing takes most of the time of a build, and the checkout itself was compiled so.
    project = tree / "pyproject.toml"
    project.write_text(project.read_text().replace('"-O3"', '"-O0"'))
    hook = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    output([sys.executable, "-c", hook, directory], cwd=tree)
    (sdist,) = directory.glob("*.tar.gz")

    def wheel(name, **variables):
        options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir", "--wheel-dir", directory / name]
        output([sys.executable, "-m", "pip", "wheel", *options, sdist], variables)
        (found,) = (directory / name).glob("*.whl")
        return found

    compiled = wheel("compiled")
    uncompiled = wheel("uncompiled", CC="no-such-compiler")
    environment = directory / "environment"
    output([sys.executable, "-m", "venv", environment])
    pip = [environment / "bin" / "python", "-m", "pip"]
    try:
        output([*pip, "install", "--quiet", *PROJECT["project"]["dependencies"]])
    except AssertionError as error:
        if REQUIRED:
            raise
        pytest.skip(f"the dependencies cannot be installed: {error}")
    output([*pip, "install", "--quiet", "--no-deps", compiled])
    output([*pip, "check"])
    shutil.rmtree(tree)
    return Installed(sdist, compiled, uncompiled, environment)


@pytest.fixture(scope="module")
def installed():
    """Built by one process while others wait. `done` is written last."""
    CACHE.mkdir(parents=True, exist_ok=True)
    directory = CACHE / digest()
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / "done").exists():
            (sdist,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("compiled/*.whl")
            (uncompiled,) = directory.glob("uncompiled/*.whl")
            yield Installed(sdist, wheel, uncompiled, directory / "environment")
            return
        for earlier in CACHE.iterdir():
            if earlier.is_dir():
                shutil.rmtree(earlier)
        directory.mkdir()
        built = build(directory)
        (directory / "done").touch()
        yield built


def kernels():
    """All extension modules, including Cython's own."""
    return [module["name"] for module in PROJECT["tool"]["setuptools"]["ext-modules"]]


def test_the_installed_commands_work(installed):
    lines = installed.run("--version").splitlines()
    assert lines[:2] == [f"kafkafs {PROJECT['project']['version']}", "kernels: compiled"]
    assert installed.run("count", SAMPLE, "orders").split()[-1] == "700"
    assert installed.run("cat", SAMPLE, "payments/0", "--isolation", "read_committed").splitlines() == [
        "order 1 paid",
        "order 2 paid",
        "order 5 paid",
    ]
    assert installed.run("verify", SAMPLE).splitlines()[-1] == "nothing wrong"
    page = installed.environment / "share" / "man" / "man1" / "kafkafs.1"
    assert page.read_text() == man_page()
    program = "import kafkafs, storage; print(kafkafs.__file__, storage.__file__)"
    for path in output([installed.environment / "bin" / "python", "-c", program]).split():
        assert Path(path).is_relative_to(installed.environment)


@requires_fuse
def test_the_installed_mount_works(installed, tmp_path, monkeypatch):
    monkeypatch.setattr("tests.support.mounts.KAFKAFS", (str(installed.environment / "bin" / "kafkafs"),))
    shutil.copytree(SAMPLE, tmp_path / "logs")
    with mounted(tmp_path / "logs", tmp_path / "mnt") as mount:
        assert (mount.path / "payments/0/messages.txt").read_bytes().splitlines()[0] == b"order 1 paid"


def test_without_a_compiler_it_installs_all_the_same(installed, tmp_path):
    """It runs as plain Python, and `--version` says so."""
    with zipfile.ZipFile(installed.uncompiled) as wheel:
        assert not [name for name in wheel.namelist() if name.endswith(".so")]
        wheel.extractall(tmp_path)
    python = installed.environment / "bin" / "python"
    run = [python, "-m", "kafkafs"]
    lines = output([*run, "--version"], {"PYTHONPATH": str(tmp_path)}).splitlines()
    assert lines[1].startswith("kernels: not compiled, slow: storage.format.decode_kernel, ")
    assert output([*run, "count", SAMPLE, "payments"], {"PYTHONPATH": str(tmp_path)}).split()[-1] == "5"
    shell = ["bash", "-c", '"$0" -m kafkafs cat "$1" payments/0 2>&1 >/dev/null', python, SAMPLE]
    (said,) = output(shell, {"PYTHONPATH": str(tmp_path)}).splitlines()
    assert "inner loops are not compiled" in said


def test_what_is_in_the_archives(installed):
    """Both have all sources; the wheel has each built kernel, and only the two packages at its top level."""
    own = {path.relative_to(ROOT).as_posix() for path in sources()}
    with tarfile.open(installed.sdist) as sdist:
        packed = {name.partition("/")[2] for name in sdist.getnames()}
    assert {name for name in own if not name.endswith(".md")} | {"README.md"} <= packed
    assert not [name for name in packed if name.endswith((".so", ".c"))]
    with zipfile.ZipFile(installed.wheel) as wheel:
        names = wheel.namelist()
        (metadata,) = (wheel.read(name) for name in names if name.endswith(".dist-info/METADATA"))
    assert {name for name in own if "/" in name and name.endswith((".py", ".pxd", ".proto", "py.typed"))} <= set(names)
    built = {name.partition(".cpython-")[0].replace("/", ".") for name in names if name.endswith(".so")}
    assert built == set(kernels())
    top = {name.partition("/")[0] for name in names}
    stem = f"kafkafs-{PROJECT['project']['version']}"
    assert top == {"storage", "kafkafs", f"{stem}.data", f"{stem}.dist-info"}
    message = message_from_bytes(metadata)
    assert message["Name"] == "kafkafs"
    assert message["Description-Content-Type"] == "text/markdown"
    assert (ROOT / "README.md").read_text().strip() in str(message.get_payload(decode=True).decode())

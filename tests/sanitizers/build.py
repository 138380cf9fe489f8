"""A copy of the packages whose kernels are built with sanitizers: build.py SOURCE_ROOT DESTINATION --cache DIR."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import Cython

# -fwrapv, with which Python's extensions are usually built, is left out: it would hide overflows.
FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1", "-g", "-fPIC"]
PACKAGES = ("storage", "kafkafs")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


def copy_packages(root, destination):
    """The packages without anything that is compiled."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        shutil.copytree(root / package, destination / package, ignore=ignored)


def kernels(root):
    """Module name → source file, of all in pyproject.toml's ext-modules but the module of Cython's own code: here each
    kernel is compiled with all that it uses."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    sources = {module["name"]: root / module["sources"][0] for module in project["tool"]["setuptools"]["ext-modules"]}
    return {name: source for name, source in sources.items() if source.suffix == ".py"}


def build(source, name, library):
    """Compile the kernel `name`; its errors go to stderr and raise CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        code = Path(scratch) / "kernel.c"
        cython = [sys.executable, "-m", "cython", "-3", "--line-directives", "--module-name", name]
        subprocess.run([*cython, "-o", code, source], check=True, stdout=subprocess.DEVNULL)
        partial = library.with_suffix(f".{os.getpid()}")
        include = f"-I{sysconfig.get_path('include')}"
        subprocess.run(["gcc", "-shared", "-w", *FLAGS, include, "-o", partial, code], check=True)
        partial.replace(library)


def cached(source, name, cache):
    """The built kernel from the cache, built where it is missing; older builds of it are removed, but for one."""
    compiler = subprocess.run(["gcc", "-v"], check=True, capture_output=True).stderr
    key = hashlib.sha256(f"{sys.version} {Cython.__version__} {FLAGS}".encode() + compiler)
    for file in (source, *sorted(source.parent.glob("*.pxd"))):  # one may name another
        key.update(hashlib.sha256(file.read_bytes()).digest())
    library = cache / f"{name}-{key.hexdigest()[:32]}" / f"{name.rpartition('.')[2]}{SUFFIX}"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        build(source, name, library)
    for old in sorted(cache.glob(f"{name}-*"), key=lambda path: path.stat().st_mtime)[:-2]:
        shutil.rmtree(old, ignore_errors=True)
    return library


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    copy_packages(options.root, options.destination)
    sources = kernels(options.root)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        libraries = list(pool.map(lambda name: cached(sources[name], name, options.cache), sources))
    for name, library in zip(sources, libraries, strict=True):
        shutil.copy(library, options.destination.joinpath(*name.split(".")[:-1]))


if __name__ == "__main__":
    main()

"""A copy of the packages whose kernels are built with sanitizers: build.py SOURCE_ROOT DESTINATION [--cache DIR]."""

from __future__ import annotations

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


def extension_modules(root):
    """Module name → source file, of all kernels in pyproject.toml's ext-modules."""
    project = tomllib.loads((root / "pyproject.toml").read_text())
    sources = {module["name"]: root / module["sources"][0] for module in project["tool"]["setuptools"]["ext-modules"]}
    # Without the module of Cython's own code: here each kernel is compiled with all that it uses.
    return {name: source for name, source in sources.items() if source.suffix == ".py"}


def copy_packages(root, destination):
    """The packages without anything that is compiled."""
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("*.so", "*.c", "__pycache__")
        shutil.copytree(root / package, destination / package, ignore=ignored)


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
    """The built kernel from the cache, built where it is missing; older builds of the module are removed."""
    compiler = subprocess.run(["gcc", "-v"], check=True, capture_output=True).stderr
    versions = f"{sys.version} {Cython.__version__}".encode()
    key = hashlib.sha256()
    declarations = b"".join(path.read_bytes() for path in sorted(source.parent.glob("*.pxd")))  # one may name another
    for part in (Path(__file__).read_bytes(), source.read_bytes(), declarations, compiler, versions):
        key.update(hashlib.sha256(part).digest())
    library = cache / f"{name}-{key.hexdigest()[:32]}" / f"{name.rpartition('.')[2]}{SUFFIX}"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        build(source, name, library)
    return library


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    copy_packages(options.root, options.destination)
    modules = extension_modules(options.root)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        libraries = pool.map(lambda name: cached(modules[name], name, options.cache), modules)
    for name, library in zip(modules, libraries, strict=True):
        shutil.copy(library, options.destination.joinpath(*name.split(".")[:-1]))
    newest = {library.parent for library in options.cache.glob("*/*")}
    for name in modules:  # two of each stay: the last and the one before
        builds = sorted((p for p in newest if p.name.startswith(f"{name}-")), key=lambda p: p.stat().st_mtime)
        for old in builds[:-2]:
            shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    main()

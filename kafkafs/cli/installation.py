"""`kafkafs doctor --self`: facts about this installation of kafkafs for a bug report, and whether it can mount."""

from __future__ import annotations

import os
import platform
import re
import resource
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from kafkafs.compiled_kernels import KERNELS, uncompiled
from kafkafs.mounting.mount import check_fuse, libfuse
from kafkafs.mounting.mountpoint import MountError, fusermount
from kafkafs.reading.store import default_directory
from storage.format import codec_library

_CONFIGURATION = Path("/etc/fuse.conf")  # mount.fuse3(8)
_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:; *extra *== *[\"'](\w+)[\"'])?")


def facts() -> dict[str, Any]:
    """Facts about the installation, as JSON values. `problems`: what keeps kafkafs from working, or makes it slow."""
    slow = uncompiled()
    problems: list[str] = []
    if slow:
        problems.append(
            f"not compiled, several hundred times slower: {', '.join(slow)}. Install a wheel of kafkafs; or "
            "install a C compiler and Python's headers, and reinstall kafkafs"
        )
    fuse: dict[str, Any] = {"libfuse": None, "fusermount": fusermount(), "user_allow_other": _user_allow_other()}
    try:
        fuse |= libfuse()
        check_fuse()
    except MountError as error:
        problems.append(f"nothing can be mounted: {error}. The other commands work")
    cache = default_directory()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "kafkafs": _version("kafkafs"),
        "python": {
            "version": platform.python_version(),
            "executable": sys.executable,
            "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
        },
        "system": {
            "linux": platform.release(),
            "machine": platform.machine(),
            "libc": " ".join(platform.libc_ver()).strip() or None,
            "processors": os.cpu_count(),
            "uid": os.geteuid(),
        },
        "kernels": {"compiled": len(KERNELS) - len(slow), "uncompiled": slow},
        "fuse": fuse,
        "codecs": codec_library.versions(),
        **_packages(),
        "cache": {"directory": str(cache), "writable": _writable(cache)},
        "limits": {"open_files": soft, "open_files_hard": hard},
        "problems": problems,
    }


def version_text() -> str:
    """Versions of kafkafs and its libraries, and which kernels run uncompiled."""
    slow, codecs = uncompiled(), _listed(codec_library.versions())
    try:
        fuse = _listed(libfuse())
    except MountError as error:
        fuse = str(error)
    return (
        f"kafkafs {_version('kafkafs')}\n"
        f"kernels: {'not compiled, slow: ' + ', '.join(slow) if slow else 'compiled'}\n"
        f"system: {codecs or 'neither libzstd nor liblz4: slower'}\n"
        f"python {platform.python_version()}, {_listed(_packages()['libraries'])}\n"
        f"fuse: {fuse}"
    )


def _listed(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version or '(not installed)'}" for name, version in versions.items())


def _packages() -> dict[str, dict[str, Any]]:
    """The versions of the packages that kafkafs needs, and by extra of those that it can use; null: not installed."""
    libraries: dict[str, Any] = {}
    extras: dict[str, dict[str, str | None]] = {}
    try:
        required = metadata.requires("kafkafs") or []
    except metadata.PackageNotFoundError:
        required = []
    for match in filter(None, map(_REQUIREMENT.match, required)):
        name, extra = match.groups()
        (extras.setdefault(extra, {}) if extra else libraries)[name] = _version(name)
    extras.pop("dev", None)
    return {"libraries": libraries, "extras": extras}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _user_allow_other() -> bool:
    """Whether users other than root may mount with allow_other."""
    try:
        return re.search(r"^\s*user_allow_other\b", _CONFIGURATION.read_text(), re.MULTILINE) is not None
    except (OSError, UnicodeDecodeError):
        return False


def _writable(directory: Path) -> bool:
    """Whether this user can make files in a directory, which need not exist yet."""
    above = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    return above.is_dir() and os.access(above, os.W_OK | os.X_OK)

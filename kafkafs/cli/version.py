"""`kafkafs --version`."""

from __future__ import annotations

import platform
from importlib import metadata

from kafkafs.compiled_kernels import uncompiled
from storage.format import codec_library

_LIBRARIES = ("click", "cramjam", "crc32c", "crcmod", "cython", "fusepy", "numpy", "psutil", "rich", "xxhash")


def version_text() -> str:
    """Versions of kafkafs and what it stands on, and which kernels run uncompiled."""
    slow = uncompiled()
    kernels = f"not compiled, slow: {', '.join(slow)}" if slow else "compiled"
    libraries = ", ".join(f"{name} {_version(name)}" for name in _LIBRARIES)
    system = ", ".join(f"{name} {version}" for name, version in codec_library.versions().items())
    return (
        f"kafkafs {_version('kafkafs')}\nkernels: {kernels}\n"
        f"system: {system or 'neither libzstd nor liblz4: slower'}\n"
        f"python {platform.python_version()}, {libraries}"
    )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "(not installed)"

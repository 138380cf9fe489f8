"""`kafkafs --version`"""

from __future__ import annotations

import platform
from importlib import import_module, metadata

from storage.format import codec_library

# All compiled modules, as pyproject.toml lists them.
KERNELS = (
    "storage.format.decode_kernel",
    "storage.format.encoder_kernel",
    "storage.format.hashing",
    "storage.format.checksum_kernel",
    "storage.format.index_kernel",
    "storage.format.inflate_kernel",
    "storage.compaction.offset_map_kernel",
    "kafkafs.formats.render_kernel",
    "kafkafs.view_index.measure_kernel",
)
_LIBRARIES = ("click", "cramjam", "crc32c", "crcmod", "cython", "fusepy", "numpy", "psutil", "rich")


def version_text() -> str:
    """Versions of kafkafs and what it stands on, and which kernels run uncompiled."""
    slow = [name for name in KERNELS if not import_module(name).is_compiled()]
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

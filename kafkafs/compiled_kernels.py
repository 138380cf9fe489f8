"""The kernels: modules with hot loops, which Cython compiles. Uncompiled they run as plain Python, 400 times slower.

pyproject.toml lists the same modules for the build; a test compares the two lists.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

from storage.types import is_compiled

KERNELS: Final = (
    "storage.format.decode_kernel",
    "storage.format.encoder_kernel",
    "storage.format.hashing",
    "storage.format.checksum_kernel",
    "storage.format.digest_kernel",
    "storage.format.index_kernel",
    "storage.format.inflate_kernel",
    "storage.format.message_kernel",
    "storage.latest.offset_map_kernel",
    "kafkafs.formats.render_kernel",
    "kafkafs.reading.block_kernel",
    "kafkafs.decoding.avro_kernel",
    "kafkafs.decoding.proto_kernel",
)


def uncompiled() -> list[str]:
    """The kernels that run as plain Python in this process. Imports all of them."""
    return [name for name in KERNELS if not is_compiled(import_module(name))]


def loaded() -> dict[str, str]:
    """The kernels that this process has imported so far, in alphabetical order: `compiled` or `interpreted`."""
    modules = [(name, sys.modules.get(name)) for name in sorted(KERNELS)]
    # sys.modules already has a module that another thread is still importing, but empty.
    loaded_modules = [(name, module) for name, module in modules if module is not None and hasattr(module, "__file__")]
    return {name: "compiled" if is_compiled(module) else "interpreted" for name, module in loaded_modules}


def slowness() -> str | None:
    """The warning if kernels that this process uses run as plain Python; None if they are compiled."""
    slow = [name for name, form in loaded().items() if form == "interpreted"]
    if not slow:
        return None
    return (
        f"{len(slow)} of {len(loaded())} inner loops are not compiled: this takes several hundred times longer. "
        "Install a wheel of kafkafs; or install a C compiler and Python's headers, and reinstall kafkafs"
    )

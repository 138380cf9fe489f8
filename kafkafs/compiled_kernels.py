"""The kernels: modules with hot loops, which Cython compiles. Uncompiled they run as plain Python, 400 times slower.

pyproject.toml lists the same modules for the build; a test compares the two lists.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Final

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
    "storage.latest.key_table_kernel",
    "kafkafs.formats.render_kernel",
    "kafkafs.reading.key_kernel",
    "kafkafs.reading.measure_kernel",
    "kafkafs.decoding.avro_kernel",
    "kafkafs.decoding.proto_kernel",
)


def uncompiled() -> list[str]:
    """The kernels that run as plain Python in this process. Imports all of them."""
    return [name for name in KERNELS if not import_module(name).is_compiled()]


def loaded() -> dict[str, str]:
    """The kernels that this process has imported so far, in alphabetical order: `compiled` or `interpreted`."""
    # A module that another thread is importing at this moment is in sys.modules already, without its functions.
    asked = {name: getattr(sys.modules.get(name), "is_compiled", None) for name in sorted(KERNELS)}
    return {name: "compiled" if is_compiled() else "interpreted" for name, is_compiled in asked.items() if is_compiled}


def slowness() -> str | None:
    """What a person is told if kernels that this process uses run as plain Python; None if they are compiled."""
    slow = [name for name, form in loaded().items() if form == "interpreted"]
    if not slow:
        return None
    return (
        f"{len(slow)} of {len(loaded())} inner loops are not compiled: this takes several hundred times longer. "
        "Install a wheel of kafkafs; or a C compiler and Python's headers, and then kafkafs once more"
    )

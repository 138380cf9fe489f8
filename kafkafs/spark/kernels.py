"""Spark jobs want the compiled kernels: uncompiled, a scan of minutes takes days."""

from __future__ import annotations

from importlib import import_module
from typing import Final

_KERNELS: Final = (
    "storage.format.decode_kernel",
    "storage.format.checksum_kernel",
    "storage.format.encoder_kernel",
    "storage.format.hashing",
    "storage.compaction.offset_map_kernel",
)


class UncompiledKernels(RuntimeError):
    """The kernels run as plain Python, hundreds of times slower, and nobody has said that this will do."""


def require_compiled(allow_uncompiled: bool = False) -> None:
    """Raises UncompiledKernels unless the kernels of this process are compiled, or slow ones are allowed."""
    slow = [] if allow_uncompiled else [name for name in _KERNELS if not import_module(name).is_compiled()]
    if slow:
        raise UncompiledKernels(
            f"{', '.join(slow)} {'is' if len(slow) == 1 else 'are'} not compiled on this machine, so this would be "
            "hundreds of times slower: install kafkafs with a C compiler, or say option('allowUncompiled', 'true')"
        )

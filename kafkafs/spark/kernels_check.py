"""The check that Spark jobs run compiled kernels: without them, a scan of minutes takes days."""

from __future__ import annotations

from kafkafs.compiled_kernels import uncompiled


class UncompiledKernels(RuntimeError):
    """The kernels run as plain Python, hundreds of times slower, and no option allowed that."""


def require_compiled(allow_uncompiled: bool = False) -> None:
    """Raise UncompiledKernels unless the kernels of this process are compiled or `allow_uncompiled` is set."""
    slow = [] if allow_uncompiled else uncompiled()
    if slow:
        raise UncompiledKernels(
            f"{', '.join(slow)} {'is' if len(slow) == 1 else 'are'} not compiled on this machine, so this would be "
            "hundreds of times slower: install kafkafs with a C compiler, or set option('allowUncompiled', 'true')"
        )

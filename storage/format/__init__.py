"""The bytes of a Kafka log, pure: no I/O, no clock, no logging. FORMAT.md lays them out.

Reading: `batches.scan` (headers of a buffer into a BatchTable), then `decoder.Decoder` (rows of it into a RecordBlock).
"""

from __future__ import annotations

from types import ModuleType


def is_compiled(kernel: ModuleType) -> bool:
    """Whether a module with hot loops is the extension module that Cython has made, and not the plain Python file."""
    return not str(kernel.__file__).endswith(".py")

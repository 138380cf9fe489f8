"""Whether libfuse can be loaded: importing this module is an ImportError where it cannot, so that tests are skipped."""

from __future__ import annotations

try:
    import kafkafs.mounting.operations  # noqa: F401
except OSError as error:
    raise ImportError(f"libfuse is not installed: {error}") from None

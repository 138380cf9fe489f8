"""Whether the tests run nightly (`pytest --nightly`): then random tests try more cases, and crashes come everywhere."""

from __future__ import annotations

import os

# Set by tests/conftest.py before it imports a test, so that parameters of tests can depend on it.
NIGHTLY = os.environ.get("KAFKAFS_NIGHTLY") == "1"


def rounds(usual: int, nightly: int) -> int:
    """How many random cases to try: `usual` of them before a merge, `nightly` otherwise."""
    return nightly if NIGHTLY else usual

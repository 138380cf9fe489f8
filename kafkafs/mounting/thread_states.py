"""Python's state of libfuse's threads."""

from __future__ import annotations

import threading
from ctypes import pythonapi


class ThreadStates:
    """Keeps Python's state of libfuse's threads from one call to the next.

    By default ctypes makes a state for each callback and deletes it afterwards: 11 µs of the 35 that a read may take.
    An additional reference keeps it. A thread that ends leaves its state allocated (16 KiB), so only the first threads
    get this: libfuse keeps ten idle threads, and starts more when all are busy.
    """

    _MOST = 64

    def __init__(self) -> None:
        self._left = self._MOST
        self._here = threading.local()  # part of that state: forgotten with it

    def keep(self) -> None:
        """Keeps the calling thread's state, unless it is kept already or too many are kept."""
        if not hasattr(self._here, "kept") and self._left > 0:
            self._left -= 1
            pythonapi.PyGILState_Ensure()
            self._here.kept = True


thread_states = ThreadStates()

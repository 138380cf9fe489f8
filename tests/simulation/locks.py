"""Every lock of storage and kafkafs as a switch point, for the time of a `with`."""

import contextlib
import sys
import threading
from types import ModuleType

from tests.simulation.scheduler import Held, Killed, Task, current, current_task

_PACKAGES = ("storage", "kafkafs")


class SimulatedLock:
    """threading.Lock. In an ordinary thread it is taken and released without a word: there is only one then."""

    reentrant = False

    def __init__(self):
        self._holder = None
        self._depth = 0

    def acquire(self, blocking=True, timeout=-1):
        scheduler, me = current(), current_task() or threading.current_thread()
        if scheduler is not None and not scheduler.killed:
            scheduler.switch("lock")
        if scheduler is None and isinstance(self._holder, Task) and self._holder.done:
            self._holder, self._depth = None, 0  # its process has ended
        if self._holder is not None and not (self.reentrant and self._holder is me):
            if not blocking or timeout >= 0:
                return False
            if scheduler is None:
                raise Held("a lock that is held would block a thread that nobody schedules")
            if scheduler.killed:
                raise Killed
            scheduler.wait_until(lambda: self._holder is None, "a lock")
        self._holder, self._depth = me, self._depth + 1
        return True

    def release(self):
        assert self._holder is not None, "released, but not held"
        self._depth -= 1
        if not self._depth:
            self._holder = None
        scheduler = current()
        if scheduler is not None and not scheduler.killed:
            scheduler.switch("unlock")

    def locked(self):
        return self._holder is not None

    def __enter__(self):
        return self.acquire()

    def __exit__(self, kind, error, at):
        self.release()


class SimulatedRLock(SimulatedLock):
    """threading.RLock."""

    reentrant = True


class _Threading(ModuleType):
    """The module `threading`, with simulated locks."""

    Lock = SimulatedLock
    RLock = SimulatedRLock

    def __getattr__(self, name):
        return getattr(threading, name)


@contextlib.contextmanager
def simulated_locks():
    """All locks that storage and kafkafs make meanwhile, and those that their modules made when they were imported."""
    undo = []

    def put(where, name, value):
        undo.append((where, name, getattr(where, name)))
        setattr(where, name, value)

    lock_type = type(threading.Lock())
    stand_ins = {threading: _Threading("threading"), threading.Lock: SimulatedLock, threading.RLock: SimulatedRLock}
    for module in [module for name, module in sys.modules.items() if name.split(".")[0] in _PACKAGES]:
        for name, value in list(vars(module).items()):
            stand_in = next((stand_in for real, stand_in in stand_ins.items() if value is real), None)
            if stand_in is not None:
                put(module, name, stand_in)
            elif isinstance(value, lock_type):
                put(module, name, SimulatedLock())
            elif type(value).__module__.split(".")[0] in _PACKAGES:
                for attribute in _attributes(value):
                    if isinstance(getattr(value, attribute, None), lock_type):
                        put(value, attribute, SimulatedLock())
    try:
        yield
    finally:
        for where, name, value in reversed(undo):
            setattr(where, name, value)


def _attributes(value):
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", {}), *slots]

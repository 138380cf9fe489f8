"""Attempts of other users than root, each in a process of its own."""

import os
import traceback
from collections.abc import Callable

FAILED_OTHERWISE = 255


def errno_as(uid: int, gid: int, attempt: Callable[[], object]) -> int:
    """The errno with which `attempt` fails as the user `uid` in the group `gid`.

    0 if it does not fail; FAILED_OTHERWISE with a traceback if its error has no errno.
    """
    pid = os.fork()
    if not pid:
        code = FAILED_OTHERWISE
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            attempt()
            code = 0
        except OSError as error:
            code = error.errno or FAILED_OTHERWISE
            traceback.print_exc()
        except BaseException:  # noqa: BLE001 - the parent tells
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

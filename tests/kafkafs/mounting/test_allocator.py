"""Memory that is free goes back to the system."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.live_log import LiveLog
from tests.support.mounts import mounted, requires_fuse

MIB = 1 << 20

# A process of its own: what is set holds for good.
BLOCKS = """
import ctypes, sys
if sys.argv[1] == "set":
    from kafkafs.mounting import mount

    assert mount.keep_little()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)

def resident():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))

def taken(size):
    place = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(place, 1, size)
    return place

libc.free(taken(24 << 20))  # by default blocks below this size come from the heap from now on
before = resident()
places = [taken(8 << 20) for _ in range(8)]
after_them = libc.malloc(ctypes.c_size_t(100_000))  # and the heap cannot shrink below this
for place in places:
    libc.free(place)
print(resident() - before)
"""


def is_glibc():
    try:
        return bool(ctypes.CDLL(None).gnu_get_libc_version)
    except AttributeError:
        return False


@pytest.mark.skipif(not is_glibc(), reason="the C library is not glibc")
@pytest.mark.parametrize(("settings", "kept"), [("set", False), ("default", True)])
def test_large_blocks_that_are_freed_go_back(settings, kept):
    result = subprocess.run([sys.executable, "-c", BLOCKS, settings], capture_output=True, text=True, check=True)
    assert (int(result.stdout) > 32 * MIB) is kept


@requires_fuse
def test_a_mount_with_many_readers_stays_small(tmp_path):
    live = LiveLog(tmp_path / "log")
    for _ in range(4):
        live.write(150_000, size=100, batch=500)
        live.roll()
    with mounted(live.path.parent, tmp_path / "mnt") as tree:
        partition = tree.path / "t" / "0"
        files = [
            partition / "offsets" / f"{first}-{first + 40_000}.{kind}"
            for first in range(0, 550_000, 50_000)
            for kind in ("txt", "jsonl")
        ]
        readers = [subprocess.Popen(["cat", str(file)], stdout=subprocess.DEVNULL) for file in files]
        assert [reader.wait() for reader in readers] == [0] * len(readers)
        status = Path(f"/proc/{tree.pid}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
    assert resident < 200 * MIB

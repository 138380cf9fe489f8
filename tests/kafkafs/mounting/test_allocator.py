"""Memory that is free goes back to the system."""

import subprocess
from pathlib import Path

from tests.support.live_log import LiveLog
from tests.support.mounts import mounted, requires_fuse

MIB = 1 << 20


@requires_fuse
def test_a_mount_with_many_readers_stays_small(tmp_path):
    live = LiveLog(tmp_path / "log")
    for _ in range(4):
        live.write(150_000, size=100, batch=500)
        live.roll()
    with mounted(live.path.parent, tmp_path / "mnt") as tree:
        offsets = tree.path / "t" / "0" / "offsets"
        names = [f"{start}-{start + 40_000}.{ext}" for start in range(0, 550_000, 50_000) for ext in ("txt", "jsonl")]
        readers = [subprocess.Popen(["cat", offsets / name], stdout=subprocess.DEVNULL) for name in names]
        assert [reader.wait() for reader in readers] == [0] * len(readers)
        status = Path(f"/proc/{tree.pid}/status").read_text().splitlines()
    resident = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))
    assert resident < 200 * MIB

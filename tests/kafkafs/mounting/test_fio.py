"""fio's verification: blocks with checksums, written by fio, are the messages; fio reads them from the views and checks
them, at random and from several processes.

fio cannot write here, and a block knows the position that it was written to. So it writes to an ordinary file, and each
message gets the part of that file which has the message's place in `messages.txt`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from storage.format.block import Record
from storage.format.compression import Codec
from tests.support.builders import ROLL, START_MS, Batch, Partition, build_log_dir
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched

pytestmark = [
    requires_fuse,
    pytest.mark.skipif(
        not shutil.which("fio") and os.environ.get("CI", "").lower() not in ("true", "1"), reason="fio is not installed"
    ),
]

MIB = 1 << 20
# A small message, one as large as a piece of a view, and one that is shared by several pieces.
SIZES = (64 << 10, MIB // 2, 6 * MIB)


def fio(file: Path, position: int, size: int, *options: str) -> None:
    command = [
        "fio", "--name=verified", f"--filename={file}", f"--offset={position}", f"--size={size}", "--bs=4k",
        "--verify=crc32c", "--verify_fatal=1", "--allow_file_create=0", *options,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=file.parent.parent)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4], ids=lambda codec: codec.name)
def test_blocks_that_fio_wrote(tmp_path: Path, codec: Codec) -> None:
    places = []
    position = 0
    for size in SIZES:
        places.append((position, size))
        position += size + 1  # the newline
    source = tmp_path / "written" / "blocks"
    source.parent.mkdir()
    source.write_bytes(bytes(position))
    for start, size in places:
        fio(source, start, size, "--rw=write", "--do_verify=0")
    data = source.read_bytes()
    batches: list[object] = []
    for number, (start, size) in enumerate(places):
        batches += [Batch([Record(None, data[start : start + size], (), START_MS)], codec)] + [ROLL] * (number > 0)
    build_log_dir(tmp_path / "logs", {"t": [Partition(batches)]})  # type: ignore[arg-type] - of all kinds of items
    with watched(tmp_path / "logs", tmp_path / "mnt") as mount:
        partition = mount.path / "t" / "0"
        last = len(places) - 1
        for view in ("messages.txt", f"offsets/0-{last}.txt", f"time/{START_MS}--{START_MS + 1}.txt"):
            for start, size in places:
                fio(partition / view, start, size, "--rw=randread", "--readonly", "--numjobs=3", "--norandommap")

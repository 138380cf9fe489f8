"""Views of a mount, and `tail -f` on one, while our own compaction replaces the segments under them."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from storage.compaction.cleaner import compact_partition
from storage.verify.verify import verify_log_dir
from tests.support.compacted_logs import TP, contents, opened, put, updates
from tests.support.mounts import mounted, requires_fuse
from tests.support.waiting import wait_for

pytestmark = [requires_fuse, pytest.mark.timeout(120)]


def test_positions_stay_and_each_message_is_printed_once(tmp_path):
    owned = opened(tmp_path / "log")
    log = owned.log(TP)
    sent = []

    def append(count):
        for _ in range(count):
            sent.append(b"%05d " % len(sent) + b"x" * 60)
            put(log, updates([(b"k%d" % (len(sent) % 7), sent[-1])]))

    append(200)
    log.roll()
    with mounted(tmp_path / "log", tmp_path / "mnt") as mount:
        view = mount.path / "t" / "0" / "messages.txt"
        printed = (tmp_path / "printed").open("wb")
        tail = subprocess.Popen(["tail", "-n", "+1", "-f", str(view)], stdout=printed, stderr=subprocess.PIPE)
        try:
            wait_for("the messages to be printed", lambda: (tmp_path / "printed").read_bytes().splitlines() == sent)
            whole = b"".join(value + b"\n" for value in sent)
            handle = os.open(view, os.O_RDONLY)
            assert os.pread(handle, 1000, 0) == whole[:1000]

            result = compact_partition(owned, TP)
            assert result.counts.records_kept == 7
            # The positions are those of before; the files are read under their later names.
            assert os.fstat(handle).st_size == len(whole)
            assert os.pread(handle, 3000, 5000) == whole[5000:8000]
            append(30)
            wait_for("the messages to be printed", lambda: (tmp_path / "printed").read_bytes().splitlines() == sent)
            for path in result.files:
                owned.disk.unlink(path)
            # What compaction removed is gone with its files; what stayed, and what is new, can be read.
            with pytest.raises(OSError) as gone:  # noqa: PT011 - its number is looked at
                os.pread(handle, 100, 66 * 20)
            assert gone.value.errno == errno.ERANGE
            new = b"".join(value + b"\n" for value in sent[200:])
            assert os.pread(handle, len(new), len(whole)) == new
            for _ in range(2):  # tail looks once more before it prints the second part: it prints nothing again
                append(5)
                wait_for("the messages to be printed", lambda: (tmp_path / "printed").read_bytes().splitlines() == sent)
            os.close(handle)
        finally:
            tail.terminate()
            errors = tail.communicate()[1]
            printed.close()
        assert errors == b""
        # All handles are closed: positions begin anew.
        left = b"".join((value or b"") + b"\n" for _, _, value in contents(owned))
        wait_for("positions to begin anew", lambda: view.read_bytes() == left)
        assert left.count(b"\n") == 7 + 40
    assert owned.close().clean
    assert not verify_log_dir(tmp_path / "log")

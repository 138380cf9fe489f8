"""What every error becomes, and what is logged of it."""

from __future__ import annotations

import errno
import logging

import pytest

from kafkafs.mounting import errnos
from kafkafs.tree.paths import NameTooLong, NoSuchPath
from storage import errors


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch):
    monkeypatch.setattr(errnos, "data_errors", errnos.DataErrors())


CASES = {
    "offset out of range": (errors.OffsetOutOfRange("x"), errno.ERANGE),
    "segment gone": (errors.SegmentGone("x"), errno.ERANGE),
    "corrupt batch": (errors.CorruptBatch("x"), errno.EIO),
    "decompression": (errors.DecompressionFailed("x"), errno.EIO),
    "corrupt index": (errors.CorruptIndex("x"), errno.EIO),
    "corrupt checkpoint": (errors.CorruptCheckpoint("x"), errno.EIO),
    "unknown format": (errors.UnsupportedFormat("x"), errno.EPROTO),
    "too large": (errors.RecordTooLarge("x"), errno.EMSGSIZE),
    "bad line": (errors.InvalidRecord("x"), errno.EINVAL),
    "bad config": (errors.InvalidConfig("x"), errno.EINVAL),
    "bad topic": (errors.InvalidTopic("x"), errno.EINVAL),
    "no topic": (errors.UnknownTopicOrPartition("x"), errno.ENOENT),
    "no path": (NoSuchPath("/x"), errno.ENOENT),
    "a long name": (NameTooLong("/x"), errno.ENAMETOOLONG),
    "broker's": (errors.NotPermitted("x"), errno.EPERM),
    "locked": (errors.LogLocked("x"), errno.EBUSY),
    "read-only": (errors.ReadOnlyLogDir("x"), errno.EROFS),
    "offline": (errors.PartitionOffline("x"), errno.EIO),
    "its own errno": (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
    "a disk too full to open a partition": (
        errors.PartitionUnavailable("x", reason=OSError(errno.ENOSPC, "full")),
        errno.ENOSPC,
    ),
    "no file": (FileNotFoundError(errno.ENOENT, "x"), errno.ENOENT),
    "a name in another encoding": (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), errno.ENOENT),
}


@pytest.mark.parametrize(("error", "number"), CASES.values(), ids=CASES)
def test_errno_of(error, number):
    assert errnos.errno_of(error) == number
    assert errnos.answer(_raising(error)) == -number


def test_every_storage_error_has_an_errno():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StorageError)]
    assert len(kinds) > 10
    assert [kind for kind in kinds if kind is not errors.StorageError and errnos.errno_of(kind("x")) is None] == []


@pytest.mark.parametrize("error", [ZeroDivisionError(), SystemExit(1), KeyboardInterrupt(), OSError("no number"),
                                   OSError(-5, "negative"), MemoryError(), RecursionError()], ids=repr)  # fmt: skip
def test_bugs_are_logged_with_their_traceback(error, caplog):
    assert errnos.answer(_raising(error)) == -errno.EIO
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]


def test_results_pass():
    assert errnos.answer(lambda: None) == 0
    assert errnos.answer(lambda a, b: a + b, 3, 4) == 7


def test_damage_is_one_line(caplog):
    error = errors.CorruptBatch("bad\nCRC", path="/d/t-0/0.log", position=4096, offset=77, expected="0x1", found="0x2")
    errnos.answer(_raising(error))
    assert [record.getMessage() for record in caplog.records] == [
        "read: /d/t-0/0.log: bad CRC at position 4096, offset 77; expected 0x1, found 0x2"
    ]


def test_plain_noes_are_not_logged(caplog):
    for error in (NoSuchPath("/x"), errors.OffsetOutOfRange("x"), errors.ReadOnlyLogDir("x")):
        errnos.answer(_raising(error))
    assert not caplog.records


def test_many_errors_are_counted_but_not_all_logged(caplog):
    seconds = [0.0]
    reported = errnos.DataErrors(now=lambda: seconds[0])
    for number in range(1000):
        seconds[0] = number / 500  # two seconds
        reported.report("read", errors.CorruptBatch(f"damage {number}"))
    assert reported.status() == errnos.DataErrorStatus(1000, 0, "read: damage 999")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2 * errnos.DataErrors.PER_SECOND + 1
    assert lines[errnos.DataErrors.PER_SECOND] == "490 more errors were not logged"
    assert all(record.levelno == logging.ERROR for record in caplog.records)


def _raising(error):
    def read():
        raise error

    return read

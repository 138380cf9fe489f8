"""What every error becomes, and what is logged of it."""

import errno
import logging

import pytest

from kafkafs.mounting import errnos
from kafkafs.tree.paths import NameTooLong, NoSuchPath
from storage import errors


@pytest.fixture(autouse=True)
def nothing_reported_yet(monkeypatch):
    monkeypatch.setattr(errnos, "data_errors", errnos.DataErrors())


CASES = [
    (errors.OffsetOutOfRange("x"), errno.ERANGE),
    (errors.SegmentGone("x"), errno.ERANGE),
    (errors.LogTruncated("x"), errno.ESTALE),
    (errors.CorruptBatch("x"), errno.EIO),
    (errors.DecompressionFailed("x"), errno.EIO),
    (errors.CorruptIndex("x"), errno.EIO),
    (errors.CorruptCheckpoint("x"), errno.EIO),
    (errors.UnsupportedFormat("x"), errno.EPROTO),
    (errors.RecordTooLarge("x"), errno.EMSGSIZE),
    (errors.LineTooLong("x"), errno.EFBIG),
    (errors.InvalidRecord("x"), errno.EINVAL),
    (errors.InvalidConfig("x"), errno.EINVAL),
    (errors.InvalidTopic("x"), errno.EINVAL),
    (errors.UnknownTopicOrPartition("x"), errno.ENOENT),
    (NoSuchPath("/x"), errno.ENOENT),
    (NameTooLong("/x"), errno.ENAMETOOLONG),
    (errors.NotPermitted("x"), errno.EPERM),
    (errors.LogLocked("x"), errno.EBUSY),
    (errors.ReadOnlyLogDir("x"), errno.EROFS),
    (errors.PartitionOffline("x"), errno.EIO),
    (OSError(errno.ENOSPC, "No space left on device"), errno.ENOSPC),
    # A disk too full to open a partition.
    (errors.PartitionUnavailable("x", reason=OSError(errno.ENOSPC, "full")), errno.ENOSPC),
    (FileNotFoundError(errno.ENOENT, "x"), errno.ENOENT),
    # A name in another encoding.
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), errno.ENOENT),
]
BUGS = [ZeroDivisionError(), SystemExit(1), KeyboardInterrupt(), MemoryError(), RecursionError()]
BUGS += [OSError("no number"), OSError(-5, "negative")]


def answer_to(error):
    def read():
        raise error

    return errnos.answer(read)


@pytest.mark.parametrize(("error", "number"), CASES, ids=lambda value: type(value).__name__)
def test_errno_of(error, number):
    assert errnos.errno_of(error) == number
    assert answer_to(error) == -number


def test_every_storage_error_has_an_errno():
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.StorageError)]
    assert len(kinds) > 10
    assert [kind for kind in kinds if kind is not errors.StorageError and errnos.errno_of(kind("x")) is None] == []


@pytest.mark.parametrize("error", BUGS, ids=repr)
def test_bugs_are_logged_with_their_traceback(error, caplog):
    assert answer_to(error) == -errno.EIO
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [error]
    assert errnos.data_errors.status().bugs == 1


def test_results_pass():
    assert errnos.answer(lambda: None) == 0
    assert errnos.answer(lambda a, b: a + b, 3, 4) == 7


def test_damage_is_one_line_and_a_plain_no_none(caplog):
    answer_to(errors.CorruptBatch("bad\nCRC", path="/t-0/0.log", position=4096, offset=77, expected="0x1", found="0x2"))
    for error in (NoSuchPath("/x"), errors.OffsetOutOfRange("x"), errors.ReadOnlyLogDir("x")):
        answer_to(error)
    assert [record.getMessage() for record in caplog.records] == [
        "read: /t-0/0.log: bad CRC at position 4096, offset 77; expected 0x1, found 0x2"
    ]


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

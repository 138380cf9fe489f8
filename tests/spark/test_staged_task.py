"""What tasks stage, called in this process: what a write leaves that fails again and again."""

import uuid

import pytest

from storage.directory.owned_dir import Opening, OwnedDir
from storage.errors import RecordTooLarge
from storage.files import names
from storage.files.commit_ledger import WriteId
from storage.staged_writes.staging import StagedFileWriter
from storage.verify.verify import verify_log_dir
from tests.support.commands import run

pa = pytest.importorskip("pyarrow", reason="no pyarrow: install the extra `spark`")
stage = pytest.importorskip("kafkafs.spark.staged_task").stage

FAILURES = 100
PARTITIONS = 3
ROWS = 400


class Killed(BaseException):
    """What ends a task of which nothing more is heard."""


@pytest.fixture
def path(tmp_path):
    owned = OwnedDir.open(tmp_path / "log", Opening(create=True))
    owned.create_topic("t", PARTITIONS)
    assert owned.close().clean
    return tmp_path / "log"


def batches(*values):
    """All values in each of the partitions."""
    partitions = pa.array([number for number in range(PARTITIONS) for _ in values], pa.int32())
    yield pa.record_batch({"value": pa.array([*values] * PARTITIONS, pa.binary()), "partition": partitions})


def then_too_large():
    yield from batches(*[b"x"] * ROWS)
    yield from batches(b"x" * 2_000_000)


def staged(path):
    found = (names.parse_staged(each.name) for each in path.rglob("*" + names.STAGED_SUFFIX))
    return [name for name in found if name is not None]


def test_a_write_that_fails_a_hundred_times_leaves_one_attempts_files(path, monkeypatch):
    """Of each attempt one task ends well, one fails, and one is killed with its worker, which removes nothing; then the
    driver is killed, which aborts nothing."""
    write = WriteId(str(uuid.uuid4()), 7)
    for _ in range(FAILURES):
        attempt = str(uuid.uuid4())

        def one_task(rows, attempt=attempt):
            stage(path, write, rows, ["value", "partition"], "t", attempt=attempt)

        one_task(batches(*[b"x"] * ROWS))
        with pytest.raises(RecordTooLarge):
            one_task(then_too_large())
        with monkeypatch.context() as killed:
            killed.setattr(StagedFileWriter, "discard", _kill)
            with pytest.raises(Killed):
                one_task(then_too_large())
        left = staged(path)
        assert len({name.unique[:12] for name in left}) == 1, "of one attempt"
        assert len(left) == 2 * PARTITIONS
    sizes = [each.stat().st_size for each in path.rglob("*" + names.STAGED_SUFFIX)]
    done = run("recover", path)
    assert done.exit_code == 0, done.output
    assert f"{len(sizes)} staged files that belong to no write" in done.output
    assert not staged(path)
    assert not verify_log_dir(path)


def _kill(_):
    raise Killed

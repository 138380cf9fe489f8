"""Batches at the end of a log whose offsets do not ascend, but whose CRCs are right: a broker keeps them, so no reader
leaves them out without an error."""

from __future__ import annotations

import pytest

import kafkafs
from storage.errors import CorruptBatch
from tests.support.commands import run
from tests.support.raw_batches import batch, record
from tests.support.reference_views import readable, tree_of

pytest.importorskip("pyarrow")

SHAPES = {
    "the last": [0, 1, 2, 1],
    "the last again": [0, 1, 2, 2],
    "the last two": [0, 1, 2, 0, 1],
    "after a far one": [0, 1, 2, 2**20, 3, 4],
    "after a farther one": [0, 1, 2, 2**40, 3, 4],
    "the last, after a far one": [0, 1, 2, 2**20, 3],
}


@pytest.fixture(params=SHAPES.values(), ids=SHAPES)
def log_dir(request, tmp_path):
    directory = tmp_path / "t-0"
    directory.mkdir()
    data = b"".join(batch([record(value=b"v")], offset, max_timestamp=1000) for offset in request.param)
    (directory / f"{0:020d}.log").write_bytes(data)
    return tmp_path


def test_readers_fail(log_dir):
    for command in ("cat", "count", "digest"):
        result = run(command, log_dir, "t/0")
        assert (command, result.exit_code) == (command, 4)
        assert "offsets do not ascend" in result.stderr
    scan = kafkafs.open(log_dir)["t"].scan()
    for read in (scan.to_arrow, scan.count):
        with pytest.raises(CorruptBatch, match="offsets do not ascend"):
            read()
    stretches, errors = readable(tree_of(log_dir).lookup("/t/0/messages.txt"))
    assert b"".join(stretches).startswith(b"v\nv\nv\n")
    assert errors


def test_a_mirror_fails(log_dir, tmp_path_factory):
    result = run("mirror", log_dir, tmp_path_factory.mktemp("copy"))
    assert result.exit_code == 4
    assert "offsets do not ascend" in result.stderr

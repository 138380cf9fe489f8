"""`kafkafs fetch`: the bytes on stdout, and the messages on stderr."""

from __future__ import annotations

import pytest

from tests.storage.log.test_fetch import parse, parse_multi
from tests.support.builders import Batch, Partition, build_log_dir, many
from tests.support.commands import process, run


@pytest.fixture
def logdir(tmp_path):
    large = Partition([Batch(many(1, 5000)), Batch(many(3))])
    ranged = Partition([Batch(many(9))], start_offset=10)
    return build_log_dir(tmp_path / "logs", {"t": [large, ranged], "u": [[]]}).path


def fetched(*args, code=0):
    child = process("fetch", *args)
    out, said = child.communicate(timeout=120)
    assert child.returncode == code, said
    return out, said.decode()


def test_one_partition(logdir):
    out, said = fetched(logdir, "t/1", "--offset", 12, "--max-bytes", 1000)
    result, rest = parse(out)
    assert (result.error, [message.offset for message in result.messages], rest, said) == (0, [18], b"", "")
    for word, size in (("earliest", 1), ("latest", 0)):
        result, _ = parse(fetched(logdir, "t/1", "--offset", word, "--max-bytes", 1000)[0])
        assert len(result.messages) == size


def test_sizes(logdir):
    result, _ = parse(fetched(logdir, "t/0", "--offset", 0, "--max-bytes", 100)[0])
    assert (result.messages, len(result.partial)) == ([], 100)
    result, _ = parse(fetched(logdir, "t/0", "--offset", 0, "--max-bytes", 100, "--largest-bytes", 9999)[0])
    assert [message.offset for message in result.messages] == [0, 3]
    out, said = fetched(logdir, "t/0", "--offset", 0, "--max-bytes", 100, "--largest-bytes", 999, code=4)
    assert parse(out)[0].error == 10
    assert "at most 999 bytes" in said


def test_several_partitions(logdir):
    out, said = fetched(logdir, "t", "u/0", "t/0", "--offset", 10, "--max-bytes", 1000, code=4)
    error, results = parse_multi(out)
    assert error == 0
    assert [result.error for result in results] == [1, 0, 1]
    assert said.count("out of the range") == 2
    out, _ = fetched(logdir, "t", "--offset", 10, "--max-bytes", 1000, "--reset", "latest")
    assert [len(result.messages) for result in parse_multi(out)[1]] == [0, 1]


def test_out_of_range(logdir):
    out, said = fetched(logdir, "t/1", "--offset", 3, "--max-bytes", 1000, code=4)
    assert out == b"\0\0\0\2\0\1"
    assert "expected 10 to 19" in said
    result, _ = parse(fetched(logdir, "t/1", "--offset", 3, "--max-bytes", 1000, "--reset", "earliest")[0])
    assert result.messages[0].offset == 18


@pytest.mark.parametrize(
    "args",
    [
        ("t/0", "--offset", "0"),
        ("t/0", "--max-bytes", "9"),
        ("t/0", "--offset", "x", "--max-bytes", "9"),
        ("t/0", "--offset", str(2**63), "--max-bytes", "9"),
        ("t/0", "--offset", "0", "--max-bytes", "0"),
        ("--offset", "0", "--max-bytes", "9"),
    ],
)
def test_wrong_uses(logdir, args):
    assert run("fetch", logdir, *args).exit_code == 2

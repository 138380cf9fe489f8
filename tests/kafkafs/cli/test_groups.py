"""`kafkafs groups`: committed offsets, lag, and resetting groups."""

from __future__ import annotations

import json
import shutil

import pytest

from storage.append.appender import Appender
from storage.coordinators.group_commits import GroupCommitter
from storage.coordinators.groups import GroupOffsets
from storage.files import names
from storage.format.block import Record
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.verify import verify_log_dir
from tests.storage.coordinators.test_group_offsets import plain
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip_middle
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.owned_dirs import NOW_MS, opened

HOUR_MS = 3_600_000


@pytest.fixture
def logdir(tmp_path):
    """A directory of kafkafs's own: `orders` with ten and no messages, an hour apart."""
    path = tmp_path / "logs"
    owned = opened(path)
    owned.create_topic("orders", 2)
    log = owned.log(TopicPartition("orders", 0))
    for n in range(10):
        records = [Record(None, b"%d" % n, (), NOW_MS + (n - 10) * HOUR_MS)]
        assert Appender(log, clock=owned.clock).append(records).error is None
    log.increment_log_start_offset(2)
    # one partition instead of fifty, so that the tests are quick
    GroupCommitter(owned, GroupOffsets(owned.log_dir), partitions=1).commit("other", {TopicPartition("x", 0): 1})
    assert owned.close().clean
    return path


def committed(logdir):
    assert not verify_log_dir(logdir)
    assert (logdir / names.CLEAN_SHUTDOWN).exists()
    groups = plain(GroupOffsets(LogDir.open_read_only(logdir)).groups())
    assert groups.pop("other") == {"x": {0: 1}}
    return groups


def as_json(*args):
    return json.loads(output_of(*args, "--json"))


@requires_fixtures
def test_the_fixtures_groups():
    logdir = FIXTURES / "groups" / "log"
    lines = output_of("groups", logdir).decode().splitlines()
    assert lines[0].split() == ["GROUP", "TYPE", "STATE", "MEMBERS", "TOPICS", "PARTITIONS", "LAG", "LAST", "COMMIT"]
    assert [line.split()[:-1] for line in lines[1:]] == [
        ["billing", "classic", "Empty", "0", "2", "5"],
        ["größe-групп", "classic", "Stable", "1", "2", "5"],
        ["shipping", "classic", "Empty", "0", "1", "1"],
        ["simple-committer", "classic", "Empty", "0", "2", "2"],
    ]
    found = as_json("groups", logdir)["groups"]
    assert [group["lag"] for group in found] == [None] * 4  # the topics are not here
    assert found[3]["members"] == []
    assert found[1]["members"][0]["client_host"] == "/127.0.0.1"
    billing = as_json("groups", logdir, "billing")
    expected = json.loads((FIXTURES / "groups" / "golden" / "expected-group-offsets.json").read_text())
    fields = ("topic", "partition", "offset", "leader_epoch", "metadata")
    wanted = [[row[name] for name in fields] for row in expected["billing"]]
    assert [[row[name] for name in fields] for row in billing["offsets"]] == wanted
    assert output_of("groups", logdir, "billing").decode().splitlines()[2].split()[:3] == ["orders", "1", "50"]


def test_lag(logdir):
    output_of("groups", logdir, "g", "--reset-to", 7, "--topic", "orders/0")
    group = as_json("groups", logdir, "g")
    (row,) = group["offsets"]
    assert (row["offset"], row["log_end_offset"], row["lag"]) == (7, 10, 3)
    assert group["lag"] == 3
    assert as_json("groups", logdir)["groups"][0]["lag"] == 3


@pytest.mark.parametrize(("offset", "lag"), [(0, 1), (7, 1), (9, 1), (10, 0), (12, 0)])
def test_messages_that_are_gone_are_no_lag(logdir, offset, lag):
    tp = TopicPartition("orders", 0)
    owned = opened(logdir)
    owned.log(tp).increment_log_start_offset(9)
    GroupCommitter(owned, GroupOffsets(owned.log_dir), partitions=1).commit("g", {tp: offset})
    assert owned.close().clean
    group = as_json("groups", logdir, "g")
    (row,) = group["offsets"]
    assert (row["offset"], row["log_end_offset"], row["lag"], group["lag"]) == (offset, 10, lag, lag)


@pytest.mark.parametrize(
    ("target", "offset"),
    [
        ("earliest", 2),
        ("latest", 10),
        ("5", 5),
        ("10", 10),
        ("0", 2),
        ("11", 10),
        ("2025-11-21T00--", None),
        ("2025-11-20T23:40", 5),
        ("20251120T234001Z", 6),
        ("2025-11-21T00:40:00.000+01:00", 5),
        ("1763682001000", 6),
        ("01763682001000", 10),
        ("0000000000005", 2),
        ("00000000000005", 5),
        ("2099", 10),
        ("2099-01", 10),
        ("2000-01", 2),
        ("last-100000d", 2),
        ("last-1s", 10),
    ],
)
def test_reset(logdir, target, offset):
    result = run("groups", logdir, "g", "--reset-to", target, "--topic", "orders/0")
    if offset is None:
        assert result.exit_code == 2
        assert committed(logdir) == {}
        return
    assert result.exit_code == 0, result.output
    assert committed(logdir) == {"g": {"orders": {0: offset}}}


def test_reset_of_several_partitions(logdir):
    first = as_json("groups", logdir, "g", "--reset-to", "latest", "--topic", "orders")
    assert first["offsets"] == [
        {"topic": "orders", "partition": 0, "before": None, "offset": 10},
        {"topic": "orders", "partition": 1, "before": None, "offset": 0},
    ]
    lines = output_of("groups", logdir, "g", "--reset-to", 4, "--topic", "orders/0", "--topic", "ord*/0").decode()
    assert lines.splitlines()[1].split() == ["orders", "0", "10", "4"]
    assert committed(logdir) == {"g": {"orders": {0: 4, 1: 0}}}


def test_the_first_reset_makes_the_topic(logdir):
    for directory in logdir.glob("__consumer_offsets-*"):
        shutil.rmtree(directory)
    output_of("groups", logdir, "other", "--reset-to", 7, "--topic", "orders/0")
    log_dir = LogDir.open_read_only(logdir)
    assert log_dir.partitions("__consumer_offsets") == list(range(50))
    assert plain(GroupOffsets(log_dir).groups()) == {"other": {"orders": {0: 7}}}
    assert not verify_log_dir(logdir)


def test_wrong_uses(logdir, tmp_path):
    for args in (
        ("--reset-to", "latest"),
        ("g", "--reset-to", "latest"),
        ("g", "--topic", "orders"),
        ("g", "--reset-to", "nix", "--topic", "orders"),
        ("g", "--reset-to", str(2**63), "--topic", "orders"),
    ):
        assert run("groups", logdir, *args).exit_code == 2
    for args in (("nobody",), ("g", "--reset-to", "latest", "--topic", "nix")):
        result = run("groups", logdir, *args)
        assert result.exit_code == 4
        assert "here" in result.stderr
    owned = opened(logdir)
    try:
        child = process("groups", logdir, "g", "--reset-to", "latest", "--topic", "orders")
        assert child.wait(timeout=120) == 3
        child.communicate()
    finally:
        assert owned.close().clean
    assert committed(logdir) == {}
    build_log_dir(tmp_path / "broker", {"t": [[b"one"]]})
    result = run("groups", tmp_path / "broker", "g", "--reset-to", "latest", "--topic", "t")
    assert result.exit_code == 4
    assert "only the broker" in result.stderr


@requires_fixtures
def test_records_that_do_not_parse_are_told(tmp_path):
    copy_log_dir(FIXTURES / "groups" / "log", tmp_path / "log")
    for path in (tmp_path / "log").glob("__consumer_offsets-0/*.log"):
        flip_middle(path)
    result = run("groups", tmp_path / "log")
    assert result.exit_code == 4
    assert "checksum" in result.stderr
    assert "simple-committer" in result.stdout

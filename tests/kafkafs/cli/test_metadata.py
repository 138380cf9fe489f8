"""`kafkafs metadata`: the state at any offset and time, and what has changed, of a broker's metadata log."""

from __future__ import annotations

import json

import pytest

from storage.files.cluster_metadata import ClusterMetadataReader
from storage.types import MAX_OFFSET
from tests.support.builders import build_log_dir
from tests.support.commands import output_of, run
from tests.support.damaged_bytes import flip
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.own_topics import INTERNAL, golden

pytestmark = requires_fixtures
LOGS = FIXTURES / "internal" / "log"
QUORUM = "__cluster_metadata-0"


def state(*args):
    return json.loads(output_of("metadata", *args, "--json"))


def changes(*args):
    return [json.loads(line) for line in output_of("metadata", *args, "--json").splitlines()]


def offset_of(kind, **data):
    """Of the first golden record of this type and with these fields."""
    return next(
        line["offset"]
        for line in golden("internal", QUORUM)
        if "value" in line
        and line["value"]["type"] == kind
        and data.items() <= {name: str(value) for name, value in line["value"]["data"].items()}.items()
    )


def test_the_state_at_the_end():
    found = state(LOGS)
    assert found["end_offset"] == 275
    assert [one["broker_id"] for one in found["brokers"]] == [1]
    topics = {one["topic"]: one for one in found["topics"]}
    assert topics["orders"]["topic_id"] == "OBQgUm0GQCSIgvwAwMMzrQ"
    assert [one["partition"] for one in topics["payments"]["partitions"]] == [0, 1, 2, 3]
    assert topics["orders"]["configs"] == {"retention.ms": "4200000"}
    assert found["features"]["metadata.version"] == 30
    assert {one["principal"] for one in found["acls"]} >= {"User:CN=x,O=y"}
    assert [one["key"] for one in found["quotas"]].count("request_percentage") == 1
    assert found["scram_users"] == [{"name": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 8192}]
    text = output_of("metadata", LOGS).decode()
    for part in ("OBQgUm0GQCSIgvwAwMMzrQ", "User:CN=x,O=y", "SCRAM-SHA-512", "request_percentage", "4200000"):
        assert part in text


def test_what_is_secret_needs_an_option(tmp_path):
    secrets = [
        line["value"]["data"][name]
        for line in golden("internal", QUORUM)
        if "value" in line and line["value"]["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
        for name in ("salt", "storedKey", "serverKey")
    ]
    assert len(secrets) == 6
    printed = [output_of("metadata", LOGS, *more).decode() for more in ([], ["--json"])]
    printed += [output_of("metadata", LOGS, "--diff", "2026-11-23", *more).decode() for more in ([], ["--json"])]
    assert not [one for one in secrets for text in printed if one in text]
    shown = output_of("metadata", LOGS, "--json", "--secrets").decode()
    assert [secret in shown for secret in secrets] == [True] * 3 + [False] * 3  # alice was removed


def test_a_snapshot_may_have_more_records_than_the_log_had(tmp_path):
    """Offsets in a snapshot's file are its own: they are not compared with an offset of the log."""
    directory = copy_log_dir(LOGS, tmp_path / "copy") / QUORUM
    newest = max(directory.glob("*.checkpoint"))
    end = int(newest.name[:20])
    expected = state(LOGS, "--offset", end)
    content = newest.read_bytes()
    for path in directory.glob("0*"):
        path.unlink()
    (directory / f"{10:020d}{newest.name[20:]}").write_bytes(content)
    (directory / f"{10:020d}.log").touch()
    for more in ([], ["--offset", 10]):
        assert state(directory.parent, *more) == {**expected, "end_offset": 10}


@pytest.mark.parametrize("fixture", INTERNAL)
def test_the_log_and_each_snapshot_describe_the_same(fixture, tmp_path):
    """A snapshot has what the records below its offset say: with it and without it the state is the same."""
    logs = FIXTURES / fixture / "log"
    ends = [int(path.name[:20]) for path in (logs / QUORUM).glob("*.checkpoint") if int(path.name[:20])]
    assert ends
    for end in ends:
        alone = copy_log_dir(logs, tmp_path / str(end))
        for path in (alone / QUORUM).glob("*.checkpoint"):
            if int(path.name[:20]):
                path.unlink()
        found = []
        for directory in (logs, alone):
            replay, reached, problem = ClusterMetadataReader(directory).state_before(end)
            assert (reached, problem) == (end, None)
            configs = {resource: values for resource, values in replay.configs.items() if values}
            # A snapshot has a node's features in another order, and not who got the latest producer ids.
            others = {
                key: {**data, "features": sorted(data["features"], key=str)} if "features" in data else dict(data)
                for key, data in replay.others.items()
            }
            del others["producer ids", ()]["brokerId"], others["producer ids", ()]["brokerEpoch"]
            found.append((replay.topics, replay.partitions, configs, others))
        assert found[0] == found[1]


def test_what_was_there_at_an_offset():
    made = offset_of("REGISTER_BROKER_RECORD", brokerId="99")
    gone = offset_of("UNREGISTER_BROKER_RECORD", brokerId="99")
    for offset, there in ((made, False), (made + 1, True), (gone, True), (gone + 1, False)):
        found = state(LOGS, "--offset", offset)
        assert (99 in [one["broker_id"] for one in found["brokers"]], found["end_offset"]) == (there, offset)


def test_what_has_changed_and_when():
    lines = changes(LOGS, "--diff", "2026-11-23T00:00")
    assert [line["offset"] for line in lines] == sorted(line["offset"] for line in lines)
    broker = [line for line in lines if (line["kind"], line["name"]) == ("broker", "99")]
    assert (broker[0]["before"], broker[-1]["after"]) == (None, None)
    assert broker[0]["offset"] == offset_of("REGISTER_BROKER_RECORD", brokerId="99")
    middle = broker[-1]["time"]
    earlier, later = changes(LOGS, "--diff", "2026-11-23T00:00", middle), changes(LOGS, "--diff", middle)
    assert earlier + later == lines
    assert changes(LOGS, "--diff", "2026-11-23T00:00", "--time", middle) == earlier
    at = state(LOGS, "--time", middle)
    assert at["end_offset"] == later[0]["offset"] or at["end_offset"] > broker[-1]["offset"]
    text = output_of("metadata", LOGS, "--diff", "2026-11-23T00:00").decode()
    assert len(text.splitlines()) == len(lines)
    assert "broker 99 removed" in text


def test_what_no_longer_can_be_shown(tmp_path):
    """The log begins within, and the snapshots before are gone."""
    logs = copy_log_dir(LOGS, tmp_path / "log")
    newest = max((logs / QUORUM).glob("*.checkpoint"))
    for path in (logs / QUORUM).iterdir():
        if path != newest and path.suffix in (".log", ".index", ".timeindex", ".snapshot", ".checkpoint"):
            path.unlink()
    end = int(newest.name[:20])
    (logs / QUORUM / f"{end:020d}.log").touch()
    assert state(logs)["end_offset"] == end
    result = run("metadata", logs, "--offset", 50)
    assert result.exit_code == 4
    assert f"metadata log has a gap; expected offset 0, found a segment from {end} on" in result.stderr


def test_wrong_uses(tmp_path):
    for args in (["--offset", 1, "--time", "2026"], ["--diff", "2026", "2027", "--offset", 3], ["2026-01-01"]):
        assert run("metadata", LOGS, *args).exit_code == 2, args
    build_log_dir(tmp_path / "log", {"t": [[b"v"]]})
    result = run("metadata", tmp_path / "log")
    assert (result.exit_code, "no metadata log" in result.stderr) == (4, True)


def test_damage_ends_what_is_shown(tmp_path):
    logs = copy_log_dir(LOGS, tmp_path / "log")
    (log,) = (logs / QUORUM).glob("*.log")
    flip(log, -5)
    result = run("metadata", logs, "--json")
    assert result.exit_code == 4
    assert json.loads(result.stdout_bytes)["end_offset"] < 275 < MAX_OFFSET

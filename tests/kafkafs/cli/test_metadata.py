"""`kafkafs metadata`: secrets and snapshots. See also transcripts/metadata.txt."""

import json

import pytest

from tests.support.commands import output_of
from tests.support.fixtures import FIXTURES, copy_log_dir, requires_fixtures
from tests.support.own_topics import INTERNAL, golden

pytestmark = requires_fixtures
LOGS = FIXTURES / "internal" / "log"
QUORUM = "__cluster_metadata-0"


def state(*args):
    return json.loads(output_of("metadata", *args, "--json"))


def test_what_is_secret_needs_an_option():
    credentials = [
        [line["value"]["data"][name] for name in ("salt", "storedKey", "serverKey")]
        for line in golden("internal", QUORUM)
        if "value" in line and line["value"]["type"] == "USER_SCRAM_CREDENTIAL_RECORD"
    ]
    for arguments in ([], ["--json"]):
        printed = output_of("metadata", LOGS, *arguments).decode()
        assert [secret for secrets in credentials for secret in secrets if secret in printed] == []
    shown = output_of("metadata", LOGS, "--json", "--secrets").decode()
    bob, alice = credentials
    assert [secret in shown for secret in bob + alice] == [True] * 3 + [False] * 3  # alice was removed


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


def comparable(shown):
    """A state, where a snapshot has the features of nodes in another order."""
    for node in shown["brokers"] + shown["controllers"]:
        node["features"].sort(key=str)
    return shown


@pytest.mark.parametrize("fixture", INTERNAL)
def test_the_log_and_each_snapshot_describe_the_same(fixture, tmp_path):
    """A snapshot has what the records below its offset say: with it and without it the state is the same."""
    logs = FIXTURES / fixture / "log"
    alone = copy_log_dir(logs, tmp_path / "log")
    snapshots = [path for path in (alone / QUORUM).glob("*.checkpoint") if int(path.name[:20])]
    assert snapshots
    for snapshot in snapshots:
        snapshot.unlink()
    for snapshot in snapshots:
        arguments = ("--offset", int(snapshot.name[:20]), "--secrets")
        assert comparable(state(logs, *arguments)) == comparable(state(alone, *arguments))


def test_the_state_of_a_time_has_the_records_up_to_it():
    lines = output_of("cat", LOGS, "__cluster_metadata", "--format", "%T %o\\n").split(b"\n")[:-1]
    for line in lines[::20]:
        time_ms = int(line.split()[0])
        later = [int(other.split()[1]) for other in lines if int(other.split()[0]) > time_ms]
        shown = state(LOGS, "--at", time_ms)
        assert not later or shown == state(LOGS, "--offset", min(later))

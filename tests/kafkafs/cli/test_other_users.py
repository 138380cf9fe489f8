"""Log directories of other users: what root makes in one belongs to its owner, and what the user may not read is an
error that says whose it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from storage.files import names
from storage.types import TopicPartition
from tests.support.builders import ROLL, Batch, Partition, build_log_dir, many, metadata_records
from tests.support.commands import output_of, process, run
from tests.support.damaged_bytes import flip
from tests.support.every_command import sample_log_dir
from tests.support.mounts import mounted, requires_fuse
from tests.support.other_users import errno_as
from tests.support.owned_dirs import append, opened

OWNER = 4001
TP = TopicPartition("t", 0)
requires_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes other users")


def check_all_is_the_owners(path):
    made = [path, *path.rglob("*")]
    assert [file for file in made if (file.stat().st_uid, file.stat().st_gid) != (OWNER, OWNER)] == []
    assert [file for file in made if file.stat().st_mode & 0o077] == []


@pytest.fixture
def log_dir(tmp_path):
    """A crashed directory of OWNER's alone, without indexes and checkpoints."""
    for above in (tmp_path, *tmp_path.parents[:-1]):
        if not above.stat().st_mode & 0o001:
            above.chmod(0o711)
    messages = [Batch(many(30, keys=3)), ROLL, Batch(many(5))]
    compacted = Partition(messages, extra={"topic.properties": b"cleanup.policy=compact\n"})
    topics = {"t": [Partition(messages), [b"x"]], "u": [[b"y"]], "c": [compacted]}
    path = build_log_dir(tmp_path / "logs", topics, broker=False).path
    for name in (names.CLEAN_SHUTDOWN, names.RECOVERY_POINT_CHECKPOINT):
        (path / name).unlink(missing_ok=True)
    for index in path.rglob("*.*index"):
        index.unlink()
    for place in (path, *path.rglob("*")):
        os.chown(place, OWNER, OWNER)
        place.chmod(0o700 if place.is_dir() else 0o600)
    return path


COMMANDS = [
    "recover LOGS",
    "append LOGS t/0",
    "reindex LOGS t",
    "retain LOGS",
    "compact LOGS c",
    "topics create LOGS new --partitions 2",
    "topics alter LOGS t --config segment.bytes=5000",
    "topics delete LOGS u",
    "mirror SOURCE LOGS",
]


@requires_root
@pytest.mark.parametrize("command", COMMANDS)
def test_the_owner_goes_on(log_dir, command):
    places = {"LOGS": log_dir, "SOURCE": log_dir.parent / "source"}
    build_log_dir(places["SOURCE"], {"copied": [[b"a", b"b"]]}, broker=False)
    with process(*(places.get(word, word) for word in command.split()), stdin=subprocess.PIPE) as running:
        _, told = running.communicate(b"more\n", timeout=120)
    assert running.returncode == 0, told
    check_all_is_the_owners(log_dir)
    (log_dir / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)

    def go_on(path):
        output_of("recover", path)
        owned = opened(path)
        append(owned.log(TP), [b"again"])
        owned.close()

    # Once here: the other user may not be able to read the modules of Python that this imports.
    go_on(Path(shutil.copytree(log_dir, log_dir.parent / "copy")))
    assert errno_as(OWNER, OWNER, lambda: go_on(log_dir)) == 0
    assert output_of("cat", log_dir, "t/0").endswith(b"\nagain\n")


@requires_root
@pytest.mark.parametrize(
    "command", ["salvage LOGS orders --to NEW", "revive LOGS --to NEW", "mirror LOGS NEW", "schemas LOGS --to NEW"]
)
def test_a_destination_belongs_to_whom_it_is_below(tmp_path, command):
    homes = tmp_path / "homes"
    homes.mkdir(mode=0o700)
    os.chown(homes, OWNER, OWNER)
    places = {"LOGS": sample_log_dir(tmp_path / "logs", clean=True), "NEW": homes / "new"}
    result = run(*(places.get(word, word) for word in command.split()))
    assert result.exit_code == 0, result.output
    assert list(places["NEW"].iterdir())
    check_all_is_the_owners(places["NEW"])


@requires_root
@requires_fuse
def test_a_writable_mount_of_root(log_dir, tmp_path):
    with mounted(log_dir, tmp_path / "mnt", write=True) as tree:
        (tree.path / "t" / "0" / "@append").write_bytes(b"more\n")
        (tree.path / "made").mkdir()
        (tree.path / "made" / "0" / "@append").write_bytes(b"first\n")
        (tree.path / "made" / "@config").write_bytes(b"retention.ms=-1\n")
    output_of("groups", log_dir, "g", "--reset-to", "earliest", "--topic", "t")
    assert len(list(log_dir.glob("__consumer_offsets-*"))) == 50
    check_all_is_the_owners(log_dir)


# Partitions that the user may not read: they are neither empty nor damaged.

ADVICE = "Run as the user that owns it"
# Root, which may read everything, without that privilege.
UNPRIVILEGED = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
requires_setpriv = pytest.mark.skipif(
    bool(UNPRIVILEGED) and shutil.which("setpriv") is None, reason="root may read everything, and there is no setpriv"
)


def run_unprivileged(*words):
    command = [*UNPRIVILEGED, sys.executable, "-m", "kafkafs", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(params=["directory", "first segment", "last segment"])
def unreadable(request, tmp_path):
    """A log directory with a part that nobody may read."""
    items = [Batch(many(5)), ROLL, Batch(many(4))]
    logs = build_log_dir(tmp_path / "log", {"orders": [Partition(items), [b"a"]]}).path
    first, last = sorted((logs / "orders-0").glob("*.log"))
    place = {"directory": logs / "orders-0", "first segment": first, "last segment": last}[request.param]
    mode = place.stat().st_mode
    place.chmod(0)
    yield logs
    place.chmod(mode)


@requires_setpriv
@pytest.mark.parametrize(
    "command",
    [
        "count LOGS --json", "topics describe LOGS", "verify LOGS", "doctor LOGS", "cat LOGS orders",
        "mirror LOGS COPY", "revive LOGS --to NEW",
    ],
)  # fmt: skip
def test_what_may_not_be_read_is_an_error(unreadable, tmp_path, command):
    places = {"LOGS": unreadable, "COPY": tmp_path / "copy", "NEW": tmp_path / "new"}
    result = run_unprivileged(*(places.get(word, word) for word in command.split()))
    assert result.returncode == 4, result
    assert "Permission denied" in result.stderr
    assert ADVICE in result.stderr
    assert "Errno" not in result.stderr + result.stdout
    assert "recover" not in result.stderr + result.stdout
    assert not places["NEW"].exists()


@requires_setpriv
@pytest.mark.parametrize("command", ["mirror", "revive"])
def test_logs_of_an_unknown_cluster_are_not_copied(tmp_path, command):
    """A copy has the logs of one cluster, which meta.properties names."""
    logs = build_log_dir(tmp_path / "log", {"t": [[b"a"]], "__cluster_metadata": [metadata_records("t", 1, [1])]}).path
    broker, target = logs / "meta.properties", tmp_path / "new"
    broker.chmod(0)
    try:
        result = run_unprivileged(command, logs, *(("--to", target) if command == "revive" else (target,)))
    finally:
        broker.chmod(0o644)
    assert result.returncode == 4
    assert f"{broker}: Permission denied" in result.stderr
    assert ADVICE in result.stderr
    assert not list(target.rglob("*.log"))


DENIED = ["orders-0", "orders-0/*0.log", "orders-0/*5.log", "orders-0/leader-epoch-checkpoint", "replication-*"]


@requires_setpriv
@pytest.mark.parametrize("pattern", DENIED)
def test_what_may_be_read_is_checked_and_copied(tmp_path, pattern):
    items = [Batch(many(5)), ROLL, Batch(many(4))]
    logs = build_log_dir(tmp_path / "log", {"orders": [items], "others": [[b"a", b"b"], [b"c"]]}).path
    damaged = logs / "others-0" / "00000000000000000000.log"
    flip(damaged, 66)
    [place] = logs.glob(pattern)
    owner = OWNER if os.geteuid() == 0 else -1
    os.chown(place, owner, owner)
    mode = place.stat().st_mode
    place.chmod(0)
    try:
        verified, examined = (run_unprivileged(command, logs, "--json") for command in ("verify", "doctor"))
        reported = run_unprivileged("report", logs, "-o", tmp_path / "page.html")
        copied = run_unprivileged("mirror", logs, tmp_path / "copy", "--json")
    finally:
        place.chmod(mode)
        os.chown(place, os.geteuid(), os.getegid())
    of_logs = pattern.startswith("orders")  # mirror does not need that checkpoint
    for result in (verified, examined, reported, *([copied] if of_logs else [])):
        assert result.returncode == 4, result
        assert str(place) in result.stderr
        assert "Permission denied" in result.stderr
        assert (f"{ADVICE}: sudo -u '#{OWNER}'" if os.geteuid() == 0 else ADVICE) in result.stderr
    found = {(finding["name"], finding["file"]) for finding in json.loads(verified.stdout)["findings"]}
    assert found == {("not-permitted", str(place)), ("batch-crc", str(damaged))}
    verdict = json.loads(examined.stdout)
    assert (verdict["starts"], verdict["loses_nothing"]) == (None, False)
    predicted = {(finding["name"], finding["file"]) for finding in verdict["findings"]}
    assert {("not-permitted", str(place)), ("batch-crc", str(damaged))} <= predicted
    page = (tmp_path / "page.html").read_text()
    assert "Nobody knows what the broker does" in page
    assert str(damaged) in page
    if of_logs:
        parts = json.loads(copied.stdout)["partitions"]
        bytes_of = {(part["topic"], part["partition"]): part["bytes"] for part in parts}
        assert bytes_of["others", 1] > 0 == bytes_of["orders", 0]


@requires_setpriv
@pytest.mark.parametrize(
    "name",
    ["meta.properties", "bootstrap.checkpoint", "__cluster_metadata-0/*.log", "__cluster_metadata-0/*.checkpoint"],
)
def test_doctor_without_the_metadata(tmp_path, name):
    """Nobody knows then which partitions the broker serves: none of them is said to be a stray, or to be missing. A
    broker writes snapshots for its own user alone."""
    metadata = metadata_records("t", 3, [1])
    logs = build_log_dir(tmp_path / "log", {"t": [[b"a"], [b"b"]], "__cluster_metadata": [metadata]}).path
    (logs / "__cluster_metadata-0" / f"{1:020}-{1:010}.checkpoint").touch()
    if name == "bootstrap.checkpoint":
        (logs / name).touch()
    [place] = logs.glob(name)
    place.chmod(0)
    try:
        result = run_unprivileged("doctor", logs, "--json", "--quick")
    finally:
        place.chmod(0o600)
    verdict = json.loads(result.stdout)
    found = {(finding["name"], finding["file"]) for finding in verdict["findings"]}
    assert ("not-permitted", str(place)) in found
    known = {"partition-absent"} if name == "bootstrap.checkpoint" else set()  # the metadata log can be read then
    assert {name for name, _ in found} <= {"not-permitted", "metadata-snapshot-damaged", *known}
    assert result.returncode == 4


@requires_setpriv
def test_the_list_of_topics(tmp_path):
    logs = build_log_dir(tmp_path / "log", {"orders": [[b"a"]]}, extra={"lost+found/": b""}).path
    (logs / "lost+found").chmod(0)  # hidden, and always root's: no reason to fail
    assert run_unprivileged("topics", "list", logs).returncode == 0
    (logs / "orders-0").chmod(0)
    try:
        text, document = run_unprivileged("topics", "list", logs), run_unprivileged("topics", "list", logs, "--json")
    finally:
        (logs / "orders-0").chmod(0o755)
        (logs / "lost+found").chmod(0o700)
    assert (text.returncode, document.returncode) == (4, 4)
    assert ADVICE in text.stderr
    assert [(one["topic"], one["bytes"]) for one in json.loads(document.stdout)["topics"]] == [("orders", None)]

"""`kafkafs replay`: what arrives at a cluster, and how a run that was killed is continued. The cluster is in memory; a
real one is in tests/interop/test_replaying.py."""

import fcntl
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from storage.coordinators.offset_records import CommittedOffset, OffsetKey, encode_commit, encode_offset_key
from storage.format.block import Record
from tests.kafkafs.replay.fake_cluster import FakeCluster, Killed
from tests.support.builders import ROLL, Batch, Partition, abort, build_log_dir, commit
from tests.support.commands import run
from tests.support.schema_logs import STRING, framed, schema_record

RECORDS = [
    Record(b"k", b"v", (), 1_763_683_200_000),
    Record(None, None, (), 5),
    Record(b"", b"", ((b"h", b"\xff\0"), ("ü".encode(), None), (b"h", b"")), 7),
    Record(b"\0\xff", bytes(range(256)), (), 6),
]


def many(count, first=0, headers=()):
    return [Record(b"%d" % (n % 3), b"value %d" % n, headers, 10**12 + n) for n in range(first, first + count)]


@pytest.fixture
def cluster(monkeypatch):
    return FakeCluster().install(monkeypatch)


def replay(log_dir, *arguments):
    return run("replay", log_dir, *arguments, "--to", "broker:9092")


def contents(log):
    return [message.content for message in log.messages]


def expected(records):
    return [(r.timestamp, r.key, r.value, tuple((name.decode(), value) for name, value in r.headers)) for r in records]


def values(log):
    return [message.raw_value for message in log.messages]


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_everything_of_a_message_is_kept(cluster, tmp_path):
    other = many(10, headers=((b"h", b"x"),))
    log_dir = build_log_dir(
        tmp_path / "log", {"t": [[Batch(RECORDS)], [Batch(other[:4]), ROLL, Batch(other[4:])]]}
    ).path
    cluster.topic("t", 2)
    result = replay(log_dir, "t")
    assert result.exit_code == 0, result.output
    assert contents(cluster.logs["t", 0]) == expected(RECORDS)
    assert contents(cluster.logs["t", 1]) == expected(other)
    assert result.stdout.splitlines()[1:] == [
        "t              0  t          4          0            4",
        "t              1  t         10          0           10",
    ]


@pytest.mark.parametrize(
    ("refused", "exit_code"),
    [
        (["LEADER_NOT_AVAILABLE", "NOT_LEADER_FOR_PARTITION", "_UNKNOWN_PARTITION"], 0),
        (["TOPIC_AUTHORIZATION_FAILED"], 4),
    ],
)
def test_a_leader_is_waited_for(cluster, tmp_path, refused, exit_code):
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(many(3))]]}).path
    log = cluster.topic("t")
    cluster.refused = list(refused)
    result = replay(log_dir, "t")
    assert (result.exit_code, len(log.messages)) == (exit_code, 0 if exit_code else 3)
    assert ("the end of t/0 cannot be found" in result.stderr) == bool(exit_code)


@pytest.mark.parametrize(("isolation", "aborted"), [(None, False), ("read_uncommitted", True)])
def test_aborted_messages(cluster, tmp_path, isolation, aborted):
    rounds = [many(3), many(3, 3), many(3, 6)]
    items = []
    for records, end in zip(rounds, (commit(7), abort(7), None), strict=True):
        items += [Batch(records, producer_id=7 if end else 8, transactional=True), *([end] if end else [])]
    log_dir = build_log_dir(tmp_path / "log", {"t": [Partition(items)]}).path
    log = cluster.topic("t")
    assert replay(log_dir, "t", *(["--isolation", isolation] if isolation else [])).exit_code == 0
    seen = [record for records in (rounds if aborted else rounds[:1]) for record in records]
    assert contents(log) == expected(seen)


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        (["--offsets", "3-5"], {3, 4, 5}),
        (["--offsets", "2+3"], {2, 3, 4}),
        (["--time", "1970-01-01T00:00:07--1970-01-01T00:00:09"], {7, 8}),
        (["--key", "key-1"], {1, 4, 7}),
        (["--where", "offset % 5 = 0"], {0, 5}),
        (["--offsets", "last-2"], {8, 9}),
    ],
)
def test_what_is_replayed(cluster, tmp_path, options, chosen):
    if "--where" in options:
        pytest.importorskip("duckdb")
    records = [Record(b"key-%d" % (n % 3), b"%d" % n, (), n * 1000) for n in range(10)]
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(records)]]}).path
    log = cluster.topic("t")
    assert replay(log_dir, "t", *options).exit_code == 0
    assert values(log) == [b"%d" % n for n in sorted(chosen)]


def test_a_filter_sees_values_decoded_by_a_file(cluster, tmp_path):
    """Another file would mean other messages, so it cannot continue the run."""
    pytest.importorskip("duckdb")
    fields = [{"name": "item", "type": "string"}, {"name": "price", "type": "int"}]
    schema = tmp_path / "t.avsc"
    schema.write_text(json.dumps({"type": "record", "name": "R", "fields": fields}))
    prices = {b"a": 7, b"b": 12, b"c": 20}
    data = [b"\x02" + item + bytes([price << 1]) for item, price in prices.items()]
    log_dir = build_log_dir(tmp_path / "log", {"t": [data]}).path
    log = cluster.topic("t")
    chosen = ("--where", "(value_json->>'price')::INT > 10", "--map", tmp_path / "map")
    result = replay(log_dir, "t", *chosen, "--schemas", f"t={schema}")
    assert result.exit_code == 0, result.output
    assert values(log) == data[1:]
    other = tmp_path / "other.avsc"
    other.write_text(schema.read_text())
    assert replay(log_dir, "t", *chosen, "--schemas", f"t={other}").exit_code == 4
    assert replay(log_dir, "t", "--schemas", f"t={schema}").exit_code == 2


def compacted(path, count=40):
    """A log whose offsets have gaps."""
    records = [Record(b"%d" % n, b"v%d" % n, (), 1000 + n) for n in range(count)]
    batches = [Batch(records[n : n + 4], base_offset=n * 2) for n in range(0, count, 4)]
    return build_log_dir(path, {"t": [Partition(batches)]}).path, records


@pytest.mark.parametrize("lost_lines", [0, 1, 100])
@pytest.mark.parametrize("unseen", [0, 1, 30])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_killed_run_is_continued(cluster, tmp_path, unseen, lost_lines, gaps):
    """Killed again and again, with messages that arrived after the last acknowledgement that it saw, and with the last
    lines of the map lost."""
    if gaps:
        log_dir, records = compacted(tmp_path / "log")
    else:
        records = many(40)
        log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(records)]]}).path
    log, file = cluster.topic("t"), tmp_path / "map"
    runs = 0
    cluster.kill_after(3, unseen)
    while True:
        runs += 1
        assert runs < 40
        try:
            result = replay(log_dir, "t", "--map", file)
        except Killed:
            cluster.kill_after(7, unseen)
            kept = file.read_bytes().splitlines(keepends=True)
            file.write_bytes(b"".join(kept[: max(2, len(kept) - lost_lines)]) + b'{"topic":"t","par')
            continue
        break
    assert result.exit_code == 0, result.output
    assert runs > 1
    assert contents(log) == expected(records)
    lines = lines_of(file)[1:]
    begun = {"topic": "t", "partition": 0, "offset": 0, "messages": 0, "target_topic": "t", "target_offset": 0}
    assert lines[0] == begun
    assert len(lines) == (11 if gaps else 2)  # stretches are joined
    assert sum(line["messages"] for line in lines) == 40
    before = contents(log)
    assert replay(log_dir, "t", "--map", file).exit_code == 0  # nothing is left
    assert contents(log) == before


def half_replayed(cluster, tmp_path, **config):
    """A run that was killed after three acknowledgements and two more messages."""
    records = many(20)
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(records)]]}).path
    log, file = cluster.topic("t", **config), tmp_path / "map"
    cluster.kill_after(3, 2)
    with pytest.raises(Killed):
        replay(log_dir, "t", "--map", file)
    assert len(log.messages) == 5
    return log_dir, log, file, records


def test_messages_of_others_between(cluster, tmp_path):
    log_dir, log, file, records = half_replayed(cluster, tmp_path)
    log.append(9, None, b"other", ())
    log.append(9, None, records[19].value, ())  # but another timestamp
    assert replay(log_dir, "t", "--map", file).exit_code == 0
    ours = [content for content in contents(log) if content[0] != 9]
    assert ours == expected(records)


def test_timestamps_of_the_target(cluster, tmp_path):
    log_dir, log, file, records = half_replayed(cluster, tmp_path, message_timestamp_type="LogAppendTime")
    result = replay(log_dir, "t", "--map", file)
    assert result.exit_code == 0
    assert "t has LogAppendTime" in result.stderr
    assert values(log) == [record.value for record in records]


@pytest.mark.parametrize("config", [{"message_timestamp_type": "LogAppendTime"}, {"cleanup_policy": "compact"}])
def test_what_cannot_be_told_apart(cluster, tmp_path, config):
    log_dir, log, file, _ = half_replayed(cluster, tmp_path, **config)
    log.append(9, None, b"other", ())
    result = replay(log_dir, "t", "--map", file)
    assert result.exit_code == 4
    assert "cannot be decided" in result.stderr
    assert len(log.messages) == 6


def test_a_target_that_was_compacted_meanwhile(cluster, tmp_path):
    log_dir, log, file, records = half_replayed(cluster, tmp_path, cleanup_policy="compact")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    del log.messages[0:2], log.messages[1]
    assert replay(log_dir, "t", "--map", file).exit_code == 0
    assert values(log) == [records[2].value, *(record.value for record in records[4:])]
    assert lines_of(file)[-1]["messages"] == 20


@pytest.mark.parametrize("change", ["retention", "created again", "compacted to the end"])
def test_a_target_that_does_not_say(cluster, tmp_path, change):
    policy = {"cleanup_policy": "compact"} if change == "compacted to the end" else {}
    log_dir, log, file, _ = half_replayed(cluster, tmp_path, **policy)
    if change == "retention":
        log.start = 5
    elif change == "created again":
        log = cluster.topic("t")
    else:
        log.messages.pop()
    before = contents(log)
    result = replay(log_dir, "t", "--map", file)
    assert result.exit_code == 4
    assert "t/0: which messages have arrived cannot be decided" in result.stderr
    assert contents(log) == before


def test_what_arrives_after_the_place_was_found(cluster, tmp_path):
    """The broker has appended it for the run before, but this run could not see it yet."""
    log_dir, log, file, records = half_replayed(cluster, tmp_path)
    cluster.late = lambda: log.append(records[5].timestamp, records[5].key, records[5].value, ())
    result = replay(log_dir, "t", "--map", file)
    assert result.exit_code == 4
    assert "t/0 has the message at 5 and at 6" in result.stderr


def large(path):
    records = [Record(None, b"%d" % n, (), n + 1) for n in range(30)]
    for n in (4, 5, 17):
        records[n] = records[n]._replace(value=bytes(5000 + n))
    return build_log_dir(path, {"t": [[Batch(records)]]}).path, records


def test_a_message_that_is_too_large(cluster, tmp_path):
    log_dir, records = large(tmp_path / "log")
    log = cluster.topic("t", max_message_bytes="4000")
    result = replay(log_dir, "t", "--map", tmp_path / "map")
    assert result.exit_code == 4
    assert "t does not take the message (Broker: Message size too large) at offset 4" in result.stderr
    assert "--skip-too-large" in result.stderr
    assert contents(log) == expected(records[:4])  # nothing behind it
    result = replay(log_dir, "t", "--map", tmp_path / "map", "--skip-too-large")
    assert result.exit_code == 0
    assert contents(log) == expected([record for record in records if len(record.value) < 4000])
    assert result.stdout.splitlines()[1].split() == ["t", "0", "t", "27", "3", "27"]
    lines = lines_of(tmp_path / "map")[1:]
    skipped = [(line["offset"], line["messages"]) for line in lines if line["target_offset"] is None]
    assert skipped == [(4, 2), (17, 1)]


def test_too_large_messages_of_a_killed_run(cluster, tmp_path):
    log_dir, records = large(tmp_path / "log")
    log, file = cluster.topic("t", max_message_bytes="4000"), tmp_path / "map"
    cluster.kill_after(3, 0)
    with pytest.raises(Killed):
        replay(log_dir, "t", "--map", file, "--skip-too-large")
    for record in (records[3], records[6]):  # the run had got so far, but not written it down
        log.append(record.timestamp, record.key, record.value, ())
    assert replay(log_dir, "t", "--map", file, "--skip-too-large").exit_code == 0
    assert contents(log) == expected([record for record in records if len(record.value) < 4000])


def test_after_a_failure_the_other_partitions_go_on(cluster, tmp_path):
    records = many(3)
    big = [Record(None, bytes(5000), (), 1)]
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(big)], [Batch(records)]], "u": [[Batch(records)]]}).path
    cluster.topic("t", 2, max_message_bytes="4000")
    cluster.topic("u")
    result = replay(log_dir, "t", "u")
    assert result.exit_code == 4
    assert contents(cluster.logs["t", 1]) == contents(cluster.logs["u", 0]) == expected(records)


def test_damage_ends_its_partition(cluster, tmp_path):
    built = build_log_dir(tmp_path / "log", {"t": [[Batch(many(3)), Batch(many(3))], [Batch(many(3))]]})
    path = built["t", 0].log()
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    cluster.topic("t", 2)
    result = replay(built.path, "t")
    assert result.exit_code == 4
    assert len(cluster.logs["t", 0].messages) == 3
    assert len(cluster.logs["t", 1].messages) == 3
    assert str(path) in result.stderr


def with_groups(path, *offsets):
    records = [
        Record(encode_offset_key(OffsetKey(group, "t", partition)), encode_commit(CommittedOffset(offset)))
        for group, partition, offset in offsets
    ]
    return build_log_dir(
        path, {"t": [[Batch(many(10))], [Batch(many(10))]], "__consumer_offsets": [[Batch(records)]]}
    ).path


def test_groups_continue_at_the_same_message(cluster, tmp_path):
    log_dir = with_groups(tmp_path / "log", ("a", 0, 4), ("a", 1, 10), ("b", 0, 0), ("c\x1b[2J", 1, 7))
    cluster.topic("new", 2)
    for _ in range(3):
        cluster.logs["new", 0].append(1, None, b"before", ())
    result = replay(log_dir, "t", "--topic", "t=new", "--groups")
    assert result.exit_code == 0, result.output
    assert "\x1b" not in result.output
    offsets = {
        group: {place: offset for place, (offset, _) in found.items()} for group, found in cluster.groups.items()
    }
    assert offsets == {"a": {("new", 0): 7, ("new", 1): 10}, "b": {("new", 0): 3}, "c\x1b[2J": {("new", 1): 7}}


def test_groups_of_a_part(cluster, tmp_path):
    """A group continues at the first message at or after its offset, or else behind the last."""
    log_dir = with_groups(tmp_path / "log", ("a", 0, 2), ("b", 0, 6), ("c", 0, 9), ("d", 1, 3))
    cluster.topic("t", 2)
    assert replay(log_dir, "t/0", "--offsets", "5-7", "--group", "a", "--group", "b", "--group", "c").exit_code == 0
    assert [found["t", 0][0] for found in cluster.groups.values()] == [0, 1, 3]
    assert replay(log_dir, "t/0", "--group", "nobody").exit_code == 4


def test_a_group_with_members(cluster, tmp_path):
    log_dir = with_groups(tmp_path / "log", ("a", 0, 2), ("b", 0, 6))
    cluster.topic("t", 2)
    cluster.active.add("a")
    result = replay(log_dir, "t", "--groups")
    assert result.exit_code == 4
    assert "group 'a': its offsets cannot be committed (it must have no active members): has members" in result.stderr
    assert list(cluster.groups) == ["b"]


def test_topics_that_are_missing(cluster, tmp_path):
    properties = b"cleanup.policy=compact\nretention.free.bytes=7\nretention.ms=-1\n"
    extra = {"t-0/topic.properties": properties, "t-1/topic.properties": properties}
    log_dir = build_log_dir(tmp_path / "log", {"t": [[b"a"], [b"b"]]}, extra=extra).path
    result = replay(log_dir, "t/1", "--topic", "t=new")
    assert result.exit_code == 4
    assert "has no topic new. --create" in result.stderr
    assert replay(log_dir, "t/1", "--topic", "t=new", "--create", "--dry-run").exit_code == 0
    assert not cluster.created
    assert replay(log_dir, "t/1", "--topic", "t=new", "--create").exit_code == 0
    assert cluster.created == {"new": (2, {"cleanup.policy": "compact", "retention.ms": "-1"})}
    cluster.topic("small")
    result = replay(log_dir, "t/1", "--topic", "t=small")
    assert result.exit_code == 4
    assert "small has 1 partitions" in result.stderr


@pytest.mark.parametrize(("policy", "noted"), [("compact", False), ("delete", True), ("compact,delete", True)])
def test_messages_that_the_target_will_remove(cluster, tmp_path, policy, noted):
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(many(3))]]}).path
    cluster.topic("t", cleanup_policy=policy, retention_ms="604800000")
    result = replay(log_dir, "t")
    assert ("t will remove messages that are older" in result.stderr) == noted
    assert result.exit_code == 0


def test_a_dry_run_changes_nothing(cluster, tmp_path):
    log_dir, log, file, _ = half_replayed(cluster, tmp_path)
    map_before, before = file.read_bytes(), contents(log)
    result = replay(log_dir, "t", "--map", file, "--dry-run")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split() == ["t", "0", "t", "17", "3", "19", "3"]
    assert (file.read_bytes(), contents(log)) == (map_before, before)
    assert replay(log_dir, "t", "--map", tmp_path / "new", "--dry-run").exit_code == 0
    assert not (tmp_path / "new").exists()


def test_a_map_belongs_to_one_replay(cluster, tmp_path):
    log_dir, log, file, _ = half_replayed(cluster, tmp_path)
    before = contents(log)
    result = replay(log_dir, "t", "--map", file, "--offsets", "3-")
    assert result.exit_code == 4
    assert "the map of another replay" in result.stderr
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert replay(log_dir, "t", "--map", file).exit_code == 3
    for bad in ("[]\n", "{}\n", "x\n", '{"topic":"t"}\n'):
        other = tmp_path / "other"
        other.write_text(file.read_text().splitlines(keepends=True)[0] + bad)
        assert replay(log_dir, "t", "--map", other).exit_code == 4
    (tmp_path / "link").symlink_to(file)
    assert replay(log_dir, "t", "--map", tmp_path / "link").exit_code == 4
    assert replay(log_dir, "t", "--map", log_dir / "map").exit_code == 2
    assert contents(log) == before
    assert replay(log_dir, "t", "--map", tmp_path / "key", "--key", "1").exit_code == 0
    heads = [lines_of(path)[0]["messages"] for path in (file, tmp_path / "key")]
    assert heads == ["read_committed", "read_committed, key 1"]


def test_a_name_of_a_header_that_no_client_can_send(cluster, tmp_path):
    records = [Record(None, b"a", (), 1), Record(None, b"b", ((b"\xff", b"x"),), 1)]
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(records)]]}).path
    log = cluster.topic("t")
    result = replay(log_dir, "t")
    assert result.exit_code == 4
    assert "not UTF-8, and clients cannot send it at offset 1" in result.stderr
    assert values(log) in ([], [b"a"])


def test_a_registry_that_lacks_schemas(cluster, tmp_path):
    schemas = [schema_record("t-value", 1, 1, STRING), schema_record("t-value", 2, 2, '"int"')]
    schemas.append(schema_record("t-key", 1, 3, '"long"'))
    records = [Record(framed(3, b"x"), framed(n, b"x"), (), 1) for n in (1, 2, 99)]
    log_dir = build_log_dir(tmp_path / "log", {"t": [[Batch(records)]], "_schemas": [[Batch(schemas)]]}).path
    known = {1: STRING, 3: '"string"'}

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            schema_id = int(self.path.rpartition("/")[2])
            self.send_response(200 if schema_id in known else 404)
            self.end_headers()
            self.wfile.write(json.dumps({"schema": known.get(schema_id)}).encode())

        def log_message(self, *_):
            pass

    cluster.topic("t")
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://user:secret@127.0.0.1:{server.server_port}"
        result = replay(log_dir, "t", "--registry", url)
        server.shutdown()
    assert result.exit_code == 0, result.output
    assert "secret" not in result.output
    warnings = [line.partition(f"{server.server_port} ")[2].partition(":")[0] for line in result.stderr.splitlines()]
    assert sorted(warnings) == [
        "does not know schema 2 of t, in values",
        "has another schema 3 than that of t, in keys",
    ]
    assert len(cluster.logs["t", 0].messages) == 3
    unanswered = replay(log_dir, "t", "--registry", url)
    assert unanswered.exit_code == 4
    assert "does not answer as a schema registry: Connection refused" in unanswered.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["t", "--topic", "t"],
        ["t", "--topic", "x=y"],
        ["t", "u", "--topic", "t=u"],
        ["t", "--topic", "t=__consumer_offsets"],
        ["__consumer_offsets"],
        ["t", "--offsets", "last-3", "--map", "m"],
        ["t", "--time", "last-1h", "--map", "m"],
        ["t", "--registry", "host"],
    ],
)
@pytest.mark.usefixtures("cluster")
def test_wrong_usage(tmp_path, arguments):
    topics = {"t": [[b"a"]], "u": [[b"a"]], "__consumer_offsets": [[]]}
    log_dir = build_log_dir(tmp_path / "log", topics).path
    assert replay(log_dir, *arguments).exit_code == 2


@pytest.mark.usefixtures("cluster")
def test_globs_leave_kafkas_own_topics_out(tmp_path):
    log_dir = build_log_dir(tmp_path / "log", {"t": [[b"a"]], "__consumer_offsets": [[]]}).path
    result = replay(log_dir, "*", "--create", "--dry-run")
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["t"]
    assert replay(log_dir, "__*", "--create", "--dry-run").exit_code == 4

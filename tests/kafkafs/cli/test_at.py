"""`--at TIME` of `cat --latest` and `groups`, against what the messages up to that time amount to. See also
transcripts/at.txt."""

import json
import re
from datetime import date

import pytest

from kafkafs.reading.range_names import parse_moment
from storage.format.block import Record
from tests.support.builders import START_MS, Batch, Partition, abort, build_log_dir, commit, many
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, read_golden, requires_fixtures

COMPACTED = ["cmp-codecs-0", "cmp-lat-0", "cmp-nullkey-0", "cmp-plain-0", "cmp-plain-1", "cmp-sparse-0"]


def offsets_of(lines):
    return [json.loads(line)["offset"] for line in lines.splitlines()]


def latest(messages, time_ms):
    """The offsets of the last messages of all keys, of (offset, timestamp, key, value) up to the first later one."""
    end = next((offset for offset, timestamp, _, _ in messages if timestamp > time_ms), 2**62)
    last = {key: (offset, value) for offset, _, key, value in messages if offset < end and key is not None}
    return sorted(offset for offset, value in last.values() if value is not None)


@requires_fixtures
@pytest.mark.parametrize("log", COMPACTED)
def test_the_table_of_a_time_is_what_the_messages_until_then_leave(log):
    """Of a log that was never compacted it is exact. After compaction what is left of it is right, and where messages
    are missing, the note says so and names a time from which on the table is exact again."""
    messages = [(one.offset, one.timestamp, one.key, one.value) for one in read_golden(
        FIXTURES / "compaction-before" / "golden" / f"{log}.jsonl.gz")]  # fmt: skip
    topic, _, partition = log.rpartition("-")

    def shown(fixture, time_ms):
        logs = FIXTURES / fixture / "log"
        result = run("cat", logs, f"{topic}/{partition}", "--latest", "--at", time_ms, "--format", "jsonl")
        assert result.exit_code == 0
        return offsets_of(result.stdout), result.stderr

    times = sorted({timestamp for _, timestamp, _, _ in messages})
    for time_ms in {times[0] - 1, times[len(times) // 3], times[len(times) // 2], times[-2], times[-1]}:
        expected = latest(messages, time_ms)
        assert shown("compaction-before", time_ms) == (expected, "")
        after, note = shown("compaction-after", time_ms)
        assert set(after) <= set(expected)
        if not note:
            assert after == expected
            continue
        complete_ms = parse_moment(re.search(r"complete from (\S+)", note)[1], date(2026, 1, 1))
        assert complete_ms > time_ms
        assert shown("compaction-after", complete_ms) == (latest(messages, complete_ms), "")


def test_a_time_may_end_within_a_batch_and_a_transaction(tmp_path):
    batches = [
        Batch(many(3, keys=3)),
        Batch(many(2, 3, keys=3), producer_id=1, transactional=True),
        commit(1),
        Batch(many(2, 6, keys=3), producer_id=2, transactional=True),
        abort(2),
        Batch([Record(b"late", b"x", (), START_MS + 99_000)]),
    ]
    build_log_dir(tmp_path / "logs", {"t": [Partition(batches)]})

    def shown(seconds, isolation):
        return offsets_of(output_of("cat", tmp_path / "logs", "t", "--latest", "--at", START_MS + seconds * 1000,
                                    "--isolation", isolation, "--format", "jsonl"))  # fmt: skip

    messages = [(row["offset"], row["timestamp"], row["key"], row["value"]) for row in map(json.loads, output_of(
        "cat", tmp_path / "logs", "t", "--format", "jsonl").splitlines())]  # fmt: skip
    for seconds in range(-1, 12):
        end = sum(timestamp <= START_MS + seconds * 1000 for _, timestamp, _, _ in messages)
        assert shown(seconds, "read_uncommitted") == latest(messages[:end], 2**62)
    assert shown(3, "read_committed") == [0, 1, 2]  # the transaction was open
    assert shown(99, "read_committed") == sorted([*latest(messages[:5], 2**62), messages[-1][0]])


def test_what_was_removed_at_the_beginning_is_named(tmp_path):
    build_log_dir(tmp_path / "logs", {"t": [Partition([Batch(many(5, keys=5))], log_start_offset=2)]})
    result = run("cat", tmp_path / "logs", "t", "--latest", "--at", START_MS + 3000, "--format", "%o ")
    assert (result.stdout, result.exit_code) == ("2 3 ", 0)
    assert "messages before offset 2 were removed" in result.stderr


@requires_fixtures
def test_groups_are_what_was_committed_until_then():
    """The commits of a broker, one after the other, against the records that `cat` prints."""
    logs = FIXTURES / "groups" / "log"
    lines = [
        json.loads(line)
        for line in output_of("cat", logs, "__consumer_offsets", "--format", "decoded").splitlines()
    ]  # fmt: skip
    commits = [
        (line["timestamp"], line["key"]["data"], line["value"] and line["value"]["data"])
        for line in lines
        if line["key"]["type"] in (0, 1) or "OFFSET" in str(line["key"].get("name", "")).upper()
    ]
    times = sorted({timestamp for timestamp, _, _ in commits})
    for time_ms in {times[0] - 1, *times[:: max(len(times) // 6, 1)], times[-1]}:
        expected = {}
        for timestamp, key, value in commits:
            place = key["group"], key["topic"], key["partition"]
            if timestamp <= time_ms:
                expected.pop(place, date(2026, 1, 1))
                if value is not None:
                    expected[place] = value["offset"]
        shown = {}
        for group in json.loads(output_of("groups", logs, "--at", time_ms, "--json"))["groups"]:
            one = json.loads(output_of("groups", logs, group["group"], "--at", time_ms, "--json"))
            shown |= {(group["group"], row["topic"], row["partition"]): row["offset"] for row in one["offsets"]}
        assert shown == expected


def test_wrong_usage(tmp_path):
    build_log_dir(tmp_path / "logs", {"t": [[b"x"]]})
    for command, advice in (
        (("cat", tmp_path / "logs", "t", "--at", "2026"), "--at is for --latest"),
        (("groups", tmp_path / "logs", "g", "--at", "2026", "--reset-to", "1", "--topic", "t"), "--at shows groups"),
        (("metadata", tmp_path / "logs", "--diff", "2026-01-01"), "kafkafs metadata LOGDIR --at TIME"),
    ):
        result = run(*command)
        assert result.exit_code == 2
        assert advice in result.stderr

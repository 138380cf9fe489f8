"""What `_schemas` amounts to: compared with a real registry's answers, and case by case."""

import base64
import hashlib
import json
import logging
import os
import random
import uuid
from functools import cache

import pytest

from kafkafs.schemas.file_schemas import FileSchemas
from kafkafs.schemas.import_lines import import_line
from kafkafs.schemas.log_schemas import LogSchemas
from kafkafs.schemas.registry import State, context_of, name_in_context, qualified
from kafkafs.schemas.registry_replay import RegistryLimits, RegistryReplay
from kafkafs.schemas.schema import Reference
from kafkafs.schemas.sources import schemas_at
from storage.errors import CorruptData
from storage.format.block import Record
from storage.log.log_dir import LogDir
from tests.support.builders import build_log_dir
from tests.support.damaged_bytes import overwrite
from tests.support.fixtures import FIXTURES, requires_fixtures
from tests.support.schema_logs import LONG, STRING, GrowingLog, other_record, schema_record

GOLDEN = FIXTURES / "schemas" / "golden"


@cache
def fixture_registry():
    return LogSchemas(LogDir.open_read_only(FIXTURES / "schemas" / "log")).registry()


def replayed(*records, limits=None):
    replay = RegistryReplay() if limits is None else RegistryReplay(limits)
    for offset, record in enumerate(records):
        replay.apply(record.key, record.value, offset, record.timestamp)
    return replay.registry()


def states(registry):
    return {place: entry.state for place, entry in registry.versions.items()}


@requires_fixtures
def test_answers_of_the_real_registry():
    """Subjects, versions, texts and levels as Karapace answered before the hand-made records were written."""
    registry = fixture_registry()
    for when, answers in json.loads((GOLDEN / "registry.json").read_text()).items():
        for path, answer in answers.items():
            if path.startswith("/schemas/ids/"):
                schema = registry.by_id(int(path.rpartition("/")[2]))
                assert schema.text == answer["body"].get("schema", schema.text)
            elif when == "after_deletions" and path.endswith("/versions"):
                subject = path.split("/")[2].replace("%2F", "/")
                live = [entry.version for entry in registry.of_subject(subject) if entry.state is State.LIVE]
                assert live == answer["body"]
            elif when == "after_deletions" and path.startswith("/subjects"):
                wanted = {State.LIVE} if path == "/subjects" else {State.LIVE, State.SOFT_DELETED}
                found = [entry for entry in registry.versions.values() if entry.state in wanted and entry.offset < 46]
                assert {entry.subject for entry in found} == set(answer["body"])
    levels = {"": "FULL", "json-users-value": "FORWARD", "mixed-value": "NONE", "hand-made-value": "NONE"}
    assert registry.compatibility == levels


def test_deletions():
    three = [schema_record("a", number, number) for number in (1, 2, 3)]
    soft = other_record("DELETE_SUBJECT", "a", {"subject": "a", "version": 2})
    assert states(replayed(*three, soft)) == {
        ("a", 1): State.SOFT_DELETED,
        ("a", 2): State.SOFT_DELETED,
        ("a", 3): State.LIVE,
    }
    hard = Record(three[0].key, None)
    registry = replayed(*three, soft, hard)
    assert states(registry)["a", 1] is State.HARD_DELETED
    assert registry.by_id(1) is not None
    assert registry.referenced(Reference("x", "a", 1)) is not None
    # An empty value is Karapace's tombstone, a version with `deleted` a soft deletion in both.
    assert states(replayed(*three, Record(three[0].key, b"")))["a", 1] is State.HARD_DELETED
    assert states(replayed(*three, schema_record("a", 3, 3, deleted=True)))["a", 3] is State.SOFT_DELETED
    cleared = replayed(*three, soft, other_record("CLEAR_SUBJECT", "a", {"subject": "a"}))
    assert list(states(cleared).values()) == [State.HARD_DELETED, State.HARD_DELETED, State.LIVE]
    again = replayed(*three, soft, three[1])
    assert states(again)["a", 2] is State.LIVE


def test_redpandas_records():
    """Its keys also name a sequence number and a node, and it leaves out the version of a deleted subject."""
    key = {"keytype": "SCHEMA", "subject": "a", "version": 1, "magic": 1, "seq": 3, "node": 0}
    value = {"subject": "a", "version": 1, "id": 7, "schema": LONG, "deleted": False}
    later = {**key, "seq": 9}
    registry = replayed(
        Record(json.dumps(key).encode(), json.dumps(value).encode()),
        other_record("DELETE_SUBJECT", "a", {"subject": "a"}, seq=8, node=0),
        Record(json.dumps(later).encode(), json.dumps({**value, "deleted": True}).encode()),
        Record(json.dumps(key).encode(), None),
    )
    assert states(registry) == {("a", 1): State.HARD_DELETED}
    assert registry.by_id(7).text == LONG


def test_a_version_with_another_id():
    """After a hard deletion a version may come back with another id; messages may have either."""
    first, again = schema_record("a", 1, 1, STRING), schema_record("a", 1, 2, LONG)
    registry = replayed(first, Record(first.key, None), again)
    assert [registry.by_id(number).text for number in (1, 2)] == [STRING, LONG]
    assert registry.versions["a", 1].schema.schema_id == 2


def test_contexts():
    records = [
        schema_record("t-value", 1, 1, STRING),
        schema_record("other", 1, 2, STRING),
        schema_record(":.dr:t-value", 1, 2, LONG),
        schema_record(":.dr:only", 1, 9, LONG),
        schema_record(":.a:x", 1, 5, LONG),
        schema_record(":.b:x", 1, 5, STRING),
        schema_record(":.dr:holder", 1, 10, '"p"', references=[{"name": "n", "subject": "only", "version": 1}]),
        schema_record(":.:plain", 1, 11, LONG),
    ]
    registry = replayed(*records)

    def text(*place):
        schema = registry.by_id(*place)
        return schema and schema.text

    assert text(1) == text(1, "t-value") == STRING
    assert text(2) == text(2, "u-value") == STRING
    assert text(2, "t-value") == LONG  # the subject has this id only in the other context
    assert text(9) == LONG
    assert text(5) is None  # two contexts disagree
    assert text(5, "x") == LONG
    assert registry.by_id(10).references == (Reference("n", ":.dr:only", 1),)
    assert registry.referenced(Reference("n", ":.dr:only", 1)) == registry.by_id(9)
    assert ("plain", 1) in registry.versions
    assert (context_of(":.dr:t"), context_of("t"), context_of(":.:t"), context_of(":.dr")) == (".dr", "", "", "")
    assert (name_in_context(":.dr:a:b"), name_in_context("a:b")) == ("a:b", "a:b")
    assert (qualified("s", ".dr"), qualified(":.x:s", ".dr"), qualified(":.:s", ".dr")) == (":.dr:s", ":.x:s", "s")


def test_references_to_the_newest_and_to_the_default_context():
    registry = replayed(
        schema_record("a", 1, 1, STRING), schema_record("a", 2, 2, LONG), schema_record("a", 3, 3, deleted=True)
    )
    assert registry.referenced(Reference("a", "a", -1)) == registry.by_id(2)
    assert registry.referenced(Reference("a", ":.dr:a", 1)) == registry.by_id(1)
    assert registry.referenced(Reference("a", "a", 4)) is None


def test_guids():
    """As Confluent's SchemaValueTest pins them, and as records name them."""
    text = '{"type":"record","name":"myrecord","fields":[{"type":"string","default":null,"name":"f"}]}'
    pinned = bytes(
        number % 256 for number in (29, 32, -53, -71, -27, -29, 94, -105, 84, -25, -38, 23, 11, 110, 93, -37)
    )
    given, digest = uuid.uuid4(), hashlib.sha256(b"").digest()[:16]
    registry = replayed(
        schema_record("a", 1, 1, text),
        schema_record("b", 1, 2, LONG, references=[{"name": "n", "subject": "a", "version": 1}]),
        schema_record("c", 1, 3, STRING, guid=str(given), md5=base64.b64encode(digest).decode(), ruleSet={}),
    )
    assert registry.by_guid(pinned) == registry.by_id(1)
    assert registry.by_guid(hashlib.md5(LONG.encode() + b"na\0\0\0\1").digest()) == registry.by_id(2)
    assert registry.by_guid(given.bytes) == registry.by_guid(digest) == registry.by_id(3)
    assert registry.by_guid(hashlib.md5(STRING.encode()).digest()) is None  # rules are part of it, and not known here


KEY = b'{"keytype":"SCHEMA","subject":"a","version":1}'
WITH_ONE = b'{"id":1,"schema":"1",%b}'
BROKEN_KEYS = [
    *(None, b"", b"{", b"[1]", b"{}", b"\xff", b'{"keytype":"SCHEMA","version":1}'),
    KEY.replace(b"1}", b'"1"}'),
    KEY.replace(b"1}", b"true}"),
    b'{"keytype":"DELETE_SUBJECT"}',
    b'{"keytype":"CLEAR_SUBJECT"}',
]
BROKEN_VALUES = [
    *(b"{", b"[" * 100_000, b'{"id":1}', b'{"id":-1,"schema":"1"}', b'{"id":4294967296,"schema":"1"}'),
    *(WITH_ONE % more for more in (b'"schemaType":7', b'"references":[1]', b'"references":[{"name":"n"}]')),
    b'{"id":1,"schema":"\\udc80"}',
]
BROKEN = [
    *((key, b"{}") for key in BROKEN_KEYS),
    *((KEY, value) for value in BROKEN_VALUES),
    (KEY.replace(b'"a"', b'"\\ud800"'), b'{"id":1,"schema":"1"}'),
    (b'{"keytype":"CONFIG","subject":"a"}', b'{"compatibilityLevel":7}'),
    (b'{"keytype":"CONFIG","subject":"a"}', b'{"compatibilityLevel":"\\ud800"}'),
]


@pytest.mark.parametrize(("key", "value"), BROKEN)
def test_broken_records(key, value):
    replay = RegistryReplay()
    with pytest.raises(CorruptData):
        replay.apply(key, value, 0, -1)
    assert not replay.registry()


def test_broken_records_are_skipped(tmp_path, caplog):
    broken = [Record(key, value) for key, value in BROKEN]
    build_log_dir(tmp_path, {"_schemas": [[schema_record("a", 1, 1), *broken, schema_record("a", 2, 2)]]})
    with caplog.at_level(logging.WARNING):
        registry = schemas_at(tmp_path).registry()
    assert list(registry.ids()) == [1, 2]
    assert "at offset 1" in caplog.text


def test_limits():
    small = RegistryLimits(text_bytes=10, versions=2, all_bytes=100)
    replay = RegistryReplay(small)

    def apply(record):
        replay.apply(record.key, record.value, 0, 0)

    with pytest.raises(CorruptData, match="too large; expected up to 10 characters, found 11"):
        apply(schema_record("a", 1, 1, "x" * 11))
    apply(schema_record("a", 1, 1, "x" * 10))
    apply(schema_record("a", 1, 1, "x" * 10, deleted=True))  # the same one again
    with pytest.raises(CorruptData, match="too large together"):
        apply(schema_record("b", 1, 2, "y" * 10))
    apply(schema_record("b", 1, 1, "x" * 10))  # held once
    with pytest.raises(CorruptData, match="too many schemas"):
        apply(schema_record("c", 1, 1, "x" * 10))
    with pytest.raises(CorruptData, match="too many schemas"):
        apply(schema_record("b", 1, 3, "x"))  # would replace a version
    assert len(replay.registry().versions) == 2
    for subject in "ab":
        apply(Record(b'{"keytype":"CONFIG","subject":"%b"}' % subject.encode(), b'{"compatibilityLevel":"FULL"}'))
    with pytest.raises(CorruptData, match="too many compatibility levels; expected up to 2"):
        apply(Record(b'{"keytype":"CONFIG","subject":"c"}', b'{"compatibilityLevel":"FULL"}'))


def test_what_a_version_holds_besides_its_text_counts():
    replay = RegistryReplay(RegistryLimits(all_bytes=2000))
    plain = schema_record("a", 1, 1)
    assert plain.value is not None
    more = json.dumps({**json.loads(plain.value), "ruleSet": {"domainRules": [{}] * 40}}).encode()
    replay.apply(plain.key, plain.value, 0, 0)
    with pytest.raises(CorruptData, match="too large together"):
        replay.apply(plain.key, more, 0, 0)
    with pytest.raises(CorruptData, match="value is too large; expected up to 16777216 bytes"):
        replay.apply(plain.key, b" " * (1 << 24) + plain.value, 0, 0)


def test_follows_the_log(tmp_path):
    GrowingLog(tmp_path, "t-0")
    log_dir = LogDir.open_read_only(tmp_path)
    source = LogSchemas(log_dir)
    assert not source.registry()
    log = GrowingLog(tmp_path, "_schemas-0")
    os.utime(tmp_path, (1, 1))  # a later change of the directory shows at once
    log.append([schema_record("a", 1, 1)])
    first = source.registry()
    assert list(first.ids()) == [1]
    assert source.registry() is first
    log.append([other_record("NOOP", None, None)])
    assert source.registry() is first  # nothing that decoding needs has changed
    log.append([schema_record("a", 2, 2), other_record("DELETE_SUBJECT", "a", {"subject": "a", "version": 1})])
    assert list(source.registry().ids()) == [1, 2]
    assert list(first.ids()) == [1]


def test_an_unreadable_log_leaves_what_was_known(tmp_path, caplog):
    log = GrowingLog(tmp_path, "_schemas-0")
    log.append([schema_record("a", 1, 1)])
    source = LogSchemas(LogDir.open_read_only(tmp_path))
    assert list(source.registry().ids()) == [1]
    log.append([schema_record("a", 2, 2)])
    overwrite(log.path / f"{0:020d}.log", -20, b"\0" * 20)
    with caplog.at_level(logging.WARNING):
        assert list(source.registry().ids()) == [1]


def test_an_id_that_compaction_removed_stays_known(tmp_path):
    """To the process that has used it; not to a later one, nor after the topic was made again."""
    log = GrowingLog(tmp_path, "_schemas-0")
    records = [schema_record("a", 1, 1), schema_record("b", 1, 2)]
    log.append([*records, Record(records[0].key, None)])
    source = LogSchemas(LogDir.open_read_only(tmp_path))
    assert list(source.registry().ids()) == [1, 2]

    def replace_log(name, *left):
        """As compaction does: another file in the place of the segment's."""
        other = GrowingLog(tmp_path / name, "_schemas-0")
        other.next_offset = log.next_offset
        other.append(list(left))
        (other.path / f"{0:020d}.log").replace(log.path / f"{0:020d}.log")

    replace_log("cleaned", records[1], schema_record("c", 1, 3))
    assert list(source.registry().ids()) == [1, 2, 3]
    assert source.by_id(1) is not None
    assert not source.registry().of_subject("a")
    assert list(LogSchemas(LogDir.open_read_only(tmp_path)).registry().ids()) == [2, 3]


def test_files(tmp_path):
    (tmp_path / "7.avsc").write_text(LONG)
    (tmp_path / "8.proto").write_text('syntax = "proto3";')
    (tmp_path / "ids").mkdir()
    (tmp_path / "ids" / "9.json").write_text("{}")
    for other in ("07.avsc", "x.avsc", "99999999999.avsc", "4294967296.json", "7.txt"):
        (tmp_path / other).write_text("other")
    (tmp_path / "10.avsc").write_bytes(b"\xff")
    (tmp_path / "11.avsc").mkdir()
    source = schemas_at(tmp_path)
    found = {schema_id: entry.schema.schema_type for schema_id, entry in source.registry().ids().items()}
    assert found == {7: "AVRO", 8: "PROTOBUF", 9: "JSON"}
    assert not source.registry().subjects()
    (tmp_path / "12.avsc").write_text(STRING)
    assert source.by_id(12) is not None
    assert source.by_guid(hashlib.md5(LONG.encode()).digest()) == source.by_id(7, "t-value") is not None


def test_a_directory_of_schemas_is_read_again_when_it_has_changed(tmp_path):
    (tmp_path / "7.avsc").write_text(STRING)
    os.utime(tmp_path, (1_700_000_000, 1_700_000_000))
    source = FileSchemas(tmp_path)
    registry = source.registry()
    assert source.registry() is registry
    (tmp_path / "8.avsc").write_text(LONG)
    assert list(source.registry().ids()) == [7, 8]


@requires_fixtures
def test_import_file_goes_there_and_back(tmp_path):
    registry = fixture_registry()
    lines = [import_line(entry) for entry in sorted(registry.versions.values(), key=lambda entry: entry.offset)]
    (tmp_path / "import.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read = FileSchemas(tmp_path).registry()
    assert states(read) == states(registry)
    assert [entry.schema for entry in read.versions.values()] == [entry.schema for entry in registry.versions.values()]
    assert [*map(read.by_id, registry.ids())] == [*map(registry.by_id, registry.ids())]


@pytest.mark.parametrize("more", [{}, {"metadata": {"tags": {"a": ["PII"]}}, "ruleSet": {"domainRules": []}}])
def test_import_lines_keep_metadata_and_rules(tmp_path, more):
    body = {"version": 1, "id": 7, "schemaType": "AVRO", **more, "schema": STRING}
    line = {"subject": "s", "state": "live", "timestamp": 5, "body": body}
    (tmp_path / "import.jsonl").write_text(json.dumps(line) + "\n")
    (entry,) = FileSchemas(tmp_path).registry().versions.values()
    assert import_line(entry)["body"] == body


def test_broken_import_lines_are_skipped(tmp_path, caplog):
    good = {"subject": "a", "body": {"version": 1, "id": 1, "schema": STRING}}
    lines = [1, {}, {"subject": "a", "body": 3}, {"subject": 1, "body": {"version": 1}}, good]
    (tmp_path / "import.jsonl").write_text("{\n" + "".join(json.dumps(line) + "\n" for line in lines))
    with caplog.at_level(logging.WARNING):
        assert list(FileSchemas(tmp_path).registry().ids()) == [1]
    assert "line 1 is not a schema" in caplog.text


def test_fingerprints():
    base = [schema_record("a", 1, 1), schema_record("b", 1, 2, LONG)]
    one = replayed(*base).fingerprint
    assert replayed(*base).fingerprint == one
    others = [
        replayed(*base, schema_record("a", 2, 3)),
        replayed(base[0]),
        replayed(base[0], schema_record("b", 1, 2, STRING)),
        replayed(base[0], schema_record("b", 1, 2, LONG, schemaType="JSON")),
        replayed(base[0], schema_record("c", 1, 2, LONG)),
        replayed(base[0], schema_record(":.x:b", 1, 2, LONG)),
        replayed(base[0], schema_record("b", 1, 2, LONG, references=[{"name": "", "subject": "a", "version": 1}])),
    ]
    assert len({one, *(other.fingerprint for other in others)}) == 8


def test_any_bytes_are_read_or_refused():
    """Records with random changes: CorruptData or a registry, nothing else."""
    choose = random.Random(16)
    samples = [schema_record("a", 1, 1), other_record("CONFIG", "a", {"compatibilityLevel": "X"})]
    for _ in range(3000):
        record = choose.choice(samples)
        key, value = bytearray(record.key or b""), bytearray(record.value or b"")
        for data in (key, value):
            for _ in range(choose.randrange(3)):
                data[choose.randrange(len(data))] = choose.randrange(256)
        replay = RegistryReplay()
        try:
            replay.apply(bytes(key), bytes(value), 0, 0)
        except CorruptData:
            assert not replay.registry().versions
        replay.registry().fingerprint  # noqa: B018

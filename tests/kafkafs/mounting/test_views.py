"""Keys, latest messages and schemas through a real mount, with the tools that people use.

Their rules are tested in tests/kafkafs/tree and tests/kafkafs/reading.
"""

import errno
import json
import os
import shlex
import subprocess

import pytest

from storage.append.partitioner import in_order_for_key
from storage.format.block import Record
from tests.support.builders import Batch, build_log_dir, many
from tests.support.commands import output_of
from tests.support.mounts import mounted, requires_fuse, run_kafkafs
from tests.support.reference_views import txt
from tests.support.schema_logs import avro_string, framed, schema_record
from tests.support.serving_processes import fails_with, watched

pytestmark = requires_fuse

KEYS = {"%": b"", "a%2Fb": b"a/b", "%25": b"%", "%2Ex": b".x", "%FF": b"\xff", "größe": "größe".encode(), "k": b"k"}


def records(partition):
    keys = list(KEYS.values())
    return [Record(keys[n % len(keys)], b"%d in %d %s" % (n, partition, b"v" * (n % 200))) for n in range(2000)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    topics = {
        "t": [[Batch(records(0)[:1000]), Batch(records(0)[1000:])], [Batch(records(1))]],
        "decoded": [[framed(1, avro_string("a"))]],
        "_schemas": [[schema_record("decoded-value", 1, 1), schema_record("common/types.proto", 1, 4)]],
    }
    return build_log_dir(tmp_path_factory.mktemp("views") / "log", topics)


@pytest.fixture(scope="module")
def mnt(built):
    with watched(built.path, built.path.with_name("mnt")) as mount:
        yield mount.path


def shell(command, directory):
    return subprocess.run(command, shell=True, cwd=directory, check=True, capture_output=True, timeout=120).stdout


def test_keys(built, mnt):
    topic = mnt / "t"
    for directory in (topic / "keys", topic / "0/keys"):
        assert sorted(path.name for path in directory.iterdir()) == sorted(f"{name}.txt" for name in KEYS)
        for name in ("nobody.txt", "k.log", "k", "%zz.txt"):
            with pytest.raises(FileNotFoundError):
                (directory / name).read_bytes()
        with fails_with(errno.ENAMETOOLONG):
            (directory / f"{'x' * 252}.txt").stat()
        with fails_with(errno.EROFS):
            (directory / "k.txt").write_bytes(b"x")
    for name, key in KEYS.items():
        parts = [txt([record for record in built["t", number].records if record.key == key]) for number in (0, 1)]
        order = in_order_for_key(key, [0, 1], 2)
        assert shell(f"cat '{name}.txt'", topic / "keys") == b"".join(parts[number] for number in order), key
        assert shell(f"cat '{name}.txt'; stat -c %s '{name}.txt'", topic / "1/keys") == parts[1] + b"%d\n" % len(
            parts[1]
        )
    assert {json.loads(line)["key"] for line in shell("cat k.jsonl", topic / "0/keys").splitlines()} == {"k"}
    assert shell("cat %6b.txt", topic / "keys") == shell("cat k.txt", topic / "keys")
    assert shell("grep -rl '^6 in' keys", topic).split() == [b"keys/k.txt"]
    assert json.loads((mnt / "@status.json").read_bytes())["key_index"]["segments"] >= 2
    assert b"kafkafs_key_index_keys " in (mnt / "@metrics").read_bytes()


def test_latest(built, mnt, tmp_path):
    topic = mnt / "t"
    for place, arguments in {
        "latest.txt": ("t",),
        "latest.jsonl": ("t", "--format", "jsonl"),
        "0/latest.jsonl": ("t/0", "--format", "jsonl"),
    }.items():
        content = output_of("cat", built.path, *arguments, "--latest")
        assert content.count(b"\n") == len(KEYS) * (1 if place.startswith("0") else 2)
        assert (topic / place).stat().st_size > 0
        assert shell(f"wc -c < {place}", topic).split() == [b"%d" % len(content)]
        assert shell(f"tail -n 3 {place}", topic) == b"".join(content.splitlines(keepends=True)[-3:])
        assert shell(f"dd if={place} bs=777 status=none", topic) == content
        copy = shlex.quote(str(tmp_path / "copy"))
        assert shell(f"cp {place} {copy}; cat {copy}; tar cf - {place} | tar xOf -", topic) == content * 2
        assert (topic / place).stat().st_size == len(content)
    with fails_with(errno.EROFS):
        os.open(topic / "latest.txt", os.O_WRONLY)
    with pytest.raises(FileNotFoundError):
        (topic / "latest.log").stat()


def test_more_keys_than_the_memory_holds(tmp_path):
    built = build_log_dir(tmp_path / "log", {"few": [[Batch(many(10_000, keys=10_000)) for _ in range(6)]],
                                             "t": [[Batch(many(60_000, keys=60_000))]]})  # fmt: skip
    log = tmp_path / "messages"
    with mounted(built.path, tmp_path / "mnt", "-o", f"latest_memory=1M,log={log}") as mount:
        with fails_with(errno.ENOMEM):
            (mount.path / "t/latest.txt").read_bytes()
        # All else goes on.
        assert (mount.path / "t/0/messages.txt").read_bytes() == txt(built["t", 0].records)
        assert (mount.path / "few/latest.txt").read_bytes() == txt(built["few", 0].records[-10_000:])
    assert "kafkafs/spark/SPARK.md" in log.read_text()


def test_schemas(mnt):
    (line,) = (mnt / "decoded/0/messages.decoded.jsonl").read_text().splitlines()
    assert json.loads(line)["value"] == "a"
    schemas = mnt / "@schemas"
    assert shell("find . -type f | sort; cat ids/1.avsc; tar -c . | tar -t | wc -l", schemas).decode().split() == [
        *("./ids/1.avsc", "./ids/4.avsc", "./subjects/common%2Ftypes.proto/1.avsc"),
        *("./subjects/decoded-value/1.avsc", '"string"9'),
    ]
    # A directory of schemas of another mount serves as schemas=PATH.
    assert output_of("schemas", schemas).splitlines()[1].split()[:2] == [b"1", b"AVRO"]


@pytest.mark.parametrize("option", ["-o", "--schemas"])
def test_schemas_of_another_place(tmp_path, option):
    log = build_log_dir(tmp_path / "log", {"t": [[framed(1, avro_string("a"))]]}).path
    other = build_log_dir(tmp_path / "other", {"_schemas": [[schema_record("t-value", 1, 1)]]}).path
    place = f"schemas={other}" if option == "-o" else str(other)
    with mounted(log, tmp_path / "mnt", option, place) as mount:
        (line,) = (mount.path / "t/0/messages.decoded.jsonl").read_text().splitlines()
        assert json.loads(line)["value"] == "a"
        assert json.loads((mount.path / "@status.json").read_text())["schemas"] == str(other)
    (tmp_path / "a.avsc").write_text('["null", "long"]')
    file = place.replace(str(other), f"u={tmp_path}/a.avsc")
    bare = build_log_dir(tmp_path / "bare", {"u": [[b"\2\6"]]}).path
    with mounted(bare, tmp_path / "mnt", option, file) as mount:
        (line,) = (mount.path / "u/0/messages.decoded.jsonl").read_text().splitlines()
        assert json.loads(line)["value"] == 3
        assert not (mount.path / "@schemas").exists()
    refused = run_kafkafs("mount", log, tmp_path / "mnt", option, place.replace(str(other), str(log)), check=False)
    assert (refused.returncode, b"no schemas here" in refused.stderr) == (2, True)

"""`keys/<key>.EXT` on a real mount: names, listings, growth, and what tools see."""

from __future__ import annotations

import errno
import json
import subprocess

import pytest

from storage.append.partitioner import in_order_for_key
from tests.support.live_log import LiveLog
from tests.support.mounts import mounted, requires_fuse

pytestmark = requires_fuse
KEYS = (b"", b"a/b", b"%", b".x", b"\xff", "größe".encode(), b"plain")
NAMES = ("%", "a%2Fb", "%25", "%2Ex", "%FF", "größe", "plain")


def expected(logs, key):
    return b"".join(v + b"\n" for log in logs for o, _, v in log.messages if log.key_of(o) == key)


@pytest.fixture
def logs(tmp_path):
    made = [
        LiveLog(tmp_path / "log", key_of=lambda offset: KEYS[offset % len(KEYS)], partition=number)
        for number in range(2)
    ]
    for log in made:
        log.write(100)
        log.roll()
        log.write(20)
    return made


def cat(path):
    return subprocess.run(["cat", path], capture_output=True, timeout=120, check=True).stdout


def listed(directory):
    return sorted(path.name for path in directory.iterdir())


def test_files(logs, tmp_path):
    with mounted(tmp_path / "log", tmp_path / "mnt") as mount:
        topic = mount.path / "t"
        assert listed(topic / "keys") == listed(topic / "0" / "keys") == sorted(f"{name}.txt" for name in NAMES)
        for key, name in zip(KEYS, NAMES, strict=True):
            order = in_order_for_key(key, [0, 1], 2)
            assert cat(topic / "keys" / f"{name}.txt") == expected([logs[number] for number in order], key)
            file = topic / "1" / "keys" / f"{name}.txt"
            assert cat(file) == expected([logs[1]], key)
            assert file.stat().st_size == len(expected([logs[1]], key))
        lines = cat(topic / "0" / "keys" / "plain.jsonl").splitlines()
        assert {json.loads(line)["key"] for line in lines} == {"plain"}
        assert cat(topic / "keys" / "%70lain.txt") == cat(topic / "keys" / "plain.txt")
        for name in ("nobody.txt", "plain.log", "plain", "%zz.txt"):
            for place in (topic / "keys", topic / "0" / "keys"):
                with pytest.raises(FileNotFoundError):
                    (place / name).read_bytes()
        with pytest.raises(OSError, match="too long") as caught:
            (topic / "keys" / f"{'x' * 252}.txt").stat()
        assert caught.value.errno == errno.ENAMETOOLONG
        with pytest.raises(OSError, match="Read-only") as caught:
            (topic / "keys" / "plain.txt").write_bytes(b"x")
        assert caught.value.errno == errno.EROFS
        found = subprocess.run(["grep", "-rlx", expected(logs, b"plain").split(b"\n")[0], topic / "keys"],
                               capture_output=True, text=True, timeout=120, check=True)  # fmt: skip
        assert found.stdout.splitlines() == [str(topic / "keys" / "plain.txt")]
        status = json.loads((mount.path / "@status.json").read_bytes())["key_index"]
        assert status["segments"] == 4
        assert b"kafkafs_key_index_keys " in (mount.path / "@metrics").read_bytes()

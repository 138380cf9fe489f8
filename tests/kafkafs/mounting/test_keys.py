"""`keys/<key>.EXT` on a real mount: names, listings, growth, and what tools see."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from pathlib import Path

import pytest

from storage.append.partitioner import in_order_for_key
from tests.support.fixtures import Golden, golden_cases
from tests.support.live_log import LiveLog
from tests.support.mounts import mounted, requires_fuse
from tests.support.reference_views import txt

pytestmark = requires_fuse
KEYS = (b"", b"a/b", b"%", b".x", b"\xff", "größe".encode(), b"plain")
NAMES = ("%", "a%2Fb", "%25", "%2Ex", "%FF", "größe", "plain")


def expected(logs: list[LiveLog], key: bytes) -> bytes:
    return b"".join(v + b"\n" for log in logs for o, _, v in log.messages if log.key_of(o) == key)


@pytest.fixture
def logs(tmp_path: Path) -> list[LiveLog]:
    made = [
        LiveLog(tmp_path / "log", key_of=lambda offset: KEYS[offset % len(KEYS)], partition=number)
        for number in range(2)
    ]
    for log in made:
        log.write(100)
        log.roll()
        log.write(20)
    return made


def cat(path: Path) -> bytes:
    return subprocess.run(["cat", path], capture_output=True, timeout=120, check=True).stdout


def listed(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_files(logs: list[LiveLog], tmp_path: Path) -> None:
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
        assert found.stdout.split() == [str(topic / "keys" / "plain.txt")]
        status = json.loads((mount.path / "@status.json").read_bytes())["key_index"]
        assert status["segments"] == 4
        assert b"kafkafs_key_index_keys " in (mount.path / "@metrics").read_bytes()


def test_growth(logs: list[LiveLog], tmp_path: Path) -> None:
    with mounted(tmp_path / "log", tmp_path / "mnt") as mount:
        with (mount.path / "t" / "keys" / "plain.txt").open("rb", buffering=0) as file:
            before = read_on(file.fileno())
            for number in (1, 0, 1):
                size = len(expected(logs, b"plain"))
                logs[number].write(30)
                added = expected(logs, b"plain")
                assert os.fstat(file.fileno()).st_size == len(added)
                before += (fresh := read_on(file.fileno()))
                assert len(fresh) == len(added) - size
                assert set(fresh.splitlines()) <= set(expected([logs[number]], b"plain").splitlines())
        assert sorted(before.splitlines()) == sorted(expected(logs, b"plain").splitlines())


def read_on(descriptor: int) -> bytes:
    data = b""
    while part := os.read(descriptor, 100):
        data += part
    return data


def test_off(logs: list[LiveLog], tmp_path: Path) -> None:
    with mounted(tmp_path / "log", tmp_path / "mnt", "-o", "keys=off") as mount:
        assert listed(mount.path / "t" / "keys") == []
        assert cat(mount.path / "t" / "1" / "keys" / "plain.txt") == expected([logs[1]], b"plain")
        assert json.loads((mount.path / "@status.json").read_bytes())["key_index"] is None
        assert not (mount.path / "t" / "keys" / "nobody.txt").exists()


def test_a_sample_of_the_fixtures(tmp_path: Path) -> None:
    cases = [case for case in golden_cases() if case.fixture == "codecs" and case.isolation == "read_uncommitted"]
    assert len(cases) > 5
    with mounted(cases[0].log_dir, tmp_path / "mnt") as mount:
        for case in cases:
            by_key: dict[bytes, list[Golden]] = {}
            for record in case.records():
                if record.key:
                    by_key.setdefault(record.key, []).append(record)
            for key in sorted(by_key)[:3]:
                name = "".join(f"%{byte:02X}" for byte in key)
                file = mount.path / case.topic / str(case.partition) / "keys" / f"{name}.txt"
                assert cat(file) == txt(by_key[key]), (case, key)

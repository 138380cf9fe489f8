"""The standard tools on growing views, on sealed ranges and on real files: the same as on a plain file."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess

import pytest

from tests.support.mounted_logs import BATCHES, COUNT, jsonl, sample, txt
from tests.support.mounts import requires_fuse
from tests.support.serving_processes import watched

pytestmark = requires_fuse

SEALED = BATCHES * COUNT * 2  # messages of the first two segments


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return sample(tmp_path_factory.mktemp("tools") / "logs")


@pytest.fixture(scope="module")
def mnt(built):
    with watched(built.path, built.path.with_name("mnt")) as mount:
        yield mount.path


@pytest.fixture(scope="module")
def records(built):
    return built["t", 0].records


@pytest.fixture(scope="module")
def files(built, mnt, records):
    """By kind: the view, and a plain file that holds what must be in it."""
    partition = mnt / "t" / "0"
    raw = built["t", 0].log(0).read_bytes()
    expected = {
        "growing": (partition / "messages.txt", txt(records)),
        "sealed-jsonl": (partition / "offsets" / f"5-{SEALED - 7}.jsonl", jsonl(records[5 : SEALED - 6])),
        "segment": (partition / "segments" / built["t", 0].log(0).name, raw),
    }
    plain = built.path.with_name("plain")
    plain.mkdir()
    found = {}
    for kind, (view, content) in expected.items():
        (plain / kind).write_bytes(content)
        found[kind] = (view, plain / kind)
    return found


KINDS = ["growing", "sealed-jsonl", "segment"]
TEXT = KINDS[:-1]

# Each reads `{}` in a way of its own, and must say the same of the view as of the plain file.
COMMANDS = {
    "cat": "cat {}",
    "head": "head -n 7 {}",
    "head all but": "head -n -7 {}",
    "head bytes": "head -c 1000 {}",
    "head all but bytes": "head -c -1000 {}",
    "tail": "tail -n 7 {}",
    "tail from": "tail -n +400 {}",
    "tail bytes": "tail -c 1000 {}",
    "less": "less {} | cat",
    "grep": "grep -a error {}",
    "wc": "wc <{}",
    "wc -c": "wc -c <{}",
    "sort": "LC_ALL=C sort {}",
    "tac": "tac {}",
    "dd": "dd if={} bs=777 skip=100 count=900 status=none",
    "dd large": "dd if={} bs=1M status=none",
    "sha256sum": "sha256sum <{}",
    "split": "split -n 3 {} part- && cat part-*",
    "cp": "cp {} copy && cat copy",
    "rsync": "rsync -t {} copy && cat copy",
    "rsync over": "head -c 5000 {} >copy; rsync --inplace --no-whole-file {} copy && cat copy",
    "tar": 'tar cf - -C "$(dirname {})" "$(basename {})" | tar xOf -',
    "gzip": "gzip -c <{} | gzip -dc",
    "python": "python3 -c 'import sys; [sys.stdout.buffer.write(l) for l in open(sys.argv[1], \"rb\")]' {}",
    "size": "stat -c %s {}",
    "blocks": "[ $(( $(stat -c %b {}) * 512 )) -ge $(stat -c %s {}) ] && echo enough",
    "cmp": "cat {} | cmp - {} && echo same",
}
ONLY_TEXT = {"sort", "less"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_as_of_a_plain_file(files, name, kind, tmp_path):
    if kind not in TEXT and name in ONLY_TEXT:
        pytest.skip("a tool for text")
    if name.startswith("rsync") and shutil.which("rsync") is None:
        pytest.skip("no rsync here")
    view, plain = files[kind]
    (tmp_path / "plain").mkdir()
    (tmp_path / "view").mkdir()
    expected = run(COMMANDS[name].format(*[shlex.quote(str(plain))] * 2), tmp_path / "plain")
    assert run(COMMANDS[name].format(*[shlex.quote(str(view))] * 2), tmp_path / "view") == expected
    assert expected


def run(command, directory):
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=directory, capture_output=True, timeout=120, check=False
    )
    # 141: somebody behind `head` had more to say
    assert result.returncode in (0, 141), result.stderr.decode()
    assert not result.stderr, result.stderr.decode()
    return result.stdout


def test_grep_r_sees_each_message_once_in_each_directory(mnt, records):
    wanted = sum(b"error" in (record.value or b"") for record in records)
    for directory in ("offsets", "time"):
        assert run(f"grep -rh error t/0/{directory} | wc -l", mnt) == b"%d\n" % wanted


def test_a_whole_tree_by_tar_cp_and_rsync(mnt, built, tmp_path):
    """Everything that is listed, copied in three ways, is the same; sizes in the archive are exact."""
    ours = {str(path.relative_to(mnt)) for path in mnt.rglob("*") if not path.name.startswith("@")}
    root = shlex.quote(str(mnt))
    for name, command in {
        "tar": f"mkdir tar && tar cf - -C {root} t codecs empty | tar xf - -C tar",
        "cp": f"mkdir cp && cp -a {root}/t {root}/codecs {root}/empty cp/",
        "rsync": f"rsync -a {root}/t {root}/codecs {root}/empty rsync/",
    }.items():
        run(command, tmp_path)
        copied = {
            str(path.relative_to(tmp_path / name))
            for path in (tmp_path / name).rglob("*")
            if not path.name.startswith("@")
        }
        assert copied == ours
        assert (tmp_path / name / "t/0/messages.txt").read_bytes() == txt(built["t", 0].records)
        for number in range(5):
            copy = tmp_path / name / f"codecs/{number}/messages.txt"
            assert copy.read_bytes() == txt(built["codecs", number].records)
        assert (tmp_path / name / "empty/0/messages.txt").read_bytes() == b""
        run(f"chmod -R u+w {name}", tmp_path)  # so that pytest may remove it


def test_tar_of_all(mnt, tmp_path):
    """But for the files about the mount itself, which change with every request."""
    left_out = [f"--exclude=./{name}" for name in ("@status.json", "@metrics", "@help")]
    for _ in range(2):
        command = ["tar", *left_out, "--xattrs", "-cf", tmp_path / "all.tar", "."]
        result = subprocess.run(command, cwd=mnt, capture_output=True, check=False, timeout=240)
        assert (result.returncode, result.stderr) == (0, b"")
    run("tar -xf all.tar ./t/0/@info.json ./t/@config", tmp_path)
    assert (tmp_path / "t/@config").read_bytes() == (mnt / "t/@config").read_bytes()
    assert json.loads((tmp_path / "t/0/@info.json").read_bytes())["topic"] == "t"


def test_tools_find_no_extended_attributes(mnt, tmp_path):
    assert [os.listxattr(mnt / path) for path in ("", "t", "t/0/messages.txt", "t/0/@info.json", "@status.json")] == [
        []
    ] * 5
    root = shlex.quote(str(mnt))
    commands = [
        f"ls -l {root}/t/0", f"cp -a {root}/t cp", f"cp --preserve=all {root}/t/0/messages.txt one",
    ]  # fmt: skip
    commands += [f"rsync -aX {root}/t rsync/"] if shutil.which("rsync") else []
    commands += [f"getfattr -dR {root}/t"] if shutil.which("getfattr") else []
    for command in commands:
        result = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, check=False, timeout=240)
        assert (result.returncode, result.stderr) == (0, b""), command
    assert (tmp_path / "one").read_bytes() == (mnt / "t/0/messages.txt").read_bytes()
    run("chmod -R u+w .", tmp_path)


def test_find_by_message_time(mnt, built):
    """mtime is the newest message's timestamp in the range."""
    records = built["t", 0].records
    newest = records[-1].timestamp
    (mnt / "t/0/messages.txt").read_bytes()
    assert (mnt / "t/0/messages.txt").stat().st_mtime_ns == newest * 1_000_000
    found = run(f"find t/0 -name messages.txt -newermt @{newest // 1000 - 1}", mnt)
    assert found.endswith(b"messages.txt\n")
    assert run(f"find t/0 -name messages.txt -newermt @{newest // 1000 + 1}; echo", mnt) == b"\n"
    sealed = mnt / "t/0/offsets" / f"0-{SEALED - 1}.txt"
    sealed.read_bytes()
    assert sealed.stat().st_mtime_ns == records[SEALED - 1].timestamp * 1_000_000


def test_less_on_a_terminal(mnt, records):
    """`less +G` jumps to the end, and shows it."""
    if shutil.which("script") is None or shutil.which("less") is None:
        pytest.skip("no script or no less here")
    command = f"less -X +Gq {shlex.quote(str(mnt))}/t/0/messages.txt"
    shown = subprocess.run(
        ["script", "-qec", command, "/dev/null"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "TERM": "vt100", "LINES": "24", "COLUMNS": "80", "LC_ALL": "C.UTF-8"},
        timeout=120,
        check=False,
    )
    last = records[-1].value or b""
    assert last.split()[0] in shown.stdout

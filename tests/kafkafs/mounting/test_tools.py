"""The standard tools on growing views, on sealed ranges and on real files: the same as on a plain file."""

import json
import os
import shlex
import shutil
import subprocess

import pytest

from tests.support.mounted_logs import BATCHES, COUNT, sample
from tests.support.mounts import requires_fuse
from tests.support.reference_views import jsonl, txt
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
    partition, log = mnt / "t" / "0", built["t", 0].log(0)
    views = {
        "growing": (partition / "messages.txt", txt(records)),
        "sealed-jsonl": (partition / "offsets" / f"5-{SEALED - 7}.jsonl", jsonl(records[5 : SEALED - 6])),
        "segment": (partition / "segments" / log.name, log.read_bytes()),
    }
    for kind, (_, content) in views.items():
        built.path.with_name(kind).write_bytes(content)
    return {
        kind: (shlex.quote(str(view)), shlex.quote(str(built.path.with_name(kind))))
        for kind, (view, _) in views.items()
    }


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
    "less": "less -f {} | cat",
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
}


def run(command, directory):
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], cwd=directory, capture_output=True, timeout=240, check=False
    )
    # 141: somebody behind `head` had more to say
    assert result.returncode in (0, 141), result.stderr.decode()
    assert not result.stderr, result.stderr.decode()
    return result.stdout


@pytest.mark.parametrize("kind", ["growing", "sealed-jsonl", "segment"])
@pytest.mark.parametrize("name", COMMANDS)
def test_the_same_as_of_a_plain_file(files, name, kind, tmp_path):
    tool = name.split()[0]
    if tool in ("rsync", "less") and shutil.which(tool) is None:
        pytest.skip(f"no {tool} here")
    outputs = []
    for number, path in enumerate(files[kind]):
        (tmp_path / str(number)).mkdir()
        outputs.append(run(COMMANDS[name].replace("{}", path), tmp_path / str(number)))
    assert outputs[0] == outputs[1] != b""


def test_grep_r_sees_each_message_once_in_each_directory(mnt, records):
    errors = sum(b"error" in (record.value or b"") for record in records)
    for directory in ("offsets", "time"):
        assert run(f"grep -rh error t/0/{directory} | wc -l", mnt) == b"%d\n" % errors


def test_a_whole_tree_by_tar_cp_and_rsync(mnt, built, tmp_path):
    """Everything that is listed, copied in three ways, is the same; sizes in the archive are exact; there are no
    extended attributes."""
    ours = {str(path.relative_to(mnt)) for path in mnt.rglob("*") if not path.name.startswith("@")}
    root = shlex.quote(str(mnt))
    for name, command in {
        "tar": f"mkdir tar && tar --xattrs -cf - -C {root} t codecs empty | tar xf - -C tar",
        "cp": f"mkdir cp && cp -a {root}/t {root}/codecs {root}/empty cp/",
        "rsync": f"rsync -aX {root}/t {root}/codecs {root}/empty rsync/",
    }.items():
        if shutil.which(name) is None:
            continue  # no rsync here
        run(command, tmp_path)
        copy = tmp_path / name
        assert {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.name.startswith("@")} == ours
        assert (copy / "t/0/messages.txt").read_bytes() == txt(built["t", 0].records)
        for number in range(5):
            assert (copy / f"codecs/{number}/messages.txt").read_bytes() == txt(built["codecs", number].records)
        assert (copy / "empty/0/messages.txt").read_bytes() == b""
        assert (copy / "t/@config").read_bytes() == (mnt / "t/@config").read_bytes()
        assert json.loads((copy / "t/0/@info.json").read_bytes())["topic"] == "t"
        run(f"chmod -R u+w {name}", tmp_path)  # so that pytest may remove it
    shown = [os.listxattr(mnt / path) for path in ("", "t", "t/0/messages.txt", "t/0/@info.json", "@status.json")]
    assert shown == [[]] * 5


def test_find_by_message_time(mnt, records):
    """mtime is the newest message's timestamp in the range."""
    for name, newest in (("messages.txt", records[-1]), (f"offsets/0-{SEALED - 1}.txt", records[SEALED - 1])):
        view = mnt / "t/0" / name
        view.read_bytes()
        assert view.stat().st_mtime_ns == newest.timestamp * 1_000_000
    seconds = records[-1].timestamp // 1000
    assert run(f"find t/0 -name messages.txt -newermt @{seconds - 1}", mnt) == b"t/0/messages.txt\n"
    assert run(f"find t/0 -name messages.txt -newermt @{seconds + 1}", mnt) == b""

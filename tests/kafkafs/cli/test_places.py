"""What is no log directory, and destinations inside of one: told by every command, and nothing is made."""

from pathlib import Path

import pytest

from tests.support.builders import build_log_dir
from tests.support.commands import run
from tests.support.every_command import placed, runs, sample_beside
from tests.support.mounts import mounted, requires_fuse
from tests.support.owned_dirs import tree_of

# Every run of every command, but those that accept other files and directories too.
READING = [
    *(words for words in runs() + runs(spark=True) if words[0] not in ("dump", "schemas") and "LOGS" in words),
    ["diff", "SOURCE", "LOGS", "orders"],
    ["mount", "LOGS", "OUT"],
    ["mount", "LOGS", "OUT", "--read-only"],
]
MAKING = (
    "mirror GOOD DEST",
    "mirror GOOD NEW --manifest DEST",
    "mount DEST MNT --create",
    "mount GOOD MNT --read-only -o log=DEST",
    "revive GOOD --to DEST",
    "revive GOOD --to DEST --dry-run",
    "salvage GOOD t --to DEST",
    "schemas SCHEMAS --to DEST",
    "spark export GOOD DEST",
    "stats GOOD --png DEST",
    "stats GOOD t --svg DEST",
    "topics create DEST t",
)


@pytest.fixture
def places(tmp_path):
    """A log directory, another, and what is none."""
    places = {name: tmp_path / name.lower() for name in ("GOOD", "OTHER", "MNT", "NEW", "SCHEMAS", "EMPTY", "ETC")}
    build_log_dir(places["GOOD"], {"t": [[b"one"]]})
    build_log_dir(places["OTHER"], {"t": [[b"one"]]}, broker=False)
    for name in ("MNT", "SCHEMAS", "EMPTY"):
        places[name].mkdir()
    (places["SCHEMAS"] / "1.avsc").write_text('"string"')
    (places["ETC"] / "dbus-1").mkdir(parents=True)
    (places["ETC"] / "dbus-1" / "system.conf").write_text("")
    return places


@pytest.mark.parametrize(
    ("words", "wrong"),
    [*((words, "ETC") for words in READING), *((["count", "LOGS"], one) for one in ("EMPTY", "PARTITION", "FILE"))],
    ids=lambda words: " ".join(words) if isinstance(words, list) else words,
)
def test_no_log_directory(places, tmp_path, words, wrong):
    sample_beside(tmp_path)
    partition = places["OTHER"] / "t-0"
    place = (places | {"PARTITION": partition, "FILE": next(partition.glob("*.log"))})[wrong]
    before = tree_of(tmp_path)
    result = run(*placed(words, place, tmp_path))
    assert (result.exit_code, result.stdout) == (4, ""), result.output
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kafkafs: {place}: ")
    assert wrong not in ("PARTITION", "FILE") or f"The log directory is {places['OTHER']}" in line
    assert tree_of(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "inside"),
    [
        *((command, "OTHER/t-0/x.png") for command in MAKING),
        *(("mirror GOOD DEST", one) for one in ("OTHER/x.png", "GOOD/x.png", "link/x.png", "new/../other/x.png")),
    ],
)
def test_a_destination_inside(places, tmp_path, command, inside):
    (tmp_path / "link").symlink_to(places["OTHER"])
    (tmp_path / "new").mkdir()
    dest = tmp_path.joinpath(*(part.lower() for part in Path(inside).parts))
    before = tree_of(tmp_path)
    words = [word.replace("DEST", str(dest)) if "DEST" in word else places.get(word, word) for word in command.split()]
    result = run(*words)
    assert result.exit_code == 2, result.output
    log_dir = places["GOOD" if inside.startswith("GOOD") else "OTHER"]
    assert "x.png: is inside " in result.stderr
    assert f"inside the log directory {log_dir}. " in result.stderr or f"inside {log_dir}/t-0, " in result.stderr
    assert result.stdout == ""
    assert tree_of(tmp_path) == before


@requires_fuse
def test_in_a_mount(places, tmp_path):
    """A directory that is made in a tree is a topic."""
    good = places["GOOD"]
    with mounted(places["OTHER"], places["MNT"], write=True) as mount:
        for wrong in (mount.path, mount.path / "t", mount.path / "t/0/segments"):
            result = run("count", wrong)
            assert result.exit_code == 4
            assert result.stderr.endswith(f"The log directory is {places['OTHER']}\n")
        result = run("mirror", good, mount.path / "copy")
        assert result.exit_code == 2
        assert f"inside the tree of {places['OTHER']}" in result.stderr
        assert sorted(path.name for path in mount.path.iterdir() if path.name[0] != "@") == ["t"]

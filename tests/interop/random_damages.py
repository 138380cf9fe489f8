"""Damages to a broker's log directory, by name, for tests/interop/predictions.py: each draws its place from a seed.

`IN_A_PARTITION` change one partition's files, or its lines in checkpoints; `ANY` are these and those of the directory.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from random import Random

METADATA = "__cluster_metadata-0"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)  # fmt: skip
OTHER_ID = "qqqqqqqqqqqqqqqqqqqqqg"


@dataclass(slots=True)
class Damaged:
    """A copy of a log directory that is being damaged. `number`: the partition at hand; `origin`: directories of other
    moments, by state."""

    logs: Path
    topic: str
    number: int
    origin: dict
    dice: Random

    @property
    def partition(self):
        return self.logs / f"{self.topic}-{self.number}"

    def file(self, *patterns):
        """One of the partition's files, or None."""
        found = sorted(path for pattern in patterns for path in self.partition.glob(pattern) if path.is_file())
        return self.dice.choice(found) if found else None

    def segments(self):
        return sorted(path.stem for path in self.partition.glob("[0-9]*.log") if path.is_file())

    def of_segment(self, stem):
        return [path for path in sorted(self.partition.glob(f"{stem}.*")) if path.suffix != ".snapshot"]


def changes(*patterns):
    """The ways in which a file's bytes change; its name is drawn from these patterns."""

    def on_file(change):
        def damage(target):
            path = target.file(*patterns)
            if path is not None:
                path.write_bytes(change(bytearray(path.read_bytes()), target.dice))

        return damage

    return {name: on_file(change) for name, change in BYTES.items()}


def flipped(data, dice):
    for _ in range(dice.choice((1, 1, 3)) if data else 0):
        data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return data


def zeroed(data, dice):
    start = dice.randrange(len(data) + 1)
    end = min(start + dice.choice((1, 8, 61, 512, 4096)), len(data))
    data[start:end] = bytes(end - start)
    return data


def cut(data, dice):
    return data[: dice.randrange(len(data) + 1)]


def doubled(data, dice):
    start = dice.randrange(len(data) + 1)
    end = min(start + dice.choice((8, 61, 512, len(data))), len(data))
    return data[:end] + data[start:end] + data[end:]


def appended(data, dice):
    return data + dice.choice((b"garbage\n", bytes(dice.choice((1, 12, 61, 4096))), b"\xff" * 100))


BYTES = {
    "flipped": flipped, "zeroed": zeroed, "cut": cut, "doubled": doubled, "appended": appended,
    "all zeros": lambda data, _: bytes(len(data)), "emptied": lambda _data, _: b"",
}  # fmt: skip


def _removed(target, *patterns):
    path = target.file(*patterns)
    if path is not None:
        path.unlink()


def _directory(target, *patterns):
    path = target.file(*patterns)
    if path is not None:
        path.unlink()
        path.mkdir()


def _segment_removed(target):
    stems = target.segments()
    for path in target.of_segment(target.dice.choice(stems)) if stems else ():
        path.unlink()


def _all_segments_removed(target):
    for path in sorted(target.partition.glob("[0-9]*.*")):
        if target.dice.random() < 0.9:
            path.unlink()


def _segment_renamed(target):
    stems = target.segments()
    if stems:
        stem = target.dice.choice(stems)
        offset = max(0, int(stem) + target.dice.choice((-40, -7, -1, 1, 5, 20, 100)))
        files = target.of_segment(stem)
        for path in files if target.dice.random() < 0.7 else files[-1:]:
            if not (target.partition / f"{offset:020}{path.suffix}").exists():
                path.rename(target.partition / f"{offset:020}{path.suffix}")


def _suffixed(target):
    path = target.file("[0-9]*.*")
    if path is not None:
        suffix = target.dice.choice((".deleted", ".cleaned", ".swap", ".tmp", ".bak", ".staged"))
        path.rename(path.with_name(path.name + suffix))


def _misnamed(target):
    path = target.file("[0-9]*.*")
    if path is not None:
        path.rename(path.with_name(target.dice.choice(("x", "", "1", "-5", f"{7:019}", f"{7:021}")) + path.suffix))


def _segments_swapped(target):
    stems = target.segments()
    if len(stems) > 1:
        first, second = target.dice.sample(stems, 2)
        suffix = target.dice.choice((".log", ".index", ".timeindex"))
        one, other = (target.partition / f"{stem}{suffix}" for stem in (first, second))
        if one.is_file() and other.is_file():
            data = one.read_bytes()
            one.write_bytes(other.read_bytes())
            other.write_bytes(data)


def _batches(data):
    """Where the batches of a segment begin and end."""
    found, position = [], 0
    while position + 12 < len(data):
        end = position + 12 + int.from_bytes(data[position + 8 : position + 12], "big", signed=True)
        if not position + 61 <= end <= len(data):
            break
        found.append((position, end))
        position = end
    return found


def _batch_changed(change):
    def damage(target):
        path = target.file("[0-9]*.log")
        data = bytearray(path.read_bytes()) if path is not None else b""
        batches = _batches(data)
        if batches:
            row = target.dice.randrange(len(batches))
            path.write_bytes(change(data, batches, row, target.dice))

    return damage


def _batch_twice(data, batches, row, _dice):
    start, end = batches[row]
    return data[:end] + data[start:end] + data[end:]


def _batch_lost(data, batches, row, _dice):
    start, end = batches[row]
    return data[:start] + data[end:]


def _batches_exchanged(data, batches, row, dice):
    other = dice.randrange(len(batches))
    (a, b), (c, d) = batches[min(row, other)], batches[max(row, other)]
    return data if a == c else data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _field(at, size):
    """A field of a batch's header that no CRC covers, set to something near."""

    def change(data, batches, row, dice):
        start = batches[row][0] + at
        value = int.from_bytes(data[start : start + size], "big", signed=True) + dice.choice((-50, -1, 1, 7, 1 << 30))
        data[start : start + size] = (value % (1 << 8 * size)).to_bytes(size, "big")
        return data

    return change


def _other_moment(target):
    other = target.origin[target.dice.choice(sorted(target.origin))] / target.partition.name
    if target.partition.is_dir():
        shutil.rmtree(target.partition)
    shutil.copytree(other, target.partition)


def _file_of_other_moment(target):
    other = target.origin[target.dice.choice(sorted(target.origin))] / target.partition.name
    path = target.dice.choice(sorted(other.iterdir()))
    if not (target.partition / path.name).is_dir():
        shutil.copy2(path, target.partition / path.name)


def _file_of_other_partition(target):
    path = target.file("*")
    other = target.logs / f"{target.topic}-{target.dice.randrange(14)}"
    if path is not None and (other / path.name).is_file():
        shutil.copy2(other / path.name, path)


def _topic_id(target):
    path = target.partition / "partition.metadata"
    if path.is_file():
        others = [OTHER_ID, "AAAAAAAAAAAAAAAAAAAAAA", "x", ""]
        others += [
            file.read_text(errors="replace").rpartition(" ")[2]
            for file in sorted(target.logs.glob("__[ct]*/partition.metadata"))
            if file.is_file()
        ]
        path.write_text(f"version: 0\ntopic_id: {target.dice.choice(others)}")


def _checkpointed(target):
    """The partition's line in a checkpoint gets another offset, or is added, or goes."""
    path = target.logs / target.dice.choice(CHECKPOINTS[:3])
    if not path.is_file():
        return
    lines = path.read_text(errors="replace").splitlines()[2:]
    begin = f"{target.topic} {target.number} "
    lines = [line for line in lines if not line.startswith(begin)]
    if target.dice.random() < 0.8:
        lines.append(begin + str(target.dice.choice((0, 1, 17, 30, 44, 59, 60, 61, 100, 1 << 40))))
    path.write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def _epochs(target):
    text = target.dice.choice(("0 0", "0 5", "0 0,1 30", "0 0,1 60", "0 0,3 100", "1 0", "2 70", ""))
    lines = [line for line in text.split(",") if line]
    (target.partition / "leader-epoch-checkpoint").write_text("\n".join(["0", str(len(lines)), *lines, ""]))


def _future(target):
    name = f"{target.partition.name}.{'a' * 32}-future"
    if target.partition.is_dir():
        if target.dice.random() < 0.5:
            target.partition.rename(target.logs / name)
        else:
            shutil.copytree(target.partition, target.logs / name)


def _aside(target):
    suffix = target.dice.choice(("delete", "stray"))
    if target.partition.is_dir():
        target.partition.rename(target.logs / f"{target.partition.name}.{'b' * 32}-{suffix}")


def _named(prefix, damages):
    return {f"{prefix} {name}": damage for name, damage in damages.items()}


IN_A_PARTITION = {
    **_named("log", changes("[0-9]*.log")),
    **_named("index", changes("[0-9]*.index", "[0-9]*.timeindex", "[0-9]*.txnindex")),
    **_named("small file", changes("*.snapshot", "leader-epoch-checkpoint", "partition.metadata")),
    "file removed": lambda target: _removed(target, "*"),
    "log removed": lambda target: _removed(target, "[0-9]*.log"),
    "index removed": lambda target: _removed(target, "[0-9]*index"),
    "file a directory": lambda target: _directory(target, "*"),
    "segment removed": _segment_removed,
    "all segments removed": _all_segments_removed,
    "segment renamed": _segment_renamed,
    "file with a suffix": _suffixed,
    "file misnamed": _misnamed,
    "files of segments swapped": _segments_swapped,
    "batch twice": _batch_changed(_batch_twice),
    "batch lost": _batch_changed(_batch_lost),
    "batches exchanged": _batch_changed(_batches_exchanged),
    "base offset": _batch_changed(_field(0, 8)),
    "length": _batch_changed(_field(8, 4)),
    "leader epoch": _batch_changed(_field(12, 4)),
    "magic": _batch_changed(_field(16, 1)),
    "of another moment": _other_moment,
    "file of another moment": _file_of_other_moment,
    "file of another partition": _file_of_other_partition,
    "topic id": _topic_id,
    "checkpointed offset": _checkpointed,
    "epochs": _epochs,
    "future": _future,
    "aside": _aside,
    "partition removed": lambda target: shutil.rmtree(target.partition, ignore_errors=True),
}


def _of_directory(*patterns):
    def choose(target):
        found = sorted(path for pattern in patterns for path in target.logs.glob(pattern) if path.is_file())
        return target.dice.choice(found) if found else None

    def on_file(change):
        def damage(target):
            path = choose(target)
            if path is not None:
                path.write_bytes(change(bytearray(path.read_bytes()), target.dice))

        return damage

    def removed(target):
        path = choose(target)
        if path is not None:
            path.unlink()

    def as_directory(target):
        path = choose(target)
        if path is not None:
            path.unlink()
            path.mkdir()

    def moved(target):
        path = choose(target)
        other = target.origin[target.dice.choice(sorted(target.origin))]
        if path is not None and (other / path.relative_to(target.logs)).is_file():
            shutil.copy2(other / path.relative_to(target.logs), path)

    found = {name: on_file(change) for name, change in BYTES.items()}
    return {**found, "removed": removed, "a directory": as_directory, "of another moment": moved}


def _marker(target):
    path = target.logs / ".kafka_cleanshutdown"
    if path.exists():
        path.unlink()
    else:
        path.write_bytes(b'{"version":0,"brokerEpoch":1}')


def _misplaced(target):
    names = ["lost+found", ".snapshot", "x", "x-", "-1", "p--1", "p-99", "p-003", "P-3", "p-x", "p-1.x-delete"]
    (target.logs / target.dice.choice(names)).mkdir(exist_ok=True)


def _metadata_removed(target):
    shutil.rmtree(target.logs / METADATA, ignore_errors=True)


def _partition_copied(target):
    other = target.logs / f"{target.topic}-{target.dice.randrange(14)}"
    if target.partition.is_dir() and other.is_dir() and other != target.partition:
        shutil.rmtree(other)
        shutil.copytree(target.partition, other)


def _foreign_directory(target):
    source = target.logs / target.dice.choice(("__transaction_state-0", METADATA))
    if target.partition.is_dir() and source.is_dir():
        shutil.rmtree(target.partition)
        shutil.copytree(source, target.partition)


ANY = {
    **IN_A_PARTITION,
    **_named("meta.properties", _of_directory("meta.properties")),
    **_named("checkpoint", _of_directory(*CHECKPOINTS)),
    **_named("bootstrap", _of_directory("bootstrap.checkpoint")),
    **_named("metadata log", _of_directory(f"{METADATA}/[0-9]*.log")),
    **_named("metadata file", _of_directory(f"{METADATA}/*")),
    **_named("quorum-state", _of_directory(f"{METADATA}/quorum-state")),
    "clean-shutdown marker": _marker,
    "directory misplaced": _misplaced,
    "metadata log lost": _metadata_removed,
    "partition in another's place": _partition_copied,
    "directory of another topic": _foreign_directory,
}

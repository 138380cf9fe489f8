"""Damages to copies of log directories, drawn from a seed: what disks, people and copying tools do to them."""

import os
import shutil

LIVE = "[a-z_]*-[0-9]*"
CHECKPOINTS = (
    "recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint", "meta.properties", ".kafka_cleanshutdown", "bootstrap.checkpoint",
)  # fmt: skip


def _same(one, other):
    return one.read_bytes() == other.read_bytes()


class Damages:
    """Changes the log directories `places`; `others` are whole ones of other moments and nodes."""

    def __init__(self, places, others, dice):
        self.places, self.others, self.dice = places, others, dice

    def partition(self, *, of_one_life=False):
        """A partition's directory that has messages. `of_one_life`: not of the topic that was deleted and made anew:
        where its files have changed their names nobody knows any more which life they are of."""
        found = [path for place in self.places for path in sorted(place.glob(LIVE)) if path.is_dir()]
        found = [path for path in found if "__" not in path.name and any(self.logs(path))]
        found = [path for path in found if not (of_one_life and path.name.startswith("again"))]
        return self.dice.choice(found)

    def logs(self, partition):
        return sorted(path for path in partition.glob("*.log") if path.is_file() and path.stat().st_size)

    def log(self, **options):
        return self.dice.choice(self.logs(self.partition(**options)))

    def twin(self, partition):
        """The same partition at another moment, or on another node."""
        found = [other / partition.name for other in self.others if any((other / partition.name).glob("*.log"))]
        return self.dice.choice(found)

    def replace(self, path, change):
        """Changes bytes; the file keeps its time, as when a disk loses them."""
        times = path.stat()
        path.write_bytes(change(bytearray(path.read_bytes())))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    # Bytes

    def flip(self, path=None):
        def change(data):
            if data:
                data[self.dice.randrange(len(data))] ^= 1 << self.dice.randrange(8)
            return data

        self.replace(path or self.log(), change)

    def zeros(self):
        def change(data):
            at = self.dice.randrange(len(data))
            count = min(self.dice.choice((1, 60, 700, 4096)), len(data) - at)
            data[at : at + count] = bytes(count)
            return data

        self.replace(self.log(), change)

    def cut(self):
        self.replace(self.log(), lambda data: data[: self.dice.randrange(len(data))])

    def torn(self):
        """The end of the last segment is missing."""
        path = self.logs(self.partition())[-1]
        self.replace(path, lambda data: data[: -self.dice.randrange(1, min(len(data), 900))])

    def bytes_out(self):
        def change(data):
            at = self.dice.randrange(len(data))
            del data[at : at + self.dice.randrange(1, 2000)]
            return data

        self.replace(self.log(), change)

    def doubled(self):
        def change(data):
            at = self.dice.randrange(len(data))
            part = data[at : at + self.dice.randrange(1, 2000)]
            return data[:at] + part + data[at:]

        self.replace(self.log(), change)

    # Segments

    def without_segment(self):
        self.remove_segment(self.log())

    def remove_segment(self, log):
        for path in log.parent.glob(f"{log.stem}.*"):
            path.unlink()

    def without_log(self):
        self.log().unlink()

    def without_some_segments(self):
        for log in self.logs(self.partition()):
            if self.dice.random() < 0.4:
                self.remove_segment(log)

    def without_the_last_segment(self):
        self.remove_segment(self.logs(self.partition())[-1])

    def without_the_first_segment(self):
        self.remove_segment(self.logs(self.partition())[0])

    def emptied(self):
        self.log().write_bytes(b"")

    def renamed(self):
        log = self.log(of_one_life=True)
        base = max(int(log.stem) + self.dice.choice((-50, -1, 1, 7, 1000)), 0)
        if not (log.parent / f"{base:020}.log").exists():
            for path in list(log.parent.glob(f"{log.stem}.*")):
                path.rename(path.with_name(f"{base:020}{path.suffix}"))

    def swapped(self):
        logs = self.logs(self.partition(of_one_life=True))
        if len(logs) > 1:
            first, second = self.dice.sample(logs, 2)
            kept = first.rename(first.with_suffix(".kept"))
            second.rename(first)
            kept.rename(second)

    def suffixed(self):
        log = self.log()
        log.rename(log.with_name(log.name + self.dice.choice((".deleted", ".bak", ".swap", ".cleaned"))))

    def directory_instead(self):
        log = self.log()
        log.unlink()
        log.mkdir()

    def segment_of_another_moment(self):
        partition = self.partition()
        log = self.dice.choice(sorted(self.twin(partition).glob("*.log")))
        for path in log.parent.glob(f"{log.stem}.*"):
            shutil.copy2(path, partition / path.name)

    def foreign_segment(self):
        """A segment of another partition in place of one that another directory of the pile has, too: in a directory
        alone nobody can tell whose it is if its offsets fit. It comes last, for that reason."""
        logs = [log for place in self.places for path in place.glob(LIVE) for log in self.logs(path)]
        logs = sorted(log for log in logs if not log.parent.name.startswith(("__", "again", "state")))
        replaced = self.dice.choice([
            log for log in logs
            if any(other != log and other.parts[-2:] == log.parts[-2:] and _same(other, log) for other in logs)
        ])  # fmt: skip
        source = self.dice.choice([log for log in logs if log.parent.name != replaced.parent.name])
        for path in source.parent.glob(f"{source.stem}.*"):
            shutil.copy2(path, replaced.with_suffix(path.suffix))

    # Files beside the segments

    def epochs(self):
        path = self.partition() / "leader-epoch-checkpoint"
        kind = self.dice.randrange(4)
        if kind == 0:
            path.unlink(missing_ok=True)
        elif kind == 1:
            shutil.copy2(self.twin(path.parent) / path.name, path)
        elif kind == 2:
            path.write_bytes(self.dice.randbytes(30))
        else:
            self.flip(path)

    def topic_id(self):
        path = self.partition() / "partition.metadata"
        kind = self.dice.randrange(4)
        if kind == 0:
            path.unlink(missing_ok=True)
        elif kind == 1:
            path.write_bytes(b"")
        elif kind == 2:
            path.write_bytes(self.dice.randbytes(30))
        else:
            path.touch()

    def side_file(self):
        kinds = (".index", ".timeindex", ".snapshot")
        path = self.dice.choice([path for path in sorted(self.partition().iterdir()) if path.suffix in kinds])
        if self.dice.random() < 0.5:
            path.unlink()
        else:
            path.write_bytes(self.dice.randbytes(self.dice.choice((0, 10, 12, 24, 300))))

    def checkpoint(self):
        place = self.dice.choice(self.places)
        path = place / self.dice.choice(CHECKPOINTS)
        other = self.dice.choice(self.others) / path.name
        kind = self.dice.randrange(3)
        if kind == 0:
            path.unlink(missing_ok=True)
        elif kind == 1 and other.exists() and path.name != "meta.properties":
            shutil.copy2(other, path)
        elif path.exists():
            self.flip(path)

    def metadata_log(self):
        found = [path for place in self.places for path in sorted(place.glob("__cluster_metadata-0/*.log"))]
        if found:
            self.flip(self.dice.choice(found))

    def metadata_gone(self):
        for place in self.places:
            if self.dice.random() < 0.5:
                shutil.rmtree(place / "__cluster_metadata-0", ignore_errors=True)

    def partition_gone(self):
        shutil.rmtree(self.partition())

    def hurt(self):
        """One damage; returns its name."""
        name = self.dice.choice(NAMES)
        getattr(self, name)()
        return name


_HELPERS = ("foreign_segment", "partition", "logs", "log", "twin", "replace", "remove_segment", "hurt")
NAMES = [name for name in vars(Damages) if not name.startswith("_") and name not in _HELPERS]

"""Divided compaction passes: their parts done in this process, one after the other, divided at random."""

from __future__ import annotations

import itertools
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from storage.compaction.divided_pass import Copied, DividedPass, GroupCopy, KeyChunk, KeyScan, latest_offsets, spread
from storage.files.disk_protocol import Disk
from storage.files.names import FileState
from tests.support.owned_dirs import HastyDisk


def in_parts(dice: random.Random, disk: Disk | None = None) -> Callable[[DividedPass], list[Copied]]:
    """Does a pass in this process, with stretches, places and maps of random sizes; everything is passed as bytes."""

    def run_parts(work: DividedPass) -> list[Copied]:
        places = dice.choice((1, 2, 5))
        most_keys = dice.choice((1, 3, 10, 1000))
        chunks: list[list[KeyChunk]] = [[] for _ in range(places)]
        passed = []
        for group in work.groups:
            inner = sorted({dice.randrange(group.start, group.end) for _ in range(dice.choice((0, 1, 4)))})
            cuts = sorted({group.start, *inner, group.end})
            for start, end in itertools.pairwise(cuts):
                stretch = _sent(work.stretch(start, end))
                scan = KeyScan(stretch, work.secret, most_keys=most_keys)
                for chunk in scan.chunks():
                    for place, part in spread(_sent(chunk), places):
                        chunks[place].append(part)
                passed.append((start, _sent(scan.passed())))
        dice.shuffle(passed)
        for one in chunks:
            dice.shuffle(one)
        latest = np.sort(np.concatenate([latest_offsets(one, work.secret) for one in chunks]))
        copied = []
        for group, copy in zip(work.groups, work.copies(passed), strict=True):
            first, last = latest.searchsorted((group.start, group.end))
            one: GroupCopy = _sent(copy)
            copied.append(one.run(latest[first:last], disk or HastyDisk()))
        dice.shuffle(copied)
        return copied

    return run_parts


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def both_ways(path: Path, once: Callable[[Path], object], divided: Callable[[Path], object]) -> None:
    """Compacts copies of a directory in both ways. They must then be equal, in each byte and file time."""
    outcomes = []
    for number, work in enumerate((once, divided)):
        copy = path.with_name(f"{path.name}-{number}")
        shutil.copytree(path, copy)
        work(copy)
        files = [file for file in sorted(copy.rglob("*")) if file.is_file() and file.name != ".lock"]
        assert not [file for file in files if file.name.endswith((".staged", FileState.CLEANED.value))]
        outcomes.append(
            {
                str(file.relative_to(copy)): (
                    file.read_bytes(),
                    file.stat().st_mtime_ns if file.suffix in (".log", ".index", ".timeindex") else 0,
                )
                for file in files
            }
        )
    one, other = outcomes
    assert one.keys() == other.keys()
    assert [name for name in one if one[name] != other[name]] == []

"""Backups of a broker at work that are killed or meet a full disk, and a broker at work on what shares their files.

    python -m tests.interop.live_sources --kills 20 --minutes 20 --seed 1

While a broker writes, rolls, compacts, retains and is in transactions, `mirror` is killed at random moments and meets a
disk that is full, and `revive` refuses. Segments that the broker no longer writes keep their bytes. The next `mirror`
completes the copy, in which everything is that was acknowledged. When the broker was killed, so are both commands, and
they meet a full disk: the directory keeps every byte. Then `revive --link`, and a broker that works on DEST:
its sources keep their bytes.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.interop.adoption import adopted_as_it_is, told_since
from tests.interop.client import Client
from tests.interop.kafka import Broker
from tests.interop.reviving import revived
from tests.interop.three_nodes import Load, state_of
from tests.support.commands import output_of, process, run

_PLACES = [("orders", 0), ("orders", 1), ("orders", 2), ("state", 0), ("pay", 0), ("pay", 1)]
_SMALL = {"internal.segment.bytes": 30_000, "segment.ms": 2000}
_COMPACTED = {**_SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01}
_RETAINED = {**_SMALL, "retention.bytes": 200_000}
_FULL = ("size=1m", "nr_inodes=30")  # less than a copy
_KAFKAFS = [sys.executable, "-m", "kafkafs"]

# A file system with the limit $1 at $2, for this process alone; there the command $3 fails, and when there is more room
# it does not, and $4 then neither.
_FULL_DISK = """
set -eu
mount -t tmpfs -o "$1" tmpfs "$2"
if sh -c "$3" >/dev/null 2>"$2.said"; then echo "it was not full" >&2; exit 3; fi
grep -q "No space left on device\\|not enough space" "$2.said" || { cat "$2.said" >&2; exit 4; }
mount -o remount,size=1g,nr_inodes=100000 "$2"
sh -c "$3" >/dev/null 2>&1
sh -c "$4" >/dev/null
"""


def at_rest(directory):
    """The segments of a broker at work that it no longer writes, but may remove. Not compacted ones: others take
    their names."""
    found = {}
    for topic, partition in _PLACES:
        for path in sorted((directory / f"{topic}-{partition}").glob("*.log"))[:-1] if topic != "state" else ():
            with suppress(FileNotFoundError):
                found[str(path)] = path.read_bytes()
    return found


def killed(rng, longest, *arguments):
    """Runs a command and kills it at a random moment; returns whether it had not ended."""
    with process(*arguments, stdout=subprocess.DEVNULL) as running:
        try:
            _, said = running.communicate(timeout=rng.uniform(0, longest))
        except subprocess.TimeoutExpired:
            running.kill()
            return True
    assert running.returncode == 0, (arguments[0], running.returncode, said)
    return False


def on_full_disks(room, command, check):
    """A command fails for want of room, and then succeeds, and then `check` does. All of it in a mount namespace."""
    place = room / "full"
    place.mkdir()
    shells = [" ".join(map(str, (*_KAFKAFS, *arguments(place)))) for arguments in (command, check)]
    for limit in _FULL:
        subprocess.run(["unshare", "-rm", "sh", "-c", _FULL_DISK, "sh", limit, place, *shells], check=True)
    place.rmdir()


def rows_of(directory, place):
    """Key and value of each message of a directory, by offset."""
    rows = {}
    for line in output_of("cat", directory, "/".join(map(str, place)), "--format", "%o\t%k\t%s\n").splitlines():
        offset, key, value = line.split(b"\t")
        rows[int(offset)] = key or None, value
    return rows


def all_there(directory, done, source):
    """Everything that was acknowledged is at its offset, or its key has a later message, or retention has removed it
    from the source, maybe before it was copied. Returns how many are there."""
    found = 0
    for place, expected in done.records.items():
        rows = rows_of(directory, place)
        start = min(rows_of(source, place), default=0) if place[0] == "orders" else 0
        latest = {key: offset for offset, (key, _) in sorted(rows.items())}
        for offset, one in expected.items():
            superseded = place[0] == "state" and offset < latest.get(one[0], -1)
            assert rows.get(offset, one if superseded or offset < start else None) == one, (place, offset, start)
            found += offset in rows
    values = {value for number in (0, 1) for _, value in rows_of(directory, ("pay", number)).values()}
    assert values >= set(done.committed)
    return found + len(done.committed)


def at_work(broker, load, room, rng, kills):
    """Copies of a broker at work. `room` has the copy afterwards, and its manifest."""
    copy, manifest = room / "copy", room / "copy.json"
    mirror = ("mirror", broker.log_dir, copy, "--manifest", manifest)
    began = time.monotonic()
    output_of(*mirror)
    longest = 1.5 * (time.monotonic() - began) + 1  # with the start of a process
    running = number = rest = 0
    while running < kills:
        if number % 5 == 4:
            shutil.rmtree(copy)  # the next ones copy everything
            manifest.unlink(missing_ok=True)
        before = at_rest(broker.log_dir)
        running += killed(rng, longest, *mirror)
        after = at_rest(broker.log_dir)
        assert all(after[place] == data for place, data in before.items() if place in after), number
        rest += len(before.keys() & after.keys())
        number += 1
    done = load.done.copy()
    output_of(*mirror)
    there = all_there(copy, done, broker.log_dir)
    on_full_disks(
        room,
        lambda full: ["mirror", broker.log_dir, full / "copy", "--manifest", full / "m.json"],
        lambda full: ["verify", full / "copy", "--manifest", full / "m.json"],
    )
    for more in ((), ("--link",)):
        refused = run("revive", broker.log_dir, "--to", room / "target", *more)
        assert refused.exit_code != 0
        assert "in use" in refused.stderr
        assert not list(room.glob("target*"))
    return {
        "mirror, broker at work": f"killed {running} in {number} runs, then {there} acknowledged ones in the copy",
        "its segments at rest": f"{rest} compared, unchanged",
        "mirror, full disk": "fails, then completes",
        "revive, broker at work": "refused",
    }


def dead(broker, load, room, rng, kills):
    """The same of a broker that was killed: its directory keeps every byte, and the last copy is the right one."""
    broker.kill()
    load.close()
    before = state_of([broker.log_dir])
    copy, manifest, target = room / "copy", room / "copy.json", room / "target"
    mirror = ("mirror", broker.log_dir, copy, "--manifest", manifest)
    revive = ("revive", broker.log_dir, "--to", target)
    output_of(*revive)
    complete = {path.relative_to(target) for path in target.rglob("*")}
    runs = []
    for arguments in (mirror, revive, (*revive, "--link")):
        shutil.rmtree(target, ignore_errors=True)
        began = time.monotonic()
        output_of(*arguments)
        longest = 1 + time.monotonic() - began  # with the start of a process
        running = number = 0
        while running < kills:
            shutil.rmtree(target, ignore_errors=True)
            running += killed(rng, longest, *arguments)
            number += 1
            if target.exists():  # complete, or not there at all
                assert {path.relative_to(target) for path in target.rglob("*")} == complete
        runs.append(f"{running} in {number}")
    output_of(*mirror)
    output_of("verify", copy, "--manifest", manifest)
    on_full_disks(
        room,
        lambda full: ["revive", broker.log_dir, "--to", full / "target"],
        lambda full: ["verify", full / "target"],
    )
    shutil.rmtree(target, ignore_errors=True)
    output_of(*revive)
    assert not list(room.glob("target.*"))
    in_copy, in_target = (all_there(one, load.done, broker.log_dir) for one in (copy, target))
    for place in _PLACES:
        # The copy keeps what retention and compaction have removed since.
        original, copied = rows_of(broker.log_dir, place), rows_of(copy, place)
        assert original.items() <= copied.items(), place
        assert rows_of(target, place) == original, place
    assert state_of([broker.log_dir]) == before
    shutil.rmtree(target)
    return {
        "mirror, revive, --link; broker dead": f"killed {', '.join(runs)} runs; source unchanged",
        "acknowledged ones in copy, revived": f"{in_copy}, {in_target}",
        "revive, full disk": "fails, then completes",
    }


def works_on_links(sources, room, minutes):
    """A broker appends, compacts and retains in a directory that shares files with its sources."""
    before = state_of(sources)
    broker, _ = revived(room, sources, "--link")
    shared = {path.stat().st_ino for path in broker.log_dir.rglob("*") if path.is_file() and path.stat().st_nlink > 1}
    assert shared
    end = time.monotonic() + 60 * minutes
    try:
        client = Client(broker.start().address)
        client.alter_topic("orders", _RETAINED)
        client.alter_topic("state", _COMPACTED)
        load = Load(broker.address)
        restarts = 0
        while time.monotonic() < end:
            time.sleep(min(60, max(0.0, end - time.monotonic())))
            if time.monotonic() < end:
                _restart(broker, restarts)
                restarts += 1
        load.close()
        produced = sum(map(len, load.done.records.values())) + len(load.done.committed)
        left = {path.stat().st_ino for path in broker.log_dir.rglob("*") if path.is_file()}
        broker.stop()
        said = len(broker.log_text())  # before it are commits that a stop came between
        broker.start()
        adopted_as_it_is(told_since(broker, said))
        broker.stop()
    finally:
        broker.kill()
    after = state_of(sources)
    changed = [str(path) for path in before if after.get(path) != before[path]]
    assert (changed, after.keys() - before.keys()) == ([], set()), changed
    there = all_there(broker.log_dir, load.done, broker.log_dir)
    return {
        "--link": f"{len(shared)} files shared, {len(shared & left)} left after {minutes:g} min, {restarts} restarts, "
        f"{produced} produced, {there} of them there; sources unchanged"
    }


def _restart(broker, number):
    """Cleanly, or with kill -9, in turn."""
    if number % 2:
        broker.kill()
    else:
        broker.stop()
    broker.start()


def main(arguments):
    parser = argparse.ArgumentParser(prog="python -m tests.interop.live_sources")
    parser.add_argument("--kills", type=int, default=20, help="of each command")
    parser.add_argument("--minutes", type=float, default=20, help="of work on a directory that shares files")
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    for name in ("aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # of brokers that were killed
    with tempfile.TemporaryDirectory() as name:
        for row in tried(Path(name), random.Random(chosen.seed), chosen.kills, chosen.minutes):
            print(json.dumps(row, indent=1), flush=True)  # noqa: T201
    return 0


def tried(room, rng, kills, minutes):
    """What was seen, one stage after the other."""
    broker = Broker(room / "broker")
    try:
        client = Client(broker.start().address)
        client.create_topics({"orders": (3, _RETAINED), "state": (1, _COMPACTED), "pay": (2, _SMALL)})
        load = Load(broker.address)
        try:
            time.sleep(5)
            yield at_work(broker, load, room, rng, kills)
            yield dead(broker, load, room, rng, kills)
        finally:
            load.close()
    finally:
        broker.kill()
    yield works_on_links([broker.log_dir], room, minutes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

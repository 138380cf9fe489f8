"""Random damages to a broker's log directory: what `kafkafs doctor` says must be what the broker then does.

    python -m tests.interop.predictions --rounds 20 --seed 5
    python -m tests.interop.predictions --rounds 20 --seed 5 --record tests/interop/predictions.json

A round copies the directory of a broker that was stopped, or killed, and damages it: one to three damages of any kind,
or one in each of several partitions, so that one start judges them all. Then doctor speaks, and the broker starts:

- It starts if doctor says so, and only then.
- Of a partition without a finding consumers get every intact message that its files held, at its offset, and retention
  removes in the first seconds what a note says, and nothing else.
- A partition that is cut ends where doctor says. One that is set aside is, and one that is created empty is empty. What
  doctor says is forgotten in tiered storage is not served.

What a finding `does-not-notice` costs is not compared, nor whether a broker starts
where doctor says that this is not known (`transactions-offline`). A damage that would keep the broker from starting
hides what becomes of the others: it is taken back, or, in every third round, it is the last one. The directory of every
second round is of one broker with a plain topic. Those of the others take turns: the topic is compacted, or has
messages that retention removes, or is tiered; the broker is one node of several, whose controller is another; or an
older release wrote the directory. `--kind` chooses one of these. `--record` writes what the broker did in rounds of the
first kind, which tests/interop/test_predictions.py repeats without a broker.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aiokafka import TopicPartition
from aiokafka.errors import KafkaTimeoutError

from storage.errors import CorruptCheckpoint
from storage.files import checkpoints
from storage.format.checksum import crc32c
from tests.interop.client import Client
from tests.interop.kafka import BROKER_VERSION, VERSION, Broker, DidNotStart
from tests.interop.make_doctor import PARTITIONS, YEARS_MS, make_origin
from tests.interop.piles.model import HEAD, Intact, records
from tests.interop.random_damages import ANY, CHECKPOINTS, IN_A_PARTITION, Damaged
from tests.interop.surroundings import surroundings
from tests.support.commands import run as run_command
from tests.support.downloads import DOWNLOADS
from tests.support.fixtures import FIXTURES, copy_log_dir
from tests.support.waiting import wait_for

TOPIC = "p"
_CONTROL = 0x20
SECOND_ID = "AAAAAAAAAAAAAAAAAAAAZQ"
_NO_END = "no end"
# Cuts that leave less below their end.
_WITH_OTHERS = {"log-start-beyond-end", "batch-crc", "retention-early", "file-misnamed"}
_UP_TO = re.compile(r"segments up to offset (\d+)")
_MANY = 12  # damaged partitions that one start judges


class Patient(Broker):
    """A broker on existing directories, which are not formatted."""

    def __init__(self, directory, dirs, beside, *, cleans):
        own = {"log.dirs": ",".join(map(str, dirs)), "log.cleaner.enable": str(cleans).lower()}
        super().__init__(directory, {**own, **beside})

    def _format(self):
        pass

    def is_alive(self):
        return self._process.poll() is None


@dataclass(slots=True)
class Round:
    """What was done: `damages` by name, None in place of those that were taken back; what doctor said, and what the
    broker did. `held`: the offsets of the intact messages of each partition; `offline`: partitions in directories that
    doctor says are taken offline."""

    seed: int
    number: int
    state: str
    damages: list
    told: dict
    held: list
    offline: set
    kind: str = ""
    outcome: dict | None = None

    def recorded(self):
        """What a repetition without a broker needs, in few bytes."""
        taken_back = [row for row, name in enumerate(self.damages) if name is None]
        outcome = {name: value for name, value in self.outcome.items() if name != "log"}
        return {"seed": self.seed, "round": self.number, "taken_back": taken_back, "outcome": outcome}


def intact_offsets(directory):
    """The offsets of the messages in all whole batches of a partition's files whose CRCs are right, and of those that
    are about to take a segment's place, which a broker completes."""
    found = set()
    logs = [*directory.glob("[0-9]*.log"), *directory.glob("[0-9]*.log.swap")]
    for log in sorted(logs) if directory.is_dir() else ():
        data = log.read_bytes() if log.is_file() else b""
        position = 0
        while position + 61 <= len(data):
            base, length, epoch, magic, crc, attributes, delta, *_ = HEAD.unpack_from(data, position)
            end = position + 12 + length
            if magic != 2 or length < 49 or end > len(data):
                break
            if crc32c(data[position + 21 : end]) == crc and not attributes & _CONTROL:
                batch = Intact(position, base, base + delta, epoch, crc, attributes, data[position:end])
                found |= records(batch).keys()
            position = end
    return found


def _held(dirs, number):
    """What a partition's directory holds from its checkpointed start on; where it has none, what was being moved in its
    place does."""
    name = f"{TOPIC}-{number}"
    places = [path for logs in dirs for path in logs.glob(name)]
    places = places or [path for logs in dirs for path in logs.glob(f"{name}.*-future")]
    starts = [0]
    for path in places:
        with suppress(CorruptCheckpoint, OSError):
            known = checkpoints.read(path.with_name(CHECKPOINTS[1]))
            starts += [offset for tp, offset in known.items() if (tp.topic, tp.partition) == (TOPIC, number)]
    return {offset for path in places for offset in intact_offsets(path) if offset >= max(starts)}


def damaged(origin, place, dice, taken_back=None, *, may_refuse=False, kind=""):
    """A damaged copy of a directory: its state and path, and the names of the damages. `taken_back`: those that would
    keep the broker from starting, and hide what becomes of the others; doctor decides where it is None. `may_refuse`:
    the first one of these stays, and those after it are taken back."""
    state = dice.choice(sorted(origin))
    dirs = [copy_log_dir(origin[state], place / "logs")]
    if dice.random() < 0.3:
        dirs.append(_second(dirs[0], place / "second"))
        state += ", two directories"
    names = []
    if dice.random() < 0.3:
        for _ in range(dice.randrange(1, 4)):
            number = dice.randrange(PARTITIONS)
            names.append(_damage(ANY, Damaged(_dir_of(dirs, number), TOPIC, number, origin, dice), dice))
    else:
        for row, number in enumerate(dice.sample(range(PARTITIONS), _MANY)):
            logs = _dir_of(dirs, number)
            saved = shutil.copytree(logs / f"{TOPIC}-{number}", place / "saved", symlinks=True)
            name = _damage(IN_A_PARTITION, Damaged(logs, TOPIC, number, origin, dice), dice)
            is_fatal = not doctor(dirs, kind)["starts"] if taken_back is None else row in taken_back
            if is_fatal and may_refuse:
                is_fatal = may_refuse = False
            names.append(None if is_fatal else name)
            if is_fatal:
                for other in logs.glob(f"{TOPIC}-{number}.*"):
                    shutil.rmtree(other)
                shutil.rmtree(logs / f"{TOPIC}-{number}", ignore_errors=True)
                shutil.copytree(saved, logs / f"{TOPIC}-{number}")
            shutil.rmtree(saved)
    return state, dirs, names


def _second(first, second):
    """A second log directory, to which half of the partitions are moved."""
    second.mkdir()
    meta = (first / "meta.properties").read_text()
    (second / "meta.properties").write_text(re.sub("directory.id=.*", f"directory.id={SECOND_ID}", meta))
    moved = {str(number) for number in range(PARTITIONS // 2, PARTITIONS)}
    for number in moved:
        (first / f"{TOPIC}-{number}").rename(second / f"{TOPIC}-{number}")
    if (first / ".kafka_cleanshutdown").exists():
        shutil.copy(first / ".kafka_cleanshutdown", second)
    for name in CHECKPOINTS:
        lines = (first / name).read_text().splitlines()[2:] if (first / name).exists() else []
        for path in (first, second):
            own = [
                line for line in lines if (line.split()[:1] == [TOPIC] and line.split()[1] in moved) == (path == second)
            ]
            (path / name).write_text("\n".join(["0", str(len(own)), *own, ""]))
    return second


def _dir_of(dirs, number):
    """The log directory that a partition was in before any damage."""
    return dirs[-1] if number >= PARTITIONS // 2 else dirs[0]


def _damage(kinds, target, dice):
    name = dice.choice(sorted(kinds))
    with suppress(OSError):  # what it wanted to change is gone
        kinds[name](target)
    return f"{name} {TOPIC}-{target.number}" if name in IN_A_PARTITION else name


def doctor(dirs, kind=""):
    """What doctor says, as JSON; AssertionError where it fails to say something."""
    properties = ()
    if kind in PROPERTIES:
        properties = "--server-properties", dirs[0].with_name("server.properties")
        properties[1].write_text(PROPERTIES[kind])
    result = run_command("doctor", *dirs, *properties, "--json")
    assert result.exit_code in (0, 1), f"doctor ends with exit code {result.exit_code}: {result.stderr}"
    return json.loads(result.stdout)


def begun(origin, place, seed, number, taken_back=None, *, kind=""):
    """The directories of a round before its broker starts, and the round: the same for a seed and a number."""
    may_refuse = taken_back is None and number % 3 == 2
    dice = random.Random(f"{seed} {number}")
    state, dirs, names = damaged(origin, place, dice, taken_back, may_refuse=may_refuse, kind=kind)
    held = [_held(dirs, partition) for partition in range(PARTITIONS)]
    told = doctor(dirs, kind)
    gone = [Path(found["file"]) for found in told["findings"] if found["reaction"] == "takes-offline"]
    offline = {
        partition
        for partition in range(PARTITIONS)
        if any(path.is_relative_to(_dir_of(dirs, partition)) for path in gone)
    }
    return dirs, Round(seed, number, state, names, told, held, offline, kind)


def observed(dirs, place, around=None, kind="", *, cleans=False):
    """What the broker does with a directory: whether it starts; of each partition where it begins and ends, and the
    ranges of offsets that a consumer gets, with its error; the directories that are set aside. `around`: what was
    around the broker, of which a copy is used. `cleans`: logs are compacted; only then are the cleaner's checkpoints
    read."""
    before = _strays(dirs)
    if around is not None:
        shutil.copytree(around, place / "around")
    with (
        surroundings(kind, place / "around") as beside,
        Patient(place / "broker", dirs, beside, cleans=cleans) as broker,
    ):
        try:
            client = Client(broker.start().address)
        except DidNotStart:
            lines = broker.log_since_start().splitlines()
            return {
                "starts": False,
                "log": [
                    line[:300] for line in lines if (" ERROR " in line or "Exception" in line) and "\tat " not in line
                ],
            }
        if kind == "tiered":
            ready = "Initialized topic-based RLMM resources successfully"
            wait_for("the tier", lambda: ready in broker.log_since_start() or not broker.is_alive())
        is_any_left = any((logs / f"{TOPIC}-{number}").exists() for logs in dirs for number in range(PARTITIONS))
        if kind == "retention" and is_any_left:  # removes in one pass over all logs, half a second after the start
            ends = re.compile("due to log retention time|scheduled task 'kafka-log-retention'")
            wait_for("retention", lambda: ends.search(broker.log_since_start()) or not broker.is_alive())
        with ThreadPoolExecutor(PARTITIONS) as pool:
            found = list(pool.map(lambda number: _consumed(broker.address, number), range(PARTITIONS)))
        led = [
            TopicPartition(TOPIC, number)
            for number, seen in enumerate(found)
            if seen["error"] == "" or (seen["error"] == _NO_END and seen["offsets"])
        ]

        async def ends(consumer):
            return await consumer.beginning_offsets(led), await consumer.end_offsets(led)

        if led and broker.is_alive():
            with suppress(KafkaTimeoutError):  # a directory went offline as it was read
                starts, ends_of = client.with_consumer(ends)
                for tp in led:
                    found[tp.partition] |= {"start": starts[tp], "end": ends_of[tp]}
        strays = sorted(path.name.partition(".")[0] for path in _strays(dirs) - before)
        return {"starts": broker.is_alive(), "partitions": found, "strays": strays}


def _strays(dirs):
    return {path for logs in dirs for path in logs.glob("*-stray")}


def _consumed(address, number):
    command = ["kcat", "-b", address, "-C", "-t", TOPIC, "-p", str(number), "-o", "beginning", "-e", "-q", "-u",
               "-f", "%o\n", "-X", "check.crcs=true", "-X", "isolation.level=read_uncommitted", "-m", "20"]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    except subprocess.TimeoutExpired as error:
        return {"offsets": _ranges(error.stdout or b""), "error": _NO_END}
    return {"offsets": _ranges(done.stdout), "error": "".join(done.stderr.strip().splitlines()[-1:])[:200]}


def _ranges(printed):
    """Offsets, one a line, as [first, last] in the order in which they were given."""
    ranges = []
    for offset in map(int, printed.split()):
        if ranges and offset == ranges[-1][1] + 1:
            ranges[-1][1] = offset
        else:
            ranges.append([offset, offset])
    return ranges


def disagreements(one):
    """Where the broker did something else than doctor said."""
    outcome, told = one.outcome, one.told
    if not outcome["starts"] and any(found["name"] == "transactions-offline" for found in told["findings"]):
        return  # which comes first, the load of that log or the failure of its directory, doctor cannot know
    # A consumer's read of it takes the directory offline; without another one the broker stops then.
    unread = [
        found
        for found in told["findings"]
        if (found["name"], found["reaction"]) == ("no-regular-file", "does-not-notice")
        and found["file"].endswith(".index")
    ]
    if unread and told["starts"] and not outcome["starts"]:
        return
    if outcome["starts"] != told["starts"]:
        yield f"starts: doctor {told['starts']}, the broker {outcome['starts']}: {outcome.get('log', ())[-6:]}"
        return
    if not outcome["starts"]:
        return
    general = [found for found in told["findings"] if found["topic"] is None]
    retention = {
        note["partition"]: note for note in told["notes"] if (note["name"], note["topic"]) == ("retention", TOPIC)
    }
    for number, seen in enumerate(outcome["partitions"]):
        if number in one.offline:
            if seen["offsets"]:  # it may be made anew, empty, in another directory
                yield f"{TOPIC}-{number}: its directory is offline by doctor, and it is served"
            continue
        has_no_end = not seen["error"] and "end" not in seen
        if has_no_end and not unread:
            yield f"{TOPIC}-{number}: a consumer reads it, and cannot ask for its end"
        if has_no_end or (seen["error"] and unread):
            continue
        own = [found for found in told["findings"] if (found["topic"], found["partition"]) == (TOPIC, number)]
        held, surplus, note = set(one.held[number]), set(), retention.get(number)
        if note is not None:
            removed = {offset for offset in held if offset < int(_UP_TO.search(note["what"])[1])}
            held, surplus = held - removed, removed if "unless" in note["broker"] else set()
        yield from _of_partition(
            number, [*own, *general], seen, held, surplus, outcome["strays"], is_tiered=one.kind == "tiered"
        )


def _of_partition(number, findings, seen, held, surplus, strays, *, is_tiered):
    """`surplus`: messages that may be served or not."""
    place = f"{TOPIC}-{number}"
    reactions = {found["reaction"] for found in findings}
    served = {offset for first, last in seen["offsets"] for offset in range(first, last + 1)}
    # Behind an empty last segment that begins later than the messages end, a consumer waits for the next message.
    waits = seen["error"] == _NO_END and seen.get("end", 0) > max(served, default=-1) + 1
    if not findings:
        if seen["error"] and not waits:
            yield f"{place}: no finding, and a consumer gets {seen['error']}"
        elif lost := held - served:
            yield f"{place}: no finding, and {len(lost)} messages are not served, {min(lost)} to {max(lost)}"
        elif more := {
            offset for offset in served - held - surplus if not (is_tiered and offset < min(held, default=offset + 1))
        }:
            yield f"{place}: no finding, and messages that are not there: {sorted(more)[:9]}"
    elif reactions == {"cuts"} and len(findings) == 1 and not seen["error"]:
        end = findings[0]["log_end_offset"] or seen["end"]
        if seen["end"] != end:
            yield f"{place}: {findings[0]['name']}: doctor cuts at {end}, the broker at {seen['end']}"
        elif findings[0]["name"] not in _WITH_OTHERS and (lost := {at for at in held if at < end} - served):
            yield f"{place}: {findings[0]['name']}: cut at {end}, and {len(lost)} messages below are not served"
    if "forgets" in reactions and served and min(served) < min(held, default=0):
        yield f"{place}: doctor says that what is in tiered storage is forgotten, and it is served"
    asides = [found for found in findings if (found["reaction"], found["partition"]) == ("sets-aside", number)]
    aside, is_known = bool(asides), not any("is not known" in found["broker"] for found in asides)
    if aside and is_known and place not in strays:
        yield f"{place}: doctor sets it aside, the broker does not"
    if "sets-aside" not in reactions and place in strays:
        yield f"{place}: the broker sets it aside, doctor does not"
    if "creates-empty" in reactions and served and not aside:
        yield f"{place}: doctor says it is empty, and {len(served)} messages are served"


KINDS = {
    "": {},
    "compacted": {
        "messages": 120,
        "keys": 17,
        "settings": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.01},
    },
    "retention": {"old": 35, "later": {"retention.ms": YEARS_MS}},
    "tiered": {
        "messages": 120,
        "settings": {"remote.storage.enable": "true", "local.retention.bytes": 5000},
        "kind": "tiered",
    },
    "nodes": {"kind": "nodes"},
    "older": {"later": {"internal.segment.bytes": 1 << 20}},
}
# Without a server.properties doctor says what a single broker does.
PROPERTIES = {
    "tiered": "process.roles=broker,controller\nnode.id=1\nremote.log.storage.system.enable=true\n",
    "nodes": "process.roles=broker\nnode.id=1\ncontroller.quorum.voters=3@localhost:1\n",
}
_OLDEST = "3.9.1"


def origin(kind=""):
    """The directories of a broker of this release, after a clean stop and after a kill: made once."""
    if BROKER_VERSION == VERSION and not kind:
        return {name: FIXTURES / "doctor" / name for name in ("clean", "killed")}
    release = _OLDEST if kind == "older" else BROKER_VERSION
    place = DOWNLOADS / "-".join(filter(None, ("predictions", release, kind)))
    if not place.exists() and release != BROKER_VERSION:
        program = f"from tests.interop.predictions import origin; origin({kind!r})"
        subprocess.run([sys.executable, "-c", program], env={**os.environ, "KAFKAFS_BROKER": release}, check=True)
    if not place.exists():
        with tempfile.TemporaryDirectory(dir=place.parent) as temporary:
            for name, source in make_origin(Path(temporary), **KINDS[kind]).items():
                shutil.copytree(source, Path(temporary) / "kept" / name, ignore=shutil.ignore_patterns(".lock"))
            (Path(temporary) / "around").rename(_around(place))
            (Path(temporary) / "kept").rename(place)
    return {path.name: path for path in place.iterdir()}


def _around(place):
    """Where, by state, the copies are of what was around the directories in `place`."""
    return place.with_name(f"{place.name}.around")


def kind_of(number):
    """Which directories a round damages: those that are recorded, or of another kind."""
    return "" if number % 2 == 0 else tuple(KINDS)[1:][number // 2 % (len(KINDS) - 1)]


def run(directory, *, rounds, seed, first=0, record=None, kind=None, **_):
    """Lines about the rounds from `first` on, of one kind if it is given; AssertionError at the end where one
    disagreed."""
    counts, kept = Counter(), []
    for number in range(first, first + rounds):
        with tempfile.TemporaryDirectory(dir=directory) as place:
            try:
                of_kind = kind_of(number) if kind is None else kind
                states = origin(of_kind)
                dirs, one = begun(states, Path(place), seed, number, kind=of_kind)
                before = states[one.state.partition(",")[0]]
                around = _around(before.parent) / before.name
                cleans = any("cleaner-offset" in found["file"] for found in one.told["findings"])
                one.outcome = observed(dirs, Path(place), around if around.exists() else None, of_kind, cleans=cleans)
                different = list(disagreements(one))
            except AssertionError as error:
                counts["failed"] += 1
                yield f"DIFFERENT round {number} of seed {seed}: {str(error)[-1500:]}"
                continue
        counts["starts" if one.outcome["starts"] else "no start"] += 1
        counts["disagreements"] += len(different)
        yield f"round {number}: {' '.join([of_kind, one.state])}: {', '.join(filter(None, one.damages))}"
        for text in different:
            yield f"DIFFERENT round {number} of seed {seed}: {text}"
        if different:
            said = [(found["name"], found["reaction"], found["partition"], found["log_end_offset"]) for found in
                    one.told["findings"]]  # fmt: skip
            yield f"    doctor: {said}"
        elif not of_kind:  # of other directories there is no fixture
            kept.append(one.recorded())
    if record is not None:
        lines = ",\n".join(json.dumps(entry, separators=(",", ":")) for entry in kept)
        record.write_text(f"[\n{lines}\n]\n")
    yield f"{rounds} rounds: {dict(counts)}"
    assert not counts["failed"] + counts["disagreements"], "doctor and the broker disagree"


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.interop.predictions", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=[*filter(None, KINDS)], help="of all rounds; otherwise they take turns")
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--record", type=Path, help="write the outcomes of the rounds that agree")
    chosen = vars(parser.parse_args())
    with tempfile.TemporaryDirectory() as directory:
        try:
            for line in run(Path(directory), **chosen):
                sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
                sys.stdout.flush()
        except AssertionError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()

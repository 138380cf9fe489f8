"""What `revive`, `revive --salvage` and `mirror` make of a pile of damaged directories, against the model.

Every acknowledged message that a directory of the pile holds intact is served at its offset, or the report names it as
lost or left out, with a reason. Nothing is served that no producer sent to that topic id and partition, or at another
offset than it was written at.
"""

import json
import os
import random
import shutil
import tempfile
import traceback
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.interop.client import Client
from tests.interop.piles import cluster
from tests.interop.piles.damages import Damages
from tests.interop.piles.model import Truth, batches_of, partitions, records, topic_id_of
from tests.interop.reviving import RevivedBroker, port_pair
from tests.support.commands import run as run_command


@dataclass
class Pile:
    """The directories of one round, what was done to them, and what was wrong with the answers."""

    places: list
    story: list
    wrong: list = field(default_factory=list)
    refused: list = field(default_factory=list)


def make_pile(room, moments, dice):
    """Copies of some directories, of several moments, one over the other sometimes, with some damages."""
    places, story = [], []
    nodes = dice.sample((1, 2, 3), dice.choice((1, 1, 2, 2, 3)))
    for node in nodes:
        later = dice.choice(("early", "later", "end", "end"))
        before = cluster.MOMENTS[: cluster.MOMENTS.index(later)]
        earlier = dice.choice(before) if before and dice.random() < 0.3 else None
        for name in cluster.DIRS if dice.random() < 0.8 else (dice.choice(cluster.DIRS),):
            place = room / f"{node}-{name}"
            for moment in filter(None, (earlier, later)):  # as `cp -a` twice into one place
                shutil.copytree(moments / moment / f"n{node}" / name, place, dirs_exist_ok=True)
            places.append(place)
            story.append(f"{node}-{name}: {' + '.join(filter(None, (earlier, later)))}")
    if dice.random() < 0.1:
        shutil.copytree(moments / "alien" / "n1" / "d0", room / "alien")
        places.append(room / "alien")
        story.append("alien")
    for place in places:
        # What a broker would refuse, or another tool: what it had set aside is given by its own name.
        for path in place.glob("*-delete"):
            shutil.rmtree(path)
    whole = [path for moment in cluster.MOMENTS for path in sorted((moments / moment).glob("n*/d*"))]
    damages = Damages(places, whole, dice)
    hurts = [damages.hurt] * dice.choice((0, 1, 1, 2, 3, 5)) + [damages.foreign_segment] * (dice.random() < 0.15)
    for hurt in hurts:
        try:
            story.append(hurt() or "foreign_segment")
        except (IndexError, FileNotFoundError, FileExistsError) as error:
            story.append(f"({type(error).__name__})")
    dice.shuffle(places)
    return Pile(places, story)


def judge_revived(pile, truth, held, target, report, name):
    """Compares a revived directory with the model."""
    starts = {}
    for line in (target / "log-start-offset-checkpoint").read_text().splitlines()[2:]:
        topic, number, offset = line.split()
        starts[topic, int(number)] = int(offset)
    told = {(one["topic"], one["partition"]): one for one in report["partitions"]}
    served_of = {}
    for place, path in partitions(target):
        if place[0] == "__cluster_metadata":
            continue
        topic_id, start = topic_id_of(path), starts.get(place, 0)
        served = [batch for batch in batches_of(path) if batch.last >= start]
        served_of[place] = topic_id, served
        if any(one.last >= other.base for one, other in pairwise(served)):
            pile.wrong.append(f"{name}: {place}: offsets do not ascend")
        lives = [life for life in truth.written[place] if all(one.key in truth.written[place][life] for one in served)]
        is_of_another = topic_id in truth.written[place] and topic_id not in lives
        if is_of_another and lives and not held.get((place, topic_id)):
            is_of_another = False  # nothing of that topic is left, so that nobody can tell
        if is_of_another or (served and not lives):
            strange = [one for one in served if one.key not in truth.written[place].get(topic_id, {})]
            bases = [one.base for one in strange[:4]]
            pile.wrong.append(f"{name}: {place}: {len(strange)} strange batches, the first at {bases}")
        if lives and topic_id not in lives:
            served_of[place] = lives[0], served
    for (place, topic_id), batches in held.items():
        served_id, served = served_of.get(place, (None, ()))
        keys = {one.key for one in served} if served_id == topic_id else set()
        rows = (row for one in served if place[0] == "state" and keys for row in records(one).items())
        latest = {key: offset for offset, (key, _) in rows}
        missing = []
        for key in sorted(batches.keys() - keys):
            batch = truth.written[place][topic_id][key]
            if key not in truth.acknowledged.get((*place, topic_id), ()):
                continue
            rows = records(batch).items()
            if place[0] == "state" and all(latest.get(row[0], -1) >= offset for offset, row in rows):
                continue
            if not is_named(told.get(place), report["notes"], batch, batches[key], place):
                missing.append(batch)
        if missing:
            where = sorted({str(path) for one in missing for path in batches[one.key]})
            pile.wrong.append(
                f"{name}: {place} {topic_id}: {len(missing)} batches are neither served nor named: "
                f"{[(one.base, one.last) for one in missing[:4]]} of {where}"
            )
    return served_of


def is_named(told, notes, batch, paths, place):
    """Whether a report names the offsets of a batch as lost, or as left out of one of these directories."""
    if told is None:
        return any(place[0] in note and ("left out" in note or "ignored" in note) for note in notes)
    for one in told["lost"]:
        last = batch.last if one["last_offset"] is None else one["last_offset"]
        if one["first_offset"] <= batch.base and batch.last <= last and one["reason"]:
            return True
    ranges = [
        (one["first_offset"], one["last_offset"])
        for one in told["beyond"]
        if one["source"] in set(map(str, paths)) and one["reason"]
    ]
    if all(any(first <= offset <= last for first, last in ranges) for offset in range(batch.base, batch.last + 1)):
        return True
    return all(any(str(path) in note and "ignored" in note for note in notes) for path in paths)


def revive(pile, truth, held, room, options, name):
    """Runs the command and judges it; returns the target if there is one, and what is in it."""
    target = room / name
    answer = run_command("revive", *pile.places, "--to", target, "--json", *options)
    if answer.exit_code:
        pile.refused.append((name, answer.exit_code, answer.stderr.strip()[-300:]))
        return None, {}
    report = json.loads(answer.stdout)
    rehearsed = run_command("revive", *pile.places, "--to", room / "nowhere", "--json", "--dry-run", *options)
    ends = [
        {(one["topic"], one["partition"]): [one[key] for key in ("log_end_offset", "lost", "filled")] for one in told}
        for told in (report["partitions"], json.loads(rehearsed.stdout or '{"partitions": []}')["partitions"])
    ]
    if ends[0] != ends[1]:
        differing = [place for place in ends[0] if ends[0][place] != ends[1].get(place)]
        pile.wrong.append(f"{name}: a dry run differs: exit {rehearsed.exit_code}, {differing[:3]}")
    return target, judge_revived(pile, truth, held, target, report, name)


def judge_mirror(pile, truth, room, dice):
    """Mirrors one of the directories: what is copied is true, and what is not is in a partition with an error."""
    source, target = dice.choice(pile.places), room / "copy"
    answer = run_command("mirror", source, target, "--json")
    if answer.exit_code not in (0, 4):
        pile.refused.append(("mirror", answer.exit_code, answer.stderr.strip()[-300:]))
        return
    if not target.is_dir():
        return
    told = json.loads(answer.stdout)["partitions"] if answer.stdout.startswith("{") else []
    failed = {(one["topic"], one["partition"]) for one in told if one["error"]}
    copied = dict(partitions(target))
    held = truth.held([source])
    for (place, topic_id), batches in held.items():
        served = list(batches_of(copied[place])) if place in copied else []
        served_id = topic_id_of(copied[place]) if place in copied else None
        of_id = truth.written[place].get(served_id, {})
        # If nothing of that topic is left nobody can tell.
        if held.get((place, served_id)) and any(one.key not in of_id for one in served):
            pile.wrong.append(f"mirror: {place}: strange batches in the copy of {source}")
        acknowledged = batches.keys() & truth.acknowledged.get((*place, topic_id), set())
        missing = sorted(acknowledged - {one.key for one in served})
        if missing and place not in failed and place in copied and topic_id == served_id:
            pile.wrong.append(f"mirror: {place}: {len(missing)} batches of {source} are missing, first {missing[0]}")


def serve(pile, room, target, port, served_of):
    """A broker on the revived directory gives the messages that are in its files."""
    broker = RevivedBroker(room / "broker", target, port)
    with broker:
        client = Client(broker.start().address)
        for place, (_, batches) in served_of.items():
            if not place[0].startswith("__"):
                rows = {
                    offset: row for one in batches if not one.attributes & 0x20 for offset, row in records(one).items()
                }
                start = client.offsets(*place)[0]
                given = {one.offset: (one.key, one.value) for one in client.consume(*place)}
                expected = {offset: row for offset, row in rows.items() if offset >= start}
                if given != expected:
                    differing = sorted(dict(given.items() ^ expected.items()))
                    pile.wrong.append(f"broker: {place}: differs at {differing[:4]}, {len(given)} of {len(expected)}")
        broker.stop()
        if broker.complaints():
            pile.wrong.append(f"broker: {broker.complaints()[:2]}")


def run(directory, *, rounds, seed, brokers=20, **_):
    """One line for each round with what was wrong, and one at the end. `seed`: of the first. `brokers`: a broker in
    every so many rounds."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else directory  # revive syncs all that it writes
    with tempfile.TemporaryDirectory(prefix="kafkafs-piles-", dir=memory) as room:
        yield from _rounds(Path(room), rounds, seed, brokers)


def _rounds(directory, rounds, seed, brokers):
    moments = cluster.moments()
    everywhere = sorted(moments.glob("*/n*/d*"))
    truth = Truth(everywhere, cluster.acknowledged(moments))
    failed = refused = 0
    for number in range(seed, seed + rounds):
        dice, room = random.Random(number), directory / str(number)
        room.mkdir()
        pile = make_pile(room, moments, dice)
        held, port = truth.held(pile.places), port_pair()
        listener = ("--listener", f"127.0.0.1:{port}")
        try:
            plain, served = revive(pile, truth, held, room, listener, "plain")
            salvaged, more = revive(pile, truth, held, room, (*listener, "--salvage"), "salvaged")
            if salvaged is None and "Name the directories of one of them" not in pile.refused[-1][2]:
                pile.wrong.append(f"--salvage refuses: {pile.refused[-1]}")
            if "foreign_segment" not in pile.story:
                judge_mirror(pile, truth, room, dice)
            if brokers and number % brokers == 0 and (salvaged or plain):
                serve(pile, room, salvaged or plain, port, more or served)
        except Exception:  # noqa: BLE001  # a program that breaks off is a disagreement like others
            pile.wrong.append(traceback.format_exc(limit=-6))
        refused += len(pile.refused)
        if pile.wrong:
            failed += 1
            yield f"round {number}: {', '.join(pile.story)}\n  " + "\n  ".join([*pile.wrong, *map(str, pile.refused)])
        shutil.rmtree(room)
    assert not failed, f"{failed} of {rounds} rounds from seed {seed} with disagreements"
    yield f"{rounds} rounds from seed {seed} without a disagreement, {refused} refusals without --salvage"

"""The worst day of a cluster: three KRaft nodes of two directories each, killed under load, and what revives of them.

Groups of the classic protocol, of KIP-848 and share groups have read something, ACLs, SCRAM users and quotas are there,
and producers, transactions and a group are at work while `mirror --manifest` copies each directory, after it was killed
at random moments, and while the nodes are killed one after the other. On a full disk `mirror` and `revive` fail, and
then complete. `revive` makes a new cluster in each of WAYS, and in each of them every acknowledged message is at its
offset, committed transactions are whole, clients of all kinds go on where they were, and a
second start is clean. The sources keep every byte, also if the new cluster shares their files.
"""

import shutil
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass

from tests.interop import reviving
from tests.interop.client import Client, Message
from tests.interop.clusters import LOAD_TOPICS, Cluster, Done, Load, files_of
from tests.support.commands import output_of, process
from tests.support.mounts import KAFKAFS

_RECORDS = 40
_GROUPS = {"g-classic": 11, "g-848": 9, "g-share": 7}  # and how many records of the topic `t` each has read
_TRANSACTIONAL_ID = "java-tx"
_INTERNAL = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
_SETTINGS = {
    **reviving.AUTHORIZER,
    **{f"{topic}.num.partitions": "3" for topic in _INTERNAL},
    **{f"{topic}.replication.factor": "3" for topic in _INTERNAL},
    **{f"{topic}.min.isr": "2" for topic in _INTERNAL[1:]},
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
    "metadata.log.max.record.bytes.between.snapshots": "20000",
}


class ThreeNodes(Cluster):
    """The nodes. `said`: what Kafka's tools said of the metadata; `ids`: of topics; `backed_up`, `killed`: what had
    been acknowledged when the backups began, and at the end."""

    def __init__(self, directory):
        super().__init__(directory, _SETTINGS, ("d0", "d1"))
        self.said, self.ids = {}, {}
        self.backed_up, self.killed = Done(), Done()

    def dirs(self, number):
        return [self.nodes[number].directory / name for name in ("d0", "d1")]

    def copies(self, number):
        return [self.directory / "backups" / f"n{number}-{source.name}" for source in self.dirs(number)]

    def begin(self):
        """Starts it, with topics, groups, security and transactions."""
        self.start()
        address = self.nodes[1].address
        client = Client(address)
        config = {
            "orders": {"segment.ms": 3000},
            "state": {"cleanup.policy": "compact", "segment.ms": 2000, "min.cleanable.dirty.ratio": 0.01},
        }
        topics = {"t": 1, **LOAD_TOPICS}
        client.create_topics(
            {name: (count, {**config.get(name, {}), "min.insync.replicas": 2}) for name, count in topics.items()},
            replicas=3,
        )
        client.produce("t", [Message(b"%d" % number) for number in range(_RECORDS)], batch=5, acks="all")
        reviving.configured(address, "g-848", "g-share", "t")
        reviving.transacted(address, 5, "pay", _TRANSACTIONAL_ID)
        for group, count in _GROUPS.items():
            assert next_offsets(client, group, count) == list(range(count))
        self.said, self.ids = reviving.asked(address), reviving.topic_ids(address)

    def back_up(self, load):
        """A copy of each directory, made while the nodes run."""
        self.backed_up = load.done.copy()
        (self.directory / "backups").mkdir()
        for number in self.nodes:
            for source, copy in zip(self.dirs(number), self.copies(number), strict=True):
                mirror = ("mirror", source, copy, "--manifest", f"{copy}.json")
                for seconds in (0.3, 0.6, 0.9, 1.2):
                    with process(*mirror, stdout=subprocess.DEVNULL) as running:
                        time.sleep(seconds)
                        running.kill()
                output_of(*mirror)
                output_of("verify", copy, "--manifest", f"{copy}.json")

    def kill(self, load):
        """kill -9, one after the other: when the second one is gone nothing more is acknowledged."""
        for node in self.nodes.values():
            node.kill()
            time.sleep(2)
        load.close()
        self.killed = load.done.copy()


def next_offsets(client, group, count):
    """The offsets of the next `count` records of `t` that a member of a group of _GROUPS is given."""
    if group == "g-share":
        return reviving.read_by_share_group(client.address, group, "t", count)
    return reviving.read_by_java(client, group, "t", count, "consumer" if group == "g-848" else "classic")


@dataclass(frozen=True)
class Way:
    """Out of what a cluster is revived. `nodes`: whose directories; `copies`: their backups instead; `metadata`: with
    the metadata log; `options` of the command."""

    nodes: tuple
    copies: bool = False
    metadata: bool = True
    options: tuple = ()


WAYS = {
    "all": Way((1, 2, 3)),
    "links": Way((1, 2, 3), options=("--link",)),
    "two": Way((2, 3)),
    "one": Way((3,)),
    "backups": Way((1, 2, 3), copies=True),
    "backups of two": Way((2, 3), copies=True),
    "data": Way((1, 2, 3), metadata=False),
}


def restore(cluster, way, room):
    """Revives in one way and checks the new cluster."""
    place = cluster.copies if way.copies else cluster.dirs
    sources = [source for number in way.nodes for source in place(number)]
    if not way.metadata:
        sources = [
            reviving.without_metadata(source, room / f"{source.parent.name}-{source.name}") for source in sources
        ]
    before = files_of(sources)
    broker, told = reviving.revived(room, sources, *way.options, config=reviving.AUTHORIZER)
    links = [path for path in broker.log_dir.rglob("*.log") if path.stat().st_nlink > 1]
    assert bool(links) == bool(way.options)
    with broker:
        client = Client(broker.start().address)
        check_data(client, cluster.backed_up if way.copies else cluster.killed)
        assert {name: cluster.ids[name] for name in ("t", *LOAD_TOPICS)}.items() <= reviving.topic_ids(
            client.address
        ).items()
        if way.metadata:
            assert reviving.asked(client.address) == cluster.said
        assert way.metadata != any("no source tells" in note for note in told["notes"])
        go_on(client)
        reviving.second_start_is_clean(broker)
    assert files_of(sources) == before
    return told


def check_data(client, done):
    """Everything that was acknowledged is there."""
    values = {record.value for partition in (0, 1) for record in client.consume("pay", partition, committed=True)}
    assert values >= set(done.committed)
    assert not values & set(done.aborted)
    assert sum(map(len, done.records.values())) > 0
    for place, expected in done.records.items():
        rows = {record.offset: (record.key, record.value) for record in client.consume(*place)}
        latest = {key: offset for offset, (key, _) in sorted(rows.items())}
        for offset, row in expected.items():
            superseded = place[0] == "state" and offset < latest.get(row[0], -1)  # it is compacted
            assert rows.get(offset, row if superseded else None) == row, (place, offset)
    committed = client.committed("live", *done.offsets)
    assert all((committed[place] or 0) >= offset for place, offset in done.offsets.items()), (committed, done.offsets)


def go_on(client):
    """Producers write, and each group is given the first record that it had not read, and all others to the last."""
    client.produce("t", [Message(b"afterwards")] * 5, enable_idempotence=True, acks="all")
    for group, count in _GROUPS.items():
        rest = next_offsets(client, group, _RECORDS + 5 - count)
        assert rest == list(range(count, _RECORDS + 5)), (group, rest)
    reviving.transacted(client.address, 5, "pay", _TRANSACTIONAL_ID)
    client.transactions("pay", [(True, [Message(b"afterwards")])], 1, id="load-tx")
    assert client.consume("pay", 1, committed=True)[-1].value == b"afterwards"


# A file system of 64 KB at $1, for this process alone; there the command $2 fails, and when there is more room it does
# not, and $3 then neither.
_FULL_DISK = """
set -eu
mount -t tmpfs -o size=64k tmpfs "$1"
if sh -c "$2" >/dev/null 2>"$1.said"; then echo "it was not full" >&2; exit 3; fi
grep -q "No space left on device\\|not enough space" "$1.said" || { cat "$1.said" >&2; exit 4; }
mount -o remount,size=1g "$1"
sh -c "$2" >/dev/null 2>&1
sh -c "$3" >/dev/null
"""


def on_a_full_disk(place, command, check):
    """A command fails for want of room, and then succeeds, and then `check` does. All of it in a mount namespace."""
    place.mkdir()
    shells = [" ".join(map(str, (*KAFKAFS, *words))) for words in (command, check)]
    subprocess.run(["unshare", "-rm", "sh", "-c", _FULL_DISK, "sh", place, *shells], check=True)


@contextmanager
def worst_day(directory, seconds):
    """A cluster that was loaded for that long before the backups and after them, backed up and killed."""
    cluster = ThreeNodes(directory)
    try:
        cluster.begin()
        load = Load(cluster.bootstrap)
        try:
            time.sleep(seconds)
            cluster.back_up(load)
            time.sleep(seconds)
        finally:
            cluster.kill(load)
        source, full = cluster.dirs(3)[0], directory / "full"
        mirror = ("mirror", source, full / "copy", "--manifest", full / "m.json")
        on_a_full_disk(full, mirror, ("verify", full / "copy", "--manifest", full / "m.json"))
        full = directory / "full-too"
        on_a_full_disk(full, ("revive", source, "--to", full / "new"), ("verify", full / "new"))
        yield cluster
    finally:
        cluster.close()


def run(directory, *, ways, **_):
    with worst_day(directory, 5) as cluster:
        for way in ways.split(","):
            room = directory / f"of {way}"
            room.mkdir()
            began = time.monotonic()
            restore(cluster, WAYS[way], room)
            records = sum(map(len, cluster.killed.records.values()))
            yield f"{way}: revived in {time.monotonic() - began:.0f} s, at most {records} records"
            shutil.rmtree(room)

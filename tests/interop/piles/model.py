"""What directories hold, read without the product's code: the intact batches of every log, and whose they are.

A batch is known by its partition, its base offset and its CRC. `Truth` has all batches that the brokers wrote, by the
topic's id; `held` are those of them that damaged directories still have.
"""

import gzip
import re
import struct
from collections import defaultdict
from typing import NamedTuple

import crc32c

HEAD = struct.Struct(">qiibIhiqqqhii")  # up to the number of records
LOG = re.compile(r"\d{20}\.log")
PLACE = re.compile(r"([a-z_]+)-(\d+)(\..*)?")


class Intact(NamedTuple):
    """A batch: where it is, its header's fields, its bytes. `key`: what it is known by."""

    position: int
    base: int
    last: int
    epoch: int
    crc: int
    attributes: int
    data: bytes

    @property
    def key(self):
        return self.base, self.crc


def intact_batches(data):
    """All whole batches with a right CRC, wherever they begin."""
    position = 0
    while position + HEAD.size <= len(data):
        base, length, epoch, magic, crc, attributes, delta, *_ = HEAD.unpack_from(data, position)
        end = position + 12 + length
        if magic == 2 and length >= 49 and end <= len(data) and crc32c.crc32c(data[position + 21 : end]) == crc:
            yield Intact(position, base, base + delta, epoch, crc, attributes, data[position:end])
            position = end
            continue
        following = data.find(b"\2", position + 17)
        if following < 0:
            return
        position = following - 16


def records(batch):
    """Key and value by offset."""
    count = HEAD.unpack_from(batch.data)[-1]
    data = batch.data[HEAD.size :]
    data = gzip.decompress(data) if batch.attributes & 7 == 1 else data
    at, rows = 0, {}

    def varint():
        nonlocal at
        shift = number = 0
        while True:
            byte, at = data[at], at + 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number >> 1 ^ -(number & 1)

    def sized():
        nonlocal at
        length = varint()
        if length < 0:
            return None
        at += length
        return data[at - length : at]

    for _ in range(count):
        end = varint() + at
        at += 1
        varint()
        offset = batch.base + varint()
        rows[offset] = sized(), sized()
        at = end
    return rows


def partitions(log_dir, *, set_aside=False):
    """The partitions' directories, by topic and number."""
    for path in sorted(log_dir.iterdir()):
        parsed = PLACE.fullmatch(path.name)
        if parsed and path.is_dir() and (set_aside or not parsed[3]):
            yield (parsed[1], int(parsed[2])), path


def topic_id_of(path):
    """The id in partition.metadata; None if nobody can read it."""
    try:
        found = re.search(r"topic_id: (\S{22})$", (path / "partition.metadata").read_text(errors="replace").strip())
    except OSError:
        return None
    return found and found[1]


def batches_of(path):
    """The intact batches of a partition's directory, file by file in the order of their names."""
    for file in sorted(path.iterdir()):
        if LOG.fullmatch(file.name) and file.is_file():
            yield from intact_batches(file.read_bytes())


class Truth:
    """Everything that was written. `written`: batches by partition, topic id and key; `acknowledged`: the keys of those
    with a message that a producer was told of."""

    def __init__(self, log_dirs, acknowledged):
        self.written = defaultdict(lambda: defaultdict(dict))
        for log_dir in log_dirs:
            for place, path in partitions(log_dir, set_aside=True):
                for batch in batches_of(path):
                    self.written[place][topic_id_of(path)][batch.key] = batch
        self._keys, self.acknowledged = {}, {}
        for (topic_id, topic, partition), values in acknowledged.items():
            written, known = self.written[topic, partition][topic_id], set()
            for key, batch in written.items():
                rows = {} if batch.attributes & 0x20 else records(batch)
                if any(values.get(offset) == value for offset, (_, value) in rows.items()):
                    known.add(key)
            self.acknowledged[topic, partition, topic_id] = known
            missing = set(values) - {one for key in known for one in range(written[key].base, written[key].last + 1)}
            assert topic == "state" or not missing, (topic, partition, sorted(missing)[:5])

    def ids_of(self, place, key):
        """The ids of the topics of this name that have this batch."""
        return {topic_id for topic_id, batches in self.written[place].items() if key in batches}

    def held(self, log_dirs):
        """The batches that these directories have: their paths by partition, topic id and key."""
        found = defaultdict(lambda: defaultdict(set))
        for log_dir in log_dirs:
            for place, path in partitions(log_dir):
                for batch in batches_of(path):
                    for topic_id in self.ids_of(place, batch.key):
                        found[place, topic_id][batch.key].add(path)
        return found

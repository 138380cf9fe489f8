"""Plans, drawn from seeds. Most worlds are small: a fault needs few operations, and many worlds find more than large
ones."""

import random
from functools import partial

from tests.simulation import plan as ops
from tests.simulation import themes
from tests.simulation.mounts import MAX_MESSAGE_BYTES
from tests.support.owned_dirs import NOW_MS

_SIZES = ("300", "700", "2000")
_LIMITS = (("retention.bytes", "900"), ("retention.ms", "200"), ("retention.bytes", "300"), ("retention.bytes", "0"))


def draw(seed):
    """The plan of a seed, always the same."""
    return _Drawing(random.Random(seed), random.Random(f"{seed} too")).plan(seed)


class _Drawing:
    def __init__(self, source, other):
        """`other`: of what came later, so that the rest of a seed's plan stays what it was."""
        self._random = source
        self._too = lambda chance: other.random() < chance
        self._other = other
        self._is = lambda chance: source.random() < chance
        self._of = source.choice
        self._upto = source.randrange

    def plan(self, seed):
        self._theme = theme = themes.theme_of(self._random)
        self._has_copy = self._is(theme.copies)
        self._has_commits = self._is(theme.commits)
        self._has_keys = self._is(theme.keys)
        self._remakes = self._is(theme.remakes)
        self._has_groups = self._is(theme.groups)
        self._commits_offsets = theme is themes.POWER and self._too(0.2)
        self._rots = self._is(theme.rots)
        self._fails = self._is(theme.fails)
        self._has_times = self._is(theme.times)
        self._deletes = self._is(theme.deletes)
        # One request has lines for several partitions, none of which can be too large (kafkafs.writing.destinations).
        self._scatters = theme is themes.LINES and self._is(0.4)
        self._shared = self._is(0.5) if theme is themes.LINES and not self._scatters and self._is(0.4) else None
        self._fails &= self._shared is None
        topic_names = ("plain", "kept") if theme.topics is None else theme.topics
        topics = [self._topic(name, 2, retained=name == "kept") for name in topic_names]
        topics += [self._topic("keyed", 2, compacted=True)] if self._has_keys else []
        topics += [self._topic("copy", 1)] if self._has_copy else []
        topics += [self._topic("again", 1)] if self._remakes else []
        self._topics = {topic.name for topic in topics}
        self._names = [(topic.name, number) for topic in topics for number in range(topic.partitions)]
        # Programs meet at the same few files.
        common = ("copy", "again", "plain") if self._rots else ("copy", "again")
        self._names += [name for name in self._names if name[0] in common] * 2
        self._ranges = [self._range() for _ in range(4)]
        processes = self._times(self._of(theme.processes), self._process)
        sizes = (24, 96, 200, 600, 600) if theme is themes.LINES else (24, 48, 96, 96, 200)
        return ops.Plan(seed, tuple(topics), processes, self._of(sizes if self._shared is None else (600,)))

    def _topic(self, name, partitions, *, retained=False, compacted=False):
        theme = self._theme
        is_small = name == "copy" or (retained and self._has_commits) or theme in themes.SMALL
        sizes = ("300", "300", "700") if is_small and theme is not themes.FOLLOWED else _SIZES
        config = {"max.message.bytes": "2000" if self._scatters else str(MAX_MESSAGE_BYTES)}
        config["segment.bytes"] = self._of(("2000",) if self._scatters else sizes)
        config["index.interval.bytes"] = "0" if theme is themes.FOLLOWED else self._of(("0", "100", "4096"))
        if retained or compacted or theme is themes.CLEANED:
            config["file.delete.delay.ms"] = "20"
        if retained:
            key, limit = self._of(_LIMITS if theme is not themes.RETENTION or self._is(0.6) else _LIMITS[-1:])
            config[key] = limit
        if compacted or theme is themes.CLEANED:
            config |= {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.1" if compacted else "0.05"}
        if theme is themes.CLEANED:
            config["delete.retention.ms"] = self._of(("0", "50", "86400000"))
        if self._is(0.25):
            config["flush.messages"] = "1"
        elif self._is(0.2) or (theme is themes.RETENTION and self._too(0.5)):
            config["flush.ms"] = "30"
        if self._is(0.1):
            config["preallocate"] = "true"
        if self._is(0.1):
            config["segment.ms"] = "50"
        return ops.TopicOf(name, partitions, tuple(config.items()))

    def _process(self):
        theme = self._theme
        jobs = []
        if self._shared is not None:
            jobs += [self._sharing(f"s{index}") for index in range(self._of((2, 3)))]
        for index in range(self._of(theme.writers)):
            jobs.append(self._writer(f"w{index}", self._of(theme.written), keyed=self._scatters))
        if self._has_keys and (self._is(0.7) or theme is themes.RENAMED):
            jobs.append(self._writer("k", "keyed", keyed=True))
        if self._remakes:
            jobs.append(self._writer("g", "again"))
        if self._has_copy and self._is(0.9):
            jobs.append(self._leader())
        if self._has_commits and self._is(0.8):
            counts = (3, 8) if theme is themes.RETENTION else (3, 9) if theme is themes.QUERIES else (1, 5)
            jobs.append(ops.Job("driver", "d", self._some(*counts, self._commit)))
        if self._has_groups:
            jobs.append(ops.Job("consumer", "c", self._some(1, 4, self._offset)))
        elif self._commits_offsets:
            jobs.append(ops.Job("consumer", "c", self._times(3, lambda: self._offset(self._other))))
        for index in range(self._of(theme.readers)):
            jobs.append(ops.Job("reader", f"r{index}", self._some(1, 6, self._look)))
        if self._is(theme.administrator) or self._remakes or self._fails:
            jobs.append(ops.Job("administrator", "a", self._administration()))
        if self._is(theme.upkeep):
            rounds = (40, 100) if theme in (themes.RETENTION, themes.CLEANED, themes.RENAMED) else (5, 15, 40)
            jobs.append(ops.Job("upkeep", "u", (ops.Pause(self._of(rounds)),)))
        has_more = self._has_copy or self._remakes
        if self._is(theme.follows) or (theme is themes.EVERYTHING and self._is(0.35) and has_more):
            jobs.append(ops.Job("reader", "f", self._some(1, 6, self._look), follows=True))
        is_killed = self._is(theme.kills)
        kill_at = self._upto(1, self._of(theme.kill_within)) if is_killed else None
        kill_operation = kill_rename = None
        if is_killed and self._is(0.4):
            kill_at, kill_operation = None, 1 + kill_at // 8
        if is_killed and theme in (themes.QUERIES, themes.RENAMED) and self._is(0.7):
            kill_at, kill_operation, kill_rename = None, None, self._upto(1, 25)
        return ops.ProcessOf(
            tuple(jobs), kill_at, kill_operation, kill_rename,
            loses_power=is_killed and self._is(theme.power),
            switching=self._of((0.02, 0.1, 0.3, 0.5)),
            order=self._upto(1 << 32),
            gentle=self._is(0.2),
            trust_clean=self._is(0.8),
            committed=self._has_copy and self._is(theme.committed),
            clamp=self._is(0.2),
            held=self._of((None, None, 6)),
            unchecked=is_killed and not self._has_copy and not self._rots and self._is(0.4),
            rots=self._rotting() if self._rots else (),
        )  # fmt: skip

    @staticmethod
    def _times(count, draw_one):
        return tuple(draw_one() for _ in range(count))

    def _some(self, least, most, draw_one):
        return self._times(self._upto(least, most), draw_one)

    # Writers

    def _writer(self, name, topic, *, keyed=False):
        theme = self._theme
        json = keyed or self._is(0.1 if theme is themes.LINES else 0.35 if not self._has_times else 0.8)
        folder = self._of((f"/{topic}", f"/{topic}/0", f"/{topic}/0"))
        if topic in ("plain", "kept"):
            folder = self._of((f"/{topic}", f"/{topic}/0", f"/{topic}/1"))
        folder = "/plain/0" if theme is themes.FULL else folder
        path = f"{folder}/@append.jsonl" if json else f"{folder}/@append"
        policies = ops.GOES_ON, ops.GIVES_UP, ops.GIVES_UP, ops.GIVES_UP
        policy = ops.GIVES_UP if theme is themes.FULL else self._of(policies)
        if theme is themes.LINES:
            path = path if json and self._is(0.3) else f"/{topic}/{path.rpartition('/')[2]}"
            policy = self._of((ops.GOES_ON, ops.GOES_ON, policy, ops.GIVES_UP, ops.GIVES_UP))
        counts = (10, 30) if theme in (themes.FULL, themes.RENAMED) else (2, 15 if theme is themes.LINES else 11)
        drawn = self._some(*counts, partial(self._writing, json=json, keyed=keyed, needs_key=topic == "keyed"))
        persists = self._is(0.5 if theme is themes.LINES else 0.75)
        return ops.Job("writer", name, drawn, path, policy, persists, durable=self._too(0.15))

    def _sharing(self, name):
        """One of several programs that have inherited one open file: each writes whole lines, and each line is in one
        request."""
        path = "/plain/@append.jsonl" if self._shared else "/plain/@append"

        def whole_lines():
            return ops.Write(self._some(1, 4, lambda: ops.LineOf(self._of((0, 20, 60)))))

        drawn = self._some(3, 12, lambda: ops.Sync() if self._is(0.1) else whole_lines())
        return ops.Job("writer", name, drawn, path, shares=True)

    def _writing(self, *, json, keyed, needs_key):
        kind = self._random.random()
        if kind < {themes.FULL: 0.03, themes.RENAMED: 0.2}.get(self._theme, 0.15):
            return ops.Sync()
        if kind < 0.25:
            return ops.Close()
        if kind < 0.3:
            return ops.Pause(self._upto(1, 20))
        counts = {themes.LINES: (1, 3, 5, 7), themes.FULL: (1,)}.get(self._theme, (1, 1, 2, 3, 5, 7))
        lines = [self._line(json=json, keyed=keyed) for _ in range(self._of(counts))]
        is_lines = self._theme is themes.LINES
        if self._is(0.5 * (not keyed) if is_lines else 0.2):
            bad = [ops.TOO_LARGE, ops.HUGE] + [ops.NOT_JSON] * json + [ops.NO_KEY] * needs_key
            lines.insert(self._upto(len(lines) + 1), self._line(json=json, keyed=keyed, kind=self._of(bad)))
        if json and self._is(0.1):  # small enough for one request, which ends within a line after a bad one
            kind = self._of((ops.NOT_JSON, ops.NO_KEY) if needs_key else (ops.NOT_JSON,))
            bad, last = ops.LineOf(kind=kind, key=lines[0].key), ops.LineOf(key=lines[0].key)
            cut = self._random.random()
            if cut < 0.3:
                return ops.Write((bad, last), ended=False)
            return ops.Write((*lines[:1], bad, last), round(cut, 3))
        first = self._of((1.0, 1.0, self._random.random()))
        if self._is(0.15):
            return ops.Write(tuple(lines), round(self._random.random(), 3), first=round(first, 3))
        return ops.Write(tuple(lines), ended=self._is(0.8 if is_lines else 0.93), first=round(first, 3))

    def _line(self, *, json, keyed, kind=ops.GOOD):
        # What a replacement of the cleaner may lose are messages that have no later ones of their keys.
        key = self._upto({themes.LINES: 6, themes.RENAMED: 12}.get(self._theme, 3)) if keyed else None
        age = None
        if json and self._has_times and self._is(0.7):
            age = self._of((0, 10, 1000, 3000, -1000))
        if self._theme is themes.FULL:
            return ops.LineOf(self._of((0, 60, 120)), kind, key, age)
        sizes = ((0, 20, 20) if keyed else (20, 60, 120, 120)) if self._theme is themes.LINES else (0, 0, 20, 60, 120)
        return ops.LineOf(self._of(sizes), kind, key, age)

    # Readers

    def _look(self):
        topic, partition = ("copy", 0) if self._has_copy and self._is(0.5) else self._of(self._names)
        name = self._of(("messages", *self._ranges, self._range()))
        if self._theme is themes.CLEANED and self._is(0.5):
            return ops.Look("copy", 0, "latest.jsonl", (self._read(),), to_end=True)
        ending = self._of(("txt", "jsonl", "jsonl", "log"))
        if self._theme is themes.COPIED and self._is(0.4):
            name, ending = "messages", "jsonl"
        reads = self._times(self._of((0, 1, 3, 6)), self._read)
        return ops.Look(topic, partition, f"{name}.{ending}", reads, self._is(0.85))

    def _range(self):
        first, size = self._of((0, self._upto(10), self._upto(25))), self._upto(15)
        names = [
            f"offsets/{first}-", f"offsets/{first}-{first + size}", f"offsets/{first}-{first + size}",
            f"offsets/{first}+{size + 1}", f"offsets/{first}+{size + 1}", f"offsets/last-{size + 1}",
            f"offsets/{first}",
        ]  # fmt: skip
        if self._theme is themes.DELETED:
            first = self._upto(4)
            names = [f"offsets/{first}+{size % 4 + 1}", f"offsets/{first}-", f"offsets/{first}-{first + size}"]
        if self._has_times and self._is(1.0 if self._theme is themes.JUMBLED else 0.6):
            start = NOW_MS + self._of((-3000, -1000, 0, 20, 100)) + self._upto(50)
            end = start + self._of((30, 200, 3000))
            names = [f"time/{start}--{end}", f"time/{start}--", f"time/until-{end}", f"time/{start}--{end}"]
        return self._of(names)

    def _read(self):
        back = None if self._is(0.8) else round(self._random.random(), 2)
        return ops.Read(self._of((10, 60, 400, 4000)), back, self._of((0, 0, 3, 20, 60)))

    # Others

    def _administration(self):
        theme = self._theme
        drawn = []
        if self._fails and self._is(0.6 if theme in (themes.OPENINGS, themes.LINES) else 0.1):
            drawn += self._fault()  # before anybody has opened anything
        if self._is(0.3):
            drawn.append(self._alteration())
        jump = lambda: ops.Jump(self._of((-500, 10, 1000, 100_000)))  # noqa: E731
        kinds = [self._alteration, jump, ops.Status, self._pause]
        kinds += [self._before] * (3 if self._remakes or theme is themes.DELETED else 1) if self._deletes else []
        remaking = [self._remaking] * (8 if theme is themes.MADE_AGAIN else 3)
        kinds += remaking if self._remakes else [self._creating]
        kinds += [self._fault] * 3 if self._fails else []
        for _ in range(self._upto(2, 7)):
            operations = self._of(kinds)()
            drawn += operations if isinstance(operations, list) else [operations]
        extended = [name for name in ("plain", "again") if name in self._topics]
        if extended and self._too(0.15):
            topic = self._other.choice(extended)
            drawn.insert(self._other.randrange(len(drawn) + 1), ops.Extend(topic, self._other.choice((2, 3, 4))))
        return tuple(drawn)

    def _alteration(self):
        topic = self._of([name for name in ("plain", "kept", "again") if name in self._topics] or ["copy"])
        key, values = self._of((("segment.bytes", _SIZES), ("index.interval.bytes", ("0", "50", "4096"))))
        return ops.Alter(topic, key, self._of(values))

    def _pause(self):
        return ops.Pause(self._upto(1, 40))

    def _before(self):
        topics = [name for name in ("kept", "again") if name in self._topics]
        if not topics:
            return self._pause()
        topic = self._of(topics)
        return ops.Before(topic, self._upto(2) if topic == "kept" else 0, round(self._random.random(), 2))

    def _remaking(self):
        waits = [self._pause()] if self._is(0.6) else []
        if self._is(0.7):
            return [*waits, ops.Remove("again"), ops.Create("again")]
        if self._is(0.3):
            return [*waits, ops.Remove("again"), self._pause(), ops.Status(), ops.Create("again")]
        return [ops.Remove("again"), self._pause(), ops.Create("again")]

    def _creating(self):
        return [ops.Create("x"), self._pause(), ops.Remove("x")] if self._is(0.5) else [ops.Create("x")]

    def _fault(self):
        if self._theme is themes.FOLLOWED and self._is(0.8):  # an index entry, a checkpoint cannot be written
            return self._full((0.5, 0.3, 0.2), 20, 200)
        if self._theme is themes.FULL or (self._theme is themes.LINES and self._is(0.8)):
            # Some of several partitions get their lines, some of several files are created.
            return self._full((0.5, 0.3, 0.1), 20, 500 if self._theme is themes.FULL else 150)
        kind = self._of(("ENOSPC", "ENOSPC", "EMFILE", "EMFILE", "EIO", "slow"))
        rate = self._of((1.0, 0.3)) if kind in ("ENOSPC", "slow") else self._of((0.3, 0.1, 0.03))
        if self._is(0.15):
            return [ops.Fault(kind, rate, lasting=True)]
        ends = [self._of((ops.Pause(self._upto(1, 60)), ops.Status())), ops.Fault(kind)]
        return [ops.Fault(kind, rate), *ends]

    def _full(self, rates, *lasts):
        """A disk that is full now and then."""
        return [ops.Fault("ENOSPC", self._of(rates)), ops.Pause(self._upto(*lasts)), ops.Fault("ENOSPC")]

    def _leader(self):
        counts, draw_one = {
            themes.FOLLOWED: ((6, 25), self._following),
            themes.CLEANED: ((10, 40), self._keyed),
        }.get(self._theme, ((4, 20), self._copied))
        return ops.Job("leader", "l", self._some(*counts, draw_one), "/copy/0")

    def _copied(self):
        kind = self._random.random()
        if kind < 0.6:
            producer = self._of((-1, 1, 2))
            is_transactional = producer > 0 and self._is(0.7)
            size = self._of((1, 2, 5)), self._of((5, 30))
            return ops.Batch(*size, producer, is_transactional, self._of((0, 0, 0, 0, 2)))
        if kind < 0.8:
            return ops.Marker(self._of((1, 2)), self._is(0.6))
        return ops.Flush() if kind < 0.9 else ops.Pause(self._upto(1, 20))

    def _following(self):
        """Leaders come and go, and delete records."""
        kind = self._random.random()
        if kind < 0.7:
            producer, epoch = self._of((-1, -1, 1, 2)), self._of((0, 0, 0, 1, 2))
            size = self._of((1, 2, 5)), self._of((5, 30))
            return ops.Batch(*size, producer, skips=self._of((0, 0, 0, 2)), epoch=epoch)
        if kind < 0.87:
            return ops.Before("copy", 0, self._of((0.2, 0.5, 0.9, 1.0)))
        return ops.Flush() if kind < 0.94 else self._pause()

    def _keyed(self):
        """What a cleaner meets: few keys, of which some are of transactions."""
        kind = self._random.random()
        if kind < 0.6:
            producer = self._of((-1, 1, 2, 3))
            is_transactional = producer in (1, 2) and self._is(0.7)
            size = self._of((1, 2, 3)), self._of((5, 30))
            keys = self._of((1, 2, 3, 5))
            return ops.Batch(*size, producer, is_transactional, keys=keys, deletes=self._too(0.3))
        if kind < 0.75:
            return ops.Marker(self._of((1, 2)), self._is(0.6))
        return ops.Flush() if kind < 0.78 else self._pause()

    def _commit(self):
        shares = self._random.sample([("kept", 0), ("kept", 1), ("plain", 0), ("plain", 1)], self._upto(1, 4))
        return ops.Commit(
            tuple((topic, number, self._upto(1, 9)) for topic, number in shares),
            self._upto(1, 3),
            self._is(0.9 if self._theme is themes.QUERIES else 0.6),
            self._is(0.4),
            goes_on=self._theme is themes.QUERIES and self._is(0.7),
        )

    def _offset(self, source=None):
        source = source or self._random
        return ops.Offset(source.choice(("g", "h")), source.randrange(100))

    def _rotting(self):
        names = [name for name in self._names if name[0] == "plain"]
        unclean, counts = (0.1, (1, 2, 3)) if self._theme in (themes.ROT, themes.JUMBLED) else (0.4, (0, 1, 1))

        def rot():
            return ops.Rot(*self._of(names), round(self._random.random(), 3), self._upto(4000), self._is(unclean))

        return self._times(self._of(counts), rot)

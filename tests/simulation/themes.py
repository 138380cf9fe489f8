"""Themes: each concentrates a small world on a few features of the product ("swarm testing"). A world of everything
comes to a rare sequence of events too seldom; one of few features comes to it often, and the seeds of the other themes
do not pay for it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """What a world is likely to have.

    `topics`: those that exist besides the ones of the features; None: "plain" and "kept". `written`: where writers
    write to. `processes`: how many there may be, one of these numbers. `readers`: how many a process has. `kills`: how
    probable it is that a process is killed, and `power` that this is a loss of power; `kill_within`: among so many
    steps, one of these numbers. The other fields are probabilities: of a follower's partition (`copies`), of staged
    commits, of compacted topics (`keys`), of a topic that is removed and made again (`remakes`), of groups, of flipped
    bits (`rots`), of failing disks (`fails`), of timestamps (`times`), of a read-only mount of the same directory
    (`follows`), of a maintenance thread (`upkeep`), of an administrator, of the deletion of records (`deletes`) and of
    a reader of committed messages.
    """

    name: str
    topics: tuple[str, ...] | None = None
    written: tuple[str, ...] = ("plain", "plain", "kept")
    writers: tuple[int, ...] = (1, 2)
    processes: tuple[int, ...] = (1, 1, 2, 2, 3)
    readers: tuple[int, ...] = (0, 1, 1, 2)
    kills: float = 0.75
    power: float = 0.5
    kill_within: tuple[int, ...] = (300, 2500, 2500)
    copies: float = 0.0
    commits: float = 0.0
    keys: float = 0.0
    remakes: float = 0.0
    groups: float = 0.0
    rots: float = 0.0
    fails: float = 0.0
    times: float = 0.3
    follows: float = 0.0
    upkeep: float = 0.8
    administrator: float = 0.6
    deletes: float = 0.3
    committed: float = 0.5


EVERYTHING = Theme(
    "everything", copies=0.3, commits=0.2, keys=0.35, remakes=0.2, groups=0.05, rots=0.15, fails=0.45, follows=0.3
)
MADE_AGAIN = Theme(
    "a topic that is removed and made again", topics=(), written=("again",), writers=(1, 2), processes=(1, 1, 2),
    readers=(1, 2, 2), kills=0.4, remakes=1.0, fails=0.15, follows=0.6, upkeep=0.4, administrator=1.0, deletes=0.6,
)  # fmt: skip
RETENTION = Theme(
    "staged commits while retention goes on", written=("kept", "kept", "plain"), processes=(1, 2),
    readers=(0, 1), kills=0.6, power=0.1, kill_within=(1500, 3000), commits=0.75, fails=0.5, upkeep=1.0, times=0.6,
)  # fmt: skip
COPIED = Theme(
    "a follower's transactions under open views", topics=(), writers=(0,), processes=(1, 1, 2, 2), readers=(1, 2, 2),
    kills=0.5, power=0.8, kill_within=(300, 1200), copies=1.0, follows=0.6, upkeep=0.5, administrator=0.1,
    committed=0.6,
)  # fmt: skip
ROT = Theme(
    "bits that flip", topics=("plain",), written=("plain",), writers=(1, 2), processes=(2, 2, 3), readers=(1, 2, 3),
    kills=0.15, rots=1.0, upkeep=0.3, administrator=0.1, times=0.1,
)  # fmt: skip
OPENINGS = Theme(
    "few descriptors and a full disk while partitions are opened", processes=(2, 2, 3), readers=(0, 1), kills=0.2,
    remakes=0.3, fails=0.8, upkeep=0.5, administrator=1.0,
)  # fmt: skip
POWER = Theme(
    "losses of power", topics=("plain",), written=("plain",), processes=(2, 3), readers=(0,), kills=0.7, power=1.0,
    kill_within=(150, 600, 1500), keys=0.5, upkeep=0.7, administrator=0.0,
)  # fmt: skip
VIEWS = Theme(
    "views that grow", topics=("plain", "kept"), written=("plain", "kept"), processes=(1,), readers=(2, 3),
    kills=0.1, upkeep=0.5, administrator=0.3, follows=0.5,
)  # fmt: skip
LINES = Theme(
    "lines that are refused, and files opened again", topics=("plain",), written=("plain",), writers=(1, 1, 2),
    processes=(1, 1, 2), readers=(0,), kills=0.2, fails=0.7, upkeep=0.1, administrator=0.0,
)  # fmt: skip
FULL = Theme(
    "segments that cannot be created", topics=("plain",), written=("plain",), processes=(3,), readers=(0,),
    kills=1.0, power=1.0, kill_within=(700, 1500), fails=1.0, upkeep=0.0, administrator=1.0, deletes=0.0,
)  # fmt: skip
DELETED = Theme(
    "records deleted under open views", topics=("kept",), written=("kept",), processes=(1,), readers=(1, 2, 3),
    kills=0.1, times=0.1, follows=0.6, upkeep=0.2, administrator=1.0, deletes=1.0,
)  # fmt: skip
JUMBLED = Theme(
    "bits that flip among messages of any time", topics=("plain",), written=("plain",), processes=(2,),
    readers=(2, 3), kills=0.1, rots=1.0, upkeep=0.2, administrator=0.0, times=1.0,
)  # fmt: skip
FOLLOWED = Theme(
    "epochs, log start and indexes of a follower", topics=(), writers=(0,), processes=(1, 2, 2), readers=(0,),
    kills=0.6, kill_within=(300, 600, 1200), copies=1.0, fails=0.8, upkeep=0.5, administrator=0.0, deletes=0.0,
    committed=0.0,
)  # fmt: skip
CLEANED = Theme(
    "transactions and producers that a cleaner meets", topics=(), writers=(0,), processes=(1, 2), readers=(0, 1),
    kills=0.5, power=0.0, kill_within=(300, 900), copies=1.0, upkeep=1.0, administrator=0.1, deletes=0.0, follows=0.2,
)  # fmt: skip
QUERIES = Theme(
    "queries that go on after a write that failed", written=("plain",), writers=(0, 0, 1), processes=(2, 2, 3),
    readers=(0,), kills=0.5, kill_within=(150, 500, 1000), commits=1.0, fails=0.7, upkeep=0.3, administrator=0.2,
    deletes=0.0, times=0.0,
)  # fmt: skip
RENAMED = Theme(
    "losses of power among renames", topics=("plain",), written=("plain",), writers=(0,), processes=(2, 3, 3),
    readers=(0,), kills=0.95, power=1.0, commits=0.4, keys=1.0, upkeep=1.0, administrator=0.0, deletes=0.0, times=0.0,
)  # fmt: skip

SMALL = (ROT, POWER, FULL, JUMBLED, RENAMED)  # small segments are many
# How many of all worlds have each theme. Those from DELETED to RENAMED came later, amid the worlds of everything, so
# that the seeds by which the planted faults are found are the worlds that they were.
SHARES = (
    (EVERYTHING, 2), (DELETED, 4), (FULL, 4), (EVERYTHING, 1), (JUMBLED, 4), (FOLLOWED, 4),
    (CLEANED, 4), (QUERIES, 3), (RENAMED, 7), (EVERYTHING, 1),
    (MADE_AGAIN, 13), (RETENTION, 13), (COPIED, 12), (ROT, 6), (OPENINGS, 10), (POWER, 8), (VIEWS, 4), (LINES, 12),
)  # fmt: skip


def theme_of(source):
    """The theme of a world: what is drawn first."""
    themes, weights = zip(*SHARES, strict=True)
    return source.choices(themes, weights)[0]

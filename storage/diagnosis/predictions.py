"""One prediction: what is found, what a broker does about it when it starts, and what a person can do.

The reactions were seen in Kafka 4.3.0; the names of its classes say where they are from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from storage.types import TopicPartition


class Reaction(Enum):
    """What the broker does: a stable name, and whether the start fails or messages are lost."""

    name_in_reports: str
    is_finding: bool

    def __init__(self, name_in_reports: str, is_finding: bool) -> None:
        self.name_in_reports = name_in_reports
        self.is_finding = is_finding

    REFUSES = "refuses", True  # the broker does not start
    OFFLINE = "takes-offline", True  # the directory is taken offline; without another one the broker stops
    STRAY = "sets-aside", True  # the partition becomes a stray; an empty one may take its place
    CREATES_EMPTY = "creates-empty", True  # a partition that is not here is created, empty
    CUTS = "cuts", True  # messages are removed
    UNNOTICED = "does-not-notice", True  # it starts, and reading fails there later
    REMOVES = "removes", False  # what was to be removed anyway
    REPAIRS = "repairs", False  # rebuilt from the log, nothing is lost
    RECOVERS = "recovers", False  # logs are checked, which takes time
    FORGETS = "forgets", True  # messages in tiered storage
    FETCHES = "fetches", False  # from tiered storage, if that is there
    IGNORES = "ignores", False


@dataclass(frozen=True, slots=True)
class Prediction:
    """`name`: stable. `broker`: the broker's reaction in words. `advice`: what to do, with a command if there is one.
    `tp`: None for what concerns the directory. `end_offset`: where the log ends after a cut."""

    name: str
    reaction: Reaction
    path: Path
    what: str
    broker: str
    advice: str = ""
    tp: TopicPartition | None = None
    end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All predictions, the worst first. `stays`: it does not stop because of directories that it takes offline: the one
    with the metadata log, or all of them. `quick`: no log was read."""

    predictions: tuple[Prediction, ...]
    stays: bool = True
    quick: bool = False

    @property
    def starts(self) -> bool:
        """Whether the broker starts and goes on."""
        return self.stays and not any(one.reaction is Reaction.REFUSES for one in self.predictions)

    def with_more(self, more: Iterable[Prediction]) -> Diagnosis:
        """This one with other predictions too."""
        order = list(Reaction)
        both = sorted((*self.predictions, *more), key=lambda one: (order.index(one.reaction), str(one.path)))
        return replace(self, predictions=tuple(both))

    @property
    def is_well(self) -> bool:
        """Whether it starts and loses nothing, as far as was looked: see `quick`."""
        return not any(one.reaction.is_finding for one in self.predictions)

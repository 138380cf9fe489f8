"""A prediction: what is wrong, what a broker does about it when it starts, and what a person can do.

The reactions were seen in Kafka 4.3.0; the names of its classes say where they are from.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from storage.types import TopicPartition


class Reaction(Enum):
    """A broker's reaction: a stable name, and whether the start fails or messages are lost."""

    name_in_reports: str
    is_finding: bool

    def __init__(self, name_in_reports: str, is_finding: bool) -> None:
        self.name_in_reports = name_in_reports
        self.is_finding = is_finding

    REFUSES = "refuses", True  # the broker does not start
    UNKNOWN = "unknown", True  # the user who asks may not read the file, but the broker's user may
    OFFLINE = "takes-offline", True  # the directory is taken offline; without another one the broker stops
    STRAY = "sets-aside", True  # the partition becomes a stray; an empty one may take its place
    CREATES_EMPTY = "creates-empty", True  # a missing partition is created, empty
    CUTS = "cuts", True  # messages are removed
    UNNOTICED = "does-not-notice", True  # the broker starts, and reading fails there later
    REMOVES = "removes", False  # files that are no longer needed
    REPAIRS = "repairs", False  # rebuilt from the log, nothing is lost
    RECOVERS = "recovers", False  # logs are checked, which takes time
    FORGETS = "forgets", True  # messages in tiered storage
    FETCHES = "fetches", False  # from tiered storage, if it has them
    IGNORES = "ignores", False


@dataclass(frozen=True, slots=True)
class Prediction:
    """`name`: stable. `broker`: the broker's reaction in words. `advice`: what to do, with a command if there is one.
    `tp`: None if it concerns the directory. `end_offset`: where the log ends after a cut."""

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
    """All predictions, the worst first. `stays`: the broker does not stop because of directories that it takes offline
    (the one with the metadata log, or all of them). `quick`: no log was read."""

    predictions: tuple[Prediction, ...]
    stays: bool = True
    quick: bool = False

    @property
    def starts(self) -> bool:
        """Whether the broker starts and goes on, as far as files could be read: see `denied`."""
        return self.stays and not any(prediction.reaction is Reaction.REFUSES for prediction in self.predictions)

    def with_more(self, more: Iterable[Prediction]) -> Diagnosis:
        """Return this diagnosis with more predictions."""
        order = list(Reaction)
        both = sorted(
            dict.fromkeys((*self.predictions, *more)),  # two checks may meet a file that cannot be read
            key=lambda prediction: (order.index(prediction.reaction), str(prediction.path)),
        )
        return replace(self, predictions=tuple(both))

    @property
    def denied(self) -> list[Path]:
        """The files that this user may not read."""
        return [prediction.path for prediction in self.predictions if prediction.reaction is Reaction.UNKNOWN]

    @property
    def is_well(self) -> bool:
        """Whether the broker starts and loses nothing, as far as was examined: see `quick`."""
        return not any(prediction.reaction.is_finding for prediction in self.predictions)

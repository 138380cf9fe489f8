"""Which messages of a log are in tiered storage (KIP-405), and so not in its directory.

`log-start-offset-checkpoint` says where a tiered log begins, which may be below its first local segment. In any other
log such a line is merely old: segments were removed, or lost, since it was written, and the log begins with its first
segment (UnifiedLog, LogLoader). See storage/DESIGN.md, "Tiered storage".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from storage.files.leader_epochs import LeaderEpochs
from storage.types import OffsetRange

TIERED_KEYS: Final = ("remote.", "local.")  # the beginnings of the configuration keys of tiered topics
_ENABLED: Final = "remote.storage.enable"


def is_tiered(overrides: Mapping[str, str]) -> bool:
    """Whether a topic's own configuration says that it is tiered; there is no broker's default for it."""
    return overrides.get(_ENABLED, "").strip().lower() == "true"


def remote_offsets(
    first_offset: int, checkpointed: int | None, epochs: LeaderEpochs, tiered: Callable[[], bool | None]
) -> OffsetRange | None:
    """The offsets in tiered storage, before the first local segment; None if there are none.

    `first_offset`: of the first segment. `checkpointed`: the log start offset, None without a line. `tiered`: whether
    the topic is, None if its configuration is unknown; called only if it matters.
    """
    by_epochs = epochs.entries[0].start_offset if epochs.entries else first_offset
    start = by_epochs if checkpointed is None else checkpointed
    if start >= first_offset:
        return None
    known = tiered()
    if known is None:
        # A broker moves the first leader epoch up with the log start.
        known = checkpointed is not None and by_epochs < first_offset
    return OffsetRange(start, first_offset) if known else None

"""Decoding records of Kafka's own topics to columns of JSON texts, by Kafka's definitions, without schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kafkafs.decoding.columns import Decoded
from storage.format.columns import RecordColumn
from storage.format.messages import messages

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Buffer

    from kafkafs.decoding.rooms import Room

    Int64s = NDArray[np.int64]
    Texts = tuple[NDArray[np.uint8], Int64s, Int64s, dict[int, str]]


class OwnTopicDecoder:
    """Decodes records of one of Kafka's own topics. Threads can share it, each with its own Room."""

    def __init__(self, group: str) -> None:
        """`group`: a group of messages, usually a topic's name (storage.format.messages). KeyError for others."""
        self._messages = messages(group)

    def decode(self, buffer: Buffer, columns: NDArray[np.int64], room: Room) -> tuple[Decoded, Decoded, int]:
        """Return keys and values of the first rows, as many as fit into `room`, and the position after their texts.
        `columns`: those of a RecordBlock. ValueError if a row points outside `buffer`."""
        sides = columns[RecordColumn.KEY_START : RecordColumn.KEY_START + 4]
        messages = self._messages.read(buffer, sides, room.texts)
        ids = np.full(messages.rows, -1, np.int64)
        errors: dict[str, dict[int, str]] = {"key": {}, "value": {}}
        for row, (side, error, _) in messages.errors.items():
            errors[side][row] = error
        keys, values = (
            Decoded(messages.rows, messages.places[at : at + 2], ids, errors[side])
            for at, side in ((0, "key"), (2, "value"))
        )
        return keys, values, messages.end

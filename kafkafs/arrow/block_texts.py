"""Decoding keys and values of blocks by their schemas: the texts that `decoded.jsonl` shows, the ids of the schemas,
and the errors."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from storage.format.columns import RecordColumn
from storage.format.messages import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from kafkafs.decoding.decoded_jsonl import TextDecoder
    from kafkafs.schemas.schema import SchemaLookup
    from storage.format.block import RecordBlock
    from storage.types import TopicPartition

    Int64s = NDArray[np.int64]

Side = Literal["key", "value"]
SIDES: Final[tuple[Side, Side]] = ("key", "value")

# A text may be thousands of times larger than its record: decode few records at once until the sizes are known.
_FIRST_STEP: Final = 16
_MOST_STEP: Final = 4096
LARGE_BYTES: Final = 4 << 20


class BlockTexts(NamedTuple):
    """The texts of a block's keys or values: one after another with the end of each, which rows are not null, ids (-1:
    no schema), errors by row."""

    data: NDArray[np.uint8]
    ends: Int64s
    valid: NDArray[np.bool_]
    ids: Int64s
    errors: dict[int, str]


class Decoding:
    """Decodes one block after another, each once for all columns of its texts. For one task; not thread-safe.

    `step`: how many records may be decoded at once. `sides`: keys, values or both.
    """

    def __init__(self, schemas: SchemaLookup, sides: Collection[Side] = SIDES) -> None:
        self.step = _FIRST_STEP
        self.sides = sides
        self._schemas = schemas
        self._decoders: dict[str, TextDecoder] = {}
        self._texts: dict[Side, BlockTexts] = {}

    def take(self, tp: TopicPartition, block: RecordBlock) -> None:
        """Decode a block."""
        # Imported only when needed: most scans decode nothing.
        from kafkafs.decoding.decoded_jsonl import own_texts
        from kafkafs.decoding.guid_headers import find_guids

        if tp.topic in GROUPS:
            sides = zip(SIDES, own_texts(tp.topic, block), (block.key_length, block.value_length), strict=True)
            self._texts = {
                side: BlockTexts(data, ends, lengths >= 0, ids, errors)
                for side, (data, ends, ids, errors), lengths in sides
            }
        else:
            guids = dict(zip(SIDES, find_guids(block), strict=True))
            self._texts = {side: self._decoded(tp, block, side, guids[side]) for side in self.sides}
        size = sum(len(texts.data) for texts in self._texts.values())
        self.step = min(2 * self.step, _MOST_STEP) if size < LARGE_BYTES else max(1, self.step // 8)

    def texts(self, side: Side) -> BlockTexts:
        """The decoded keys or values of the block that was taken last."""
        return self._texts[side]

    def _decoded(self, tp: TopicPartition, block: RecordBlock, side: Side, guids: Mapping[int, bytes]) -> BlockTexts:
        subject = f"{tp.topic}-{side}"
        decoder = self._decoders.get(subject)
        if decoder is None:
            from kafkafs.decoding.decoded_jsonl import TextDecoder

            decoder = self._decoders[subject] = TextDecoder(self._schemas, subject)
        first = RecordColumn.KEY_START if side == "key" else RecordColumn.VALUE_START
        starts, lengths = block.columns[first], block.columns[first + 1]
        data, ends, ids, errors = decoder.decode(block.buffer, starts, lengths, guids)
        return BlockTexts(data, ends, lengths >= 0, ids, errors)

"""Decoding keys and values of blocks by their schemas: the texts that `decoded.jsonl` shows, the ids of the schemas,
and the errors."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from kafkafs.arrow.invalid_option import InvalidOption
from kafkafs.arrow.log_dirs import open_log_dirs
from kafkafs.schemas.registry import Registry
from kafkafs.schemas.sources import SCHEMAS_LOG, LogSchemas, SchemaSource, WithTopicFiles, schemas_at
from kafkafs.schemas.topic_files import read_files
from storage.errors import StorageError, UnknownTopicOrPartition
from storage.files.names import KAFKAS_OWN_TOPICS
from storage.format.block import RecordColumn
from storage.format.messages import GROUPS

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from kafkafs.decoding.decoded_jsonl import TextDecoder
    from kafkafs.schemas.places import SchemaPlaces
    from kafkafs.schemas.registry import SchemaLookup
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


def schemas_of_topic(topic: str, paths: tuple[Path, ...], schemas: SchemaPlaces) -> SchemaLookup:
    """The schemas of a topic (see `schemas_for`); none for Kafka's own topics, which are decoded without schemas."""
    return Registry() if topic in KAFKAS_OWN_TOPICS else schemas_for(paths, schemas)


@lru_cache(maxsize=4)
def schemas_for(paths: tuple[Path, ...], schemas: SchemaPlaces) -> SchemaSource:
    """The source of schemas for log directories that are read as one: the directory and the files that `schemas` names.
    If it names no directory, the topic `_schemas` of one of the log directories. The process keeps the source.
    InvalidOption if there are no schemas; StorageError, OSError."""
    if schemas.directory is not None:
        source: SchemaSource = schemas_at(schemas.directory)
    else:
        log_dirs = open_log_dirs(paths)
        try:
            place = log_dirs.place(SCHEMAS_LOG)
        except UnknownTopicOrPartition:
            exists = (os.path.lexists(path / SCHEMAS_LOG.dir_name) for path in paths)
            # An entry that is not a partition is reported.
            place = next((number for number, has_entry in enumerate(exists) if has_entry), 0)
        source = LogSchemas(log_dirs.directories[place])
    if files := read_files(schemas.files):
        source = WithTopicFiles(source, files)
    if not source.registry() and source.problem:
        raise StorageError(f"the schemas cannot be read: {source.problem}")
    if not source.registry():
        where = schemas.directory or ", ".join(map(str, paths))
        raise InvalidOption(
            f"there are no schemas in {where}: decode needs the topic _schemas there, or the option schemas with "
            "another log directory that has it, with a directory of files like 12.avsc, or with TOPIC=FILE"
        )
    return source

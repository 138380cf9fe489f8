"""Segments as Aiven's plugin stores them: a manifest in JSON, the .log in chunks, and the indexes in one object.

A manifest comes from a stranger: its sizes are checked against the objects and against limits before they are used, and
it names no paths. Source: Aiven's SegmentManifestV1, FixedSizeChunkIndex, VariableSizeChunkIndex,
ChunkSizesBinaryCodec.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from storage.errors import CorruptData, DecompressionFailed, TierUnavailable, UnsupportedFormat
from storage.files.leader_epochs import EpochEntry, LeaderEpochs
from storage.files.names import FileKind
from storage.files.small_files import MOST_ENTRIES_BYTES
from storage.format.compression import Codec, OutputFull, decompress, decompress_into
from storage.tier.blocks import BlockFile, Decode, RemoteBlockCache
from storage.tier.data_keys import OVERHEAD_BYTES, DataKeys, Decrypt
from storage.tier.layouts import Opener, StoredObject
from storage.tier.remote_segments import Content, RemoteFile, TopicIdPartition
from storage.types import MAX_OFFSET

MANIFEST: Final = ".rsm-manifest"
_MOST_MANIFEST_BYTES: Final = 16 << 20
_MOST_LIST_BYTES: Final = 10 << 20  # of chunk sizes, the plugin's own limit
_MOST_CHUNKS: Final = 1 << 20
_MOST_CHUNK_BYTES: Final = 256 << 20  # of a chunk, which must be in memory as a whole; 4 MiB are usual
_MAX_INT32: Final = 2**31 - 1
_MOST_LOG_BYTES: Final = _MAX_INT32
_MOST_OBJECT_BYTES: Final = 2 * _MOST_LOG_BYTES
# The manifest's names for the parts of the indexes object.
_PARTS: Final = {
    "offset": FileKind.OFFSET_INDEX,
    "timestamp": FileKind.TIME_INDEX,
    "producerSnapshot": FileKind.PRODUCER_SNAPSHOT,
    "transaction": FileKind.TRANSACTION_INDEX,
}


class _Fields:
    """A JSON object of a manifest, whose values are checked when they are taken."""

    def __init__(self, values: object, name: str) -> None:
        if not isinstance(values, dict):
            raise malformed(name, "an object", values)
        self._values: Final[dict[str, Any]] = values
        self.name: Final = name

    def fields(self, key: str) -> _Fields | None:
        """The object in a field; None if it is null or missing."""
        value = self._values.get(key)
        return None if value is None else _Fields(value, self.name)

    def needed(self, key: str) -> _Fields:
        return _Fields(self._values.get(key), self.name)

    def number(self, key: str, most: int, least: int = 0) -> int:
        return _integer(self._values.get(key), f"{key} from {least} to {most}", least, most, self.name)

    def text(self, key: str) -> str:
        value = self._values.get(key)
        if not isinstance(value, str):
            raise malformed(self.name, f"text in {key}", value)
        return value

    def bytes(self, key: str) -> bytes:
        try:
            return base64.b64decode(self.text(key), validate=True)
        except ValueError:
            raise malformed(self.name, f"base64 in {key}", self._values.get(key)) from None

    def flag(self, key: str) -> bool:
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise malformed(self.name, f"true or false in {key}", value)
        return value

    def items(self) -> list[tuple[str, Any]]:
        return list(self._values.items())


def _integer(value: object, expected: str, least: int, most: int, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise malformed(name, expected, value)
    return value


def malformed(name: str, expected: object, found: object) -> CorruptData:
    """The error for a manifest with an unexpected value."""
    return CorruptData("manifest does not parse", path=name, expected=expected, found=repr(found)[:80])


def read(manifest: StoredObject, opened: Opener) -> _Fields:
    """The manifest's fields. `opened`: see layouts.segments. TierUnavailable, CorruptData; UnsupportedFormat for
    another version."""
    if manifest.size > _MOST_MANIFEST_BYTES:
        expected = f"at most {_MOST_MANIFEST_BYTES} bytes"
        raise CorruptData("manifest is too large", path=manifest.name, expected=expected, found=manifest.size)
    data = bytes(opened(manifest).read(0, manifest.size))
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        raise malformed(manifest.name, "JSON", data[:40]) from None
    fields = _Fields(values, manifest.name)
    if fields.text("version") != "1":
        found = repr(fields.text("version"))[:80]
        raise UnsupportedFormat("manifest has an unknown version", path=manifest.name, expected="'1'", found=found)
    return fields


def topic_of(manifest: StoredObject, opened: Opener) -> str | None:
    """The topic that a manifest names; None for manifests before 2023-09. The errors of `read`."""
    metadata = read(manifest, opened).fields("remoteLogSegmentMetadata")
    if metadata is None:
        return None
    return metadata.needed("remoteLogSegmentId").needed("topicIdPartition").needed("topicPartition").text("topic")


def content(
    of: TopicIdPartition,
    segment_id: str,
    base: int,
    objects: Mapping[str, StoredObject],
    *,
    opened: Opener,
    keys: DataKeys,
    cache: RemoteBlockCache,
) -> Content:
    """The content of a segment's objects, which are given by suffix. The errors of `read`; TierUnavailable without a
    manifest."""
    manifest = objects.get(MANIFEST)
    if manifest is None:
        name = next(iter(objects.values())).name
        raise TierUnavailable("has no manifest: the upload was not finished, or its deletion has begun", path=name)
    fields = read(manifest, opened)
    end, epochs = _metadata(fields, of, segment_id, base)
    encryption = fields.fields("encryption")
    secret = (
        None if encryption is None else _Secret(keys, encryption.text("dataKey"), encryption.bytes("aad"), manifest)
    )
    parts: dict[FileKind, RemoteFile] = {}
    log = objects.get(".log")
    if log is not None:
        parts[FileKind.LOG] = _log(fields, log, secret, opened, cache)
    epochs_file = None
    indexes = objects.get(".indexes")
    if indexes is not None:
        listed = fields.needed("segmentIndexes")
        for key, kind in _PARTS.items():
            part = _index(listed, key, indexes, secret, cache)
            if part is not None:
                parts[kind] = part
        epochs_file = _index(listed, "leaderEpoch", indexes, secret, cache)
    return Content(parts, epochs_file, end, epochs)


class _Secret:
    """The decryption of a segment's chunks; the data key is decrypted for the first chunk."""

    def __init__(self, keys: DataKeys, data_key: str, aad: bytes, manifest: StoredObject) -> None:
        self._make: Final = partial(keys.decrypter, data_key, aad, manifest.name)
        self._decrypt: Decrypt | None = None  # two threads may make it at the same time; the results are equal

    def __call__(self, chunk: memoryview) -> memoryview:
        if self._decrypt is None:
            self._decrypt = self._make()
        return memoryview(self._decrypt(chunk))


def _metadata(
    fields: _Fields, of: TopicIdPartition, segment_id: str, base: int
) -> tuple[int | None, LeaderEpochs | None]:
    """The segment's last offset and its leader epochs, after a check that they are this segment's; None if unknown."""
    metadata = fields.fields("remoteLogSegmentMetadata")
    if metadata is None:
        return None, None
    its_id = metadata.needed("remoteLogSegmentId")
    its_topic = its_id.needed("topicIdPartition")
    found = (its_topic.text("topicId"), its_topic.needed("topicPartition").number("partition", _MAX_INT32))
    found_segment = (its_id.text("id"), metadata.number("startOffset", MAX_OFFSET))
    if (*found, *found_segment) != (of.topic_id, of.partition, segment_id, base):
        raise CorruptData(
            "manifest is of another segment",
            path=fields.name,
            expected=f"{segment_id} of {of.topic_id}-{of.partition} from offset {base}",
            found=repr((*found, *found_segment))[:160],
        )
    end = metadata.number("endOffset", MAX_OFFSET, base)
    epochs = []
    for text, start in metadata.needed("segmentLeaderEpochs").items():
        if not text.isascii() or not text.isdigit() or len(text) > 10:
            raise malformed(fields.name, "a leader epoch", text)
        epoch = _integer(int(text), "a leader epoch", 0, _MAX_INT32, fields.name)
        epochs.append(EpochEntry(epoch, _integer(start, "an offset", 0, MAX_OFFSET, fields.name)))
    return end, LeaderEpochs(tuple(sorted(epochs, key=lambda entry: entry.epoch)))


def _log(
    fields: _Fields, log: StoredObject, secret: _Secret | None, opened: Opener, cache: RemoteBlockCache
) -> RemoteFile:
    index = fields.needed("chunkIndex")
    compressed = fields.flag("compression")
    size = index.number("originalFileSize", _MOST_LOG_BYTES)
    chunk = min(index.number("originalChunkSize", _MOST_LOG_BYTES, 1), max(size, 1))
    count = -(-size // chunk)
    kind = index.text("type")
    if kind == "fixed":
        each = index.number("transformedChunkSize", _MOST_OBJECT_BYTES)
        final = index.number("finalTransformedChunkSize", _MOST_OBJECT_BYTES)
        total = (count - 1) * each + final if count else 0
        sizes = np.array([each, final] if count > 1 else [final][:count])
        ends: NDArray[np.int64] | None = None
    elif kind == "variable":
        sizes = _chunk_sizes(index, count)
        ends = np.cumsum(sizes)
        total = int(ends[-1]) if count else 0
    else:
        raise UnsupportedFormat("manifest has an unknown chunk index", path=fields.name, found=repr(kind)[:80])
    if total != log.size:
        raise CorruptData(
            "object has not the size that its manifest says", path=log.name, expected=total, found=log.size
        )
    if secret is None and not compressed:
        if total != size or ends is not None:
            raise malformed(fields.name, f"chunks of {size} bytes together", total)
        return opened(log)
    if chunk > _MOST_CHUNK_BYTES:
        what = "chunks are too large to be in memory"
        raise UnsupportedFormat(what, path=log.name, expected=f"at most {_MOST_CHUNK_BYTES} bytes", found=chunk)
    # Incompressible data become a little larger.
    least, most = 1 if secret is None else OVERHEAD_BYTES, chunk + chunk // 64 + 1024
    if count and not least <= int(sizes.min()) <= int(sizes.max()) <= most:
        raise malformed(fields.name, f"chunks of {least} to {most} bytes", [int(sizes.min()), int(sizes.max())])

    def stored(number: int) -> tuple[int, int]:
        if ends is None:
            position = number * each
            return position, min(each, total - position)
        position = int(ends[number - 1]) if number else 0
        return position, int(ends[number]) - position

    return BlockFile(log, size, chunk, stored, partial(_chunk, log.name, secret, compressed), cache)


def _chunk(name: str, secret: _Secret | None, compressed: bool, data: memoryview, size: int) -> memoryview:
    """A chunk decrypted and decompressed, of `size` bytes."""
    if secret is not None:
        data = secret(data)
    if compressed:
        out = np.empty(size, np.uint8).data
        try:
            data = out[: decompress_into(Codec.ZSTD, data, out)]
        except (DecompressionFailed, OutputFull) as error:
            raise CorruptData("chunk does not decompress", path=name, expected=f"{size} bytes", found=error) from None
    if len(data) != size:
        raise CorruptData("chunk has another size", path=name, expected=size, found=len(data))
    return data


def _chunk_sizes(index: _Fields, count: int) -> NDArray[np.int64]:
    """The sizes of `count` stored chunks. CorruptData."""
    packed = index.bytes("transformedChunks")
    try:
        data = decompress(Codec.ZSTD, packed, _MOST_LIST_BYTES)
    except DecompressionFailed as error:
        raise malformed(index.name, "a zstd frame in transformedChunks", error.what) from None
    sizes = decode_sizes(data)
    if sizes is None or len(sizes) != count:
        raise malformed(index.name, f"the sizes of {count} chunks", None if sizes is None else len(sizes))
    return sizes


def decode_sizes(data: bytes) -> NDArray[np.int64] | None:
    """The list in ChunkSizesBinaryCodec's form, None for any other bytes. The form: int32 count; a single value as an
    int32; several values as an int32 base, int8 width, all but the last as unsigned integers of `width` bytes above the
    base, and the last as an int32."""
    count = int.from_bytes(data[:4], "big")
    if len(data) < 4 or count > _MOST_CHUNKS:
        return None
    if count < 2:
        values = np.frombuffer(data, ">i4", offset=4) if len(data) == 4 + 4 * count else None
    else:
        width = data[8] if len(data) > 8 else 0
        if not 1 <= width <= 4 or len(data) != 9 + (count - 1) * width + 4:
            return None
        above = np.zeros((count - 1, 4), np.uint8)
        above[:, 4 - width :] = np.frombuffer(data, np.uint8, (count - 1) * width, 9).reshape(-1, width)
        base = int.from_bytes(data[4:8], "big", signed=True)
        last = int.from_bytes(data[-4:], "big", signed=True)
        values = np.append(above.view(">u4").ravel().astype(np.int64) + base, last)
    return None if values is None else values.astype(np.int64)


def _index(
    listed: _Fields, key: str, indexes: StoredObject, secret: _Secret | None, cache: RemoteBlockCache
) -> RemoteFile | None:
    """A part of the indexes object; None if the manifest lacks it."""
    part = listed.fields(key)
    if part is None:
        return None
    position = part.number("position", _MOST_LOG_BYTES)
    stored_size = part.number("size", MOST_ENTRIES_BYTES)
    if position + stored_size > indexes.size:
        expected = f"at least {position + stored_size} bytes"
        raise CorruptData("object is cut off", path=indexes.name, expected=expected, found=indexes.size)
    size = stored_size if secret is None or not stored_size else stored_size - OVERHEAD_BYTES
    if size < 0:
        raise malformed(listed.name, f"at least {OVERHEAD_BYTES} bytes in {key}", stored_size)
    decode: Decode | None = None if secret is None else partial(_chunk, indexes.name, secret, False)
    return BlockFile(indexes, size, max(size, 1), lambda _: (position, stored_size), decode, cache)

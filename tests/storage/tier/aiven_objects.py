"""Writes segments as Aiven's plugin does: plain, in zstd chunks, encrypted, with any key prefix."""

import base64
import hashlib
import json
import os
from dataclasses import dataclass

import cramjam

from storage.files.names import FileKind
from storage.files.partition_metadata import id_text

PARTS = {
    "offset": FileKind.OFFSET_INDEX,
    "timestamp": FileKind.TIME_INDEX,
    "producerSnapshot": FileKind.PRODUCER_SNAPSHOT,
    "transaction": FileKind.TRANSACTION_INDEX,
}


@dataclass(frozen=True, slots=True)
class RsaKey:
    """A key pair, by its id in manifests."""

    key_id: str
    pem: bytes
    modulus: int
    public_exponent: int

    @staticmethod
    def new(key_id, bits=2048):
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        key = rsa.generate_private_key(65537, bits)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return RsaKey(key_id, pem, key.public_key().public_numbers().n, 65537)

    def wrapped(self, key):
        """`<id>:<base64>`: RSAES-OAEP-ENCRYPT with SHA3-512 and an empty label (RFC 8017, section 7.1.1)."""
        size = (self.modulus.bit_length() + 7) // 8
        block = hashlib.sha3_512(b"").digest() + bytes(size - len(key) - 130) + b"\x01" + key
        seed = os.urandom(64)
        masked = _xor(block, _mask(seed, len(block)))
        message = b"\x00" + _xor(seed, _mask(masked, 64)) + masked
        encrypted = pow(int.from_bytes(message, "big"), self.public_exponent, self.modulus).to_bytes(size, "big")
        return f"{self.key_id}:{base64.b64encode(encrypted).decode()}"


def _mask(seed, size):
    blocks = (hashlib.sha3_512(seed + counter.to_bytes(4, "big")).digest() for counter in range(size // 64 + 1))
    return b"".join(blocks)[:size]


def _xor(one, other):
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


@dataclass(frozen=True, slots=True)
class Style:
    """How a segment is stored. `key`: None for no encryption."""

    prefix: str = "tier/"
    chunk_size: int = 4096
    compressed: bool = False
    key: RsaKey | None = None
    with_metadata: bool = True


def sizes_text(sizes):
    """The list of ChunkSizesBinaryCodec, compressed and in base64."""
    data = len(sizes).to_bytes(4, "big")
    if len(sizes) == 1:
        data += sizes[0].to_bytes(4, "big")
    elif sizes:
        base = min(sizes[:-1])
        width = max(1, (max(sizes[:-1]) - base).bit_length() + 7 >> 3)
        data += base.to_bytes(4, "big") + bytes([width])
        data += b"".join((size - base).to_bytes(width, "big") for size in sizes[:-1]) + sizes[-1].to_bytes(4, "big")
    return base64.b64encode(bytes(cramjam.zstd.compress(data))).decode()


def write(root, segment, topic_id, end_offset, style):
    """Stores a segment of any layout in Aiven's; returns its manifest's path."""
    log = bytes(segment.content.parts[FileKind.LOG].read(0, 1 << 31))
    chunks = [log[at : at + style.chunk_size] for at in range(0, len(log), style.chunk_size)]
    encryption = None
    encrypted = _plain
    if style.key is not None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key, aad = os.urandom(32), os.urandom(32)
        cipher = AESGCM(data_key)
        encryption = {"dataKey": style.key.wrapped(data_key), "aad": base64.b64encode(aad).decode()}

        def encrypted(data):
            iv = os.urandom(12)
            return iv + cipher.encrypt(iv, data, aad)

    packed = [encrypted(bytes(cramjam.zstd.compress(chunk)) if style.compressed else chunk) for chunk in chunks]
    index = {"originalChunkSize": style.chunk_size, "originalFileSize": len(log)}
    if style.compressed:
        index |= {"type": "variable", "transformedChunks": sizes_text([len(chunk) for chunk in packed])}
    else:
        overhead = 28 if style.key else 0
        final = len(packed[-1]) if packed else 0
        index |= {
            "type": "fixed", "transformedChunkSize": style.chunk_size + overhead, "finalTransformedChunkSize": final,
        }  # fmt: skip
    indexes = b""
    listed = {}
    epochs_file = segment.content.epochs_file
    for name, file in [*((name, segment.part(kind)) for name, kind in PARTS.items()), ("leaderEpoch", epochs_file)]:
        if file is None:
            listed[name] = None
            continue
        data = bytes(file.read(0, file.size))
        data = encrypted(data) if data else data
        listed[name] = {"position": len(indexes), "size": len(data)}
        indexes += data
    own = segment.segment_epochs
    assert segment.segment_id is not None
    manifest = {
        "version": "1", "chunkIndex": index, "segmentIndexes": listed, "compression": style.compressed,
    }  # fmt: skip
    if encryption is not None:
        manifest["encryption"] = encryption
    if style.with_metadata:
        of = {"topicId": topic_id, "topicPartition": {"topic": segment.of.topic, "partition": segment.of.partition}}
        manifest["remoteLogSegmentMetadata"] = {
            "remoteLogSegmentId": {"topicIdPartition": of, "id": segment.segment_id},
            "startOffset": segment.base_offset,
            "endOffset": end_offset,
            "maxTimestampMs": 1,
            "brokerId": 1,
            "eventTimestampMs": 2,
            "segmentLeaderEpochs": {str(e.epoch): e.start_offset for e in (own.entries if own is not None else ())},
            "txnIdxEmpty": True,
        }
    key = f"{style.prefix}{segment.of.topic}-{topic_id}/{segment.of.partition}"
    place = root / key / f"{segment.base_offset:020d}-{segment.segment_id}"
    place.parent.mkdir(parents=True, exist_ok=True)
    place.with_name(place.name + ".log").write_bytes(b"".join(packed))
    place.with_name(place.name + ".indexes").write_bytes(indexes)
    path = place.with_name(place.name + ".rsm-manifest")
    path.write_text(json.dumps(manifest, separators=(",", ":")))
    return path


def _plain(data):
    return data


def random_id():
    """A topic's or segment's id."""
    return id_text(os.urandom(16))

"""Files that are read from a tier block by block: Aiven's chunks, and ranges of what is far away.

A block is read, decrypted and decompressed as a whole, and kept: as it was in the tier in the user's cache directory,
if the place is far away, and as the broker had it in memory. So what was encrypted in the tier is so on this disk too.
Blocks that are read ahead stay in memory as they were in the tier: decoded, they would push each other out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cachetools import LRUCache

from storage.errors import CorruptData, InvalidConfig, TierUnavailable
from storage.files.cache_files import CacheFiles, cache_directory
from storage.format.checksum import crc32c
from storage.tier.layouts import StoredObject
from storage.tier.remote_segments import RemoteFile

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers

# The keys with which Aiven's plugin encrypts: an AES key for each segment, encrypted itself with an RSA key pair.
#
# `dataKey` in a manifest is `<id of the key pair>:<base64>`: the AES key by RSA with OAEP, where the hash and that of
# MGF1 are SHA3-512. cryptography reads the private keys and does AES; its OAEP has no SHA-3, so that is done here
# (RFC 8017, section 7.1.2). Source: Aiven's RsaEncryptionProvider, RsaKeyReader.

IV_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = IV_BYTES + TAG_BYTES
_AES_KEY_BYTES: Final = (16, 24, 32)
_HASH_BYTES: Final = 64
_MOST_KEY_FILE_BYTES: Final = 64 << 10
# The label says nothing: the plugin ignores it too.
_PEM: Final = re.compile(rb"-----BEGIN [^-\n]*-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END [^-\n]*-----")

Decrypt = Callable[[memoryview], bytes]


class DataKeys:
    """Private RSA keys by their id: PEM files, read when a segment needs one. Thread-safe."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files: Final = dict(files)
        self._lock: Final = threading.Lock()
        self._private: dict[str, RSAPrivateNumbers] = {}  # guarded by the lock

    def decrypter(self, data_key: str, aad: bytes, name: str) -> Decrypt:
        """What decrypts the chunks of a segment, each `IV ‖ ciphertext ‖ tag`; `name`: of its manifest.

        TierUnavailable: the private key is missing, or is another one. CorruptData: `data_key` is none, or (from the
        result) a chunk was changed.
        """
        try:
            from cryptography.exceptions import InvalidTag
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise _no_cryptography(name, error) from error
        key_id, colon, text = data_key.partition(":")
        try:
            encrypted = base64.b64decode(text, validate=True)
        except ValueError:
            encrypted = b""
        if not colon or not encrypted:
            raise CorruptData("manifest has no data key", path=name, expected="ID:BASE64", found=repr(data_key[:80]))
        key = _oaep_removed(encrypted, self._private_key(key_id, name))
        if key is None or len(key) not in _AES_KEY_BYTES:
            file = self._files[key_id]
            what = f"was not encrypted with the private key {file} that was given as {key_id[:80]!r}"
            raise TierUnavailable(what, path=name, advice="Name the right file: --tier-key ID=FILE")
        cipher = AESGCM(key)

        def decrypt(chunk: memoryview) -> bytes:
            try:
                return bytes(cipher.decrypt(bytes(chunk[:IV_BYTES]), chunk[IV_BYTES:], aad))
            except (InvalidTag, ValueError):
                raise CorruptData("cannot be decrypted: it is not as it was written", path=name) from None

        return decrypt

    def _private_key(self, key_id: str, name: str) -> RSAPrivateNumbers:
        file = self._files.get(key_id)
        if file is None:
            given = ", ".join(sorted(self._files)) or "none"
            what = f"is encrypted, and the private key {key_id[:80]!r} was not given"
            raise TierUnavailable(what, path=name, found=f"keys: {given}", advice="Give it: --tier-key ID=FILE")
        with self._lock:
            if key_id not in self._private:
                self._private[key_id] = _read_private_key(file)
            return self._private[key_id]


def _read_private_key(file: Path) -> RSAPrivateNumbers:
    """InvalidConfig for another file than a private RSA key."""
    try:
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_der_private_key
    except ImportError as error:
        raise _no_cryptography(str(file), error) from error
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_KEY_FILE_BYTES)
    except OSError as error:
        raise TierUnavailable("the private key cannot be read", path=file, found=error.strerror) from error
    key: Any = None
    match = _PEM.search(text)
    if match is not None:
        try:
            # Its primes are not tested, which takes a fifth of a second: a key that is none decrypts nothing.
            key = load_der_private_key(base64.b64decode(match[1]), None, unsafe_skip_rsa_key_validation=True)
        except Exception:  # noqa: BLE001 - a few classes, by version
            key = None
    numbers = key.private_numbers() if isinstance(key, RSAPrivateKey) else None
    if numbers is None or numbers.p * numbers.q != numbers.public_numbers.n:
        raise InvalidConfig("is no private RSA key", path=file, expected="PEM of PKCS#8, without a passphrase")
    return numbers


def _oaep_removed(encrypted: bytes, key: RSAPrivateNumbers) -> bytes | None:
    """RSAES-OAEP-DECRYPT with SHA3-512 and an empty label; None where it fails."""
    modulus = key.public_numbers.n
    size = (modulus.bit_length() + 7) // 8
    value = int.from_bytes(encrypted, "big")
    if len(encrypted) != size or value >= modulus or size < 2 * _HASH_BYTES + 2:
        return None
    # By the Chinese remainder theorem, as in RFC 8017, section 5.1.2: a third of the time of one large power.
    by_q = pow(value, key.dmq1, key.q)
    message = (by_q + (pow(value, key.dmp1, key.p) - by_q) * key.iqmp % key.p * key.q).to_bytes(size, "big")
    masked_seed, masked = message[1 : 1 + _HASH_BYTES], message[1 + _HASH_BYTES :]
    seed = _xor(masked_seed, _mgf1(masked, _HASH_BYTES))
    block = _xor(masked, _mgf1(seed, len(masked)))
    zeros, one, found = block[_HASH_BYTES:].partition(b"\x01")
    right = hmac.compare_digest(block[:_HASH_BYTES], hashlib.sha3_512(b"").digest())
    return found if right and message[0] == 0 and one and not any(zeros) else None


def _mgf1(seed: bytes, size: int) -> bytes:
    parts = (hashlib.sha3_512(seed + at.to_bytes(4, "big")).digest() for at in range(-(-size // _HASH_BYTES)))
    return b"".join(parts)[:size]


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _no_cryptography(name: str, error: ImportError) -> TierUnavailable:
    advice = "Install it: pip install 'kafkafs[tier]'"
    return TierUnavailable(
        "is encrypted, and the package cryptography is missing", path=name, found=error, advice=advice
    )


MEMORY_BYTES: Final = 64 << 20
DISK_BYTES: Final = 1 << 30
RANGE_BYTES: Final = 1 << 20  # of an object that has no blocks of its own
_REQUEST_BYTES: Final = 8 << 20  # at most so much is asked for at once, unless a block is larger
_CRC_BYTES: Final = 4

# The position and size in the object of a block.
Stored = Callable[[int], tuple[int, int]]
# A block as the broker had it, given its bytes in the object and its size then. CorruptData.
Decode = Callable[[memoryview, int], memoryview]
# Of a block in memory: its object, its position there, and whether it is decoded.
_Key = tuple[StoredObject, int, bool]


class BlockCache:
    """Blocks in memory, least recently used ones given up first, and those of far places in the cache directory.
    Thread-safe."""

    def __init__(self, memory_bytes: int = MEMORY_BYTES, disk_bytes: int = DISK_BYTES, directory: Path | None = None):
        self.files: Final = CacheFiles(directory or cache_directory("tier"), ".block", disk_bytes)
        # Guarded by the lock. A block that is larger than all that is kept takes the place of all others.
        self._lock: Final = threading.Lock()
        self._blocks: LRUCache[_Key, memoryview] = LRUCache(memory_bytes, lambda block: min(len(block), memory_bytes))

    def get(self, key: _Key) -> memoryview | None:
        with self._lock:
            return self._blocks.get(key)

    def put(self, key: _Key, block: memoryview) -> None:
        with self._lock:
            self._blocks[key] = block

    def take(self, key: _Key) -> memoryview | None:
        """`get`, and gives it up."""
        with self._lock:
            return self._blocks.pop(key, None)


class BlockFile(RemoteFile):
    """A file of blocks of `block_size` bytes, the last one shorter, which are in an object at the positions and with
    the sizes that `stored` says. `decode`: None where they are there as the broker had them."""

    __slots__ = ("_block_size", "_cache", "_decode", "_lock", "_object", "_stored")

    def __init__(
        self,
        stored_in: StoredObject,
        size: int,
        block_size: int,
        stored: Stored,
        decode: Decode | None,
        cache: BlockCache,
    ) -> None:
        super().__init__(stored_in.name, size)
        self._object: Final = stored_in
        self._block_size: Final = block_size
        self._stored: Final = stored
        self._decode: Final = decode
        self._cache: Final = cache
        # One thread at a time asks the tier: others that want the same block would ask for it too.
        self._lock: Final = threading.Lock()

    @property
    def content_key(self) -> str | None:
        """For what is far away the object as it was listed, by which its blocks are kept on disk too."""
        stored = self._object
        if stored.place.is_local or not stored.version:
            return None
        return repr((stored.name, stored.size, stored.version))

    def read(self, position: int, size: int) -> memoryview:
        end = min(position + size, self.size)
        if position >= end:
            return memoryview(b"")
        first, last = position // self._block_size, (end - 1) // self._block_size
        if first == last:
            at = position - first * self._block_size
            return self._block(first, last)[at : at + end - position]
        result = memoryview(bytearray(end - position))
        for number in range(first, last + 1):
            start = number * self._block_size
            part = self._block(number, last)[max(position - start, 0) : end - start]
            result[max(start - position, 0) :][: len(part)] = part
        return result

    def _key(self, number: int, *, decoded: bool = True) -> _Key:
        # By where it is stored: an object may have several files, and may be opened several times.
        return self._object, self._stored(number)[0], decoded

    def _block(self, number: int, last: int) -> memoryview:
        block = self._cache.get(self._key(number))
        if block is None:
            with self._lock:
                block = self._cache.get(self._key(number))
                if block is None:
                    block = self._load(number, last)
        return block

    def _load(self, number: int, last: int) -> memoryview:
        """Reads a block, and with it those up to `last` that follow it; more of them if it continues what was read."""
        data = self._kept(number)
        if data is not None:
            return self._decoded(number, data)
        if number and not self._object.place.is_local and self._cache.get(self._key(number - 1)) is not None:
            last = max(last, number + _REQUEST_BYTES // self._block_size)
        position, size = self._stored(number)
        sizes = [size]
        for following in range(number + 1, min(last, (self.size - 1) // self._block_size) + 1):
            more = self._stored(following)[1]
            there = any(self._cache.get(self._key(following, decoded=form)) is not None for form in (True, False))
            if sum(sizes) + more > _REQUEST_BYTES or there:
                break
            sizes.append(more)
        wanted = sum(sizes)
        data = memoryview(self._object.place.read(self._object.key, position, wanted))
        if len(data) != wanted:
            expected = f"at least {position + wanted} bytes"
            raise CorruptData("object is cut off", path=self.name, expected=expected, found=position + len(data))
        first = data[: sizes[0]]
        for at, size in enumerate(sizes):
            self._keep(number + at, data[:size])
            if at:
                self._cache.put(self._key(number + at, decoded=False), memoryview(bytes(data[:size])))
            data = data[size:]
        return self._decoded(number, first)

    def _decoded(self, number: int, data: memoryview) -> memoryview:
        size = min(self._block_size, self.size - number * self._block_size)
        # Not a view of all that was read with it.
        block = memoryview(bytes(data)) if self._decode is None else self._decode(data, size)
        self._cache.put(self._key(number), block)
        return block

    def _file_key(self, number: int) -> bytes:
        stored, (position, size) = self._object, self._stored(number)
        return repr((stored.name, stored.size, stored.version, position, size)).encode("utf-8", "surrogateescape")

    def _kept(self, number: int) -> memoryview | None:
        ahead = self._cache.take(self._key(number, decoded=False))
        if ahead is not None or self._object.place.is_local:
            return ahead
        key = self._file_key(number)
        data = self._cache.files.read(key)
        if data is None or len(data) != self._stored(number)[1] + _CRC_BYTES:
            return None
        if crc32c(memoryview(data)[:-_CRC_BYTES]) != int.from_bytes(data[-_CRC_BYTES:], "big"):
            return None
        self._cache.files.used(key)
        return memoryview(data)[:-_CRC_BYTES]

    def _keep(self, number: int, data: memoryview) -> None:
        if not self._object.place.is_local:
            self._cache.files.write(self._file_key(number), bytes(data) + crc32c(data).to_bytes(_CRC_BYTES, "big"))

"""The keys with which Aiven's plugin encrypts: an AES key for each segment, encrypted itself with an RSA key pair.

`dataKey` in a manifest is `<id of the key pair>:<base64>`: the AES key by RSA with OAEP, where the hash and that of
MGF1 are SHA3-512. cryptography reads the private keys and does AES; its OAEP has no SHA-3, so that is done here
(RFC 8017, section 7.1.2). Source: Aiven's RsaEncryptionProvider, RsaKeyReader.
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

from storage.errors import CorruptData, InvalidConfig, TierUnavailable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateNumbers


IV_BYTES: Final = 12
TAG_BYTES: Final = 16
OVERHEAD_BYTES: Final = IV_BYTES + TAG_BYTES
_AES_KEY_BYTES: Final = (16, 24, 32)
_HASH_BYTES: Final = 64
_MOST_KEY_FILE_BYTES: Final = 64 << 10
# Any label is accepted, as in the plugin.
_PEM: Final = re.compile(rb"-----BEGIN [^-\n]*-----\s*([A-Za-z0-9+/=\s]+?)\s*-----END [^-\n]*-----")

Decrypt = Callable[[memoryview], bytes]


class DataKeys:
    """Private RSA keys by their id: PEM files, read when a segment needs one. Thread-safe."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files: Final = dict(files)
        self._lock: Final = threading.Lock()
        self._private: dict[str, RSAPrivateNumbers] = {}  # guarded by the lock

    def decrypter(self, data_key: str, aad: bytes, name: str) -> Decrypt:
        """Return a function that decrypts the chunks of a segment, each `IV ‖ ciphertext ‖ tag`; `name`: of its
        manifest.

        TierUnavailable: the private key is missing, or is a different key. CorruptData: `data_key` is malformed, or
        (raised by the function) a chunk was changed.
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
    """Read a private RSA key. InvalidConfig for any other file."""
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
            # Testing the primes would take a fifth of a second; an invalid key decrypts nothing anyway.
            key = load_der_private_key(base64.b64decode(match[1]), None, unsafe_skip_rsa_key_validation=True)
        except Exception:  # noqa: BLE001 - a few classes, by version
            key = None
    numbers = key.private_numbers() if isinstance(key, RSAPrivateKey) else None
    if numbers is None or numbers.p * numbers.q != numbers.public_numbers.n:
        raise InvalidConfig("is no private RSA key", path=file, expected="PEM of PKCS#8, without a passphrase")
    return numbers


def _oaep_removed(encrypted: bytes, key: RSAPrivateNumbers) -> bytes | None:
    """RSAES-OAEP-DECRYPT with SHA3-512 and an empty label; None if it fails."""
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
    zeros, separator, message_key = block[_HASH_BYTES:].partition(b"\x01")
    right = hmac.compare_digest(block[:_HASH_BYTES], hashlib.sha3_512(b"").digest())
    return message_key if right and message[0] == 0 and separator and not any(zeros) else None


def _mgf1(seed: bytes, size: int) -> bytes:
    parts = (hashlib.sha3_512(seed + at.to_bytes(4, "big")).digest() for at in range(-(-size // _HASH_BYTES)))
    return b"".join(parts)[:size]


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _no_cryptography(name: str, error: ImportError) -> TierUnavailable:
    advice = "Install it: pip install 'kafkafs[store]'"
    return TierUnavailable(
        "is encrypted, and the package cryptography is missing", path=name, found=error, advice=advice
    )

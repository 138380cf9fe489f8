from __future__ import annotations

import numpy as np
import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from storage.format import hashing
from tests.support.uncompiled import uncompiled

plain = uncompiled("storage.format.hashing")


def signed(value: int) -> int:
    return value - ((value & 0x80000000) << 1)


def test_the_compiled_forms_are_compared_with_the_plain_ones() -> None:
    assert not plain.is_compiled()


@pytest.mark.parametrize("module", [hashing, plain], ids=["as-installed", "plain"])
@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        (b"", 275646681),
    ],
)
def test_murmur2_known_answers(module: object, key: bytes, expected: int) -> None:
    assert module.murmur2(key) == expected  # type: ignore[attr-defined]


@given(st.binary(max_size=300))
def test_murmur2_equals_aiokafkas(key: bytes) -> None:
    assert hashing.murmur2(key) == plain.murmur2(key) == signed(aiokafka_murmur2(key))


@given(st.lists(st.none() | st.binary(max_size=40), max_size=50))
def test_columns_of_keys_hash_as_single_keys_do(keys: list[bytes | None]) -> None:
    data = b"".join(key or b"" for key in keys)
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    ends = np.cumsum(np.maximum(lengths, 0), dtype=np.int64)
    expected = [hashing.murmur2(key or b"") for key in keys]
    for module in (hashing, plain):
        hashes = np.zeros(len(keys), np.int32)
        module.murmur2_columns(data, ends - np.maximum(lengths, 0), lengths, memoryview(hashes))
        assert hashes.tolist() == [0 if key is None else e for key, e in zip(keys, expected, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("grüße", 98768023),
        ("\U0001f600", 1772899),  # a surrogate pair: 31 * 0xd83d + 0xde00
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    assert hashing.java_string_hash(text) == expected


def test_group_partition() -> None:
    assert hashing.group_partition("polygenelubricants", 50) == 0
    assert hashing.group_partition("hello", 50) == 99162322 % 50
    assert hashing.group_partition("a" * 9, 50) == abs(hashing.java_string_hash("a" * 9)) % 50


def reference_siphash(key: bytes, secret: bytes, rounds: tuple[int, int]) -> bytes:
    """SipHash with 128 bits of output, after the authors' reference code."""
    mask = 2**64 - 1
    k0, k1 = int.from_bytes(secret[:8], "little"), int.from_bytes(secret[8:], "little")
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D ^ 0xEE, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(value: int, bits: int) -> int:
        return (value << bits | value >> (64 - bits)) & mask

    def sip(times: int) -> None:
        for _ in range(times):
            v[0] = (v[0] + v[1]) & mask
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & mask
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & mask
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & mask
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    padded = key + bytes(7 - len(key) % 8) + bytes([len(key) & 0xFF])
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        v[3] ^= word
        sip(rounds[0])
        v[0] ^= word
    v[2] ^= 0xEE
    sip(rounds[1])
    low = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    sip(rounds[1])
    return low.to_bytes(8, "little") + (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")


@given(st.lists(st.none() | st.binary(max_size=40), max_size=20), st.binary(min_size=16, max_size=16))
def test_siphash_of_columns(keys: list[bytes | None], secret: bytes) -> None:
    data = b"".join(key or b"" for key in keys)
    lengths = np.array([-1 if key is None else len(key) for key in keys], np.int64)
    starts = np.cumsum(np.maximum(lengths, 0), dtype=np.int64) - np.maximum(lengths, 0)
    words = [int.from_bytes(part, "little") for part in (secret[:8], secret[8:])]
    expected = [bytes(16) if key is None else reference_siphash(key, secret, (1, 3)) for key in keys]
    for module in (hashing, plain):
        hashes = np.ones((len(keys), 2), np.uint64)
        module.siphash_columns(data, starts, lengths, *words, hashes)
        assert [row.astype("<u8").tobytes() for row in hashes] == expected


def test_the_reference_siphash_gives_its_authors_answers() -> None:
    secret = bytes(range(16))
    assert reference_siphash(b"", secret, (2, 4)).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert reference_siphash(b"\0", secret, (2, 4)).hex() == "da87c1d86b99af44347659119b22fc45"

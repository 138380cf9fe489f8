"""The built kernels and the same files as plain Python: equal columns, equal errors; and built from what is here."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.storage.format.outcomes import Outcome, read_all
from tests.support.damaged_bytes import with_right_checksums
from tests.support.fixtures import FIXTURES, ROOT, requires_fixtures
from tests.support.raw_batches import batch, message, record, sized, varint
from tests.support.record_headers import batches
from tests.support.uncompiled import extension_modules, plain_kernels, uncompiled

READING = ["decode_kernel", "checksum_kernel", "inflate_kernel"]
INT32 = [0, 1, -1, 2**31 - 1, -(2**31)]
INT64 = [0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63 - 2**31]
# A partition of every format and kind of batch.
PARTITIONS = [
    "codecs/log/c-none-0",
    "codecs/log/c-lz4-0",
    "codecs/log/c-zstd-1",
    "times/log/t-append-0",
    "transactions/log/tx-basic-0",
    "compaction-after/log/cmp-tomb-0",
    "v0/log/v0-none-0",
    "v0/log/v0-lz4-1",
    "v0/log/v0-v1-v2-0",
    "v1/log/v1-append-0",
    "v1/log/v1-gzip-1",
]


def built(name: str) -> bool:
    return bool(importlib.import_module(name).__file__.endswith(".so"))


def whole_batches(partition: str, size: int) -> bytes:
    """The first batches of a fixture's partition, of `size` bytes or a little more."""
    data = b""
    for batch_bytes in batches(min((FIXTURES / partition).glob("*.log")).read_bytes()):
        data += batch_bytes
        if len(data) >= size:
            break
    return data


def equal_in_both_forms(data: bytes, *, position: int = 0) -> Outcome:
    """What reading `data` gives, which must not depend on the form, with checksums and without."""
    for verify_crc in (True, False):
        compiled = read_all(data, position=position, verify_crc=verify_crc)
        with plain_kernels():
            assert read_all(data, position=position, verify_crc=verify_crc) == compiled
    return compiled


@pytest.mark.parametrize("name", extension_modules())
def test_a_built_kernel_is_as_new_as_its_source(name: str) -> None:
    module = importlib.import_module(name)
    library = Path(str(module.__file__))
    source = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    declarations = source.with_suffix(".pxd")
    if library == source:
        pytest.skip(f"{name} is not built: it runs as plain Python")
    for file in (source, declarations) if declarations.exists() else (source,):
        assert library.stat().st_mtime >= file.stat().st_mtime, f"rebuild: {library.name} is older than {file.name}"


def test_the_constants_of_a_declaration_file_are_those_of_the_module() -> None:
    plain = uncompiled("storage.format.decode_kernel")
    declared = (ROOT / "storage/format/decode_kernel.pxd").read_text().partition("cdef enum:\n")[2]
    constants = re.findall(r"^    (\w+) = (\S+)$", declared, re.MULTILINE)
    assert len(constants) > 40
    assert {name: int(number, 0) for name, number in constants} == {name: getattr(plain, name) for name, _ in constants}


@pytest.mark.parametrize("name", READING)
def test_each_form_knows_what_it_is(name: str) -> None:
    assert importlib.import_module(f"storage.format.{name}").is_compiled() is built(f"storage.format.{name}")
    assert uncompiled(f"storage.format.{name}").is_compiled() is False


@requires_fixtures
@pytest.mark.parametrize("partition", PARTITIONS)
def test_logs_of_real_brokers(partition: str) -> None:
    outcome = equal_in_both_forms(whole_batches(partition, 60_000), position=4096)
    assert outcome.records
    assert not outcome.damages


def test_every_byte_of_a_batch_at_its_limits() -> None:
    data = batch([record(0, b"k", b"v", [(b"h", None)]), record(1, None, b"")], 7)
    for at in range(8, len(data)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            hurt = bytearray(data)
            hurt[at] = byte
            equal_in_both_forms(with_right_checksums(bytes(hurt)))
    assert len(equal_in_both_forms(data).records) == 2


def test_every_byte_of_a_message_at_its_limits() -> None:
    for magic in (0, 1):
        data = message(3, b"v", b"k", magic=magic)
        for at in range(len(data)):
            for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
                hurt = bytearray(data)
                hurt[at] = byte
                equal_in_both_forms(with_right_checksums(bytes(hurt)))
        assert len(equal_in_both_forms(data).records) == 1


@pytest.mark.parametrize("base", INT64)
@pytest.mark.parametrize("delta", INT32)
def test_offsets_at_the_limits(base: int, delta: int) -> None:
    outcome = equal_in_both_forms(batch([record(delta)], base, last_offset_delta=max(delta, 0)))
    fits = base >= 0 and base + delta >= 0 and base + max(delta, 0) < 2**63
    assert [found.offset for found in outcome.records] == ([base + delta] if fits else [])
    assert len(outcome.damages) == (not fits)


@pytest.mark.parametrize("base", INT64)
@pytest.mark.parametrize("delta", INT64)
def test_timestamps_at_the_limits(base: int, delta: int) -> None:
    outcome = equal_in_both_forms(batch([record(timestamp_delta=delta)], base_timestamp=base))
    wrapped = (base + delta + 2**63) % 2**64 - 2**63
    assert [found.timestamp for found in outcome.records] == [wrapped]


@pytest.mark.parametrize("length", [*INT32, 2, 3, 63, 64, 127, 128, 255, 256])
def test_lengths_at_the_limits(length: int) -> None:
    """In place of each length of a record in turn, with the rest of the record as it is."""
    key, value, header = sized(b"k" * 63), sized(b"v" * 64), sized(b"h") + sized(b"x")
    parts = [b"\0\0\0", key, value, varint(1), header]
    for at in range(1, len(parts)):
        changed = [*parts[:at], varint(length) + parts[at][1:], *parts[at + 1 :]]
        equal_in_both_forms(batch([sized(b"".join(changed))]))
    equal_in_both_forms(batch(varint(length) + b"".join(parts), count=1))
    equal_in_both_forms(batch([record()], count=length))
    equal_in_both_forms(message(length, b"v"))
    assert equal_in_both_forms(batch([sized(b"".join(parts))])).damages == []

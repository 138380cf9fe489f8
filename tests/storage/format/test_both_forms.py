"""decode(encode(x)) is x; any bytes decode or are damage; and kernels do the same compiled and as plain Python."""

from __future__ import annotations

import importlib
import os
import random
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.append import batch_encoder
from storage.errors import StorageError
from storage.format import batches, block, decode_kernel, decoder
from storage.format.batches import BatchTable, ScanStop, scan
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.decoder import NO_RECORDS, Decoder
from storage.format.record_batch import BatchFields, encode_batch
from storage.types import is_compiled
from tests.support.broker_rules import stored_batches
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.fixtures import FIXTURES, ROOT, requires_fixtures
from tests.support.raw_batches import batch, message, record, sized, varint
from tests.support.uncompiled import extension_modules, plain_kernels, uncompiled

# All that reading some bytes of a log gives, as plain values: what two forms of the code must agree on.

Header = tuple[bytes, bytes | None]


class ReadRecord(NamedTuple):
    """A decoded record; `row` is its batch's."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    row: int


class Outcome(NamedTuple):
    """Headers, records, damages as (row, position, error class, text), and why and where the scan stopped."""

    batches: list[list[int]]
    records: list[ReadRecord]
    damages: list[tuple[int, int, str, str]]
    stop: ScanStop
    stop_at: int


def read_all(data, *, verify_crc=True):
    """Scan and decode `data`; damaged batches are stepped over.

    Checks what holds for any bytes: columns lie within their buffer, and decoding goes on or stops.
    """
    table = BatchTable.empty(len(data) // 26 + 2)
    stop = scan(data, 0, table)
    assert stop.stop is not ScanStop.FULL
    decoder = Decoder(max_decompressed_bytes=1 << 20, verify_crc=verify_crc, block_bytes=4096)
    records = []
    damages = []
    row = 0
    while row < table.rows:
        block = decoder.decode(data, table, row, origin=0, control=True)
        size = len(block.buffer)
        for starts, lengths in ((block.key_start, block.key_length), (block.value_start, block.value_length)):
            assert (lengths >= -1).all()
            assert ((lengths < 0) | ((starts >= 0) & (starts + lengths <= size))).all()
        assert ((block.batch >= row) & (block.batch < block.next_row)).all()
        for index in range(len(block)):
            records.append(
                ReadRecord(
                    int(block.offset[index]),
                    int(block.timestamp[index]),
                    block.key(index),
                    block.value(index),
                    tuple(block.headers(index)),
                    int(block.batch[index]),
                )
            )
        damage = block.damage
        if damage is None:
            assert block.next_row > row
            row = block.next_row
        else:
            assert block.next_row == damage.row >= row
            assert isinstance(damage.error, StorageError)
            damages.append((damage.row, damage.position, type(damage.error).__name__, str(damage.error)))
            row = damage.row + 1
    searched, at = [], decode_kernel.search(data, 0, len(data), 0, 2**63 - 1)
    while at >= 0:
        searched.append(at)
        at = decode_kernel.search(data, at + 1, len(data), 0, 2**63 - 1)
    plausible = (table.base_offset >= 0) & (table.codec <= np.where(table.magic < 2, 3, 4)) & (table.last_offset >= 0)
    assert set(table.position[plausible].tolist()) <= set(searched)
    check_audit(data, table, decoder, records, damages)
    return Outcome(table.data[:, : table.rows].T.tolist(), records, damages, stop.stop, stop.next_start)


def check_audit(data, table, decoder, records, damages):
    """Checking records without keeping them finds what decoding found."""
    found = []
    row = 0
    while row < table.rows:
        audit = decoder.audit(data, table, row, origin=0)
        columns = zip(audit.greatest.tolist(), audit.misplaced.tolist(), audit.misplaced_offset.tolist(), strict=True)
        for number, (greatest, misplaced, misplaced_offset) in enumerate(columns, row):
            mine = [one for one in records if one.row == number]
            # A timestamp of -2**63 cannot be told from none.
            assert greatest == max([NO_RECORDS, *(one.timestamp for one in mine)])
            last = table.last_offset[number]
            before = [-1, *(one.offset for one in mine)]
            wrong = [i for i, one in enumerate(mine) if one.offset <= before[i] or one.offset > last]
            if table.magic[number] == 2 and mine and mine[0].offset < table.base_offset[number]:
                wrong.insert(0, 0)
            assert misplaced == (wrong[0] if wrong else -1)
            assert misplaced_offset == (mine[wrong[0]].offset if wrong else -1)
        row = audit.next_row
        if audit.damage is not None:
            error = audit.damage.error
            found.append((audit.damage.row, audit.damage.position, type(error).__name__, str(error)))
            row += 1
    assert found == damages


# decode(encode(x)) is x, for any records in every format and codec; any bytes decode or are damage, never more.

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TIMESTAMPS = st.sampled_from([-1, 0, 1, 2**63 - 1, -(2**63), 1_700_000_000_000]) | INT64
BYTES = st.binary(max_size=40) | st.sampled_from([b"", b"\n", b"x" * 63, b"y" * 64, b"z" * 8191, b"\x00" * 70_000])
NULLABLE = st.none() | BYTES
HEADERS = st.lists(st.tuples(st.text(max_size=20).map(str.encode) | BYTES, NULLABLE), max_size=4).map(tuple)
RECORDS = st.lists(st.builds(Record, NULLABLE, NULLABLE, HEADERS, TIMESTAMPS), min_size=1, max_size=12)
PLAIN_RECORDS = st.lists(st.builds(Record, NULLABLE, NULLABLE, st.just(()), TIMESTAMPS), min_size=1, max_size=12)
OFFSETS = st.sampled_from([0, 1, 2**31 - 1, 2**31, 2**63 - 100]) | st.integers(0, 2**63 - 100)
FIELDS = st.builds(
    BatchFields,
    leader_epoch=INT32,
    producer_id=INT64,
    producer_epoch=INT16,
    base_sequence=INT32,
    transactional=st.booleans(),
    control=st.booleans(),
    log_append_time_ms=st.none() | TIMESTAMPS,
    delete_horizon_ms=st.none() | TIMESTAMPS,
    base_timestamp=st.none() | TIMESTAMPS,
)


def expected(records, base_offset, timestamps):
    return [
        ReadRecord(base_offset + i, timestamp, r.key, r.value, tuple(r.headers), 0)
        for i, (r, timestamp) in enumerate(zip(records, timestamps, strict=True))
    ]


def whole(outcome, size):
    assert outcome.damages == []
    assert (outcome.stop, outcome.stop_at) == (ScanStop.END, size)
    return outcome


@given(RECORDS, OFFSETS, st.sampled_from(Codec), FIELDS)
def test_format_v2(records, base_offset, codec, fields):
    data = encode_batch(records, base_offset=base_offset, codec=codec, fields=fields)
    outcome = whole(read_all(data), len(data))
    append_time = fields.log_append_time_ms
    timestamps = [r.timestamp if append_time is None else append_time for r in records]
    assert outcome.records == expected(records, base_offset, timestamps)
    (header,) = outcome.batches
    assert header[:6] == [0, len(data), base_offset, base_offset + len(records) - 1, len(records), 2]
    assert header[9:13] == [fields.producer_id, fields.producer_epoch, fields.base_sequence, fields.leader_epoch]
    assert header[6] == fields.attributes(codec)


@pytest.mark.parametrize("magic", [0, 1])
@given(
    records=PLAIN_RECORDS,
    base_offset=OFFSETS,
    codec=st.sampled_from([Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]),
    append_time=st.none() | TIMESTAMPS,
)
def test_formats_v0_and_v1(magic, records, base_offset, codec, append_time):
    if magic == 0:
        append_time = None
    data = batch_encoder.encode(records, magic, base_offset=base_offset, codec=codec, log_append_time_ms=append_time)
    outcome = whole(read_all(data), len(data))
    timestamps = [-1 if magic == 0 else r.timestamp if append_time is None else append_time for r in records]
    rows = range(len(records)) if codec == Codec.NONE else [0] * len(records)
    assert outcome.records == [
        record._replace(row=row) for record, row in zip(expected(records, base_offset, timestamps), rows, strict=True)
    ]


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_are_damage(data, verify_crc):
    read_all(data, verify_crc=verify_crc)


@given(
    RECORDS,
    PLAIN_RECORDS,
    st.sampled_from(Codec),
    st.integers(0, 2),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_damaged_batches_are_read_or_are_damage(records, old, codec, magic, dice, fit):
    if magic == 2:
        data = encode_batch(records, base_offset=7, codec=codec)
    else:
        data = batch_encoder.encode(old, magic, codec=Codec.LZ4 if codec == Codec.ZSTD else codec)
    hurt = damaged(data, dice)
    read_all(with_right_checksums(hurt) if fit else hurt)
    read_all(hurt, verify_crc=False)


def test_plain_kernels_take_the_place_of_compiled_ones():
    def kernels():
        decoding = (decoder.decode_kernel, decoder.checksum_kernel, decoder.inflate_kernel)
        return (batches.decode_kernel, block.decode_kernel, *decoding)

    used = kernels()
    with plain_kernels():
        assert not any(is_compiled(kernel) for kernel in kernels())
    assert used == kernels()


# The built kernels and the same files as plain Python: equal columns, equal errors; and built from what is here.

READING = ["decode_kernel", "checksum_kernel", "inflate_kernel"]
EQUAL_INT32 = [0, 1, -1, 2**31 - 1, -(2**31)]
# A partition of every format and kind of batch.


def built(name):
    return bool(importlib.import_module(name).__file__.endswith(".so"))


def equal_in_both_forms(data):
    """What reading `data` gives, which must not depend on the form, with checksums and without."""
    for verify_crc in (True, False):
        compiled = read_all(data, verify_crc=verify_crc)
        with plain_kernels():
            assert read_all(data, verify_crc=verify_crc) == compiled
    return compiled


@pytest.mark.parametrize("name", extension_modules())
def test_a_built_kernel_is_as_new_as_its_source(name):
    module = importlib.import_module(name)
    library = Path(str(module.__file__))
    source = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    declarations = source.with_suffix(".pxd")
    if library == source:
        pytest.skip(f"{name} is not built: it runs as plain Python")
    for file in (source, declarations) if declarations.exists() else (source,):
        assert library.stat().st_mtime >= file.stat().st_mtime, f"rebuild: {library.name} is older than {file.name}"


@pytest.mark.parametrize(
    ("kernel", "least"),
    [
        ("storage.format.decode_kernel", 41),
        ("storage.format.message_kernel", 41),
        ("kafkafs.decoding.avro_kernel", 2),
        ("kafkafs.decoding.proto_kernel", 26),
    ],
)
def test_the_constants_of_a_declaration_file_are_those_of_the_module(kernel, least):
    plain = uncompiled(kernel)
    declared = ROOT.joinpath(*kernel.split(".")).with_suffix(".pxd").read_text().partition("cdef enum:\n")[2]
    constants = re.findall(r"^    (\w+) = (\S+)$", declared, re.MULTILINE)
    assert len(constants) >= least
    assert {name: int(number, 0) for name, number in constants} == {name: getattr(plain, name) for name, _ in constants}


@pytest.mark.parametrize("name", READING)
def test_each_form_knows_what_it_is(name):
    assert is_compiled(importlib.import_module(f"storage.format.{name}")) is built(f"storage.format.{name}")
    assert is_compiled(uncompiled(f"storage.format.{name}")) is False


def test_every_byte_of_a_batch_at_its_limits():
    data = batch([record(0, b"k", b"v", [(b"h", None)]), record(1, None, b"")], 7)
    for at in range(8, len(data)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            hurt = bytearray(data)
            hurt[at] = byte
            equal_in_both_forms(with_right_checksums(bytes(hurt)))
    assert len(equal_in_both_forms(data).records) == 2


def test_every_byte_of_a_message_at_its_limits():
    for magic in (0, 1):
        data = message(3, b"v", b"k", magic=magic)
        for at in range(len(data)):
            for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
                hurt = bytearray(data)
                hurt[at] = byte
                equal_in_both_forms(with_right_checksums(bytes(hurt)))
        assert len(equal_in_both_forms(data).records) == 1


@pytest.mark.parametrize("length", [*EQUAL_INT32, 2, 3, 63, 64, 127, 128, 255, 256])
def test_lengths_at_the_limits(length):
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


# Real brokers' files, damaged: every decoder reads what is left or raises StorageError, compiled and plain alike.

# KAFKAFS_FUZZ_ROUNDS multiplies the work, KAFKAFS_FUZZ_SEED makes it other work.
ROUNDS = int(os.environ.get("KAFKAFS_FUZZ_ROUNDS", "1"))
SEED = int(os.environ.get("KAFKAFS_FUZZ_SEED", "20261121"))

LOGS = [
    "codecs/log/c-none-0",
    "codecs/log/c-gzip-0",
    "codecs/log/c-snappy-0",
    "codecs/log/c-snappy-1",
    "codecs/log/c-lz4-0",
    "codecs/log/c-zstd-1",
    "times/log/t-append-1",
    "transactions/log/tx-basic-0",
    "compaction-after/log/cmp-txn-0",
    "v0/log/v0-none-0",
    "v0/log/v0-lz4-0",
    "v0/log/v0-v1-v2-0",
    "v1/log/v1-none-1",
    "v1/log/v1-gzip-0",
    "v1/log/v1-snappy-1",
]


def spans(partition, dice, count, size):
    """Runs of whole batches of about `size` bytes from a fixture's partition."""
    logs = sorted((FIXTURES / partition).glob("*.log"))
    batches = [batch.data for log in logs for batch in stored_batches(log.read_bytes())]
    for _ in range(count):
        first = dice.randrange(len(batches))
        run = b""
        for part in batches[first : first + dice.choice((1, 1, 3, 8))]:
            if run and len(run) + len(part) > size:
                break
            run += part
        yield run


@requires_fixtures
@pytest.mark.parametrize("partition", LOGS)
def test_damaged_logs(partition):
    dice = random.Random(f"{SEED} {partition}")
    hurt = whole = 0
    for data in spans(partition, dice, 60 * ROUNDS, 60_000):
        assert read_all(data).damages == []
        for _ in range(4):
            injured = damaged(data, dice)
            outcome = read_all(injured)
            hurt += bool(outcome.damages) or len(outcome.batches) < len(list(stored_batches(data)))
            whole += not outcome.damages
            read_all(with_right_checksums(injured))
            read_all(injured, verify_crc=False)
    assert hurt > 20  # the damage is found …
    assert whole > 0  # … and is not all there is


@requires_fixtures
@pytest.mark.parametrize("partition", LOGS)
def test_plain_kernels_find_the_same_in_damaged_logs(partition):
    dice = random.Random(f"{SEED} plain {partition}")
    for data in spans(partition, dice, 4 * ROUNDS, 4_000):
        data = data[:20_000]
        injured = damaged(data, dice)
        for candidate in (data, injured, with_right_checksums(injured)):
            for verify_crc in (True, False):
                compiled = read_all(candidate, verify_crc=verify_crc)
                with plain_kernels():
                    assert read_all(candidate, verify_crc=verify_crc) == compiled

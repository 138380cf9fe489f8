"""decode(encode(x)) is x; any bytes decode or are damage; and kernels do the same compiled and as plain Python."""

import importlib
import os
import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.append import message_sets
from storage.format import codec_library, columns
from storage.format.batches import ScanStop
from storage.format.block import Record
from storage.format.compression import Codec
from storage.format.record_batch import BatchFields, encode_batch
from storage.types import is_compiled
from tests.storage.format.outcomes import ReadRecord, in_both_forms, read_all
from tests.support.broker_rules import stored_batches
from tests.support.damaged_bytes import damaged, with_right_checksums
from tests.support.fixtures import FIXTURES, ROOT, requires_fixtures
from tests.support.raw_batches import batch, message, record
from tests.support.uncompiled import extension_modules, plain_kernels, uncompiled

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
OLD_CODECS = [Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4]
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


def check_whole(data, records, base_offset, timestamps, rows):
    outcome = read_all(data)
    assert outcome.damages == []
    assert (outcome.stop, outcome.stop_at) == (ScanStop.END, len(data))
    assert outcome.records == [
        ReadRecord(base_offset + i, timestamp, r.key, r.value, tuple(r.headers), row)
        for i, (r, timestamp, row) in enumerate(zip(records, timestamps, rows, strict=True))
    ]
    return outcome


@given(RECORDS, OFFSETS, st.sampled_from(Codec), FIELDS)
def test_format_v2(records, base_offset, codec, fields):
    data = encode_batch(records, base_offset=base_offset, codec=codec, fields=fields)
    append_time = fields.log_append_time_ms
    timestamps = [r.timestamp if append_time is None else append_time for r in records]
    (header,) = check_whole(data, records, base_offset, timestamps, [0] * len(records)).batches
    assert header[:6] == [0, len(data), base_offset, base_offset + len(records) - 1, len(records), 2]
    assert header[9:13] == [fields.producer_id, fields.producer_epoch, fields.base_sequence, fields.leader_epoch]
    assert header[6] == fields.attributes(codec)


@pytest.mark.parametrize("magic", [0, 1])
@given(PLAIN_RECORDS, OFFSETS, st.sampled_from(OLD_CODECS), st.none() | TIMESTAMPS)
def test_formats_v0_and_v1(magic, records, base_offset, codec, append_time):
    if magic == 0:
        append_time = None
    data = message_sets.encode(records, magic, base_offset=base_offset, codec=codec, log_append_time_ms=append_time)
    timestamps = [-1 if magic == 0 else r.timestamp if append_time is None else append_time for r in records]
    rows = range(len(records)) if codec == Codec.NONE else [0] * len(records)
    check_whole(data, records, base_offset, timestamps, rows)


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_read_or_are_damage(data, verify_crc):
    read_all(data, verify_crc=verify_crc)


@given(RECORDS, PLAIN_RECORDS, st.sampled_from(Codec), st.integers(0, 2), st.randoms(use_true_random=False))
def test_damaged_batches_are_read_or_are_damage(records, old, codec, magic, dice):
    if magic == 2:
        data = encode_batch(records, base_offset=7, codec=codec)
    else:
        data = message_sets.encode(old, magic, codec=Codec.LZ4 if codec == Codec.ZSTD else codec)
    hurt = damaged(data, dice)
    read_all(with_right_checksums(hurt))
    read_all(hurt)
    read_all(hurt, verify_crc=False)


# The built kernels and the same files as plain Python: equal columns, equal errors; and built from what is here.


class _WithoutZstd(codec_library.CodecLibrary):
    """Leaves zstd to cramjam, which the plain form uses. Of a damaged frame another version of libzstd may give other
    bytes, or refuse it."""

    def __init__(self):
        super().__init__()
        self.addresses[:2] = 0  # ZSTD_DECOMPRESS, ZSTD_CONTEXT


def check_both_forms(data):
    """What reading `data` gives does not depend on the form, with checksums and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codec_library, "CodecLibrary", _WithoutZstd)
        in_both_forms(read_all, data)
        in_both_forms(read_all, data, verify_crc=False)
    return read_all(data, verify_crc=False)


def test_plain_kernels_take_the_place_of_compiled_ones():
    def forms():
        modules = [module for name, module in sys.modules.items() if name.startswith(("storage.", "kafkafs."))]
        used = {id(value): value for module in modules for value in vars(module).values()}
        return {name: id(sys.modules[name]) in used for name in extension_modules() if name in sys.modules}

    before = {name for name, is_used in forms().items() if is_used}
    assert {f"storage.format.{name}_kernel" for name in ("checksum", "decode", "encoder", "inflate")} <= before
    with plain_kernels():
        assert not any(forms().values())
    assert {name for name, is_used in forms().items() if is_used} == before


@pytest.mark.parametrize("name", extension_modules())
def test_a_built_kernel_is_as_new_as_its_source(name):
    module = importlib.import_module(name)
    library = Path(str(module.__file__))
    source = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    declarations = source.with_suffix(".pxd")
    assert is_compiled(module) is (library.suffix == ".so")
    assert is_compiled(uncompiled(name)) is False
    if library == source:
        pytest.skip(f"{name} is not built: it runs as plain Python")
    for file in (source, declarations) if declarations.exists() else (source,):
        assert library.stat().st_mtime >= file.stat().st_mtime, f"rebuild: {library.name} is older than {file.name}"


@pytest.mark.parametrize(
    ("kernel", "least"),
    [
        ("storage.format.decode_kernel", 27),
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


def test_columns_have_the_same_numbers_in_kernels():
    declared = re.findall(r"^    (\w+) = (\d+)$", Path(columns.__file__).with_suffix(".pxd").read_text(), re.MULTILINE)
    members = {**columns.Column.__members__, **columns.RecordColumn.__members__}
    assert len(members) == len(declared) == 24
    for name, number in declared:
        assert int(number) == members[name] == getattr(columns, name)


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (batch([record(0, b"k", b"v", [(b"h", None)]), record(1, None, b"")], 7), 8),
        (message(3, b"v", b"k", magic=0), 0),
        (message(3, b"v", b"k", magic=1), 0),
    ],
    ids=["v2", "v0", "v1"],
)
def test_every_byte_at_its_limits(data, first):
    for at in range(first, len(data)):
        for byte in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            hurt = bytearray(data)
            hurt[at] = byte
            check_both_forms(with_right_checksums(bytes(hurt)))
    assert check_both_forms(data).damages == []


# Real brokers' files, damaged: every decoder reads what is left or raises StorageError, compiled and plain alike.

# KAFKAFS_FUZZ_ROUNDS multiplies the work, KAFKAFS_FUZZ_SEED makes it other work.
ROUNDS = int(os.environ.get("KAFKAFS_FUZZ_ROUNDS", "1"))
SEED = int(os.environ.get("KAFKAFS_FUZZ_SEED", "20261121"))
# A partition of every format and kind of batch.
LOGS = [
    *(f"codecs/log/c-{name}" for name in ("none-0", "gzip-0", "snappy-0", "snappy-1", "lz4-0", "zstd-1")),
    "times/log/t-append-1",
    "transactions/log/tx-basic-0",
    "compaction-after/log/cmp-txn-0",
    *(f"v0/log/v0-{name}" for name in ("none-0", "lz4-0", "v1-v2-0")),
    *(f"v1/log/v1-{name}" for name in ("none-1", "gzip-0", "snappy-1")),
]


def spans(partition, dice, count, size):
    """Runs of whole batches of about `size` bytes from a fixture's partition."""
    logs = sorted((FIXTURES / partition).glob("*.log"))
    stored = [batch.data for log in logs for batch in stored_batches(log.read_bytes())]
    for _ in range(count):
        first = dice.randrange(len(stored))
        run = b""
        for part in stored[first : first + dice.choice((1, 1, 3, 8))]:
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
    for data in spans(partition, dice, 4 * ROUNDS, 4_000):
        injured = damaged(data[:20_000], dice)
        for candidate in (data[:20_000], injured, with_right_checksums(injured)):
            check_both_forms(candidate)

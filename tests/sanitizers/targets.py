"""What the fuzz driver runs: one case a call, out of the dice alone.

Kernels are called through what the project calls them by where that gives exact-size memory, and directly with numbers
that no caller would pass: they promise to check every length themselves. Where there is a rule for the result, it is
asserted, so that the sanitizers do not only see nonsense refused.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache

import numpy as np

from kafkafs.decoding import avro_kernel, proto_kernel
from kafkafs.decoding.avro_program import POWERS, Programs
from kafkafs.decoding.columns import ColumnDecoder, Room
from kafkafs.decoding.decoded_jsonl import DecodedJsonl, TextDecoder
from kafkafs.decoding.protobuf import ProtobufDecoder
from kafkafs.formats import by_name
from kafkafs.reading import key_kernel
from kafkafs.reading import measure_kernel as view_kernel
from storage.errors import StorageError
from storage.format import (
    checksum,
    checksum_kernel,
    decode_kernel,
    digest_kernel,
    encoder_kernel,
    hashing,
    index_kernel,
)
from storage.format.batches import BatchTable, Column, scan
from storage.format.block import RecordBlock, RecordColumn
from storage.format.checksum import CRC32C_TABLES
from storage.format.compression import decompress
from storage.format.decoder import Decoder, verify_crcs
from storage.format.messages import GROUPS, messages
from storage.latest import offset_map_kernel
from storage.types import TopicPartition
from tests.sanitizers.inputs import AvroInputs, Logs, any_record, column, exact, index, number, tolerant
from tests.support import random_protobuf
from tests.support.decoded_columns import one_schema
from tests.support.fixtures import FIXTURES
from tests.support.own_topics import lines as golden_lines
from tests.support.own_topics import raw

Target = Callable[[random.Random], None]

LOGS = Logs()
AVRO = AvroInputs()
DECODED = DecodedJsonl(TopicPartition("topic", 3), one_schema('"string"', schema_id=0))
OWN_RECORDS = [raw(line) for line in golden_lines(FIXTURES / "internal" / "golden" / "vectors.jsonl.gz")]
NO_SKIP = np.empty(0, np.uint8)
NO_SPANS = np.empty(0, np.int64)
TP = TopicPartition("topic", 3)
TEMPLATES = ("txt", "jsonl", "jsonl", "%o %T %k %s\\n", "%S%R%K%h%t%p%%", "%s", "\\n%h\\n")


def scanned(data, dice):
    """(exact copy, table of exactly its batches or fewer, origin)."""
    buffer = exact(data)
    rows = dice.choice((1, 2, 3, 8, len(data) // 26 + 1))
    table = BatchTable(np.full((len(Column), rows), -7, np.int64), 0)
    origin = dice.choice((0, 0, 12345, 2**40))
    outcome = scan(buffer, origin, table)
    assert 0 <= outcome.next_start <= len(data)
    sizes = table.size
    assert (sizes > 0).all()
    assert int(sizes.sum()) == outcome.next_start
    exact_rows = BatchTable(np.ascontiguousarray(table.data[:, : table.rows]), table.rows)
    return buffer, exact_rows, origin


def scan_and_decode(dice):
    """The project's own way from bytes to records, at any damage."""
    data = LOGS.any(dice)
    buffer, table, origin = scanned(data, dice)
    decoder = Decoder(dice.choice((100, 5000, 1 << 20)), verify_crc=dice.random() < 0.5, block_bytes=4096)
    skip = exact(bytes(dice.choices((0, 0, 1), k=dice.randrange(table.rows + 2)))) if dice.random() < 0.2 else None
    row = 0
    while row < table.rows:
        block = decoder.decode(buffer, table, row, origin=origin, skip=skip, control=dice.random() < 0.5)
        render(block, dice)
        row = block.next_row + (block.damage is not None)


def decode_directly(dice):
    """The decoding kernels over uncompressed content of exactly its size, and columns that may be too few."""
    data = LOGS.any(dice)
    _, table, origin = scanned(data, dice)
    for row in range(table.rows):
        start = int(table.position[row]) - origin
        end = start + int(table.size[row])
        codec, magic = int(table.codec[row]), int(table.magic[row])
        header = 61 if magic == 2 else 34 if magic == 1 else 26  # of a wrapper: with null key and value length
        part = data[start + header : end] if magic == 2 or codec else data[start:end]
        if codec:
            try:
                part = decompress(codec, part, 1 << 16, magic)
            except StorageError:
                continue
        if dice.random() < 0.2:
            part = part[: dice.randrange(len(part) + 1)]
        content = exact(part)
        one = np.ascontiguousarray(table.data[:, row : row + 1])
        if dice.random() < 0.3:
            one[Column.COUNT, 0] = number(dice, 10)
        room = dice.choice((0, 1, 2, 5, max(int(table.count[row]), 0), len(part) // 7 + 1))
        columns = np.full((len(RecordColumn), min(room, 100_000)), -9, np.int64)
        used = dice.choice((0, 0, 1)) if columns.shape[1] else 0
        fault = column([0, 0, 0, 0])
        decode = decode_kernel.decode
        spans = column([0]), column([len(part)])
        result = tolerant(decode, content, one, 0, 1, 0, *spans, NO_SKIP, True, columns, used, fault)
        if result is not None and not fault[0]:
            assert used <= result[1] <= columns.shape[1]
            for start in (RecordColumn.KEY_START, RecordColumn.VALUE_START):
                starts, lengths = columns[start : start + 2, used : result[1]]
                assert ((lengths == -1) | ((lengths >= 0) & (starts >= 0) & (starts + lengths <= len(part)))).all()
        found = np.full((dice.choice((3, 3, 2)), dice.choice((1, 1, 0))), -9, np.int64)
        tolerant(decode, content, one, 0, 1, 0, *spans, NO_SKIP, True, found, 0, fault, columns)
        if magic < 2:
            checksum_kernel.check_messages(content, 0, len(part), checksum.CRC32_TABLES)


def decode_any_table(dice):
    """Kernels over a table whose positions, sizes and spans are anything."""
    data = dice.choice((LOGS.any, LOGS.whole))(dice)
    buffer, table, origin = scanned(data, dice)
    if not table.rows:
        return
    for _ in range(dice.choice((1, 2, 5))):
        chosen = dice.choice((Column.POSITION, Column.SIZE, Column.COUNT, Column.MAGIC, Column.ATTRIBUTES))
        row = dice.randrange(table.rows)
        if dice.random() < 0.5:
            table.data[chosen, row] = number(dice, origin + len(data))
        else:  # a batch that ends a little too late, with records enough to go there
            table.data[[Column.SIZE, Column.COUNT], row] += dice.choice((1, 2, 30))
    origin = dice.choice((origin, origin, 0, number(dice, 100)))
    first, last = dice.choice(((0, table.rows), (index(dice, table.rows), index(dice, table.rows))))
    limit = dice.choice((0, 50, 1 << 40))
    tables = checksum.CRC32C_TABLES, checksum.CRC32_TABLES
    large = np.full((dice.choice((table.rows, 1)), dice.choice((5, 5, 4))), -1, np.int64)
    tolerant(checksum_kernel.check_batches, buffer, table.data, first, last, origin, *tables, limit, large)
    tolerant(verify_crcs, buffer, table, 0, table.rows, origin)
    tolerant(decode_kernel.survey, table.data, first, last, origin, len(data), NO_SKIP, True)
    columns = np.full((len(RecordColumn), dice.randrange(20)), -9, np.int64)
    starts = column([number(dice, len(data)) for _ in range(dice.randrange(table.rows + 1))])
    ends = column([number(dice, len(data)) for _ in starts])
    fault = column([0, 0, 0, 0])
    for spans in ((NO_SPANS, NO_SPANS), (starts, ends)):
        used = dice.choice((0, index(dice, columns.shape[1])))
        rows = (buffer, table.data, first, last, origin, *spans, NO_SKIP, True)
        tolerant(decode_kernel.decode, *rows, columns, used, fault)
        found = np.full((3, dice.choice((table.rows, 1))), -9, np.int64)
        tolerant(decode_kernel.decode, *rows, found, dice.choice((0, index(dice, 1))), fault, columns)


def scan_spans(dice):
    """Header scans of any span of a buffer, into a table of any size."""
    data = LOGS.any(dice)
    buffer = exact(data)
    table = np.full((len(Column), dice.randrange(5)), -7, np.int64)
    start, end = index(dice, len(data)), index(dice, len(data))
    result = tolerant(decode_kernel.scan, buffer, start, end, number(dice, 1000), table, index(dice, 4))
    if result is not None and start <= end:
        assert start <= result[1] <= end
    lowest, highest = number(dice, 100), number(dice, 1000)
    found = tolerant(decode_kernel.search, buffer, start, number(dice, len(data)), lowest, highest)
    assert found is None or found == -1 or start <= found <= len(data) - 26
    tolerant(checksum_kernel.check_messages, buffer, start, end, checksum.CRC32_TABLES)


def render(block, dice):
    """Measure and render a block; sizes agree, and a buffer that is a byte short is not overrun."""
    form = DECODED if dice.random() < 0.2 else by_name(dice.choice(TEMPLATES), TP)
    sizes = np.empty(len(block), np.int64)
    form.measure(block, sizes)
    total = int(sizes.sum())
    start = dice.choice((0, 0, 3))
    out = np.full(start + total, 0x5A, np.uint8)
    assert form.render(block, out.data, start) == start + total
    assert (out[:start] == 0x5A).all()
    if total:
        short = np.empty(dice.randrange(total), np.uint8)
        row, end = form.render_rows(block, short.data, 0, 0)
        assert end == int(sizes[:row].sum())
    for name in ("key", "value"):
        data, ends = block.gather(name, dice.choice((None, b"", b"\n", b"--")))
        assert not len(ends) or int(ends[-1]) <= len(data)


def render_any_columns(dice):
    """Rendering and gathering over columns that are anything."""
    text = dice.choice((dice.randbytes(40), 'aé\u2028😀"\\\n'.encode() * 5, b"\x02a\x02b\x04cc\x01"))
    buffer = exact(text[: dice.choice((len(text), dice.randrange(len(text) + 1)))])  # in the middle of a character
    rows = dice.choice((1, 1, 3))
    columns = np.array(
        [[number(dice, len(buffer)) for _ in range(rows)] for _ in range(len(RecordColumn))], np.int64
    ).reshape(len(RecordColumn), rows)
    if dice.random() < 0.7:
        columns[RecordColumn.BATCH] = 0
    if dice.random() < 0.5:  # up to the very end of the buffer
        for start in (RecordColumn.KEY_START, RecordColumn.VALUE_START):
            columns[start] = dice.randrange(len(buffer) + 1)
            columns[start + 1] = len(buffer) - columns[start]
    table = BatchTable(np.full((len(Column), 1), 1, np.int64), 1)
    block = RecordBlock(buffer.data, table, columns, 1)
    form = DECODED if dice.random() < 0.2 else by_name(dice.choice(TEMPLATES), TP)
    sizes = np.empty(rows, np.int64)
    out = np.empty(dice.choice((0, 1, 64, 200, 1000)), np.uint8)
    tolerant(form.measure, block, sizes)
    tolerant(form.render_rows, block, out.data, dice.randrange(len(out) + 1), 0)
    starts, lengths = columns[RecordColumn.VALUE_START], columns[RecordColumn.VALUE_LENGTH]
    room = np.empty(dice.choice((0, 1, 40)), np.uint8)
    tolerant(decode_kernel.gather, buffer, starts, lengths, exact(dice.choice((b"", b"\n", b"ab"))), room, sizes)


def view_totals(dice):
    """Totals by batch of any batch numbers, cut into pieces with room that may be too small."""
    records, rows = dice.choice((0, 1, 5, 40)), dice.choice((0, 1, 3, 10))
    batch = column(sorted(dice.randrange(max(rows, 1)) for _ in range(records)))
    if records and dice.random() < 0.3:
        batch[dice.randrange(records)] = number(dice, rows)
    sizes = column([dice.choice((0, 1, 100, 5000)) for _ in range(records)])
    timestamps = column([number(dice, 1000) for _ in range(dice.choice((records, records, 1)))])
    marks = exact(bytes(dice.randrange(2) for _ in range(dice.choice((0, records, 1)))))
    totals = np.full((4, dice.choice((rows, rows, max(rows - 1, 0)))), -9, np.int64)
    tolerant(view_kernel.clear_totals, totals, rows)
    if tolerant(view_kernel.add_records, batch, sizes, timestamps, marks, totals, rows) is None:
        return
    table = np.full((len(Column), rows), 7, np.int64)
    first, last = dice.choice(((0, rows), (index(dice, rows), index(dice, rows))))
    pieces = np.full((dice.choice((rows, rows, 1)), 10), -9, np.int64)
    tolerant(view_kernel.cut, table, totals, first, last, dice.choice((1, 100, 10_000, index(dice, 50_000))), pieces)


def encode(dice):
    """Encoding of any columns into any room, and what is measured of headers."""
    data = dice.randbytes(dice.choice((0, 1, 10, 300)))
    buffer = exact(data)
    rows = dice.choice((1, 1, 2, 5))
    shape = dice.choice((9, 9, 9, 8)), dice.choice((rows, rows, rows, rows - 1))
    columns = np.array([number(dice, len(data)) for _ in range(shape[0] * shape[1])], np.int64).reshape(shape)
    consecutive = dice.random() < 0.5
    out = np.full(dice.choice((0, 1, 20, 400)), 0x5A, np.uint8)
    position = dice.choice((0, index(dice, len(out))))
    first, last = dice.choice((0, index(dice, rows))), dice.choice((rows, index(dice, rows)))
    result = np.zeros(dice.choice((3, 3, 2)), np.int64)
    base = number(dice, 5)
    tolerant(encoder_kernel.encode_records, buffer, columns, consecutive, first, last, base, out, position, result)
    if result[0] > first >= 0:  # again, into just the room that it took, and into a byte less
        used = int(result[1]) - position
        for room in (used, used - 1):
            exact_out, again = np.empty(room, np.uint8), np.zeros(3, np.int64)
            arguments = (buffer, columns, consecutive, first, int(result[0]), base, exact_out, 0, again)
            tolerant(encoder_kernel.encode_records, *arguments)
            assert again[1] <= room
    measured = np.zeros(dice.choice((len(columns[0]), 1)), np.int64)
    spans = np.full((dice.choice((4, 4, 3)), dice.choice((0, 1, 5))), -9, np.int64)
    tolerant(decode_kernel.find_headers, buffer, columns[0], columns[1], measured, column([0] * 4), spans)


def lines(dice):
    """Lines split and made into batches, in any room: also in just the room that they take, and in a byte less."""
    data = dice.randbytes(dice.choice((0, 1, 10, 300)))
    buffer, separator = exact(data), dice.choice(data) if data else 10
    starts = np.empty(dice.randrange(5), np.int64)
    lengths = np.empty(dice.choice((len(starts), 1)), np.int64)
    span = dice.choice(((0, len(data)), (index(dice, len(data)), index(dice, len(data)))))
    tolerant(encoder_kernel.split_lines, buffer, *span, separator, starts, lengths)
    begun = exact(dice.randbytes(dice.choice((0, 3))))
    header = number(dice, 5), dice.randrange(-(2**15), 2**15)
    out = np.empty(dice.choice((0, 60, 61, 70, 400, 900)), np.uint8)
    tables = CRC32C_TABLES[: dice.choice((len(CRC32C_TABLES), len(CRC32C_TABLES), 4096))]
    done = tolerant(encoder_kernel.encode_lines, begun, buffer, separator, *header, out, tables)
    if done and done[0]:
        for room in (done[1], done[1] - 1):
            exact_out = np.empty(room, np.uint8)
            again = encoder_kernel.encode_lines(begun, buffer, separator, *header, exact_out, tables)
            assert again == done if room == done[1] else again[0] == 0


def hash_keys(dice):
    """murmur2 over keys in exact memory and over columns that are anything."""
    key = any_record(dice).value or b""
    buffer = exact(key)
    assert hashing.murmur2(buffer) == hashing.murmur2(key)
    rows = dice.choice((0, 1, 4))
    starts = column([number(dice, len(key)) for _ in range(rows)])
    lengths = column([number(dice, len(key)) for _ in range(dice.choice((rows, 1)))])
    hashes = np.zeros(dice.choice((rows, 2)), np.int32)
    tolerant(hashing.murmur2_columns, buffer, starts, lengths, hashes)
    wide = np.zeros((dice.choice((rows, 2)), dice.choice((2, 2, 1))), np.uint64)
    tolerant(hashing.siphash_columns, buffer, starts, lengths, dice.randrange(2**64), 2**64 - 1, wide)


def filter_keys(dice):
    """Filters of any hashes, in any room, asked at any place; no key that is in one is denied. And rows with a key."""
    rows = dice.choice((0, 1, 5, 40))
    data = dice.randbytes(dice.choice((0, 1, 20)))
    starts, sizes = (column([number(dice, len(data)) for _ in range(rows)]) for _ in range(2))
    hashes = np.zeros(dice.choice((rows, rows, max(rows - 1, 0))), np.uint64)
    secret = dice.randrange(2**64), dice.choice((0, 2**64 - 1, dice.randrange(2**64)))
    tolerant(key_kernel.hash_keys, exact(data), starts, sizes, *secret, hashes)
    if dice.random() < 0.5:
        hashes = np.frombuffer(dice.randbytes(8 * len(hashes)), np.uint64).copy()
    _name_keys(dice, data, starts, sizes, hashes)
    key = exact(data[: dice.choice((0, 1, 3))])
    tolerant(key_kernel.rows_with_key, exact(data), starts, sizes, key, column([0] * dice.choice((rows, rows, 1))))
    _collect_keys(dice, hashes)


def _name_keys(dice, data, starts, sizes, hashes):
    """A set of names whose arrays hold anything."""
    longest, room = dice.choice((0, 3, 20)), dice.choice((0, 2, 40))
    names = np.zeros(dice.choice((longest * room, longest * room, 1)), np.uint8)
    ends, table = np.zeros(room, np.int64), np.zeros(dice.choice((1, 4, 64, 64, 65)), np.int64)
    count = 0
    if dice.random() < 0.3:
        count = index(dice, room)
        ends, table = (column([number(dice, 5) for _ in old]) for old in (ends, table))
    tolerant(key_kernel.add_names, exact(data), starts, sizes, hashes, longest, names, ends, table, count)


def _collect_keys(dice, hashes):
    batches, rows = dice.choice((0, 1, 3)), len(hashes)
    table = np.zeros((dice.choice((14, 14, 13)), batches), np.int64)
    table[0], table[1] = np.arange(batches) * 100, 100
    batch = column(sorted(dice.randrange(max(batches, 1)) for _ in range(rows)))
    if dice.random() < 0.2:
        batch = column([number(dice, batches) for _ in range(rows)])
    state = np.zeros(dice.choice((key_kernel.STATE_CELLS, key_kernel.STATE_CELLS, 3)), np.int64)
    if dice.random() < 0.2:
        state[dice.randrange(len(state))] = number(dice, 10) >> 2  # not so large that sizes of files overflow
    pending = np.zeros(dice.choice((rows, rows, rows + 5, 0)), np.uint64)
    sketch = np.zeros(dice.choice((rows // 4 + 1, rows // 4 + 1, 0, 1)), np.uint64)
    blocks = np.zeros((dice.choice((batches + 1, batches + 1, 0)), dice.choice((7, 7, 6))), np.int64)
    words = np.zeros(dice.choice((rows * 10 // 64 + batches + 1, 0, 1)), np.uint64)
    first, last = dice.choice(((0, batches), (0, batches), (index(dice, batches), index(dice, batches))))
    limits = dice.choice((1, 150, 10**6)), dice.choice((1, 10, 10**6))
    made = state, pending, sketch, blocks, words
    tolerant(key_kernel.collect, table, first, last, batch, hashes, *limits, *made)
    tolerant(key_kernel.close, *made)
    firsts, sizes = (column([number(dice, len(words)) for _ in range(3)]) for _ in range(2))
    marks = np.zeros(dice.choice((3, 3, 0)), np.uint8)
    tolerant(key_kernel.probe, words, firsts, sizes, dice.choice((0, 1, dice.randrange(2**64))), marks)


def index_entries(dice):
    """Index arithmetic over the headers of a log, with room that may be too small."""
    _, table, _ = scanned(LOGS.any(dice), dice)
    first, last = dice.choice(((0, table.rows), (index(dice, table.rows), index(dice, table.rows))))
    rooms = [dice.choice((table.rows, max(table.rows - 1, 0))) for _ in range(2)]
    entries = [np.full((2, room), -1, np.int64) for room in rooms]
    state = column([-1, 0, dice.choice((0, 5000)), -1][: dice.choice((4, 4, 3))])
    tolerant(index_kernel.index_batch, *(number(dice, 5000) for _ in range(4)), state)
    tolerant(index_kernel.index_batches, table.data, first, last, dice.choice((0, 100, 4096)), state, *entries)


def canonical_records(dice):
    """Records in canonical form: the decoder's columns into just the room that they take and a byte less, then any."""
    buffer, table, origin = scanned(LOGS.any(dice), dice)
    block = Decoder(5000).decode(buffer, table, origin=origin, control=True)
    content = np.frombuffer(block.buffer, np.uint8)
    columns, spans = np.ascontiguousarray(block.columns), block.headers_spans()
    out = np.full(2 * len(content) + 40 * (len(block) + spans.shape[1]), 0x5A, np.uint8)
    row, slot, used, needed = digest_kernel.canonical(content, columns, spans, 0, 0, len(block), out)
    assert (row, slot, needed) == (len(block), spans.shape[1], 0)
    for room in (used, used - 1) if used else (0,):
        exact_out = np.empty(room, np.uint8)
        again = digest_kernel.canonical(content, columns, spans, 0, 0, len(block), exact_out)
        assert again[2] <= room
        assert (again[0] == len(block)) == (room == used)
    rows = dice.choice((0, 1, 4))
    columns = np.array(
        [[number(dice, len(content)) for _ in range(rows)] for _ in range(dice.choice((9, 8, 7)))], np.int64
    )
    if rows and len(columns) > 7 and dice.random() < 0.7:
        columns[7] = dice.choice((0, 1, 2))
    spans = np.array([number(dice, len(content)) for _ in range(4 * dice.choice((0, 2, 8)))], np.int64).reshape(4, -1)
    bounds = dice.choice(((0, rows), (index(dice, rows), index(dice, rows))))
    out = np.full(dice.choice((0, 27, 28, 60, 1000)), 0x5A, np.uint8)
    tolerant(digest_kernel.canonical, content, columns, spans, dice.choice((0, 1)), *bounds, out)


def map_offsets(dice):
    """An offset map, filled and asked, that may be too small, with rows that may belong to no batch."""
    slots, rows = dice.choice((0, 1, 2, 7)), dice.choice((0, 1, 3, 9))
    table = np.zeros(3 * slots + dice.choice((0, 0, 2)), np.uint64)
    hashes = np.frombuffer(dice.choice((bytes(16 * rows), dice.randbytes(16 * rows))), np.uint64).copy()
    offsets, keys, values = (column([number(dice, 5) for _ in range(dice.choice((rows, rows, 1)))]) for _ in range(3))
    state = column([dice.choice((0, 1, -1)), -1, 0][: dice.choice((3, 3, 2))])
    latest = number(dice, 5)
    tolerant(offset_map_kernel.put, table, number(dice, slots), state, hashes.reshape(-1, 2), offsets, keys, latest)
    batches = dice.choice((1, 2))
    batch = column([dice.choice((0, 0, 1, number(dice, 2))) for _ in range(rows)])
    verdicts = np.array([dice.randrange(8) for _ in range(batches)], np.uint8)
    keep = np.zeros(dice.choice((rows, rows, 1)), np.uint8)
    counts = [np.zeros(dice.choice((batches, batches, 1)), np.int64) for _ in range(2)]
    arguments = (hashes.reshape(-1, 2), offsets, keys, values, batch, verdicts, keep, *counts, np.zeros(3, np.int64))
    first, marks = number(dice, 5), np.zeros(dice.choice((0, 0, 1, 5)), np.uint8)
    tolerant(offset_map_kernel.mark, table, first, marks)
    tolerant(offset_map_kernel.retain, table, latest, first, marks, *arguments)


def rewrite_batches(dice):
    """Batches of a log, some records of which stay; once with the decoder's columns, once with anything."""
    buffer, table, origin = scanned(LOGS.any(dice), dice)
    block = Decoder(dice.choice((5000, 1 << 20))).decode(buffer, table, origin=origin, control=True)
    rows = block.next_row
    real = dice.random() < 0.6
    records = len(block)
    columns, ends = block.columns, np.ascontiguousarray(block.headers_start)
    if not real:
        records = dice.choice((0, 1, 5))
        shape = dice.choice((9, 9, 8)), dice.choice((records, records, 1))
        columns = np.array([number(dice, 40) for _ in range(shape[0] * shape[1])], np.int64).reshape(shape)
        ends = column([number(dice, 40) for _ in range(dice.choice((records, records, 1)))])
    actions = np.array([dice.choice((0, 1, 2, 2, 3, dice.randrange(6))) for _ in range(rows)], np.uint8)
    horizons = column([number(dice, 5) for _ in range(dice.choice((rows, rows, 1)))])
    keep = np.array([dice.randrange(2) for _ in range(records)], np.uint8)
    out = np.full(dice.choice((0, 60, 300, 1 << 16)), 0x5A, np.uint8)
    spans = np.zeros(2 * dice.choice((rows, rows, 1)), np.int64)
    data = np.ascontiguousarray(table.data) if real else column([number(dice, 9) for _ in range(14 * rows)])
    tolerant(
        encoder_kernel.rewrite, buffer, dice.choice((origin, origin, number(dice, 5))), data.reshape(14, -1),
        dice.choice((0, index(dice, rows))), dice.choice((rows, index(dice, rows))), actions, horizons,
        np.frombuffer(block.buffer, np.uint8), columns, ends, keep, dice.choice((0, index(dice, records))), out,
        dice.choice((0, index(dice, len(out)))), spans, np.zeros(dice.choice((4, 4, 3)), np.int64),
    )  # fmt: skip


def decode_avro(dice):
    """Data of random schemas, whole and damaged, in a buffer that ends where they do, into any room; and columns that
    are anything."""
    made = AVRO.any(dice)
    rows = [AVRO.damaged(made.data, dice) for _ in range(dice.choice((1, 1, 3, 8)))]
    buffer = exact(b"".join(rows))
    lengths = column([len(row) for row in rows])
    starts = np.cumsum(lengths) - lengths
    columns = np.stack([starts, lengths, np.full(len(rows), made.entry, np.int64)])
    if dice.random() < 0.1:
        columns[dice.randrange(2), dice.randrange(len(rows))] = number(dice, len(buffer))
    if dice.random() < 0.1:
        columns[2, dice.randrange(len(rows))] = -1
    out = np.full(dice.choice((0, 1, 64, 65, 100, 400, 5000, 1 << 16)), 0x5A, np.uint8)
    position = dice.choice((0, 0, index(dice, len(out))))
    results = np.full((dice.choice((5, 5, 5, 4)), len(rows)), -9, np.int64)
    stack, scratch = np.empty(dice.choice((4, 8, 12, 400, 2004)), np.int64), np.empty(2052, np.int64)
    tape = np.empty(dice.choice((0, 1, 2, 3, 5, 20, 200, 1 << 14)), np.int64)
    arguments = (made.programs.arrays[0], made.programs.arrays[1], POWERS, buffer, columns, 0, len(rows), out)
    done = tolerant(avro_kernel.run, *arguments, position, results, stack, scratch, tape)
    if done is None:
        return
    assert 0 <= done[0] <= len(rows)
    assert 0 <= done[2] <= len(tape)
    if made.reader is not None:
        _resolve(made, rows, made.reader)
        return
    for row in range(done[0]):
        start, length = results[:2, row].tolist()
        if length >= 0:
            json.loads(out[start : start + length].tobytes())
    # As the format does it, with windows and rooms that grow.
    form = TextDecoder(made.lookup, "t-value")
    framed = [b"\0\0\0\0\7" + row if dice.random() < 0.9 else row for row in rows]
    sizes = column([len(row) for row in framed])
    whole = exact(b"".join(framed))
    texts, ends, _, _ = form.decode(whole, np.cumsum(sizes) - sizes, sizes)
    assert len(texts) == (int(ends[-1]) if len(ends) else 0)


def _resolve(made, rows, reader):
    """Into columns as the export does it, with a room that grows."""
    decoder = ColumnDecoder(made.lookup, "t-value", Programs(), reader)
    room, row = Room(64, 2), 0
    framed = [b"\0\0\0\0\7" + one for one in rows]
    sizes = column([len(one) for one in framed])
    whole = exact(b"".join(framed))
    while row < len(rows):
        found, _ = decoder.decode(whole, (np.cumsum(sizes) - sizes)[row:], sizes[row:], room)
        if not found.rows:
            room.grow()
        assert room.taped % 2 == 0
        assert (
            not room.taped or 0 <= room.tape[: room.taped : 2].min() <= room.tape[: room.taped : 2].max() < reader.end()
        )
        row += found.rows


@cache
def _protobuf_decoder(seed):
    compiled = random_protobuf.schema(random.Random(seed))
    return compiled, ProtobufDecoder(compiled)


def decode_protobuf(dice):
    """Messages of random types, whole and damaged, in a buffer that ends where they do, into any room."""
    compiled, decoder = _protobuf_decoder(dice.randrange(200))
    whole = [random_protobuf.message(compiled, dice) for _ in range(dice.choice((1, 2, 4)))]
    rows = [
        b"\0" + (one if dice.random() < 0.4 else random_protobuf.odd(one, dice.choice(whole), dice)) for one in whole
    ]
    buffer = exact(b"".join(rows))
    lengths = column([len(row) for row in rows])
    columns = np.stack([np.cumsum(lengths) - lengths, lengths])
    decoder.decode_rows(buffer, columns, np.zeros(1, np.int64), np.empty(64, np.uint8), 0, columns.copy())  # learns
    if dice.random() < 0.2:
        columns[dice.randrange(2), dice.randrange(len(rows))] = number(dice, len(buffer))
    chosen = column([dice.choice((row, row, row, index(dice, len(rows)))) for row in range(len(rows))])
    out = np.full(dice.choice((0, 1, 64, 65, 100, 400, 5000, 1 << 16)), 0x5A, np.uint8)
    texts = np.full((2, dice.choice((len(rows), len(rows), len(rows), 1))), -1, np.int64)
    slots = np.empty(dice.choice((16, 20, 64, 300, 1 << 12)), np.int64)
    position = dice.choice((0, 0, index(dice, len(out))))
    done = tolerant(
        proto_kernel.run, *decoder.program.arrays, POWERS, buffer, columns, chosen, dice.choice((10, 4 << 20)), out,
        position, texts, slots,
    )  # fmt: skip
    if done is None:
        return
    assert 0 <= done[0] <= len(chosen)
    for start, length in texts.T.tolist():
        if length >= 0:
            json.loads(out[start : start + length].tobytes())


def find_schema_ids(dice):
    """Ids of columns that are anything, and floats of any bits into any room."""
    data = exact(dice.randbytes(dice.choice((0, 1, 4, 5, 40))))
    rows = dice.choice((0, 1, 4))
    starts, lengths = (column([number(dice, len(data)) for _ in range(dice.choice((rows, rows, 1)))]) for _ in range(2))
    tolerant(avro_kernel.find_ids, data, starts, lengths, np.zeros(rows, np.int64))
    bits = np.array([dice.randrange(2**64) for _ in range(rows)], np.uint64)
    out = np.empty(dice.choice((0, 63, 64, 100, 64 * (rows + 1))), np.uint8)
    tolerant(avro_kernel.shortest, bits, dice.random() < 0.5, POWERS, out, np.zeros(dice.choice((rows, 1)), np.int64))


def read_messages(dice):
    """Records of Kafka's own, whole, damaged and of another topic, into any room; every text is JSON."""
    group = dice.choice(sorted(GROUPS | {"control", "subscription", "assignment", "checkpoints", "heartbeats"}))
    data, cells = b"", []
    for _ in range(dice.randrange(1, 6)):
        for side in dice.choice(OWN_RECORDS):
            part = bytearray(side or b"")
            for _ in range(dice.choice((0, 0, 1, 3))):
                if part:
                    part[dice.randrange(len(part))] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
            part = part[: dice.choice((len(part), len(part), index(dice, len(part))))]
            cells += [len(data), -1 if side is None else len(part)]
            data += part
    columns = np.array(cells, np.int64).reshape(-1, 4).T
    if dice.random() < 0.1:
        columns[dice.randrange(4), dice.randrange(columns.shape[1])] = number(dice, len(data))
    out = np.full(dice.choice((0, 1, 64, 65, 100, 400, 5000, 1 << 16)), 0x5A, np.uint8)
    found = tolerant(messages(group).read, exact(data).data, columns, out)
    if found is None:
        return
    assert 0 <= found.rows <= columns.shape[1]
    assert 0 <= found.end <= len(out)
    for start, length in found.places[:, : found.rows].T.reshape(-1, 2).tolist():
        if length >= 0:
            json.loads(out[start : start + length].tobytes())


TARGETS = {
    "scan_and_decode": scan_and_decode,
    "decode_directly": decode_directly,
    "decode_any_table": decode_any_table,
    "scan_spans": scan_spans,
    "render_any_columns": render_any_columns,
    "view_totals": view_totals,
    "encode": encode,
    "lines": lines,
    "hash_keys": hash_keys,
    "filter_keys": filter_keys,
    "index_entries": index_entries,
    "canonical_records": canonical_records,
    "map_offsets": map_offsets,
    "rewrite_batches": rewrite_batches,
    "decode_avro": decode_avro,
    "decode_protobuf": decode_protobuf,
    "find_schema_ids": find_schema_ids,
    "read_messages": read_messages,
}

# Which of them run a kernel; the driver refuses to start when pyproject.toml names one that is not here.
KERNEL_TARGETS = {
    "storage.format.decode_kernel": (
        "scan_and_decode",
        "decode_directly",
        "decode_any_table",
        "scan_spans",
        "render_any_columns",
        "encode",
    ),
    "storage.format.checksum_kernel": ("scan_and_decode", "decode_directly", "decode_any_table", "scan_spans"),
    "storage.format.encoder_kernel": ("encode", "lines", "rewrite_batches"),
    "storage.format.hashing": ("hash_keys",),
    "storage.format.index_kernel": ("index_entries",),
    "storage.format.digest_kernel": ("canonical_records",),
    "storage.format.inflate_kernel": ("scan_and_decode",),
    "storage.format.message_kernel": ("read_messages",),
    "storage.latest.offset_map_kernel": ("map_offsets",),
    "kafkafs.formats.render_kernel": ("scan_and_decode", "render_any_columns"),
    "kafkafs.reading.key_kernel": ("filter_keys",),
    "kafkafs.reading.measure_kernel": ("view_totals",),
    "kafkafs.decoding.avro_kernel": ("decode_avro", "find_schema_ids"),
    "kafkafs.decoding.proto_kernel": ("decode_protobuf",),
}

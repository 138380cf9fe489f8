"""The Protobuf kernel beside the library: what it writes is what the library writes, of ordinary and of odd data."""

import random

import numpy as np
import pytest

pytest.importorskip("google.protobuf", reason="no protobuf: install the extra `schemas`")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from kafkafs.decoding import proto_kernel
from kafkafs.decoding.proto_files import Compiled
from kafkafs.decoding.protobuf import CannotDecode, ProtobufDecoder
from storage.types import is_compiled
from tests.kafkafs.decoding import random_protobuf

pytestmark = pytest.mark.skipif(not is_compiled(proto_kernel), reason="the kernel is not compiled: the library decodes")


def by_kernel(decoder, data, room=1 << 20):
    """The text of each datum; None where the kernel leaves it to the library."""
    buffer = b"".join(data)
    lengths = np.array([len(one) for one in data], np.int64)
    columns = np.array([np.cumsum(lengths) - lengths, lengths], np.int64)
    out, texts = np.zeros(room, np.uint8), np.full((2, len(data)), -1, np.int64)
    rows = np.arange(len(data))
    done, _ = decoder.decode_rows(buffer, columns, rows, out, 0, texts)
    assert done == len(data)
    return [None if length < 0 else out[at : at + length].tobytes() for at, length in texts.T.tolist()]


def by_library(decoder, data):
    try:
        return decoder.decode(data)
    except CannotDecode:
        return None


def compare(decoder, data):
    """How many the kernel decodes; each as the library does."""
    count = 0
    for one, text in zip(data, by_kernel(decoder, data, 1 << 24), strict=True):
        if text is not None:
            assert text == by_library(decoder, one), one.hex()
            count += 1
    return count


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_random_schemas_and_messages(first):
    """All message types of a schema with one decoder, in any order; ordinary messages and odd ones."""
    decoded = of = 0
    for seed in range(first, first + 50):
        dice = random.Random(seed)
        compiled = random_protobuf.schema(dice)
        decoder = ProtobufDecoder(compiled)
        types = list(range(len(compiled.file.message_types_by_name)))
        for which in dice.sample(types, len(types)):
            indexes = bytes([2, 2 * which])
            data = [random_protobuf.message(compiled, dice, which) for _ in range(12)]
            decoded += compare(decoder, [indexes + one for one in data])
            of += len(data)
            odd = [random_protobuf.odd(dice.choice(data), dice.choice(data), dice) for _ in range(20)]
            compare(decoder, [indexes + one for one in odd])
    assert decoded > of / 2


def decoder_of(file):
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return ProtobufDecoder(Compiled(pool, pool.FindFileByName(file.name), 1))


def test_an_alias_in_a_type_that_another_contains():
    """The library lists a number once for each of its names; what was added of a type counts only if all of it was."""
    file = descriptor_pb2.FileDescriptorProto(name="alias.proto", syntax="proto3")
    enum = file.enum_type.add(name="E")
    enum.options.allow_alias = True
    for name in ("A", "B", "C"):
        enum.value.add(name=name, number=0)
    inner = file.message_type.add(name="M")
    inner.field.add(name="e", number=1, type=14, type_name=".E", label=1)
    inner.field.add(name="s", number=2, type=9, label=1)
    file.message_type.add(name="O").field.add(name="m", number=1, type=11, type_name=".M", label=1)
    decoder = decoder_of(file)
    assert by_kernel(decoder, [b"\0\x12\x01x"]) == [b'{"s":"x"}']
    assert by_kernel(decoder, [b"\x02\x02\x0a\x03\x12\x01x"]) == [b'{"m":{"s":"x"}}']


@pytest.mark.parametrize(("fields", "by_whom"), [(10, "kernel"), (1000, "library")])
def test_fields_in_no_order(fields, by_whom):
    """They are put in order one by one: 100,000 of them the wrong way round would take minutes."""
    file = descriptor_pb2.FileDescriptorProto(name="lists.proto", syntax="proto3")
    made = file.message_type.add(name="M")
    for number in range(1, fields + 1):
        made.field.add(name=f"f{number}", number=number, label=3 if number % 2 else 1, type=9)
    decoder = decoder_of(file)
    kind = message_factory.GetMessageClass(decoder.message_type((0,)))
    each = [kind(**{f"f{number}": ["a"] if number % 2 else "b"}) for number in range(fields, 0, -1)]
    data = b"\0" + b"".join(one.SerializeToString() for one in each + each[1::2])
    assert compare(decoder, [data]) == (by_whom == "kernel")


def test_members_of_a_oneof_and_more_things_than_there_is_memory_for():
    file = descriptor_pb2.FileDescriptorProto(name="oneof.proto", syntax="proto3")
    made = file.message_type.add(name="M")
    made.oneof_decl.add(name="o")
    for number in (1, 2, 3):
        made.field.add(name=f"f{number}", number=number, label=1, type=5, oneof_index=0)
    made.field.add(name="list", number=4, label=3, type=9)
    decoder = decoder_of(file)
    data = [b"\0\x10\x05", b"\0\x22\x00\x18\x00", b"\0\x08\x01\x18\x01", b"\0\x08\x01\x08\x02"]
    assert by_kernel(decoder, data) == [b'{"f2":5}', b'{"f3":0,"list":[""]}', None, None]
    fits, not_any_more = b"\0" + b"\x22\x00" * 40_000, b"\0" + b"\x22\x00" * 50_000
    assert [text is None for text in by_kernel(decoder, [fits, not_any_more])] == [False, True]
    assert compare(decoder, [fits, not_any_more]) == 1

"""Protobuf schemas and messages made at random: descriptors of every kind of field, and data that fit them, nearly fit
them, or do not."""

import math
import struct

from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, empty_pb2, message_factory, struct_pb2

from google.protobuf import field_mask_pb2, timestamp_pb2, wrappers_pb2  # isort: skip

from kafkafs.decoding.proto_files import Compiled

_FIELD = descriptor_pb2.FieldDescriptorProto
_SCALARS = [
    _FIELD.TYPE_DOUBLE, _FIELD.TYPE_FLOAT, _FIELD.TYPE_INT64, _FIELD.TYPE_UINT64, _FIELD.TYPE_INT32,
    _FIELD.TYPE_FIXED64, _FIELD.TYPE_FIXED32, _FIELD.TYPE_BOOL, _FIELD.TYPE_STRING, _FIELD.TYPE_BYTES,
    _FIELD.TYPE_UINT32, _FIELD.TYPE_SFIXED32, _FIELD.TYPE_SFIXED64, _FIELD.TYPE_SINT32, _FIELD.TYPE_SINT64,
]  # fmt: skip
_KEYS = [kind for kind in _SCALARS if kind not in (_FIELD.TYPE_DOUBLE, _FIELD.TYPE_FLOAT, _FIELD.TYPE_BYTES)]
_OWN = (timestamp_pb2, duration_pb2, wrappers_pb2, struct_pb2, empty_pb2, field_mask_pb2)
_OWN_TYPES = [
    "Timestamp", "Duration", "Struct", "Value", "ListValue", "Empty", "Int64Value", "StringValue", "BoolValue",
    "DoubleValue", "BytesValue", "UInt32Value", "FloatValue", "FieldMask",
]  # fmt: skip
_TEXTS = ["", "a", "größe", 'a "quoted"\\ line\n\t\x01\x7f', "\U0001f600", "x" * 40, "\u2028", "null", "\0", "10", "9"]
_FLOATS = [0.0, -0.0, 1.0, 1.5, 0.1, 1e300, -1e-7, 1e16, 123456.789, 5e-324, math.inf, -math.inf, math.nan, 3.0e38]


def schema(dice):
    """A file with some message types and enums, in a pool with the types that it uses."""
    file = descriptor_pb2.FileDescriptorProto(name="random.proto", package=dice.choice(["", "p.q"]))
    syntax = dice.choice(["proto2", "proto3", "proto3", "editions"])
    file.syntax = syntax
    if syntax == "editions":
        file.edition = descriptor_pb2.Edition.EDITION_2023
    prefix = f".{file.package}." if file.package else "."
    file.dependency.extend(module.DESCRIPTOR.name for module in _OWN)
    enums = [f"E{i}" for i in range(dice.randint(1, 2))]
    for name in enums:
        made = file.enum_type.add(name=name)
        numbers = [0, *sorted(dice.sample(range(-3, 300), dice.randint(0, 5)))]
        for number in dict.fromkeys(numbers):
            made.value.add(name=f"{name}_{number}".replace("-", "N"), number=number)
        if dice.random() < 0.3:
            made.options.allow_alias = True
            made.value.add(name=f"{name}_ALIAS", number=0)
    messages = [f"M{i}" for i in range(dice.randint(1, 4))]
    for name in messages:
        _add_message(file.message_type.add(name=name), prefix, name, messages, enums, syntax, dice)
    pool = descriptor_pool.DescriptorPool()
    for module in _OWN:
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return Compiled(pool, pool.FindFileByName("random.proto"), 1)


def _add_message(made, prefix, name, messages, enums, syntax, dice):
    numbers = dice.sample(range(1, dice.choice([16, 40, 5000])), dice.randint(0, 12))
    if dice.random() < 0.1:
        numbers.append(536870911)
    oneof = dice.random() < 0.4
    if oneof:
        made.oneof_decl.add(name="choice")
    optional = []
    for i, number in enumerate(numbers):
        field = made.field.add(name=dice.choice([f"f{i}", f"field_{i}", f"X{i}"]), number=number)
        field.label = dice.choice([_FIELD.LABEL_OPTIONAL, _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED])
        kind = dice.random()
        if kind < 0.12:
            _make_map(made, field, prefix + name, prefix, messages, enums, syntax, dice)
            continue
        if kind < 0.2 and syntax == "proto2":
            group = made.nested_type.add(name=f"Group{i}")
            group.field.add(name="inside", number=dice.choice([1, number]), type=_FIELD.TYPE_INT32, label=1)
            field.name, field.type, field.type_name = f"group{i}", _FIELD.TYPE_GROUP, f"{prefix}{name}.Group{i}"
        else:
            _set_type(field, prefix, messages, enums, dice)
        if syntax == "editions" and field.type == _FIELD.TYPE_MESSAGE and dice.random() < 0.3:
            field.options.features.message_encoding = descriptor_pb2.FeatureSet.DELIMITED
        repeated = field.label == _FIELD.LABEL_REPEATED
        if repeated and syntax != "editions" and field.type in [*_SCALARS, _FIELD.TYPE_ENUM] and dice.random() < 0.4:
            if field.type not in (_FIELD.TYPE_STRING, _FIELD.TYPE_BYTES):
                field.options.packed = dice.random() < 0.5
        elif not repeated and oneof and dice.random() < 0.4:
            field.oneof_index = 0
        elif not repeated and syntax == "proto3" and field.type != _FIELD.TYPE_MESSAGE and dice.random() < 0.3:
            optional.append(field)
        elif not repeated and syntax == "editions" and field.type != _FIELD.TYPE_MESSAGE and dice.random() < 0.3:
            field.options.features.field_presence = descriptor_pb2.FeatureSet.IMPLICIT
            if field.type == _FIELD.TYPE_ENUM:
                field.options.ClearField("features")
    if oneof and not any(field.HasField("oneof_index") for field in made.field):
        made.field.add(name="only", number=536870910, type=_FIELD.TYPE_INT32, label=1, oneof_index=0)
    for field in optional:
        field.proto3_optional = True
        field.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{field.name}")


def _set_type(field, prefix, messages, enums, dice):
    kind = dice.random()
    if kind < 0.2:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, prefix + dice.choice(messages)
    elif kind < 0.4:
        field.type, field.type_name = _FIELD.TYPE_MESSAGE, ".google.protobuf." + dice.choice(_OWN_TYPES)
    elif kind < 0.5:
        field.type, field.type_name = _FIELD.TYPE_ENUM, prefix + dice.choice(enums)
    else:
        field.type = dice.choice(_SCALARS)


def _make_map(
    made, field, place, prefix, messages, enums, syntax,
    dice,
):  # fmt: skip
    entry = "".join(part.capitalize() for part in field.name.split("_")) + "Entry"
    nested = made.nested_type.add(name=entry)
    nested.options.map_entry = True
    nested.field.add(name="key", number=1, type=dice.choice(_KEYS), label=1)
    value = nested.field.add(name="value", number=2, label=1)
    _set_type(value, prefix, messages, enums, dice)
    field.label, field.type, field.type_name = _FIELD.LABEL_REPEATED, _FIELD.TYPE_MESSAGE, f"{place}.{entry}"


def message(compiled, dice, which=0):
    """Data of this message type of the file, as the library writes them."""
    root = list(compiled.file.message_types_by_name.values())[which]
    made = message_factory.GetMessageClass(root)()
    _fill(made, dice, 0)
    return bytes(made.SerializePartialToString(deterministic=dice.random() < 0.5))


def _fill(made, dice, depth):
    if made.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        made.seconds = dice.choice(
            [0, 1763683200, -62135596800, 253402300799, 253402300800, dice.randint(-(10**11), 10**11)]
        )
        made.nanos = dice.choice([0, 5, 120_000_000, 123_456_000, 999_999_999, -1])
        return
    for field in made.DESCRIPTOR.fields:
        below = field.message_type
        if dice.random() < 0.4 or (below is not None and dice.random() * 4 < depth):
            continue
        if below is not None and below.GetOptions().map_entry:
            values = getattr(made, field.name)
            key, value = below.fields_by_name["key"], below.fields_by_name["value"]
            for _ in range(dice.choice([1, 3, 12])):
                if value.message_type is not None:
                    _fill(values[_scalar(key, dice)], dice, depth + 1)
                else:
                    values[_scalar(key, dice)] = _scalar(value, dice)
        elif field.is_repeated:
            values = getattr(made, field.name)
            for _ in range(dice.choice([1, 2, 5])):
                if below is not None:
                    _fill(values.add(), dice, depth + 1)
                else:
                    values.append(_scalar(field, dice))
        elif below is not None:
            getattr(made, field.name).SetInParent()
            _fill(getattr(made, field.name), dice, depth + 1)
        else:
            setattr(made, field.name, _scalar(field, dice))


def _scalar(field, dice):
    kind = field.type
    if kind == _FIELD.TYPE_ENUM:
        known = [value.number for value in field.enum_type.values]
        return dice.choice(known if field.enum_type.is_closed else [*known, 7, -77777])
    if kind == _FIELD.TYPE_STRING:
        return dice.choice(_TEXTS)
    if kind == _FIELD.TYPE_BYTES:
        return dice.randbytes(dice.choice([0, 1, 2, 3, 30]))
    if kind == _FIELD.TYPE_BOOL:
        return dice.random() < 0.5
    if kind == _FIELD.TYPE_DOUBLE:
        return dice.choice([*_FLOATS, struct.unpack("<d", dice.randbytes(8))[0], dice.randint(0, 10**6) / 1000])
    if kind == _FIELD.TYPE_FLOAT:
        some = [value for value in _FLOATS if abs(value) != 1e300]
        return dice.choice([*some, struct.unpack("<f", dice.randbytes(4))[0], 2.0 ** dice.randint(-30, 30)])
    bits = 64 if kind in (_FIELD.TYPE_INT64, _FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64, _FIELD.TYPE_SFIXED64,
                          _FIELD.TYPE_SINT64) else 32  # fmt: skip
    if kind in (_FIELD.TYPE_UINT64, _FIELD.TYPE_UINT32, _FIELD.TYPE_FIXED64, _FIELD.TYPE_FIXED32):
        return dice.choice([0, 1, 9, 10, (1 << bits) - 1, dice.getrandbits(dice.randint(1, bits))])
    limit = 1 << (bits - 1)
    return dice.choice([0, 1, -1, 9, 10, -10, limit - 1, -limit, dice.getrandbits(dice.randint(1, bits - 1))])


def odd(data, other, dice):
    """The data with something done to them; `other`: data of the same type."""
    made = bytearray(data)
    for _ in range(dice.randint(1, 3)):
        what = dice.randrange(7)
        at = dice.randint(0, len(made))
        if what == 0 and made:
            made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
        elif what == 1:
            del made[at:]
        elif what == 2:
            made[at:at] = dice.randbytes(dice.randint(1, 4))
        elif what == 3:
            made += other
        elif what == 4:
            made[at:at] = other
        elif what == 5:
            made += bytes([0xF8, 0x07, *([0x80] * dice.randint(0, 10)), dice.choice([0, 1, 2])])  # field 127
        elif made:
            del made[dice.randrange(len(made))]
    return bytes(made)

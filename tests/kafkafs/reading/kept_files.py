"""Files of the index cache as somebody may have changed them: damaged, or with other numbers and a right checksum."""

import os
import struct
from typing import NamedTuple

import numpy as np

from storage.format.checksum import crc32c


class Layout(NamedTuple):
    """What stands after the key of a file and before its columns, where in it the number of rows is, and to what the
    key is padded."""

    span_bytes: int
    rows_at: int
    key_multiple: int


LAYOUTS = {".view": Layout(40, 16, 1), ".keys": Layout(64, 40, 8)}


def damaged(data):
    """The data, damaged in every way."""
    return {
        "truncated": data[:-9],
        "flipped": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
        "empty": b"",
        "longer": data + b"!",
        "garbage": os.urandom(len(data)),
        "another version": data[:7] + b"\xff" + data[8:],
    }


def with_columns(path, columns, change):
    """The file's data after `change` of its columns, with a right checksum."""
    data, layout = path.read_bytes(), LAYOUTS[path.suffix]
    (length,) = struct.unpack_from("<I", data, 12)
    span = 16 + length + -length % layout.key_multiple
    (rows,) = struct.unpack_from("<q", data, span + layout.rows_at)
    start = span + layout.span_bytes
    numbers = np.frombuffer(data, "<i8", columns * rows, start).reshape(columns, rows).copy()
    change(numbers)
    data = data[:start] + numbers.tobytes() + data[start + numbers.nbytes :]
    return data[:8] + struct.pack("<I", crc32c(data[12:])) + data[12:]

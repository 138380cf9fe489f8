"""Files of the index cache as somebody may have changed them: damaged, or with other numbers and a right checksum."""

import io
import os
import zipfile

import numpy as np

from storage.format.checksum import crc32c


def damaged(data):
    """The data, damaged in every way."""
    return {
        "truncated": data[:-9],
        "flipped": data[:-20] + bytes([data[-20] ^ 1]) + data[-19:],
        "empty": b"",
        "longer": data + b"!",
        "garbage": os.urandom(len(data)),
        "another version": data.replace(b'{\\"version\\": \\"', b'{\\"version\\": \\"9'),
    }


def with_arrays(path, change):
    """The file's data after `change` of its arrays by their names, with a right checksum."""
    with np.load(path) as archive:
        arrays = {name: archive[name].copy() for name in archive}
    change(arrays)
    return with_checksum(lambda file: np.savez(file, **arrays))


def with_checksum(write):
    """The data of an archive that `write` has written, with a right checksum."""
    file = io.BytesIO()
    write(file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"0" * 8
    data = file.getvalue()[:-8]
    return data + b"%08x" % crc32c(data)

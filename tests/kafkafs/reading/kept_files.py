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


def _without_end(arrays, name):
    """An archive whose array `name` says that it has far more numbers than are there."""

    def write(file):
        with zipfile.ZipFile(file, "w") as archive:
            for each, array in arrays.items():
                body = io.BytesIO()
                np.save(body, array)
                data = body.getvalue()
                if each == name:
                    shape = b"(%d, %d)" % (2, 2**59)
                    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': " + shape + b", }"
                    data = data[:8] + (118).to_bytes(2, "little") + header.ljust(117) + b"\n" + data[128:]
                archive.writestr(f"{each}.npy", data)

    return write


def hostile(path):
    """Archives with a right checksum as somebody may have made them of a file, by what is wrong."""
    with np.load(path) as archive:
        arrays = {name: archive[name].copy() for name in archive}

    def of(**changed):
        return lambda file: np.savez(file, **(arrays | changed))

    def text(data):
        return of(about=np.frombuffer(data, np.uint8))

    return {
        "compressed": lambda file: np.savez_compressed(file, **arrays),
        "objects": of(blocks=np.array([[1, None]], object)),
        "numbers that are not there": _without_end(arrays, "blocks"),
        "fractions": of(blocks=arrays["blocks"].astype(float)),
        "other columns": of(blocks=arrays["blocks"][:-1]),
        "no words": of(words=arrays["words"][:0] if len(arrays["words"]) else np.zeros(1, np.uint64)),
        "names that end elsewhere": of(name_ends=np.array([2**40])),
        "no text": text(b"\xff"),
        "no object": text(b"[]"),
        "deep": text(b"[" * 200_000),
        "nothing": lambda file: np.savez(file),
        "no archive": lambda file: zipfile.ZipFile(file, "w").close(),
    }


def with_checksum(write):
    """The data of an archive that `write` has written, with a right checksum."""
    file = io.BytesIO()
    write(file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.comment = b"0" * 8
    data = file.getvalue()[:-8]
    return data + b"%08x" % crc32c(data)

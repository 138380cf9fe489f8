"""Links in place of files of a log directory, and what they lead to: files of somebody else, with a secret."""

import shutil

from storage.files.names import FileKind, parse_segment_file
from storage.format.block import Record
from storage.format.record_batch import encode_batch

SECRET = "SECRET-of-somebody-else"


def replace_by(place, kind, outside):
    """Puts a "link to a file" or to a directory in place of a file or directory, if it is there. `outside` is made by
    `make_outside`."""
    if place.is_dir():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link to a file":
        target = outside / f"secret-{place.name}"
        target.write_bytes(plausible(place.name))
        target.chmod(0o600)
        place.symlink_to(target)
    else:
        place.symlink_to(outside / "home")


def make_outside(path):
    """A directory of somebody else: a home with a partition's files in it."""
    home = path / "home"
    home.mkdir(parents=True)
    for name in (f"{0:020d}.log", "topic.properties", "leader-epoch-checkpoint", "partition.metadata", "thesis.tmp"):
        (home / name).write_bytes(plausible(name))
        (home / name).chmod(0o600)
    (home / "empty").mkdir()
    home.chmod(0o700)


def plausible(name):
    """A content that tells the secret if it is taken for that file's."""
    parsed = parse_segment_file(name)
    if parsed is not None and parsed.kind is FileKind.LOG:
        return encode_batch([Record(SECRET.encode(), SECRET.encode(), (), 1)], base_offset=parsed.offset)
    texts = {
        "meta.properties": f"version=1\ncluster.id={SECRET}\nnode.id=1\n",
        "topic.properties": f"cleanup.policy=compact\n{SECRET}={SECRET}\n",
        "partition.metadata": f"version: 0\ntopic_id: {SECRET}\n",
        "leader-epoch-checkpoint": f"0\n1\n0 {SECRET}\n",
        "kafkafs-commits": f'{{"version":1,"{SECRET}":"{SECRET}"}}',
    }
    return texts.get(name, f"0\n1\n{SECRET} 0 5\n").encode()

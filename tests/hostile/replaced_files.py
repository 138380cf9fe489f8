"""Files of somebody else, with a secret, to which links of a hostile log directory lead."""

from storage.files.names import FileKind, parse_segment_file
from storage.format.block import Record
from storage.format.record_batch import encode_batch

SECRET = "SECRET-of-somebody-else"


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

"""Tiered storage: a cold read of encrypted zstd chunks beside decryption and decompression alone; what last-N asks for.

The tier is a directory in the layout of Aiven's plugin, with chunks of 4 MiB. It has all segments of `data`'s sealed-0;
the log directory has an empty one behind them, and no events of remote segments. Where moto is installed, its S3 server
serves the same objects.
"""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest import mock

import cramjam
import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kafkafs.reading.range_names import LastMessages
from kafkafs.reading.selection import Question
from storage.files.names import FileKind
from storage.log.log_dir import LogDir
from storage.log.reader import read_range
from storage.tier.blocks import RemoteBlockCache
from storage.tier.object_places import DirectoryPlace, UrlPlace
from storage.tier.remote_segments import RemoteSegment
from storage.tier.tier import Tier
from storage.types import TopicPartition
from tests.bench import data
from tests.bench.case import say
from tests.bench.measure import Row
from tests.storage.tier.aiven_objects import RsaKey, Style, random_id, write

PARTITION = TopicPartition("sealed", 0)
CHUNK_BYTES = 4 << 20
WINDOW_BYTES = 1 << 20
LAST = 10
ALONE = "cryptography + zstd"


def made(context):
    """The directory with `log`, `tier` and `key.pem`; made if it is not there yet."""
    source = data.make(PARTITION.dir_name, context.messages)
    target = data.CACHE / f"tier-{context.messages}"
    if target.exists():
        return target
    say("data: tier")
    unfinished = target.with_suffix(f".{os.getpid()}")
    shutil.rmtree(unfinished, ignore_errors=True)
    log, topic_id, key = unfinished / "log" / PARTITION.dir_name, random_id(), RsaKey.new("key")
    log.mkdir(parents=True)
    (unfinished / "key.pem").write_bytes(key.pem)
    for one in Tier([str(source / PARTITION.dir_name)]).segments(PARTITION.topic, PARTITION.partition):
        segment = RemoteSegment(
            one.of, random_id(), one.base_offset, one.name, partial(getattr, one, "content"),
            is_complete=True, missing=(), stored_bytes=0,
        )  # fmt: skip
        end = context.messages - 1 if one.end_offset is None else one.end_offset
        write(unfinished / "tier", segment, topic_id, end, Style("", CHUNK_BYTES, compressed=True, key=key))
    (log / f"{context.messages:020}.log").touch()
    (log / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
    (log / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    (log.parent / "log-start-offset-checkpoint").write_text(f"0\n1\n{PARTITION.topic} {PARTITION.partition} 0\n")
    unfinished.rename(target)
    return target


def measure(context):
    """Reading takes the processor seconds of one core; the last messages, what someone waits for them."""
    made_at = made(context)
    packed = _packed(made_at)
    for _ in range(context.runs):
        _cold_read(context, made_at)
        _alone(context, packed)
        _last(context, made_at, DirectoryPlace, str(made_at / "tier"), "a directory")
    with _bucket(made_at / "tier") as url:
        for _ in range(0 if url is None else context.runs):
            _last(context, made_at, UrlPlace, str(url), "moto's S3")


@contextmanager
def _opened(made_at, place):
    with tempfile.TemporaryDirectory(dir=data.CACHE) as cache:
        yield Tier([place], {"key": made_at / "key.pem"}, RemoteBlockCache(directory=Path(cache)))


def _logs(tier):
    for segment in tier.segments(PARTITION.topic, PARTITION.partition):
        yield segment.content.parts[FileKind.LOG]


def _cold_read(context, made_at):
    with _opened(made_at, str(made_at / "tier")) as tier:
        start, size = time.process_time(), 0
        for log in _logs(tier):
            size += sum(len(log.read(position, WINDOW_BYTES)) for position in range(0, log.size, WINDOW_BYTES))
        seconds = time.process_time() - start
    row = Row("tier, cold", "RemoteFile.read, 1 MiB each", bytes=size, note="CPU s of one core", compare=(ALONE,))
    context.report.add(row, seconds)


def _packed(made_at):
    """The same chunks, compressed and encrypted with another key: IV, bytes, and the size before."""
    cipher, found = AESGCM(bytes(32)), []
    with _opened(made_at, str(made_at / "tier")) as tier:
        for log in _logs(tier):
            for position in range(0, log.size, CHUNK_BYTES):
                chunk, iv = log.read(position, CHUNK_BYTES), os.urandom(12)
                found.append((iv, cipher.encrypt(iv, bytes(cramjam.zstd.compress(chunk)), b""), len(chunk)))
    return found


def _alone(context, packed):
    cipher = AESGCM(bytes(32))
    start = time.process_time()
    for iv, chunk, size in packed:
        cramjam.zstd.decompress_into(cipher.decrypt(iv, chunk, b""), np.empty(size, np.uint8).data)
    seconds = time.process_time() - start
    row = Row(ALONE, "AESGCM.decrypt, zstd.decompress_into", bytes=sum(size for *_, size in packed))
    row.note = "CPU s of one core, in memory"
    context.report.add(row, seconds)


def _last(context, made_at, kind, place, what):
    """From opening the log directory to the last messages, nothing of the tier in a cache."""
    read = []
    listed = []
    entries_of, read_of = kind.entries, kind.read

    def entries(place, key):
        listed.append(key)
        return entries_of(place, key)

    def noted(place, key, position, size):
        found = read_of(place, key, position, size)
        read.append(len(found))
        return found

    with _opened(made_at, place) as tier, mock.patch.multiple(kind, entries=entries, read=noted):
        start = time.perf_counter()
        log_dir = LogDir.open_read_only(made_at / "log", tier=tier)
        snapshot = log_dir.log(PARTITION).snapshot()
        first = Question(offsets=LastMessages(LAST)).resolve(snapshot, 0).start_offset
        assert sum(len(block.offset) for block in read_range(snapshot, first)) == LAST
        seconds = time.perf_counter() - start
    row = Row(f"tier, last-{LAST}, {what}", f"read_range of {LAST}, cold", messages=LAST)
    row.note = f"{len(listed)} listings, {len(read)} reads, {sum(read):,} bytes; {len(snapshot.segments)} segments"
    context.report.add(row, seconds)


@contextmanager
def _bucket(directory):
    """The URL of a copy of a directory in moto's S3 server; None where moto or s3fs is not installed."""
    if find_spec("moto") is None or find_spec("s3fs") is None:
        yield None
        return
    import s3fs

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Another process: it would take this one's time.
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", str(port)], stderr=subprocess.DEVNULL)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    settings = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", **dict.fromkeys(names, "x")}
    try:
        with mock.patch.dict(os.environ, settings):
            while True:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                time.sleep(0.1)
            bucket = s3fs.S3FileSystem()
            bucket.mkdir("bench")
            bucket.put(f"{directory}/", "bench/tier/", recursive=True)
            yield "s3://bench/tier"
    finally:
        server.terminate()
        server.wait()

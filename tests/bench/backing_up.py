"""A backup beside `cp`: mirror with and without a manifest, the check of the manifest, digests of the records.

`cp` alone leaves its copy in the page cache; mirror returns when it is on the disk, as `cp` and `sync` do. Before each
run everything is written down that an earlier one left.
"""

import os
import shutil
import tempfile
import time
from pathlib import Path

from storage.backup.record_digests import diff_records, digest_records
from storage.files import manifest as manifests
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.manifest_audit import verify_manifest
from tests.bench.checking import large
from tests.bench.data import CACHE
from tests.bench.measure import Row, run_seconds
from tests.support.mounts import KAFKAFS

PARTITION = TopicPartition("plain", 0)
SYNCED = "cp, synced"


def measure(context):
    """One partition of one segment, messages of 100 bytes in batches of 16 KiB; digests of one-record batches too."""
    source = context.log_dir
    for _ in range(context.runs):
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="backup-") as temporary:
            _copies(context, source, Path(temporary))
    _large(context)
    for partition, what in (("plain", ""), ("single", ", one-record batches"), ("lz4", ", lz4")):
        _digests(context, TopicPartition(partition, 0), what)


def _copies(context, log_dir, root):
    source = log_dir / PARTITION.dir_name
    size = sum(file.stat().st_size for file in source.glob("*.log"))

    def take(row, command):
        os.sync()
        row.bytes = size
        context.report.add(row, run_seconds(command))

    take(Row("cp", "cp -r SRC/plain-0 DEST"), ["cp", "-r", str(source), f"{root}/cp"])
    synced = ["sh", "-c", 'cp -r "$0" "$1" && sync "$1"/* "$1"', str(source), f"{root}/synced"]
    take(Row(SYNCED, "cp -r SRC/plain-0 DEST && sync DEST/* DEST"), synced)
    mirror = [*KAFKAFS, "mirror", str(log_dir)]
    take(
        Row("mirror", "kafkafs mirror SRC DEST plain/0", note="whole command", compare=(SYNCED, "cp")),
        [*mirror, f"{root}/mirror", str(PARTITION)],
    )
    listed = [f"{root}/listed", str(PARTITION), "--manifest", f"{root}/m.json"]
    row = Row("mirror --manifest", "kafkafs mirror SRC DEST plain/0 --manifest FILE", compare=(SYNCED, "mirror"))
    take(row, [*mirror, *listed])
    manifest = manifests.read(root / "m.json")
    assert manifest is not None
    row = Row("verify_manifest", "verify_manifest(DEST, manifest, workers=1)", bytes=size, note="in process")
    start = time.perf_counter()
    assert verify_manifest(root / "listed", manifest, workers=1) == []
    context.report.add(row, time.perf_counter() - start)


def _large(context):
    """Mirroring and reviving the large partition once, beside `cp`."""
    with (
        large(context, context.gigabytes * 1e9) as (source, files),
        tempfile.TemporaryDirectory(dir=CACHE, prefix="backup-") as temporary,
    ):
        size = sum(file.stat().st_size for file in files)
        target = f"{temporary}/new"
        for name, command in (
            ("cp, large", "cp -r SRC DEST"),
            ("cp, synced, large", "cp -r SRC DEST && sync DEST/*/* DEST/* DEST"),
            ("mirror, large", "kafkafs mirror SRC DEST"),
            ("mirror --manifest, large", "kafkafs mirror SRC DEST --manifest FILE"),
            ("revive, large", "kafkafs revive SRC --to DEST"),
            ("revive --link, large", "kafkafs revive SRC --to DEST --link"),
        ):
            compare = () if name.startswith("cp") else ("cp, large", "cp, synced, large")
            row = Row(name, command, bytes=size, note="once", compare=compare)
            shell = command.replace("kafkafs", KAFKAFS[0])
            for word, path in (("SRC", str(source)), ("DEST", target), ("FILE", f"{temporary}/m.json")):
                shell = shell.replace(word, path)
            os.sync()
            context.report.add(row, run_seconds(["sh", "-c", shell]))
            shutil.rmtree(target)


def _digests(context, tp, what):
    snapshot = LogDir.open_read_only(context.log_dir).log(tp).snapshot()
    size = snapshot.size_bytes
    for _ in range(context.runs):
        row = Row(f"digest{what}", "digest_records(log, 0)", bytes=size, messages=context.messages, note="one core")
        start = time.process_time()
        digest_records(snapshot, 0)
        context.report.add(row, time.process_time() - start)
        row = Row(f"digest by 65536{what}", "digest_records(log, 0, by=65536)", bytes=size, note="one core")
        start = time.process_time()
        digest_records(snapshot, 0, by=1 << 16)
        context.report.add(row, time.process_time() - start)
    row = Row(f"diff{what}", "diff_records(log, log)", bytes=2 * size, note="one core; both sides")
    start = time.process_time()
    assert diff_records(snapshot, snapshot).first is None
    context.report.add(row, time.process_time() - start)

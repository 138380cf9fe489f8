"""Recovery of an unclean log, and a broker's own of the same files; reviving a directory, and `cp`.

"Unclean" is as a crash leaves it at worst: no clean-shutdown file, nothing known to be on disk, so that every byte is
read. The broker's time is what it says that loading the log took, its start aside.
"""

import os
import re
import shutil
import tempfile
import time
from pathlib import Path

from storage.directory.owned_dir import OwnedDir
from storage.files import names
from tests.bench.data import CACHE
from tests.bench.measure import Row, run_seconds
from tests.bench.scale import shifted
from tests.interop.client import Client
from tests.interop.kafka import HAVE_KAFKA, Broker
from tests.support.mounts import KAFKAFS, run_kafkafs

LOG_BYTES = 1 << 30
PARTITION = "t-0"
_LOADED = re.compile(r"Completed load of .*t-0.* in (\d+)ms")


def measure(context):
    """Logs of about 1 GiB, each segment all of `messages`, in batches of 16 KiB and of one record. Then reviving."""
    for partition, what in (("plain-0", ""), ("single-0", ", one-record batches")):
        _recovery(context, partition, what)
    _revive(context)


def _recovery(context, partition, what):
    (filled,) = (context.log_dir / partition).glob("*.log")
    segments = max(1, round(LOG_BYTES / max(filled.stat().st_size, LOG_BYTES // 4)))
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="recovering-") as temporary:
        root = Path(temporary)
        log_dir = root / "log"
        run_kafkafs("topics", "create", log_dir, "t", "--partitions", "1")
        size = _fill(log_dir / PARTITION, filled, segments, context.messages)
        for _ in range(context.runs):
            _make_unclean(log_dir)
            row = Row(
                f"recover{what}",
                "kafkafs recover LOGDIR",
                bytes=size,
                note="whole command",
                compare=(f"broker recovers{what}",),
            )
            context.report.add(row, run_seconds([*KAFKAFS, "recover", str(log_dir)]))
            _make_unclean(log_dir)
            row = Row(
                f"recovery by itself{what}",
                "OwnedDir.open(LOGDIR)",
                bytes=size,
                note="without the start of a program, as the broker's",
                compare=(f"broker recovers{what}",),
            )
            start = time.perf_counter()
            owned = OwnedDir.open(log_dir)
            context.report.add(row, time.perf_counter() - start)
            owned.close()
        if HAVE_KAFKA:
            _broker(context, root / "broker", log_dir / PARTITION, size, what)


def _fill(partition, filled, segments, messages):
    """Segments of the same batches with ascending offsets; their bytes."""
    for file in partition.glob(f"{0:020}.*"):
        file.unlink()
    data = filled.read_bytes()
    for number in range(segments):
        with (partition / f"{number * messages:020}.log").open("wb") as log:
            log.write(shifted(data, number * messages))
            os.fsync(log.fileno())  # the time to write them down is nobody's recovery
    return segments * len(data)


def _make_unclean(log_dir):
    (log_dir / names.CLEAN_SHUTDOWN).unlink(missing_ok=True)
    (log_dir / names.RECOVERY_POINT_CHECKPOINT).write_text("0\n0\n")
    for kind in ("*.index", "*.timeindex", "*.snapshot"):
        for file in (log_dir / PARTITION).glob(kind):
            file.unlink()


def _broker(context, directory, source, size, what):
    broker = Broker(directory, {"log.retention.ms": "-1", "log.segment.bytes": str(LOG_BYTES)}, quick_jvm=False)
    try:
        Client(broker.start().address).create_topic("t")
        broker.stop()
        target = broker.log_dir / PARTITION
        for file in target.glob(f"{0:020}.*"):
            file.unlink()
        for log in source.glob("*.log"):
            shutil.copy(log, target)
            with (target / log.name).open("rb+") as copied:
                os.fsync(copied.fileno())
        for _ in range(min(context.runs, 3)):
            _make_unclean(broker.log_dir)
            said_before = len(broker.log_text())
            broker.start(timeout=120)
            (took_ms,) = _LOADED.findall(broker.log_text()[said_before:])
            row = Row(f"broker recovers{what}", "what Kafka says that loading the log took", bytes=size)
            context.report.add(row, int(took_ms) / 1000)
            broker.stop()
    finally:
        broker.kill()


def _revive(context):
    """A directory of one log of about 1 GiB in four segments, shut down cleanly; copies and links of it."""
    (filled,) = (context.log_dir / "plain-0").glob("*.log")
    segments = max(2, round(LOG_BYTES / max(filled.stat().st_size, LOG_BYTES // 4)))
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="reviving-") as temporary:
        log_dir = Path(temporary) / "log"
        run_kafkafs("topics", "create", log_dir, "t", "--partitions", "1")
        size = _fill(log_dir / PARTITION, filled, segments, context.messages)
        run_kafkafs("recover", log_dir)
        target = Path(temporary) / "new"
        revive = [*KAFKAFS, "revive", str(log_dir), "--to", str(target)]
        for _ in range(context.runs):
            for name, command, note in (
                ("cp, whole directory", ["cp", "-r", str(log_dir), str(target)], "not synced"),
                ("cp and sync", ["sh", "-c", f"cp -r {log_dir} {target} && sync -f {target}"], ""),
                ("revive", revive, "whole command, synced, every batch checked"),
                ("revive --link", [*revive, "--link"], "whole command, synced"),
            ):
                compare = ("cp, whole directory", "cp and sync") if name.startswith("revive") else ()
                row = Row(name, " ".join(command), bytes=size, note=note, compare=compare)
                context.report.add(row, run_seconds(command))
                shutil.rmtree(target)

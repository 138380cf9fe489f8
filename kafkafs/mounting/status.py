"""`@status.json`, `@metrics` and `@help`: what a mount reports about itself.

`Report.facts` gathers everything in one dict; `@status.json` is that dict, `@metrics` the numbers in it, in Prometheus'
text format. No messages are read for it.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from kafkafs import compiled_kernels
from storage.errors import StorageError, error_text
from storage.log.log_dir import LogDir
from storage.log.snapshot import ReadableLog
from storage.types import TopicPartition

Facts = dict[str, Any]

_LIBRARIES = ("numpy", "cramjam", "crc32c", "cython")


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the facts come from. `fixed`: those that do not change while mounted (mode, options, where the log
    goes)."""

    log_dir: LogDir
    tree: Callable[[], Facts]
    requests: Callable[[], Facts]
    errors: Callable[[], Facts]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    offline: Callable[[], Mapping[TopicPartition, Exception]] = dict
    versions: Mapping[str, str] = field(default_factory=dict)


class Report:
    """The facts about a mount. However often they are read, gathering takes at most half of the time. Thread-safe."""

    def __init__(self, sources: Sources, clock: Callable[[], float] = time.monotonic) -> None:
        # constant after construction
        self._sources = sources
        self._clock = clock
        self._started = clock()
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._process = psutil.Process()
        self._versions = _versions() | dict(sources.versions)
        # guarded by the lock
        self._lock = threading.Lock()
        self._facts: Facts = {}
        self._next = float("-inf")  # when to gather again

    def status_json(self) -> bytes:
        """The content of @status.json: one object, indented, UTF-8."""
        return json.dumps(self.facts(), indent=2, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"

    def metrics(self) -> bytes:
        """The content of @metrics."""
        return "".join(_metrics(self.facts())).encode()

    def facts(self) -> Facts:
        """All facts, at most as old as gathering them takes: a millisecond; a second with thousands of open
        partitions."""
        with self._lock:
            now = self._clock()
            if now >= self._next:
                self._facts = self._gather(now)
                end = self._clock()
                self._next = end + (end - now)
            return self._facts

    def _gather(self, now: float) -> Facts:
        sources = self._sources
        return {
            **sources.fixed,
            "started": self._started_at,
            "uptime_seconds": round(now - self._started, 3),
            "topics": len(sources.log_dir.topics()),
            "partitions": {
                **{str(log.tp): _partition(log) for log in sources.log_dir.opened()},
                **{str(tp): _failed(error) for tp, error in sources.offline().items()},
            },
            "hidden": [{"name": hidden.name, "reason": hidden.reason} for hidden in sources.log_dir.hidden()],
            "problems": _problems(sources.log_dir),
            **sources.tree(),
            "requests": sources.requests(),
            "errors": sources.errors(),
            "process": _process(self._process),
            "disk": _disk(sources.log_dir.path),
            "kernels": compiled_kernels.loaded(),
            "versions": self._versions,
        }


def _problems(log_dir: LogDir) -> list[str]:
    try:
        log_dir.path.stat()
        return [str(problem) for problem in log_dir.problems()]
    except OSError as error:
        return [f"the log directory cannot be read: {error_text(error)}"]


def _partition(log: ReadableLog) -> Facts:
    """The facts of an opened partition: what it holds now, or why that is unknown."""
    try:
        snapshot = log.snapshot()
    except (StorageError, OSError) as error:
        return _failed(error)
    return {
        "state": "online",
        "log_start_offset": snapshot.whole_start_offset,
        "local_log_start_offset": snapshot.local_log_start_offset,
        "log_end_offset": snapshot.log_end_offset,
        "segments": len(snapshot.segments),
        "size_bytes": snapshot.size_bytes,
        # of a torn or still growing tail, or of a preallocated file
        "bytes_behind_the_end": snapshot.active_size - snapshot.active_end,
    }


def _failed(error: Exception) -> Facts:
    return {"state": "failed", "error": error_text(error)}


def _process(process: psutil.Process) -> Facts:
    with process.oneshot():
        cpu = process.cpu_times()
        return {
            "pid": process.pid,
            "memory_bytes": process.memory_info().rss,
            "cpu_seconds": round(cpu.user + cpu.system, 2),
            "open_files": process.num_fds(),
            "threads": process.num_threads(),
        }


def _disk(path: Path) -> Facts:
    try:
        disk = os.statvfs(path)
    except OSError as error:
        return {"error": error_text(error)}
    return {
        "size_bytes": disk.f_blocks * disk.f_frsize,
        "free_bytes": disk.f_bfree * disk.f_frsize,
        "available_bytes": disk.f_bavail * disk.f_frsize,
    }


def _versions() -> dict[str, str]:
    versions = {"kafkafs": _version("kafkafs"), "python": platform.python_version()}
    versions.update((name, _version(name)) for name in _LIBRARIES)
    versions["linux"] = platform.release()
    return versions


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"


class _Metric(NamedTuple):
    """A metric made from one number of the facts; `path`: its keys there, joined by dots."""

    path: str
    name: str
    kind: str
    help: str


_PLAIN = (
    _Metric("uptime_seconds", "uptime_seconds", "gauge", "Time since the mount."),
    _Metric("topics", "topics", "gauge", "Topics in the log directory."),
    _Metric("block_cache.used_bytes", "cache_used_bytes", "gauge", "Rendered messages kept in memory."),
    _Metric("block_cache.max_bytes", "cache_max_bytes", "gauge", "The most that may be kept."),
    _Metric("block_cache.hits", "cache_hits_total", "counter", "Requests for blocks that were cached."),
    _Metric("block_cache.misses", "cache_misses_total", "counter", "Requests for blocks that had to be rendered."),
    _Metric("view_index.segments", "view_index_segments", "gauge", "Segments in the view index."),
    _Metric("view_index.memory_bytes", "view_index_memory_bytes", "gauge", "View index in memory."),
    _Metric("view_index.disk_bytes", "view_index_disk_bytes", "gauge", "View index on disk."),
    _Metric("view_index.scanned_bytes", "view_index_scanned_bytes_total", "counter", "Log read to make it."),
    _Metric("key_index.segments", "key_index_segments", "gauge", "Segments in the key index."),
    _Metric("key_index.indexed_bytes", "key_index_indexed_bytes", "gauge", "Bytes of the log that it covers."),
    _Metric("key_index.keys", "key_index_keys", "gauge", "Keys in it, counted anew in each block of a segment."),
    _Metric("key_index.memory_bytes", "key_index_memory_bytes", "gauge", "Key index in memory."),
    _Metric("key_index.disk_bytes", "key_index_disk_bytes", "gauge", "Key index on disk."),
    _Metric("key_index.lookups", "key_index_lookups_total", "counter", "Segments in which a key was looked up."),
    _Metric("key_index.scanned_bytes", "key_index_scanned_bytes_total", "counter", "Log read to make it alone."),
    _Metric("key_index.scan_seconds", "key_index_scan_seconds_total", "counter", "Time that this has taken."),
    _Metric("requests.opens", "opens_total", "counter", "Files opened."),
    _Metric("requests.open_files", "open_files", "gauge", "Files open now."),
    _Metric("requests.reads", "reads_total", "counter", "Reads answered."),
    _Metric("requests.read_bytes", "read_bytes_total", "counter", "Bytes handed to readers."),
    _Metric("requests.writes", "writes_total", "counter", "Writes taken."),
    _Metric("requests.written_bytes", "written_bytes_total", "counter", "Bytes accepted from writers."),
    _Metric("errors.count", "data_errors_total", "counter", "Answers of EIO or EPROTO: damaged data, failed disks."),
    _Metric("errors.bugs", "bugs_total", "counter", "Unexpected errors; the log has their tracebacks."),
    _Metric("process.memory_bytes", "process_resident_memory_bytes", "gauge", "Resident memory."),
    _Metric("process.cpu_seconds", "process_cpu_seconds_total", "counter", "Processor time, user and system."),
    _Metric("process.open_files", "process_open_fds", "gauge", "Open descriptors."),
    _Metric("process.threads", "process_threads", "gauge", "Threads."),
    _Metric("disk.size_bytes", "disk_size_bytes", "gauge", "Size of the log directory's disk."),
    _Metric("disk.free_bytes", "disk_free_bytes", "gauge", "Free on that disk."),
    _Metric("disk.available_bytes", "disk_available_bytes", "gauge", "Free on that disk for users other than root."),
)
_PARTITION = (
    _Metric("log_start_offset", "log_start_offset", "gauge", "First offset, in tiered storage or here."),
    _Metric("local_log_start_offset", "local_log_start_offset", "gauge", "First offset in this directory."),
    _Metric("log_end_offset", "log_end_offset", "gauge", "Offset of the next message."),
    _Metric("segments", "log_segments", "gauge", "Segments."),
    _Metric("size_bytes", "log_size_bytes", "gauge", "Bytes of all segments."),
)


def _metrics(facts: Facts) -> Iterator[str]:
    """Lines of Prometheus' text format, version 0.0.4. Only opened partitions are included."""
    labels = _labels(version=facts["versions"]["kafkafs"], mode=facts.get("mode", ""))
    yield from _family("info", "gauge", "What this is.", [(labels, 1)])
    for metric in _PLAIN:
        value: Any = facts
        for key in metric.path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if isinstance(value, int | float):
            yield from _family(metric.name, metric.kind, metric.help, [("", value)])
    partitions = [(_partition_labels(name), partition) for name, partition in facts["partitions"].items()]
    online = [(labels, int(partition["state"] == "online")) for labels, partition in partitions]
    yield from _family("partition_online", "gauge", "1, or 0 for a partition that failed.", online)
    for metric in _PARTITION:
        samples = [(labels, partition[metric.path]) for labels, partition in partitions if metric.path in partition]
        yield from _family(metric.name, metric.kind, metric.help, samples)
    compiled = [(_labels(module=name), int(form == "compiled")) for name, form in facts["kernels"].items()]
    yield from _family("kernel_compiled", "gauge", "1 for machine code, 0 for plain Python.", compiled)


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> Iterator[str]:
    samples = list(samples)
    if samples:
        yield f"# HELP kafkafs_{name} {text}\n# TYPE kafkafs_{name} {kind}\n"
        yield from (f"kafkafs_{name}{labels} {value}\n" for labels, value in samples)


def _partition_labels(name: str) -> str:
    topic, _, partition = name.rpartition("/")
    return _labels(topic=topic, partition=partition)


def _labels(**labels: str) -> str:
    quoted = (
        '{}="{}"'.format(name, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for name, value in labels.items()
    )
    return "{" + ",".join(quoted) + "}"


def help_text(*, writable: bool = False) -> bytes:
    """The content of @help: one screen of 24 lines and 80 columns."""
    text = _HELP
    for read_only, written in _WRITABLE.items() if writable else ():
        text = text.replace(read_only, written)
    return text.encode()


_HELP = """\
kafkafs: a Kafka log directory as files, read-only; mount --write to append.

TOPIC/0/messages.txt           partition 0, the value of one message a line
TOPIC/0/messages.jsonl         offset, timestamp, key, value, headers as JSON;
                               .decoded.jsonl by schemas, which are in @schemas
TOPIC/0/messages.log           Kafka's own bytes: record batches
TOPIC/0/offsets/100-199.txt    offsets 100 to 199; also 100- (from there on),
                               100+50 (fifty messages), last-10, 100 (only it)
TOPIC/0/time/2026-11-20.txt    that day; also 2026-11, 2026-11-20T10 (an hour),
                               2026-11-20--2026-11-22, until-2026-11-20,
                               2026-11-20-- (from there on), last-15m
TOPIC/keys/KEY.txt             messages with that key; at most 1,000 are listed
TOPIC/latest.jsonl             the last message of every key; also TOPIC/0/
TOPIC/0/segments/              the real .log, .index and .timeindex files
TOPIC/0/@info.json             offsets, size, times; TOPIC/@config  its settings
@groups/GROUP/TOPIC/0          the offset that a consumer group has committed
@status.json  @metrics         the state of this mount; the same for Prometheus

A range can be opened without being listed; it ends in .txt, .jsonl or .log.
Times are UTC unless they have a zone: 2026-11-20T10:15+01:00--.jsonl
tail -f TOPIC/0/messages.txt               new messages as they arrive
grep error TOPIC/*/messages.txt            all partitions, each in its own order
jq -r .key TOPIC/0/offsets/last-99.jsonl   keys of the newest 99
jq .log_end_offset TOPIC/0/@info.json      where a partition ends
"""

# What differs on a writable mount.
_WRITABLE = {
    "as files, read-only; mount --write to append.\n\n": "as files.\n",
    "jq -r .key TOPIC/0/offsets/last-99.jsonl   keys of the newest 99\n": (
        "echo hello >> TOPIC/@append                one message a line; also .jsonl\n"
    ),
    "jq .log_end_offset TOPIC/0/@info.json      where a partition ends\n": (
        "mkdir TOPIC; echo retention.ms=3600000 >> TOPIC/@config\n"
        "rmdir TOPIC   if it is empty; else: umount, kafkafs topics delete LOGDIR TOPIC\n"
    ),
}

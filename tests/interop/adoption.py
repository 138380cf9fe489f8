"""Checks of a real broker that starts on a directory that we have changed."""

from storage.files.names import CLUSTER_METADATA_TOPIC
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.interop.kafka import run_tool

# What a broker logs when it repairs, rebuilds or sets something aside (LogManager, LogLoader, LogSegment, UnifiedLog).
_MENDING = (
    "recovering unflushed", "recovering file", "rebuilding index", "stray", "truncat", "corrupt", "found invalid",
    "interrupted",
)  # fmt: skip


def adopted_as_it_is(broker):
    """The log of a broker's last start reports a clean shutdown, and no repairs or strays; its metadata log, which it
    always checks, left aside."""
    text = broker.log_since_start()
    assert "since clean shutdown file was found" in text
    lines = [line for line in text.splitlines() if "__cluster_metadata" not in line and "since clean" not in line]
    assert not [line for line in lines if any(word in line.lower() for word in _MENDING)]


def faults(log_dir):
    """What `verify` finds, without the notes about the metadata log, whose indexes Kafka 4.4.0 leaves preallocated."""
    metadata = log_dir / f"{CLUSTER_METADATA_TOPIC}-0"
    return [
        finding
        for finding in verify_log_dir(log_dir)
        if finding.severity is not Severity.NOTE or metadata not in finding.path.parents
    ]


def dumps_without_a_finding(partitions):
    """Kafka's DumpLogSegments reads all records, compares the indexes with them, and finds no fault."""
    logs = [path for partition in partitions for path in sorted(partition.glob("*.log"))]
    indexes = [path for partition in partitions for path in sorted(partition.glob("*index"))]
    dump = ("org.apache.kafka.tools.DumpLogSegments", "--files")
    told = run_tool(*dump, ",".join(map(str, [*logs, *indexes])), "--deep-iteration", "--print-data-log").lower()
    assert told.count("starting offset: ") == len(logs)
    for finding in ("mismatch", "non-consecutive", "out of order", "corrupt", "invalid", "non-secutive", "exception"):
        assert finding not in told
    sane = run_tool(*dump, ",".join(map(str, indexes)), "--index-sanity-check")
    assert sane.count(" passed sanity check.") + sane.count(" is empty.") == len(indexes)

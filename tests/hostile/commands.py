"""How each command of the command line is called on a hostile directory."""

# {log}: the directory; {tp}, {topic}: a partition and a topic that it had; {out}: a place that does not exist yet;
# {file}: a file of a partition. A command with several calls is tried with each.
READS = {
    "cat": (
        "{log} {tp}", "{log} {tp} --format jsonl", "{log} {tp} --format decoded", "{log} {topic} --latest",
        "{log} {tp} --format log", "{log} {tp} --key k", "{log} {tp} --offsets 5-9 --isolation read_committed",
        "{log} {tp} --time 2026-11-20",
    ),
    "count": ("{log}", "{log} --isolation read_committed --json"),
    "diff": ("{log} {log} {tp}",),
    "digest": ("{log} {tp}",),
    "doctor": ("{log}", "{log} --json", "{log} --quick --tier {log}"),
    "dump": ("{file}",),
    "fetch": ("{log} {tp} --offset 0 --max-bytes 100000",),
    "groups": ("{log}", "{log} g1"),
    "metadata": ("{log}", "{log} --json", "{log} --at 2024-01-01"),
    "mirror": ("{log} {out}", "{log} {out} --manifest {out}.json"),
    "recover": ("{log} --dry-run", "{log} --dry-run --json"),
    "compact": ("{log} {tp} --dry-run",),
    "retain": ("{log} --dry-run",),
    "revive": ("{log} --to {out}", "{log} --to {out} --salvage", "{log} --to {out} --dry-run --json"),
    "salvage": ("{log} {tp} --to {out}",),
    "schemas": ("{log}", "{log} --to {out}"),
    "sql": ('{log} SELECT(count(value),max(offset))FROM"{topic}"', '{log} SELECT*FROM"{topic}"'),
    "report": ("{log}",),
    "stats": ("{log} --distinct-keys --over-time", "{log} {tp} --decode --json"),
    "topics list": ("{log}", "{log} --json"),
    "topics describe": ("{log}", "{log} --json"),
    "transactions": ("{log}",),
    "verify": ("{log}", "{log} --notes --json", "{log} --tier {log}"),
}  # fmt: skip
CHANGES = {
    "append": ("{log} {tp}",),
    "compact": ("{log} {tp}",),
    "groups": ("{log} g1 --reset-to earliest --topic {topic}",),
    "recover": ("{log}", "{log} {tp} --drop-lost-writes"),
    "reindex": ("{log} {tp}",),
    "retain": ("{log} --before end", "{log}"),
    "topics alter": ("{log} {topic} --config retention.ms=1000", "{log} {topic} --partitions 9"),
    "topics create": ("{log} new --partitions 2",),
    "topics delete": ("{log} {topic}",),
}
# What these print is the content of files, byte for byte.
RAW = ("cat", "dump", "fetch")
NOT_TRIED = {
    "assign": "reads no log directory",
    "completion": "reads no log directory",
    "mount": "tried apart, as a mount",
    "umount": "tried apart, as a mount",
    "replay": "needs a cluster; it reads as `cat` does",
    "spark export": "Spark takes seconds to start; its tasks read as these commands do",
}

"""`kafkafs sql` as whole commands: grouping by key beside DuckDB on JSON lines and Spark; one per cent of a large log.

The first look for a time measures the sealed segments, and keeps what it finds in the user's cache directory.
"""

import sys
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime

from tests.bench import broker, data
from tests.bench.case import say
from tests.bench.measure import Row, run_seconds
from tests.bench.spark import job
from tests.bench.through_mount import fresh, warm_page_cache
from tests.interop.kafka import HAVE_KAFKA
from tests.support.mounts import KAFKAFS

_BATCH_SHARE = 107.5 / data.VALUE_BYTES  # bytes of the log for each of a value's
_GROUPED = "SELECT key, count(*) FROM {} GROUP BY key"
_OURS = "sql, GROUP BY key"
_FIRST, _AGAIN = "sql, 1 % of the time, first", "sql, 1 % of the time"


def measure(context):
    """Both questions."""
    _grouped(context)
    _of_a_time(context)


def _duckdb(source):
    lines = f"read_json('{source}', format = 'newline_delimited')"
    query = f"COPY ({_GROUPED.format(lines)}) TO '/dev/null' (FORMAT csv)"
    return [sys.executable, "-c", f"import duckdb; duckdb.sql({query!r})"]


def _grouped(context):
    messages = context.messages
    log_dir = data.make(data.KEYED, messages)
    warm_page_cache(log_dir, data.KEYED)
    ours = [*KAFKAFS, "sql", str(log_dir), _GROUPED.format("keyed"), "--format", "csv"]

    def add(name, shown, seconds, note="start included"):
        compare = () if name == _OURS else (_OURS,)
        context.report.add(Row(name, shown, messages=messages, compare=compare, note=note), seconds)

    def read_json(tree):
        lines = tree.path / "keyed" / "0" / "messages.jsonl"
        add("DuckDB, read_json of the mount", "read_json('MNT/…/messages.jsonl')", run_seconds(_duckdb(str(lines))))

    with ExitStack() as stack:
        peers = []
        tree = stack.enter_context(fresh(log_dir))
        peers.append(lambda: read_json(tree))
        given = {"job": "grouped", "options": {"path": str(log_dir), "subscribe": "keyed"}, "messages": messages}
        spark = stack.enter_context(job(sys.executable, given))
        spark.seconds()  # warming up
        peers.append(lambda: _spark(spark, add))
        if HAVE_KAFKA:
            served = broker.serving(messages, broker.KEYED_TOPIC)
            stack.callback(served.kill)
            kcat = ["kcat", "-C", "-b", served.address, "-t", broker.KEYED_TOPIC, "-p", "0", "-e", "-q", "-J"]
            piped = ["bash", "-c", '"${@:4}" | "$1" "$2" "$3"', "-", *_duckdb("/dev/stdin")]
            shown = "kcat -C -J | read_json('/dev/stdin')"
            peers.append(lambda: add("kcat -J into DuckDB", shown, run_seconds([*piped, *kcat])))
        for _ in range(context.runs):
            add(_OURS, f"kafkafs sql LOGDIR '{ours[-3]}' --format csv", run_seconds(ours))
            for peer in peers:
                peer()


def _spark(spark, add):
    shown = "spark.read.format('kafkafs').load().groupBy('key').count()"
    add("Spark, GROUP BY key", shown, spark.seconds(), "start excluded, two tasks at most")


def _of_a_time(context):
    messages = int(context.gigabytes * 1e9 / data.VALUE_BYTES / _BATCH_SHARE)
    if not data.made("plain-0", messages):
        say(f"data: {context.gigabytes:g} GB")
    log_dir = data.make("plain-0", messages)
    first, last = (_time(data.START_MS + messages * share // 100) for share in (40, 41))
    query = f"SELECT count(*), max(timestamp) FROM plain WHERE timestamp BETWEEN '{first}' AND '{last}'"
    command = [*KAFKAFS, "sql", str(log_dir), query]
    for _ in range(context.runs):
        with tempfile.TemporaryDirectory(prefix="kafkafs-bench-") as cache:
            for name in (_FIRST, _AGAIN):
                row = Row(name, "kafkafs sql LOGDIR 'SELECT count(*), max(timestamp) … BETWEEN … AND …'")
                row.note, row.compare = f"{_size(log_dir):.1f} GB, start included", (_FIRST,) if name == _AGAIN else ()
                context.report.add(row, run_seconds(command, environment={"XDG_CACHE_HOME": cache}))


def _size(log_dir):
    return sum(path.stat().st_size for path in (log_dir / "plain-0").glob("*.log")) / 1e9


def _time(ms):
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()

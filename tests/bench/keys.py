"""Finding a key's messages through a mount: with the key index there, without it, and by reading everything.

"Cold" is a fresh mount with an empty cache directory. A lookup is stat, open, read and close in this process, so that
the start of a program is not part of it. The log's own bytes are in the kernel's page cache in all cases.
"""

import json
import random
import shutil
import tempfile
from pathlib import Path

import psutil

from tests.bench import broker, data
from tests.bench.case import say
from tests.bench.measure import Row, call_seconds, run_seconds
from tests.bench.noop_fuse import cat_seconds
from tests.bench.through_mount import fresh, warm_page_cache
from tests.interop.kafka import HAVE_KAFKA
from tests.support.mounts import run_kafkafs

_LOOKUPS = 20  # of one run


def _file(tree, key):
    return tree.path / "keyed" / "0" / "keys" / f"{key.decode()}.txt"


def measure(context):
    report, messages = context.report, context.messages
    if not data.made(data.KEYED, messages):
        say(f"data: {data.KEYED}")
    log_dir = data.make(data.KEYED, messages)
    warm_page_cache(log_dir, data.KEYED)
    dice = random.Random(data.SEED)
    keys = [data.key(dice.randrange(messages // data.MESSAGES_PER_KEY)) for _ in range(100 + _LOOKUPS)]
    command = f"kafkafs mount LOGDIR MNT --read-only; cat MNT/{data.KEYED.replace('-', '/')}/"
    with fresh(log_dir, None) as tree:  # what is timed must be right
        for key in keys[:5]:
            wanted = _messages_of(log_dir, key)
            assert not wanted or _file(tree, key).read_bytes() == wanted
    there = [key for key in keys if _is_there(log_dir, messages, key)]
    for _ in range(context.runs):
        with fresh(log_dir, None, "-o", "keys=off") as tree:
            row = Row("messages.txt cold, keys=off", f"{command}messages.txt", bytes=context.size, messages=messages)
            report.add(row, cat_seconds(tree.path / "keyed" / "0" / "messages.txt"))
        with fresh(log_dir, None) as tree:
            row = Row("messages.txt cold", f"{command}messages.txt", bytes=context.size, messages=messages)
            row.compare = ("messages.txt cold, keys=off",)
            report.add(row, cat_seconds(tree.path / "keyed" / "0" / "messages.txt"))
            status = json.loads((tree.path / "@status.json").read_bytes())["key_index"]
            size = f"{status['memory_bytes'] / max(1, messages):.2f} bytes of index a message"
            report.rows["messages.txt cold"].note = f"makes the key index: {size}"
            _lookups(report, "a key, the index was made by messages.txt", tree, there)
        with tempfile.TemporaryDirectory(prefix="kafkafs-bench-") as cache:
            with fresh(log_dir, Path(cache)) as tree:
                row = Row("a key, no index", f"{command}keys/KEY.txt", note="one scan", messages=messages)
                row.compare = ("messages.txt cold, keys=off", "messages.txt cold")
                report.add(row, call_seconds(_file(tree, there[0]).read_bytes))
                _lookups(report, "a key, the index is there", tree, there[1:])
                _lookups(report, "a key that is not there", tree, [b"nobody-%d" % n for n in range(_LOOKUPS)])
            with fresh(log_dir, Path(cache)) as tree:
                row = Row("the first key after a remount", f"{command}keys/KEY.txt")
                before = _processor_seconds(tree)
                report.add(row, call_seconds(_file(tree, there[-1]).read_bytes))
                taken = _processor_seconds(tree) - before
                status = json.loads((tree.path / "@status.json").read_bytes())["key_index"]
                assert status["scanned_bytes"] == 0  # it is the index on disk that was used
                kept = sum(file.stat().st_size for file in Path(cache).rglob("*.npz"))
                report.rows[row.name].note = (
                    f"the index is on disk, {kept / messages:.2f} bytes a message; "
                    f"{1000 * taken:.0f} ms of processor time"
                )
        with fresh(log_dir, None) as tree:
            file = tree.path / "keyed" / "0" / "messages.jsonl"
            cat_seconds(file)
            row = Row("grep of messages.jsonl, warm", 'grep -F \'"key":"KEY"\' MNT/keyed/0/messages.jsonl')
            report.add(row, run_seconds(["grep", "-F", f'"key":"{there[2].decode()}"', str(file)]))
    _peer(context, there[2].decode())


def _processor_seconds(tree):
    """What the serving process has taken so far."""
    times = psutil.Process(tree.pid).cpu_times()
    return float(times.user + times.system)


def _peer(context, key):
    """The same question to a broker, which knows nothing of keys: everything is fetched."""
    if not HAVE_KAFKA or not all(map(shutil.which, ("kcat", "jq"))):
        return
    serving = broker.serving(context.messages, broker.KEYED_TOPIC)
    try:
        kcat = f"kcat -C -b {serving.address} -t {broker.KEYED_TOPIC} -p 0 -o beginning -e -q -J"
        shell = f"{kcat} | jq -c 'select(.key == \"{key}\")'"
        row = Row("kcat -J | jq", "kcat -C … -e -q -J | jq -c 'select(.key == \"KEY\")'", messages=context.messages)
        for _ in range(context.runs):
            context.report.add(row, run_seconds(["bash", "-o", "pipefail", "-c", shell]))
        serving.stop()
    finally:
        serving.kill()


def _is_there(log_dir, messages, key):
    """Whether a key has messages: nearly all have some."""
    return messages > 100_000 or bool(_messages_of(log_dir, key))


def _messages_of(log_dir, key):
    """What `cat --key` prints: nothing for a key that is not there."""
    result = run_kafkafs("cat", log_dir, "keyed/0", "--key", key.decode(), check=False)
    assert result.returncode == 0 or b"has the key" in result.stderr, result.stderr
    return result.stdout


def _lookups(report, name, tree, keys):
    """Adds a row for each of some lookups of different keys."""

    def look(key):
        file = _file(tree, key)
        if file.exists():
            file.read_bytes()

    for key in keys[:_LOOKUPS]:
        report.add(Row(name, "cat MNT/keyed/0/keys/KEY.txt"), call_seconds(lambda key=key: look(key)))

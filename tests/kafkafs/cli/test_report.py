"""`kafkafs report`: what the page says, against plain counting; and that nothing in a directory becomes HTML."""

import json
import os
import re
import shutil
from html.parser import HTMLParser

from kafkafs.cli.report_page import Facts, TopicFacts, page
from kafkafs.cli.terminal import size_text
from storage.diagnosis.examination import examine
from storage.format.block import Record
from storage.log.histogram import HistogramCounter
from tests.support.builders import START_MS, Batch, Partition, build_log_dir, many
from tests.support.commands import output_of, run
from tests.support.fixtures import FIXTURES, ROOT, copy_log_dir, requires_fixtures

TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div", "span", "i", "b", "details", "summary"),
    *("table", "thead", "tbody", "tr", "th", "td", "svg", "rect", "text"),
}


class Page(HTMLParser):
    """Its tables by heading, as texts; the tags and attributes that occur."""

    def __init__(self, text):
        super().__init__()
        self.tables, self.tags, self.attributes, self._heading, self._open = {}, set(), set(), "", ""
        self.texts = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._open = tag
        if tag == "tr":
            self.tables.setdefault(self._heading, []).append([])
        if tag in ("td", "th"):
            self.tables[self._heading][-1].append("")
        if tag == "h2":
            self._heading = ""

    def handle_data(self, data):
        self.texts.append(data)
        if self._open == "h2":
            self._heading += data.strip()
        elif self._open in ("td", "th") and data.strip():
            self.tables[self._heading][-1][-1] += data


def shown(*arguments):
    return Page(output_of("report", *arguments).decode())


def numbers(text):
    return int(text.replace(",", ""))


def test_what_it_says_of_a_brokers_directory():
    logs = ROOT / "examples" / "sample-log"
    found = shown(logs)
    _, *rows = found.tables["Topics"]
    listed = json.loads(output_of("topics", "describe", logs, "--json"))["topics"]
    by_size = sorted(listed, key=lambda one: (-sum(part["bytes"] for part in one["partitions"]), one["topic"]))
    assert [row[0] for row in rows] == [one["topic"] for one in by_size]
    for row, one in zip(rows, by_size, strict=True):
        parts = one["partitions"]
        assert [numbers(cell) for cell in row[1:3]] == [len(parts), sum(part["segments"] for part in parts)]
        lines = output_of("cat", logs, one["topic"], "--format", "%o\\n").splitlines()
        assert numbers(row[3]) == len(lines)
        assert row[4] == size_text(sum(part["bytes"] for part in parts))
    groups = json.loads(output_of("groups", logs, "--json"))["groups"]
    expected = [[one["group"], one["state"], str(one["lag"]), one["last_commit"]] for one in groups]
    assert [[row[0], row[2], row[5], row[6]] for row in found.tables["Consumer groups"][1:]] == expected
    configured = {tuple(row) for row in found.tables["Configuration that differs from Kafka's defaults"][1:]}
    assert ("accounts", "cleanup.policy", "compact") in configured
    for prediction in json.loads(run("doctor", logs, "--json").stdout)["notes"]:
        assert prediction["what"] in found.texts
    quick = shown(logs, "--quick")
    assert [row[3] for row in quick.tables["Topics"][1:]] == [""] * len(rows)
    assert "Over time" in found.texts
    assert "Over time" not in quick.texts


def test_the_charts_say_how_many_messages_and_bytes_are_in_a_bar(tmp_path):
    messages = [Record(None, b"x" * 100, timestamp=START_MS)] * 2000
    build_log_dir(tmp_path / "logs", {"t": [Partition([Batch(messages)])]})
    charts = [text for text in shown(tmp_path / "logs").texts if text.endswith(" in a bar")]
    assert charts[0] == "messages, at most 2,000 in a bar"
    assert re.fullmatch(r"bytes, at most 2\d\d(\.\d)? K.* in a bar", charts[1])


def test_who_holds_a_last_stable_offset_and_what_retention_removes(tmp_path):
    open_batch = Batch(many(3), producer_id=5, transactional=True)
    build_log_dir(tmp_path / "logs", {"t": [Partition([Batch(many(5)), open_batch, Batch(many(1))])]})
    found = shown(tmp_path / "logs")
    assert found.tables["Who holds a last stable offset"][1][:5] == ["t/0", "4", "5", "", "5"]
    preview = json.loads(output_of("retain", tmp_path / "logs", "--dry-run", "--json"))
    removed = sum(len(one["segments"]) for one in preview["partitions"])
    assert found.tables["Topics"][1][-1].startswith("nothing" if not removed else str(removed))


def test_names_in_a_hostile_directory_do_not_become_html(tmp_path):
    logs = tmp_path / "<img src=x onerror=alert(1)>"
    build_log_dir(logs, {"t": [Partition([Batch(many(2))])]})
    (logs / "<script>alert(2)<").mkdir()
    (logs / "\u202e\x1b[31m\"'-0").mkdir()
    (logs / "meta.properties").write_text("version=1\nnode.id=<b onmouseover=alert(3)>\n")
    (logs / "t-0" / ("0" * 20 + ".log")).write_bytes(b"<script>" * 100)
    result = run("report", logs)
    found = Page(result.stdout)
    assert found.tags <= TAGS
    assert not [name for name in found.attributes if name.startswith("on") or name in ("src", "href")]
    assert not re.search("[\u202e\x1b]", result.stdout)
    assert any("<script>alert(2)<" in text for text in found.texts)


def test_ten_thousand_topics_are_a_page_of_which_little_is_open(tmp_path):
    build_log_dir(tmp_path / "logs", {"t": [[b"x"]]})
    topics = [TopicFacts(f"topic-{n}", 1, 1, n, n, config={"retention.ms": "1"}) for n in range(10_000, 0, -1)]
    over_time = HistogramCounter().histogram()
    diagnosis = examine((tmp_path / "logs",), quick=True)
    text = "".join(page(Facts("logs", 0, diagnosis, topics, over_time, [], [], [])))
    assert len(text) < 3_000_000
    opened, folded = text.split("<details>", 1)
    assert opened.count("<tr>") < 100
    assert "topic-10000<" in opened
    assert "9,960 more" in folded


@requires_fixtures
def test_what_cannot_be_read_is_named(tmp_path):
    logs = copy_log_dir(FIXTURES / "codecs" / "log", tmp_path / "logs")
    log = next(path for path in sorted(logs.glob("*/*.log")) if path.stat().st_size > 1000)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    output = tmp_path / "page.html"
    result = run("report", logs, "-o", output)
    assert result.exit_code == 4
    assert log.parent.name.rpartition("-")[0] in str(Page(output.read_text()).tables["What could not be read"])


def test_the_page_is_not_written_into_the_log_directory(tmp_path):
    shutil.copytree(ROOT / "examples" / "sample-log", tmp_path / "logs")
    assert run("report", tmp_path / "logs", "-o", tmp_path / "logs" / "page.html").exit_code == 2


def test_a_look_writes_nothing_to_the_disk(tmp_path, monkeypatch):
    """What it copies to try out a recovery is removed soon, and must not wait for the disk."""
    logs = build_log_dir(tmp_path / "logs", {"t": [[Batch(many(5))]] * 3}, clean=False).path
    synced = []
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, synced.append)
    assert "unclean" in " ".join(shown(logs).texts)
    assert synced == []

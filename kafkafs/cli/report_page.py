"""The page of `kafkafs report`: HTML without scripts, in which every text from the directory is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from kafkafs.cli.terminal import moment, size_text
from kafkafs.file_names import printable
from storage.types import TopicPartition

if TYPE_CHECKING:
    from storage.diagnosis.predictions import Diagnosis, Prediction
    from storage.log.histogram import Histogram

# Rows that are open, and rows that are folded below them. A browser lays out folded rows only when they are opened.
_OPEN_ROWS: Final = 40
_FOLDED_ROWS: Final = 4000
_LONGEST: Final = 400  # characters of a text from the directory
_CHART_WIDTH, _CHART_HEIGHT = 800, 90

_STYLE: Final = """
:root{color-scheme:light dark;--text:#1c1e21;--page:#fff;--soft:#60666f;--line:#d9dce1;--bar:#3b78c2;--goes:#d98324;
--bad:#b3261e;--box:#f5f6f8}
@media(prefers-color-scheme:dark){:root{--text:#e4e6ea;--page:#16181c;--soft:#9aa1ab;--line:#363a42;--bar:#6ea3e0;
--goes:#e0a050;--bad:#ff8a80;--box:#1f2228}}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;color:var(--text);background:var(--page);max-width:70rem;margin:0 auto;
padding:1.5rem}
h1{font-size:1.5rem;margin:0;overflow-wrap:anywhere}h2{font-size:1.15rem;margin:2rem 0 .5rem}p{margin:.3rem 0}
table{border-collapse:collapse;width:100%}
th{text-align:left;color:var(--soft);font-weight:600;font-size:.85em}
th{white-space:nowrap}th,td{padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere}
td.n,th.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}.soft,summary{color:var(--soft)}
.bad{color:var(--bad);font-weight:600}.one{border-left:4px solid var(--line);background:var(--box);
padding:.5rem .8rem;margin:.5rem 0;overflow-wrap:anywhere}.finding{border-color:var(--bad)}
.track{width:9rem;height:.8rem;background:var(--box);display:flex;margin-top:.25rem}
.track i{background:var(--bar);height:100%}.track i.goes{background:var(--goes)}
svg{width:100%;height:auto;display:block}svg rect{fill:var(--bar)}svg text{fill:var(--soft);font-size:11px}
@media print{:root{--text:#000;--page:#fff;--soft:#444;--line:#bbb;--bar:#3b78c2;--goes:#d98324;--bad:#900;
--box:#f3f3f3}
body{padding:0;font-size:11px;max-width:none}.track{width:5rem}tr,.one,svg{break-inside:avoid}.track{print-color-adjust:exact}
svg,.one{print-color-adjust:exact}h2{break-after:avoid}}
"""


Held = tuple[TopicPartition, int, int, str | None, int, int]
"""An open transaction that holds a last stable offset; see Facts."""


@dataclass(slots=True)
class TopicFacts:
    """A topic on the page. `removed_bytes`: of the `removed_segments` that retention would remove now.
    `config`: the values that differ from Kafka's defaults."""

    name: str
    partitions: int = 0
    segments: int = 0
    messages: int = 0
    size_bytes: int = 0
    removed_segments: int = 0
    removed_bytes: int = 0
    config: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Facts:
    """A log directory on the page. `held`: the open transactions that hold a last stable offset: partition,
    offsets that wait, producer id, transactional id, its first offset and time. `problems`: what could not be read."""

    path: str
    made_ms: int
    diagnosis: Diagnosis
    topics: list[TopicFacts]
    over_time: Histogram
    groups: list[dict[str, Any]]
    held: list[Held]
    problems: list[str]


def page(facts: Facts) -> Iterator[str]:
    """The parts of the page, in order."""
    path = _escaped(facts.path)
    yield (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>kafkafs report: ' + path + "</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<style>{_STYLE}</style></head><body>\n<h1>{path}</h1>\n"
    )
    partitions, size = sum(topic.partitions for topic in facts.topics), sum(topic.size_bytes for topic in facts.topics)
    yield (
        f'<p class="soft">{moment(facts.made_ms)}: {len(facts.topics):,} topics, {partitions:,} partitions,'
        f" {size_text(size)}</p>\n<h2>What a broker does when it starts here</h2>\n"
    )
    yield from _diagnosis(facts.diagnosis)
    if facts.problems:
        yield "<h2>What could not be read</h2>\n"
        yield from _table(("",), ([_escaped(problem)] for problem in facts.problems), len(facts.problems))
    yield "<h2>Topics</h2>\n"
    most = max((topic.size_bytes for topic in facts.topics), default=0) or 1
    rows = (
        [
            _escaped(topic.name), topic.partitions, topic.segments, "" if facts.diagnosis.quick else topic.messages,
            size_text(topic.size_bytes), _bar(topic.size_bytes - topic.removed_bytes, topic.removed_bytes, most),
            f"{topic.removed_segments:,} segments, {size_text(topic.removed_bytes)}"
            if topic.removed_segments
            else "nothing",
        ]
        for topic in facts.topics
    )  # fmt: skip
    of_topics = ("Topic", "Partitions", "Segments", "Messages", "Bytes", "", "Retention removes now")
    yield from _table(of_topics, rows, len(facts.topics))
    if not facts.diagnosis.quick:
        yield "<h2>Over time</h2>\n"
        yield from _charts(facts.over_time)
    yield "<h2>Consumer groups</h2>\n"
    groups = (
        [_escaped(group["group"]), _escaped(group["type"]), _escaped(group["state"]), len(group["members"]),
         group["partitions"], "unknown" if group["lag"] is None else group["lag"], group["last_commit"] or ""]
        for group in facts.groups
    )  # fmt: skip
    of_groups = ("Group", "Type", "State", "Members", "Partitions", "Lag", "Last commit")
    yield from _table(of_groups, groups, len(facts.groups))
    yield "<h2>Who holds a last stable offset</h2>\n"
    held = (
        [_escaped(str(tp)), waiting, str(producer), _escaped(owner or ""), first, moment(begun) or ""]
        for tp, waiting, producer, owner, first, begun in facts.held
    )
    of_held = ("Partition", "Offsets that wait", "Producer id", "Transactional id", "Open from offset", "Since")
    yield from _table(of_held, held, len(facts.held))
    yield "<h2>Configuration that differs from Kafka's defaults</h2>\n"
    configs = [(topic.name, key, value) for topic in facts.topics for key, value in sorted(topic.config.items())]
    yield from _table(("Topic", "Key", "Value"), (list(map(_escaped, row)) for row in configs), len(configs))
    yield "</body></html>\n"


def _escaped(text: object) -> str:
    """A text from the directory: control characters are shown, and nothing in it is HTML."""
    shown = printable(str(text))
    return html.escape(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}…")


def _bar(stays: int, goes: int, most: int) -> str:
    bars = zip(("", ' class="goes"'), (stays, goes), strict=True)
    return f'<div class="track">{"".join(_part(kind, 100 * size / most) for kind, size in bars)}</div>'


def _part(kind: str, percent: float) -> str:
    return f'<i{kind} style="width:{percent:.2f}%"></i>'


def _table(headings: Sequence[str], rows: Iterable[Sequence[Any]], count: int) -> Iterator[str]:
    """A table, folded. Numbers are aligned right."""
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        yield '<p class="soft">none</p>\n'
        return
    kinds = [' class="n"' if isinstance(cell, int) else "" for cell in first]
    cells = "".join(f"<th{kind}>{heading}</th>" for kind, heading in zip(kinds, headings, strict=True))
    head = f"<table><thead><tr>{cells}</tr></thead><tbody>\n"
    yield from _folded(map(_row, chain([first], rows)), count, head, "</tbody></table>\n")


def _row(cells: Sequence[Any]) -> str:
    texts = (f'<td class="n">{cell:,}</td>' if isinstance(cell, int) else f"<td>{cell}</td>" for cell in cells)
    return f"<tr>{''.join(texts)}</tr>\n"


def _folded(rows: Iterable[str], count: int, head: str = "", tail: str = "") -> Iterator[str]:
    """The first of `count` rows, the next ones folded, and how many there are beyond."""
    yield head
    for place, row in enumerate(islice(rows, _OPEN_ROWS + _FOLDED_ROWS)):
        if place == _OPEN_ROWS:
            yield f"{tail}<details><summary>{count - place:,} more</summary>{head}"
        yield row
    yield tail
    if count > _OPEN_ROWS + _FOLDED_ROWS:
        yield f'<p class="soft">and {count - _OPEN_ROWS - _FOLDED_ROWS:,} more</p>\n'
    if count > _OPEN_ROWS:
        yield "</details>\n"


def _diagnosis(diagnosis: Diagnosis) -> Iterator[str]:
    """The findings and notes of doctor, in its order."""
    if not diagnosis.starts:
        yield '<p class="bad">The broker does not start.</p>\n'
    elif diagnosis.denied:
        yield '<p class="bad">Nobody knows what the broker does: some files could not be read.</p>\n'
    elif not diagnosis.is_well:
        yield '<p class="bad">The broker starts, but look at the findings first.</p>\n'
    elif diagnosis.quick:
        yield "<p>The broker starts. No log was read, so damage was not looked for.</p>\n"
    else:
        yield "<p>The broker starts.</p>\n"
    yield from _folded(map(_prediction, diagnosis.predictions), len(diagnosis.predictions))


def _prediction(prediction: Prediction) -> str:
    kind = "finding" if prediction.reaction.is_finding else "note"
    advice = f"<p>What to do: {_escaped(prediction.advice)}</p>" if prediction.advice else ""
    return (
        f'<div class="one {kind}"><p><b>{kind} {_escaped(prediction.name)}</b>'
        f' <span class="soft">{_escaped(prediction.path)}</span></p>'
        f"<p>{_escaped(prediction.what)}</p><p>The broker: {_escaped(prediction.broker)}</p>{advice}</div>\n"
    )


def _charts(times: Histogram) -> Iterator[str]:
    """Messages and bytes in a bar for each period."""
    count = len(times.messages)
    if not count:
        yield '<p class="soft">no message has a time</p>\n'
        return
    first, last = moment(times.start_ms), moment(times.start_ms + count * times.width_ms)
    for name, values in (("messages", times.messages.tolist()), ("bytes", times.size_bytes.tolist())):
        most, width = max(values) or 1, _CHART_WIDTH / count
        bars = "".join(
            f'<rect x="{place * width:.1f}" y="{16 + _CHART_HEIGHT * (1 - value / most):.1f}" width="{width * 0.9:.1f}"'
            f' height="{_CHART_HEIGHT * value / most:.1f}"/>'
            for place, value in enumerate(values)
            if value
        )
        bottom = _CHART_HEIGHT + 30
        yield (
            f'<svg viewBox="0 0 {_CHART_WIDTH} {bottom + 4}" role="img"><title>{name} over time</title>'
            f'<text x="0" y="11">{name}, at most {size_text(most) if name == "bytes" else f"{most:,}"} in a bar</text>'
            f"{bars}"
            f'<text x="0" y="{bottom}">{first}</text>'
            f'<text x="{_CHART_WIDTH}" y="{bottom}" text-anchor="end">{last}</text></svg>\n'
        )
    if times.undated_messages:
        yield f'<p class="soft">{times.undated_messages:,} messages without a time are not shown</p>\n'

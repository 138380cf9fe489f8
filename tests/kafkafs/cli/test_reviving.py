"""The last line of `kafkafs doctor`. See also transcripts/reviving.txt."""

import pytest

from storage.diagnosis import examination
from storage.diagnosis.predictions import Diagnosis, Prediction, Reaction
from tests.support.builders import build_log_dir
from tests.support.commands import run

SUMMARIES = {
    Reaction.REFUSES: "does not start",
    Reaction.UNKNOWN: "nobody knows",
    Reaction.UNNOTICED: "starts, and does not notice",
    Reaction.CUTS: "starts, and loses messages of the metadata log",
}


@pytest.mark.parametrize("first", Reaction, ids=lambda one: one.name)
def test_the_summary_agrees_with_each_pair_of_findings(tmp_path, monkeypatch, first):
    old = build_log_dir(tmp_path, {"t": [[b"one"]]}).path
    for second in Reaction:
        pair = [Prediction("name", one, old, "what", "what it does") for one in (first, second)]
        for stays in (True, False):
            diagnosis = Diagnosis(tuple(pair), stays or Reaction.OFFLINE not in (first, second))
            monkeypatch.setattr(examination, "examine", lambda *_, said=diagnosis, **__: said)
            result = run("doctor", old)
            summary = result.stdout.splitlines()[-1]
            findings = {one for one in (first, second) if one.is_finding}
            assert result.exit_code == (4 if Reaction.UNKNOWN in findings else 1 if findings else 0)
            if not findings:
                assert "starts, and loses nothing" in summary
            elif not diagnosis.starts:
                assert SUMMARIES[Reaction.REFUSES] in summary
            elif Reaction.UNKNOWN in findings:
                assert SUMMARIES[Reaction.UNKNOWN] in summary
            elif findings <= {Reaction.UNNOTICED, Reaction.CUTS}:
                worst = Reaction.CUTS if Reaction.CUTS in findings else Reaction.UNNOTICED
                assert SUMMARIES[worst] in summary
            else:
                assert "resolve the findings above before you start it" in summary

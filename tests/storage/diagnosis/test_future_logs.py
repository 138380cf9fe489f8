"""Logs that were being moved between two directories: what Kafka 4.3.0 promoted, emptied or set aside."""

import shutil
from pathlib import Path

import pytest

from storage.diagnosis.examination import examine
from storage.diagnosis.predictions import Reaction
from tests.support.builders import build_log_dir, many, topic_id
from tests.support.commands import run
from tests.support.damaged_bytes import flip

FUTURE = f"t-0.{'a' * 32}-future"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAZQ"


@pytest.fixture
def dirs(tmp_path):
    """Two directories of a broker: the metadata place t/0 in the first one, which has 21 messages of it."""
    source = build_log_dir(tmp_path / "source", {"t": [[b"%d" % number for number in range(21)]]}).path
    assert run("revive", source, "--to", tmp_path / "first").exit_code == 0
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    lines = (first / "meta.properties").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("directory.id=")]
    (second / "meta.properties").write_text("\n".join([*kept, f"directory.id={OTHER_ID}", ""]))
    shutil.copy(first / ".kafka_cleanshutdown", second)
    return first, second


def moved(dirs, *, to_second=False, keeps=False):
    first, second = dirs
    future = (second if to_second else first) / FUTURE
    (shutil.copytree if keeps else Path.rename)(first / "t-0", future)
    return future


def said(dirs):
    found = examine(dirs)
    return found, {(one.name, one.reaction) for one in found.predictions if one.tp is not None}


def test_it_takes_the_place_where_the_metadata_place_it(dirs):
    moved(dirs)
    found, names = said(dirs)
    assert names == {("being-moved", Reaction.IGNORES)}
    assert found.is_well


def test_it_is_examined_as_the_partition_that_it_becomes(dirs):
    """What is damaged in it is cut off by recovery."""
    log = moved(dirs) / f"{0:020}.log"
    flip(log, log.stat().st_size - 10)
    for state in dirs:
        (state / ".kafka_cleanshutdown").unlink()
    found, names = said(dirs)
    assert ("damage", Reaction.CUTS) in names
    assert not found.is_well


def test_beside_the_partition_it_keeps_the_broker_from_starting(dirs):
    moved(dirs, keeps=True)
    found, names = said(dirs)
    assert names == {("being-moved", Reaction.REFUSES)}
    assert not found.starts


def test_elsewhere_it_is_emptied(dirs):
    moved(dirs, to_second=True)
    _, names = said(dirs)
    assert names == {("being-moved", Reaction.CUTS), ("partition-absent", Reaction.CREATES_EMPTY)}


def test_elsewhere_beside_the_partition_the_move_goes_on(dirs):
    moved(dirs, to_second=True, keeps=True)
    found, names = said(dirs)
    assert names == {("being-moved", Reaction.IGNORES)}
    assert found.is_well


@pytest.mark.parametrize("content", [None, f"version: 0\ntopic_id: {topic_id('other')}"])
def test_without_the_topics_id_it_is_set_aside(dirs, content):
    metadata = moved(dirs) / "partition.metadata"
    metadata.unlink()
    if content is not None:
        metadata.write_text(content)
    _, names = said(dirs)
    assert names == {("being-moved", Reaction.STRAY), ("partition-absent", Reaction.CREATES_EMPTY)}


@pytest.mark.parametrize("is_shorter", [False, True])
def test_it_replaces_a_partition_elsewhere(dirs, is_shorter, tmp_path):
    first, second = dirs
    moved(dirs, keeps=True)
    (first / "t-0").rename(second / "t-0")
    if is_shorter:
        built = build_log_dir(tmp_path / "shorter", {"t": [many(9)]}).path / "t-0"
        for file in built.glob("[0-9]*"):
            shutil.copy(file, first / FUTURE)
    _, names = said(dirs)
    assert names == {("being-moved", Reaction.CUTS if is_shorter else Reaction.IGNORES)}

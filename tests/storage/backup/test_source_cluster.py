"""A copy has the logs of one cluster."""

import json

import pytest

from tests.support.builders import CLUSTER_ID, build_log_dir
from tests.support.commands import output_of, run
from tests.support.owned_dirs import tree_of


@pytest.fixture
def clusters(tmp_path):
    """The directories of a broker of each of two clusters, without a common topic; and of no cluster."""
    path_of = {name: build_log_dir(tmp_path / name, {name: [[b"a"]]}).path for name in ("ours", "others")}
    meta = path_of["others"] / "meta.properties"
    meta.write_text(meta.read_text().replace(CLUSTER_ID, "another-cluster"))
    none = build_log_dir(tmp_path / "none", {"none": [[b"a"]]}, broker=False).path
    return path_of["ours"], path_of["others"], none


@pytest.mark.parametrize("kind", ["directory", "store", "store of a mirrored directory"])
def test_another_cluster_is_refused(tmp_path, clusters, kind):
    ours, others, none = clusters
    copy = tmp_path / "copy"
    dest = copy if kind == "directory" else copy.as_uri()
    if kind.endswith("mirrored directory"):
        output_of("mirror", ours, tmp_path / "mirrored")
        ours = tmp_path / "mirrored"
    output_of("mirror", none, dest)
    output_of("mirror", ours, dest)
    before = tree_of(copy)
    result = run("mirror", others, dest)
    assert result.exit_code == 4
    assert f"{others}: belongs to another cluster" in result.stderr
    assert CLUSTER_ID in result.stderr
    assert "another-cluster" in result.stderr
    assert tree_of(copy) == before
    # A source whose cluster is unknown changes nothing of that.
    output_of("mirror", none, dest)
    output_of("mirror", ours, dest)
    assert run("mirror", others, dest).exit_code == 4


def test_another_cluster_than_that_of_the_manifest_is_refused(tmp_path, clusters):
    """Copies of earlier releases have no other sign of the cluster."""
    ours, others, _ = clusters
    copy, manifest = tmp_path / "copy", tmp_path / "copy.json"
    output_of("mirror", ours, copy, "--manifest", manifest)
    (copy / "mirror.properties").unlink()
    result = run("mirror", others, copy, "--manifest", manifest)
    assert result.exit_code == 4
    assert "another-cluster" in result.stderr
    assert json.loads(manifest.read_text())["cluster_id"] == CLUSTER_ID


def test_a_broker_takes_topics_of_another_cluster(tmp_path, clusters):
    ours, others, _ = clusters
    output_of("mirror", others, tmp_path / "copy")
    build_log_dir(ours, {"others": [[]]})
    output_of("mirror", tmp_path / "copy", ours, "others")
    assert output_of("cat", ours, "others") == b"a\n"
    assert not (ours / "mirror.properties").exists()

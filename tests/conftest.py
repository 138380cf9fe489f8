"""Checks after every test: nothing stays mounted, and the log directories that it wrote are sound."""

import os
import signal
from collections import Counter

import pytest
from hypothesis import settings

from storage.directory.owned_dir import OwnedDir
from storage.files import dir_lock
from storage.log.log_dir import LogDir
from storage.types import TopicPartition
from storage.verify.findings import Severity
from storage.verify.verify import verify_log_dir
from tests.support import mounts
from tests.support.mounts import detach, kafkafs_mounts

# Markers of tests that share something expensive.
SHARED = ("spark", "broker")


def pytest_addoption(parser):
    parser.addoption("--nightly", action="store_true", help="also run the tests that are marked nightly")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config, items):
    """Deselect what runs only nightly. Under xdist's `--dist loadgroup`, run a file's tests on one processor.

    All tests with a broker share one processor, and so do all with Spark: each starts only one of them. Both groups
    come first, because they take longest.
    """
    if not config.getoption("--nightly"):
        nightly = [item for item in items if item.get_closest_marker("nightly")]
        if nightly:
            config.hook.pytest_deselected(items=nightly)
            items[:] = [item for item in items if not item.get_closest_marker("nightly")]
    for item in items:
        shared = [name for name in SHARED if item.get_closest_marker(name)]
        item.add_marker(pytest.mark.xdist_group(shared[0] if shared else item.nodeid.partition("::")[0]))
    items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in SHARED))


def pytest_configure(config):
    # Under nohup, or in the background of a shell script, the commands that tests run would inherit that it is ignored.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "golden: reads the log directories of real brokers (tests/fixtures)")
    config.addinivalue_line("markers", "leaves_damage(*names): what verify finds, by name, in what the test leaves")
    if config.getoption("--nightly"):
        os.environ["KAFKAFS_NIGHTLY"] = "1"  # tests.support.nightly
    # A busy machine makes any example slow. Before a merge the examples are the same each time.
    settings.register_profile("gate", max_examples=50, derandomize=True, deadline=None)
    settings.register_profile("nightly", max_examples=500, deadline=None)
    settings.load_profile("nightly" if config.getoption("--nightly") else "gate")


def pytest_terminal_summary(terminalreporter):
    """Print the figures that tests have recorded, and how many tests were skipped for which reason."""
    reasons = Counter(
        report.longrepr[2] for report in terminalreporter.getreports("skipped") if isinstance(report.longrepr, tuple)
    )
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason.removeprefix('Skipped: ')}")
    for report in [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]:
        for name, value in report.user_properties:
            if name == "figures":
                terminalreporter.write_line(f"{report.nodeid}: {value}")


@pytest.fixture(autouse=True)
def what_was_written_is_sound(request, monkeypatch):
    """At the end `verify` reports only notes for each log directory that the test opened for writing and closed, or
    mounted for writing; if the test leaves damage, exactly the findings that `leaves_damage` names."""
    written = {}
    close = OwnedDir.close

    def noting(owned):
        written[owned.path] = owned.partitions()  # the cluster's metadata is never written
        return close(owned)

    monkeypatch.setattr(OwnedDir, "close", noting)
    mounts.written.clear()
    yield
    for path in mounts.written:
        if path.is_dir() and path not in written:
            log_dir = LogDir.open_read_only(path)
            written[path] = [TopicPartition(topic, p) for topic in log_dir.topics() for p in log_dir.partitions(topic)]
    marker = request.node.get_closest_marker("leaves_damage")
    expected = set() if marker is None else set(marker.args)
    found = [
        one
        for path, partitions in written.items()
        if path.is_dir() and dir_lock.holder(path) is None
        for one in verify_log_dir(path, partitions)
        if one.severity is Severity.FINDING
    ]
    assert {one.name for one in found} == expected, [str(one) for one in found]


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_mounted(tmp_path_factory):
    """At the end no kafkafs may be mounted below this session's temporary directory. If one is, it is unmounted."""
    base = tmp_path_factory.getbasetemp()
    yield
    left = [path for path in kafkafs_mounts() if path.is_relative_to(base)]
    for path in left:
        detach(path)
    assert not left, f"left mounted: {', '.join(map(str, left))}"

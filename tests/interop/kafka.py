"""A real Kafka broker as a child process: the jars that tests/run.sh fetched, KRaft, one node, free ports.

Processes are ended by the Popen that started them, never by name.
"""

import itertools
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.downloads import DOWNLOADS

VERSION = "4.3.0"
# Of the broker: also 3.9.1, 4.4.0.
BROKER_VERSION = os.environ.get("KAFKAFS_BROKER", VERSION)
CLUSTER_ID = "a2Fma2Fmcy1pbnRlcm9wLTE"
JARS = Path(os.environ.get("KAFKAFS_KAFKA") or DOWNLOADS / f"kafka-{VERSION}")
BROKER_JARS = JARS if BROKER_VERSION == VERSION else DOWNLOADS / f"kafka-{BROKER_VERSION}"
REQUIRED = os.environ.get("CI", "").lower() in ("true", "1")
HAVE_KAFKA = bool(shutil.which("java")) and (JARS / f"kafka-clients-{VERSION}.jar").is_file()
requires_kafka = pytest.mark.skipif(
    not (HAVE_KAFKA and BROKER_JARS.is_dir()) and not REQUIRED,
    reason=f"no Java, or no Kafka {VERSION} in {JARS}, or no {BROKER_VERSION} (tests/run.sh fetches them)",
)
requires_tiering = pytest.mark.skipif(
    BROKER_VERSION != VERSION or not ((JARS / f"kafka-storage-{VERSION}-test.jar").is_file() or REQUIRED),
    reason=f"no Java, or no LocalTieredStorage of Kafka {VERSION} in {JARS} (tests/run.sh fetches it)",
)

# What a broker on a busy machine logs: it is slow to reach its own controller, or to register it, and tries again; or
# it was stopped while it still loaded the groups.
NO_COMPLAINTS = (
    "channel manager timed out before sending the request",
    "Unexpected error handling request RequestHeader(apiKey=CONTROLLER_REGISTRATION",
    "Exceptionally slow controller event",
    "processExpiredBrokerHeartbeat: controller event queue overloaded",
    "due to Stopped loading records from __",
    "EventProcessor is closed",  # while it stops
)

# For tests that start a broker, or another JVM: one worker runs them all (tests/conftest.py).
on_broker = pytest.mark.broker

# For Log4j 2, and for Log4j 1, which Kafka had before 4.0.
LOG4J = """\
appender.file.type=File
appender.file.name=File
appender.file.fileName=${sys:kafkafs.log}
appender.file.layout.type=PatternLayout
appender.file.layout.pattern=%d %p %m (%c)%n%throwable
rootLogger.level=INFO
rootLogger.appenderRef.file.ref=File
log4j.rootLogger=INFO, File
log4j.appender.File=org.apache.log4j.FileAppender
log4j.appender.File.File=${kafkafs.log}
log4j.appender.File.layout=org.apache.log4j.PatternLayout
log4j.appender.File.layout.ConversionPattern=%d %p %m (%c)%n
"""

# Small and quick, for tests: short delays, one internal partition each, no waiting for groups to fill.
QUICK = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "500",
    "log.flush.start.offset.checkpoint.interval.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "500",
    "log.cleaner.backoff.ms": "300",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "auto.create.topics.enable": "false",
    "initial.broker.registration.timeout.ms": "170000",  # on a busy machine it gives up after a minute
}

# The files of a directory that Kafka has formatted, by node id and roles: the tool takes a JVM each time, and
# writes the same but for a random directory id.
_FORMATTED = {}

_ports = itertools.count(os.getpid() * 32)


def free_ports(count):
    """Free ports, below those that the system assigns to connections: no other process takes them meanwhile."""
    found = []
    while len(found) < count:
        port = 10_000 + next(_ports) % 20_000
        with socket.socket() as opened:
            try:
                opened.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
    return found


def java(*arguments, jars=JARS, heap="256m"):
    """The command line of one of Kafka's tools. With the client compiler only, because they run for seconds."""
    quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
    return ["java", f"-Xmx{heap}", *quick, "-cp", f"{jars}/*", *map(str, arguments)]


def run_tool(*arguments, timeout=120, jars=JARS):
    """Runs one of Kafka's tools, which must succeed; returns what it printed."""
    done = subprocess.run(java(*arguments, jars=jars), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


class DidNotStart(Exception):
    """The broker has ended by itself, with Kafka's exit code and a log that says why, instead of starting."""


class Broker:
    """One KRaft node (broker and controller) over `directory`/log. `start` may follow `stop` or `kill`."""

    def __init__(self, directory, config=None, *, quick_jvm=True):
        self.directory = directory
        self.log_dir = directory / "log"
        self.log_file = directory / "broker.log"
        self._config = {**QUICK, **(config or {})}
        self._jvm = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") if quick_jvm else ("-XX:+UseG1GC",)
        self._process = None
        self._said_before = 0  # the last start
        self._new_archive = None  # of classes, which the JVM writes when it ends
        self.address, self.controller_address = (f"127.0.0.1:{port}" for port in free_ports(2))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j.properties").write_text(LOG4J)
        self.properties = directory / "server.properties"
        self._write_properties()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, at):
        self.kill()

    def reconfigure(self, config):
        """Change settings from the next start on; returns the broker."""
        self._config |= config
        self._write_properties()
        return self

    @property
    def pid(self):
        return self._process.pid

    @property
    def _settings(self):
        is_broker = self._config.get("process.roles") == "broker"
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://{self.address}"
            + ("" if is_broker else f",CONTROLLER://{self.controller_address}"),
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@{self.controller_address}",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **self._config,
        }

    def _write_properties(self):
        self.properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))

    def start(self, timeout=180):
        """Format the directory if it is new, start the broker, and wait until it answers. DidNotStart if it refuses to;
        a broker that says nothing, or not in time, fails the test."""
        self._format()
        logging = (
            f"-Dkafkafs.log={self.log_file}",
            f"-Dlog4j2.configurationFile={self.directory}/log4j.properties",
            f"-Dlog4j.configuration=file:{self.directory}/log4j.properties",
        )
        program = ["-cp", f"{BROKER_JARS}/*", "kafka.Kafka", str(self.properties)]
        command = ["java", "-Xmx512m", *self._jvm, *self._class_archive(), *logging, *program]
        self._said_before = len(self.log_text())
        with (self.directory / "broker.out").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + timeout
        while not self._answers():
            exit_code = self._process.poll()
            if exit_code is not None or time.monotonic() > deadline:
                self.kill()
                text = self.log_since_start()
                # With 1 kafka.Kafka ends when it cannot start, or loses its last log directory.
                if exit_code == 1 and self.log_file.exists() and (" ERROR " in text or " FATAL " in text):
                    raise DidNotStart(f"the broker did not start:\n{text[-4000:]}")
                ending = f"does not answer in {timeout} s" if exit_code is None else f"ended with exit code {exit_code}"
                raise AssertionError(f"the broker {ending}:\n{text[-4000:]}")
            time.sleep(0.1)
        return self

    def _class_archive(self):
        """Options of the JVM for an archive of Kafka's classes beside the jars, with which a start takes little more
        than half of the CPU time. The first broker that is stopped writes it. A JVM of another version goes without."""
        archive = BROKER_JARS.with_name(f"{BROKER_JARS.name}.jsa")
        if archive.exists():
            return "-Xlog:disable", f"-XX:SharedArchiveFile={archive}"
        self._new_archive = archive.with_name(f"{archive.name}.{self.address.partition(':')[2]}")
        return "-Xlog:disable", f"-XX:ArchiveClassesAtExit={self._new_archive}"

    def _format(self):
        if (self.log_dir / "meta.properties").exists():
            return
        place = (self._settings["node.id"], self._settings["process.roles"])
        is_one = self._settings["log.dirs"] == str(self.log_dir)
        if not is_one or place not in _FORMATTED:
            run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self.properties, jars=BROKER_JARS)
            if is_one:
                files = [path for path in self.log_dir.rglob("*") if path.is_file()]
                _FORMATTED[place] = {path.relative_to(self.log_dir): path.read_bytes() for path in files}
            return
        for name, content in _FORMATTED[place].items():
            (self.log_dir / name).parent.mkdir(parents=True, exist_ok=True)
            (self.log_dir / name).write_bytes(content)

    def _answers(self):
        """Whether the listener is open and the broker says that it serves."""
        try:
            socket.create_connection(self.address.split(":"), timeout=1).close()
        except OSError:
            return False
        return "Kafka Server started" in self.log_since_start()

    def log_text(self):
        """Everything that the broker has logged so far, and the output of the JVM."""
        files = (self.directory / "broker.out", self.log_file)
        return "".join(path.read_text(errors="replace") for path in files if path.exists())

    def log_since_start(self):
        """What it has logged since it was started last."""
        return self.log_text()[self._said_before :]

    def complaints(self):
        """The log's lines of level ERROR or FATAL, and of failed log directories, but for NO_COMPLAINTS."""
        return [
            line
            for line in self.log_text().splitlines()
            if (" ERROR " in line or " FATAL " in line or (" WARN " in line and "offline" in line.lower()))
            and not any(expected in line for expected in NO_COMPLAINTS)
        ]

    def stop(self, timeout=180):
        """A clean stop (SIGTERM): indexes are trimmed, .kafka_cleanshutdown is written."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout)
            self._process = None
            if self._new_archive is not None and self._new_archive.exists():
                self._new_archive.replace(BROKER_JARS.with_name(f"{BROKER_JARS.name}.jsa"))

    def kill(self):
        """kill -9, which leaves what a crash leaves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._new_archive is not None:  # it may not be whole
            self._new_archive.unlink(missing_ok=True)

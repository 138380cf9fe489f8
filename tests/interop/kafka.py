"""A real Kafka broker as a child process: the jars that tests/run.sh fetched, KRaft, one node, free ports.

Processes are ended by the Popen that started them, never by name.
"""

from __future__ import annotations

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
OLDER_VERSION = "3.9.1"
LATER_VERSION = "4.4.0"
# Of a broker for which a test names none.
BROKER_VERSION = os.environ.get("KAFKAFS_BROKER", VERSION)
CLUSTER_ID = "a2Fma2Fmcy1pbnRlcm9wLTE"


JARS = Path(os.environ.get("KAFKAFS_KAFKA") or DOWNLOADS / f"kafka-{VERSION}")
OLDER_JARS = DOWNLOADS / f"kafka-{OLDER_VERSION}"
LATER_JARS = DOWNLOADS / f"kafka-{LATER_VERSION}"
HAVE_KAFKA = bool(shutil.which("java")) and (JARS / f"kafka-clients-{VERSION}.jar").is_file()
HAVE_LATER_KAFKA = HAVE_KAFKA and (LATER_JARS / f"kafka-clients-{LATER_VERSION}.jar").is_file()
HAVE_OLDER_KAFKA = HAVE_KAFKA and (OLDER_JARS / f"kafka-clients-{OLDER_VERSION}.jar").is_file()
REQUIRED = os.environ.get("CI", "").lower() in ("true", "1")

_HAVE_BROKER = {VERSION: HAVE_KAFKA, OLDER_VERSION: HAVE_OLDER_KAFKA, LATER_VERSION: HAVE_LATER_KAFKA}[BROKER_VERSION]
requires_kafka = pytest.mark.skipif(
    not _HAVE_BROKER and not REQUIRED,
    reason=f"no Java, or no Kafka {VERSION} in {JARS}, or no {BROKER_VERSION} (tests/run.sh fetches them)",
)
requires_tiering = pytest.mark.skipif(
    BROKER_VERSION != VERSION
    or not ((HAVE_KAFKA and (JARS / f"kafka-storage-{VERSION}-test.jar").is_file()) or REQUIRED),
    reason=f"no Java, or no LocalTieredStorage of Kafka {VERSION} in {JARS} (tests/run.sh fetches it)",
)
requires_older_kafka = pytest.mark.skipif(
    not HAVE_OLDER_KAFKA and not REQUIRED, reason=f"no Kafka {OLDER_VERSION} in {OLDER_JARS} (tests/run.sh fetches it)"
)
requires_later_kafka = pytest.mark.skipif(
    not HAVE_LATER_KAFKA and not REQUIRED, reason=f"no Kafka {LATER_VERSION} in {LATER_JARS} (tests/run.sh fetches it)"
)

# With which kafka.Kafka ends when it cannot start, or loses its last log directory.
KAFKA_FAILED = 1

# For tests that start a broker, or another JVM: one worker runs them all (`--dist loadgroup`).
on_broker = [pytest.mark.broker, pytest.mark.xdist_group("broker")]

LOG4J = """\
Configuration:
  Appenders:
    File:
      name: File
      fileName: ${sys:kafkafs.log}
      PatternLayout:
        pattern: "%d %p %m (%c)%n%throwable"
  Loggers:
    Root:
      level: INFO
      AppenderRef:
        - ref: File
"""

# The same for Log4j 1, which Kafka had before 4.0.
OLDER_LOG4J = """\
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


# The files of a directory that Kafka has formatted, by release, node id and roles: the tool takes a JVM each time, and
# writes the same but for a random directory id.
_FORMATTED = {}

_ports = itertools.count(os.getpid() * 32)


def free_ports(count):
    """Free ports, which no other process will take before the broker does, or while it is stopped.

    They are below those that the system assigns to connections, and the tests of other processes begin elsewhere.
    """
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


def java(*arguments, heap="256m", options=(), jars=JARS):
    """The command line of one of Kafka's tools. With the client compiler only, because they run for seconds."""
    return [
        "java", f"-Xmx{heap}", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", *options,
        "-cp", f"{jars}/*", *map(str, arguments),
    ]  # fmt: skip


def run_tool(*arguments, timeout=120, jars=JARS):
    """Runs one of Kafka's tools, which must succeed; returns what it printed."""
    done = subprocess.run(java(*arguments, jars=jars), capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def dump_log_segments(*files, deep=True):
    """The output of Kafka's DumpLogSegments for `files`."""
    names = ",".join(map(str, files))
    more = ["--deep-iteration", "--print-data-log"] if deep else []
    return run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", names, *more)


class DidNotStart(Exception):
    """The broker has ended by itself, with Kafka's exit code and a log that says why, instead of starting."""


class Broker:
    """One KRaft node (broker and controller) over `directory`/log. `start` may follow `stop` or `kill`.

    `version`: VERSION, OLDER_VERSION or LATER_VERSION.
    """

    def __init__(self, directory, config=None, *, quick_jvm=True, version=BROKER_VERSION):
        self.version = version
        self.directory = directory
        self.log_dir = directory / "log"
        self.log_file = directory / "broker.log"
        self._config = {**QUICK, **(config or {})}
        self._jvm = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC") if quick_jvm else ("-XX:+UseG1GC",)
        self._process = None
        self._new_archive = None  # of classes, which the JVM writes when it ends
        self._port, self._controller_port = free_ports(2)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "log4j2.yaml").write_text(LOG4J)
        (directory / "log4j.properties").write_text(OLDER_LOG4J)
        self._properties = directory / "server.properties"
        self._write_properties()

    def reconfigure(self, config):
        """Changes settings from the next start on."""
        self._config |= config
        self._write_properties()

    @property
    def address(self):
        """host:port for bootstrap.servers."""
        return f"127.0.0.1:{self._port}"

    @property
    def controller_address(self):
        """host:port for controller.quorum.voters."""
        return f"127.0.0.1:{self._controller_port}"

    @property
    def pid(self):
        assert self._process is not None
        return self._process.pid

    @property
    def _settings(self):
        return {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": f"PLAINTEXT://127.0.0.1:{self._port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            **self._config,
        }

    def _write_properties(self):
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))

    def start(self, timeout=180):
        """Format the directory if it is new, start the broker, and wait until it answers. DidNotStart if it refuses to;
        a broker that says nothing, or not in time, fails the test."""
        self._format()
        logging = (
            f"-Dkafkafs.log={self.log_file}",
            f"-Dlog4j2.configurationFile={self.directory}/log4j2.yaml",
            f"-Dlog4j.configuration=file:{self.directory}/log4j.properties",
        )
        program = ["-cp", f"{self._jars}/*", "kafka.Kafka", str(self._properties)]
        command = ["java", "-Xmx512m", *self._jvm, *self._class_archive(), *logging, *program]
        said_before = len(self.log_text())
        with (self.directory / "broker.out").open("ab") as output:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + timeout
        while not self._answers(said_before):
            exit_code = self._process.poll()
            if exit_code is not None or time.monotonic() > deadline:
                self.kill()
                text = self.log_text()[said_before:]
                if exit_code == KAFKA_FAILED and self.log_file.exists() and (" ERROR " in text or " FATAL " in text):
                    raise DidNotStart(f"the broker did not start:\n{text[-4000:]}")
                ending = f"does not answer in {timeout} s" if exit_code is None else f"ended with exit code {exit_code}"
                raise AssertionError(f"the broker {ending}:\n{text[-4000:]}")
            time.sleep(0.1)
        return self

    def _class_archive(self):
        """Options of the JVM for an archive of Kafka's classes beside the jars, with which a start takes little more
        than half of the CPU time. The first broker that is stopped writes it. A JVM of another version goes without;
        it would say so, and which classes are not archived, in the broker's output."""
        archive = self._jars.with_name(f"{self._jars.name}.jsa")
        if archive.exists():
            return "-Xlog:disable", f"-XX:SharedArchiveFile={archive}"
        self._new_archive = archive.with_name(f"{archive.name}.{self._port}")
        return "-Xlog:disable", f"-XX:ArchiveClassesAtExit={self._new_archive}"

    def _format(self):
        if (self.log_dir / "meta.properties").exists():
            return
        place = (self.version, self._settings["node.id"], self._settings["process.roles"])
        if self._settings["log.dirs"] == str(self.log_dir) and place in _FORMATTED:
            for name, content in _FORMATTED[place].items():
                (self.log_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (self.log_dir / name).write_bytes(content)
            return
        run_tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", self._properties, jars=self._jars)
        if self._settings["log.dirs"] == str(self.log_dir):
            files = [path for path in self.log_dir.rglob("*") if path.is_file()]
            _FORMATTED[place] = {str(path.relative_to(self.log_dir)): path.read_bytes() for path in files}

    @property
    def _jars(self):
        return {VERSION: JARS, OLDER_VERSION: OLDER_JARS, LATER_VERSION: LATER_JARS}[self.version]

    def _answers(self, said_before):
        """Whether the listener is open and the broker says, after `said_before` characters of log, that it serves."""
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return "Kafka Server started" in self.log_text()[said_before:]

    def log_text(self):
        """Everything that the broker has logged so far, and the output of the JVM."""
        texts = [path.read_text(errors="replace") for path in (self.directory / "broker.out", self.log_file)
                 if path.exists()]  # fmt: skip
        return "".join(texts)

    def complaints(self):
        """The log's lines of level ERROR or FATAL, and those that report a failed log directory. Not that the broker
        was slow to reach its own controller, or to register it, as it is on a busy machine: it tries again."""
        return [
            line
            for line in self.log_text().splitlines()
            if (" ERROR " in line or " FATAL " in line or (" WARN " in line and "offline" in line.lower()))
            and "channel manager timed out before sending the request" not in line
            and "Unexpected error handling request RequestHeader(apiKey=CONTROLLER_REGISTRATION" not in line
        ]

    def stop(self, timeout=180):
        """A clean stop (SIGTERM): indexes are trimmed, .kafka_cleanshutdown is written."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(timeout)
            self._process = None
            if self._new_archive is not None and self._new_archive.exists():
                self._new_archive.replace(self._jars.with_name(f"{self._jars.name}.jsa"))

    def kill(self):
        """kill -9, which leaves what a crash leaves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._new_archive is not None:  # it may not be whole
            self._new_archive.unlink(missing_ok=True)

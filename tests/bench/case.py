"""What a benchmark case is handed: where its rows go, and how much it is to measure."""

import sys
from dataclasses import dataclass

from tests.bench import data
from tests.bench.measure import Report


@dataclass(frozen=True, slots=True)
class Context:
    """One invocation's. `runs` of `messages` messages each; `gigabytes`: the size of the large partition."""

    report: Report
    messages: int
    runs: int
    gigabytes: float

    @property
    def size(self):
        """Bytes of the messages as lines."""
        return self.messages * (data.VALUE_BYTES + 1)

    @property
    def log_dir(self):
        """The log directory that holds `data.PARTITIONS`; made by the first case that asks."""
        for partition in data.PARTITIONS:
            if not data.made(partition, self.messages):
                say(f"data: {partition}")
            log_dir = data.make(partition, self.messages)
        return log_dir


def say(what):
    """Progress, for whoever waits."""
    sys.stderr.write(f"== {what}\n")

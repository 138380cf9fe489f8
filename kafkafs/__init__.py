"""Kafka log directories in Python, without a broker: `kafkafs.open` (kafkafs/CONTRACT.md, "From Python").

The classes are imported on first use: `import kafkafs` costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafs.arrow.keywords import checked_keywords

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kafkafs.arrow.arguments import AnyPath, Paths
    from kafkafs.arrow.opened_log import Log, Message, Partition, Topic
    from kafkafs.arrow.scan import Scan

__all__ = ["Log", "Message", "Partition", "Scan", "Topic", "open"]


@checked_keywords()
def open(
    path: Paths,
    *,
    isolation: str = "read_uncommitted",
    schemas: Paths | None = None,
    tier: Paths | None = None,
    tier_keys: Mapping[str, AnyPath] | None = None,
) -> Log:
    """Open a log directory for reading, or several as one log: those of a broker, or of a cluster's brokers.

    `isolation`: "read_uncommitted" or "read_committed". `schemas`: where the schemas are, if not in the topic _schemas:
    a directory, the schema of a topic as "TOPIC=FILE[:MESSAGE]", or several of them.
    `tier`: where remote segments are, a directory or a URL, or several of them; `tier_keys`: PEM files of private keys
    by their id. Raises ValueError for an invalid argument; NotALogDir, OSError.
    """
    from kafkafs.arrow.opened_log import open_log

    return open_log(path, isolation, schemas, tier, tier_keys)


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'kafkafs' has no attribute {name!r}")
    from kafkafs.arrow import opened_log

    value: object = getattr(opened_log, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Kafka log directories in Python, without a broker: `kafkafs.open` (kafkafs/CONTRACT.md, "From Python")."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from kafkafs.arrow.opened_log import Log, Paths

__all__ = ["open"]


def open(
    path: Paths,
    *,
    isolation: str = "read_uncommitted",
    schemas: str | os.PathLike[str] | None = None,
    tier: object = None,
) -> Log:
    """Opens a log directory for reading, or several that are read as one: those of a broker, or of a cluster's brokers.

    `isolation`: "read_uncommitted" or "read_committed". `schemas`: where the schemas are, if not in the topic _schemas.
    `tier`: reserved. NotALogDir, InvalidOption, OSError.
    """
    from kafkafs.arrow.opened_log import open_log

    return open_log(path, isolation, schemas, tier)

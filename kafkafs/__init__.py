"""Kafka log directories in Python, without a broker: `kafkafs.open` (kafkafs/CONTRACT.md, "From Python")."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from kafkafs.arrow.opened_log import Log, Paths

__all__ = ["open"]


def open(
    path: Paths,
    *,
    isolation: str = "read_uncommitted",
    schemas: str | os.PathLike[str] | None = None,
    tier: Paths | None = None,
    tier_keys: Mapping[str, str | os.PathLike[str]] | None = None,
) -> Log:
    """Opens a log directory for reading, or several that are read as one: those of a broker, or of a cluster's brokers.

    `isolation`: "read_uncommitted" or "read_committed". `schemas`: where the schemas are, if not in the topic _schemas.
    `tier`: where remote segments are, a directory or a URL, or several of them; `tier_keys`: PEM files of private keys
    by their id. NotALogDir, InvalidOption, OSError.
    """
    from kafkafs.arrow.opened_log import open_log

    return open_log(path, isolation, schemas, tier, tier_keys)

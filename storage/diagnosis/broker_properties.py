"""The parts of a broker's server.properties about its log directories and its node."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from storage.config import BrokerConfig
from storage.errors import InvalidConfig
from storage.files.opening import real_place
from storage.files.small_files import read_existing
from storage.format import properties

_KRAFT_ROLES = frozenset({"broker", "controller"})


@dataclass(frozen=True, slots=True)
class BrokerProperties:
    """`node_id`: None if it is not set. `metadata_dir`: the place of the metadata log. `is_kraft`: process.roles is
    set. `is_tiered`: tiered storage is configured. `has_others`: the node is not the only controller. `config`: the
    defaults of topics; Kafka's own if the file's do not parse."""

    path: Path
    node_id: int | None
    log_dirs: tuple[Path, ...]
    metadata_dir: Path | None
    is_kraft: bool
    is_tiered: bool
    has_others: bool
    config: BrokerConfig


def read(path: Path) -> BrokerProperties:
    """Read a server.properties. OSError; CorruptCheckpoint; InvalidConfig for a node id that is not a number."""
    found = properties.parse(read_existing(real_place(path)), path)
    text = found.get("node.id", found.get("broker.id"))
    try:
        node_id = None if text is None or not text.strip() else int(text)
    except ValueError:
        raise InvalidConfig("node.id is no number", path=path, found=repr(text)) from None
    listed = found.get("log.dirs") or found.get("log.dir") or "/tmp/kafka-logs"
    log_dirs = tuple(Path(part.strip()) for part in listed.split(",") if part.strip())
    roles = {role.strip() for role in found.get("process.roles", "").split(",")} & _KRAFT_ROLES
    metadata_dir = found.get("metadata.log.dir", "").strip()
    try:
        config = BrokerConfig.from_values(found)
    except InvalidConfig:
        config = BrokerConfig()
    voters = found.get("controller.quorum.voters") or found.get("controller.quorum.bootstrap.servers") or ""
    return BrokerProperties(
        path,
        node_id if node_id is None or node_id >= 0 else None,
        log_dirs,
        Path(metadata_dir) if metadata_dir else (log_dirs[0] if log_dirs else None),
        bool(roles),
        found.get("remote.log.storage.system.enable", "").strip().lower() == "true",
        bool(roles) and ("controller" not in roles or "," in voters.strip(", ")),
        config,
    )

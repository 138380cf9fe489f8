"""The cluster whose logs a copy has.

A copy has the logs of one cluster: its groups and metadata are of one, and two clusters may have topics of one name.
Directories that are not a broker's keep the id in `mirror.properties`, backups in an object store in their manifest.
"""

from __future__ import annotations

from contextlib import suppress

from storage.errors import CorruptCheckpoint, InvalidRecord
from storage.files import meta_properties, names
from storage.files.small_files import read_whole
from storage.format import properties
from storage.log.log_dir import LogDir
from storage.log.stored_dir import backup_at

_KEY = "cluster.id"  # as in meta.properties
_COMMENT = "The cluster whose logs were copied here, kept by kafkafs; brokers ignore this file"


def cluster_id_of(log_dir: LogDir) -> str | None:
    """The id of the cluster that a broker's directory belongs to, or whose logs a copy has; None if it is unknown.
    OSError."""
    if log_dir.is_stored:
        return backup_at(log_dir.path).manifest.cluster_id
    with suppress(CorruptCheckpoint):  # the messages deserve a backup all the same
        meta = meta_properties.read(log_dir.path / names.META_PROPERTIES)
        if meta is not None:
            return meta.cluster_id
        path = log_dir.path / names.MIRROR_PROPERTIES
        data = read_whole(path)
        return None if data is None else properties.parse(data, path).get(_KEY)
    return None


def encode(cluster_id: str) -> bytes:
    """The bytes of a mirror.properties."""
    return properties.encode({_KEY: cluster_id}, [_COMMENT])


def check_cluster(source: LogDir, copied: str | None) -> str | None:
    """Return the id of the source's cluster. InvalidRecord if a copy has the logs of another one, `copied`."""
    cluster_id = cluster_id_of(source)
    if None not in (cluster_id, copied) and cluster_id != copied:
        raise InvalidRecord(
            "belongs to another cluster than the logs that were copied before",
            path=source.path,
            expected=f"cluster id {copied}",
            found=cluster_id,
            advice="Mirror into another place",
        )
    return cluster_id

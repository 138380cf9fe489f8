"""The features of a new cluster: the old cluster's, a release's defaults, or those that the data's formats need.

Without them a broker starts and then refuses its own data: a transactional id whose last record names a transaction
version cannot begin another transaction in a cluster without that feature. Source: Kafka's Feature, MetadataVersion,
and the output of `kafka-storage version-mapping` and `feature-dependencies` of Kafka 4.3.0 and 4.4.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from storage.errors import InvalidConfig

METADATA_VERSION: Final = "metadata.version"
TRANSACTION_VERSION: Final = "transaction.version"
GROUP_VERSION: Final = "group.version"
SHARE_VERSION: Final = "share.version"
STREAMS_VERSION: Final = "streams.version"
ELIGIBLE_LEADER_REPLICAS: Final = "eligible.leader.replicas.version"

# 3.9-IV0: brokers 3.9 and 4.x start with it, and more than 10,000 records are appended in several batches.
LEAST_METADATA_VERSION: Final = 21

_SINCE_4_0: Final = {METADATA_VERSION: 25, TRANSACTION_VERSION: 2, GROUP_VERSION: 1}
_SINCE_4_1: Final = {**_SINCE_4_0, METADATA_VERSION: 27, ELIGIBLE_LEADER_REPLICAS: 1}
_SINCE_4_2: Final = {**_SINCE_4_1, METADATA_VERSION: 29, SHARE_VERSION: 1, STREAMS_VERSION: 1}
RELEASES: Final[Mapping[str, Mapping[str, int]]] = {
    "3.9": {METADATA_VERSION: LEAST_METADATA_VERSION},
    "4.0": _SINCE_4_0,
    "4.1": _SINCE_4_1,
    "4.2": _SINCE_4_2,
    "4.3": {**_SINCE_4_2, METADATA_VERSION: 30},
    "4.4": {**_SINCE_4_2, METADATA_VERSION: 33, SHARE_VERSION: 2},
}


def features(known: Mapping[str, int], needed: Iterable[str], release: str | None) -> dict[str, int]:
    """Return levels by name. `known`: the old cluster's, empty if unknown; `needed`: the names of features whose
    formats are in the data; `release`: one of RELEASES, whose levels replace the known ones.

    If neither is given, the levels of the first release that has all needed features. InvalidConfig if `release` lacks
    one.
    """
    needed_names = set(needed)
    if release is not None:
        lacking = needed_names - RELEASES[release].keys()
        if lacking:
            raise InvalidConfig(
                f"the data need {', '.join(sorted(lacking))}, which Kafka {release} does not have",
                expected=f"release {_first_with(needed_names)} or later",
                found=release,
            )
        return dict(RELEASES[release])
    if known:
        return {**known, METADATA_VERSION: max(known.get(METADATA_VERSION, 0), LEAST_METADATA_VERSION)}
    levels = RELEASES[_first_with(needed_names)]
    return {name: levels[name] for name in (METADATA_VERSION, *sorted(needed_names))}


def _first_with(needed: set[str]) -> str:
    return next(release for release, levels in RELEASES.items() if needed <= levels.keys())

"""The surroundings of a broker that tests/interop/predictions.py starts: a tier, or another node."""

from contextlib import contextmanager

from tests.interop.kafka import Broker

TIER = "tier"
_TIERED = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.manager.task.interval.ms": "500",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
}


@contextmanager
def surroundings(kind, place):
    """Yield the settings of a broker of this kind. `place` has what is around it, which may be empty at first."""
    place.mkdir(exist_ok=True)
    if kind == "tiered":
        (place / TIER).mkdir(exist_ok=True)
        yield {**_TIERED, "rsm.config.dir": str(place / TIER)}
    elif kind == "nodes":
        with Broker(place / "node3") as other:
            voters = {"controller.quorum.voters": f"3@{other.controller_address}"}
            other.reconfigure({"node.id": "3", **voters})
            other.start()
            yield {"process.roles": "broker", **voters}
    else:
        yield {}

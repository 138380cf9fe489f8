"""Configuration keys as data: each has a name, a type, a default, a rule for its values, and broker-level names.

A key is declared once, as the field of a frozen dataclass made by `key()`; reading, checking and showing values works
from that declaration. Types and rules are those of Kafka 4.3's ConfigDef.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from storage.errors import InvalidConfig

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1

_INTEGER = re.compile(r"([+-]?)0*([0-9]{1,19})")
_DECIMAL = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


class ValueKind(NamedTuple):
    """A type of value: `parse` returns the value of a text or raises ValueError, `show` returns the text of a value."""

    name: str
    parse: Callable[[str], Any]
    show: Callable[[Any], str] = str


def _integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        match = _INTEGER.fullmatch(text)
        if match is None or not minimum <= (number := int(match[1] + match[2])) <= maximum:
            raise ValueError(text)
        return number

    return parse


def _double(text: str) -> float:
    if _DECIMAL.fullmatch(text) is None:
        raise ValueError(text)
    return float(text)


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _list(text: str) -> tuple[str, ...]:
    # Repeated entries count once; an empty text is an empty list (ConfigDef.parseType).
    return tuple(dict.fromkeys(re.split(r"\s*,\s*", text))) if text else ()


INT = ValueKind("32-bit integer", _integer(-MAX_INT - 1, MAX_INT))
LONG = ValueKind("64-bit integer", _integer(-MAX_LONG - 1, MAX_LONG))
DOUBLE = ValueKind("number", _double)
BOOLEAN = ValueKind("boolean, true or false", _boolean, lambda value: "true" if value else "false")
STRING = ValueKind("text", lambda text: text)
LIST = ValueKind("comma-separated list", _list, ",".join)


class Rule(NamedTuple):
    """The values of its type that a key accepts; `text` completes "expected …"."""

    text: str
    holds: Callable[[Any], bool]


ANY = Rule("", lambda value: True)


def at_least(minimum: int) -> Rule:
    """Numbers from `minimum` on."""
    return Rule(f"at least {minimum}", lambda value: bool(value >= minimum))


def between(minimum: float, maximum: float) -> Rule:
    """Numbers from `minimum` to `maximum`, both included."""
    return Rule(f"from {minimum} to {maximum}", lambda value: bool(minimum <= value <= maximum))


def one_of(*names: str) -> Rule:
    """One of these texts."""
    return Rule(f"one of {', '.join(names)}", lambda value: value in names)


def some_of(*names: str) -> Rule:
    """A list of some of these texts."""
    return Rule(f"of {', '.join(names)}", lambda value: set(value) <= set(names))


class Synonym(NamedTuple):
    """Another name for a key, possibly with another unit: `to_value` converts its value to the key's."""

    name: str
    kind: ValueKind
    to_value: Callable[[Any], Any]
    rule: Rule = ANY


class Key(NamedTuple):
    """A configuration key. `broker`: its broker-level names, highest precedence first."""

    name: str
    field: str
    kind: ValueKind
    rule: Rule
    default: Any
    doc: str
    broker: tuple[Synonym, ...] = ()

    def parse(self, text: str) -> Any:
        """The value of a text without surrounding white space. InvalidConfig when the key does not accept it."""
        return parse_value(self.name, self.kind, self.rule, text)

    def show(self, value: Any) -> str:
        """The text of a value."""
        return self.kind.show(value)


def parse_value(name: str, kind: ValueKind, rule: Rule, text: str) -> Any:
    """The value of a text for the key `name`. InvalidConfig when it is not of this kind or breaks the rule."""
    try:
        value = kind.parse(text.strip())
    except (ValueError, KeyError):
        valid = False
    else:
        valid = rule.holds(value)
    if valid:
        return value
    article = "an" if kind.name[0] in "aeio" else "a"
    expected = " ".join(part for part in (f"{article} {kind.name}", rule.text) if part)
    raise InvalidConfig(f"invalid value for {name}", expected=expected, found=repr(text))


def key(
    name: str, kind: ValueKind, default: Any, rule: Rule, doc: str, *, broker: str | tuple[str | Synonym, ...] = ()
) -> Any:
    """A dataclass field that holds the value of a configuration key.

    `broker`: its broker-level names, highest precedence first; a plain name has the key's own type, rule and unit.
    """
    names = (broker,) if isinstance(broker, str) else broker
    synonyms = tuple(
        Synonym(entry, kind, lambda value: value, rule) if isinstance(entry, str) else entry for entry in names
    )
    return dataclasses.field(default=default, metadata={"key": Key(name, "", kind, rule, default, doc, synonyms)})


def keys_of(config: type) -> Mapping[str, Key]:
    """The keys that a dataclass declares, by name, in its order."""
    keys = {}
    for field in dataclasses.fields(config):
        declared = field.metadata.get("key")
        if declared is not None:
            keys[declared.name] = declared._replace(field=field.name)
    return keys


# The names of all configuration keys of Kafka, to distinguish unknown keys from those that kafkafs does not use.
#
# Topic and broker level: the definitions of Kafka 4.3.0 (LogConfig, AbstractKafkaConfig), further keys of releases from
# 0.10 to 3.9, dynamic broker keys, and the keys of the plug-ins that ship with Kafka.

_TOPIC_KEYS = """
    cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    delete.retention.ms file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas
    index.interval.bytes internal.segment.bytes leader.replication.throttled.replicas local.retention.bytes
    local.retention.ms max.compaction.lag.ms max.message.bytes message.downconversion.enable message.format.version
    message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.difference.max.ms
    message.timestamp.type min.cleanable.dirty.ratio min.compaction.lag.ms min.insync.replicas preallocate
    remote.log.copy.disable remote.log.delete.on.disable remote.storage.enable retention.bytes retention.ms
    segment.bytes segment.index.bytes segment.jitter.ms segment.ms unclean.leader.election.enable
"""

_BROKER_KEYS_4_3 = """
    add.partitions.to.txn.retry.backoff.max.ms add.partitions.to.txn.retry.backoff.ms advertised.listeners
    alter.config.policy.class.name alter.log.dirs.replication.quota.window.num
    alter.log.dirs.replication.quota.window.size.seconds authorizer.class.name auto.create.topics.enable
    auto.leader.rebalance.enable background.threads broker.heartbeat.interval.ms broker.id broker.rack
    broker.session.timeout.ms client.quota.callback.class compression.gzip.level compression.lz4.level
    compression.type compression.zstd.level config.providers connection.failed.authentication.delay.ms
    connections.max.idle.ms connections.max.reauth.ms controlled.shutdown.enable controller.listener.names
    controller.performance.always.log.threshold.ms controller.performance.sample.period.ms
    controller.quorum.append.linger.ms controller.quorum.auto.join.enable controller.quorum.bootstrap.servers
    controller.quorum.election.backoff.max.ms controller.quorum.election.timeout.ms
    controller.quorum.fetch.max.bytes controller.quorum.fetch.snapshot.max.bytes controller.quorum.fetch.timeout.ms
    controller.quorum.request.timeout.ms controller.quorum.retry.backoff.ms controller.quorum.voters
    controller.quota.window.num controller.quota.window.size.seconds controller.socket.timeout.ms cordoned.log.dirs
    create.topic.policy.class.name default.replication.factor delegation.token.expiry.check.interval.ms
    delegation.token.expiry.time.ms delegation.token.max.lifetime.ms delegation.token.secret.key
    delete.records.purgatory.purge.interval.requests delete.topic.enable early.start.listeners fetch.max.bytes
    fetch.purgatory.purge.interval.requests follower.fetch.last.tiered.offset.enable
    group.consumer.assignment.interval.ms group.consumer.assignors group.consumer.heartbeat.interval.ms
    group.consumer.max.assignment.interval.ms group.consumer.max.heartbeat.interval.ms
    group.consumer.max.session.timeout.ms group.consumer.max.size group.consumer.migration.policy
    group.consumer.min.assignment.interval.ms group.consumer.min.heartbeat.interval.ms
    group.consumer.min.session.timeout.ms group.consumer.regex.refresh.interval.ms group.consumer.session.timeout.ms
    group.coordinator.append.linger.ms group.coordinator.background.threads
    group.coordinator.cached.buffer.max.bytes group.coordinator.rebalance.protocols group.coordinator.threads
    group.initial.rebalance.delay.ms group.max.session.timeout.ms group.max.size group.min.session.timeout.ms
    group.share.assignment.interval.ms group.share.assignors group.share.delivery.count.limit
    group.share.heartbeat.interval.ms group.share.initialize.retry.interval.ms
    group.share.max.assignment.interval.ms group.share.max.delivery.count.limit
    group.share.max.heartbeat.interval.ms group.share.max.partition.max.record.locks
    group.share.max.record.lock.duration.ms group.share.max.session.timeout.ms group.share.max.share.sessions
    group.share.max.size group.share.min.assignment.interval.ms group.share.min.delivery.count.limit
    group.share.min.heartbeat.interval.ms group.share.min.partition.max.record.locks
    group.share.min.record.lock.duration.ms group.share.min.session.timeout.ms
    group.share.partition.max.record.locks group.share.persister.class.name group.share.record.lock.duration.ms
    group.share.session.timeout.ms group.streams.assignment.interval.ms group.streams.heartbeat.interval.ms
    group.streams.initial.rebalance.delay.ms group.streams.max.assignment.interval.ms
    group.streams.max.heartbeat.interval.ms group.streams.max.session.timeout.ms group.streams.max.size
    group.streams.max.standby.replicas group.streams.min.assignment.interval.ms
    group.streams.min.heartbeat.interval.ms group.streams.min.session.timeout.ms group.streams.num.standby.replicas
    group.streams.session.timeout.ms initial.broker.registration.timeout.ms inter.broker.listener.name
    internal.metadata.delete.delay.millis internal.metadata.log.segment.bytes
    internal.metadata.max.batch.size.in.bytes kafka.metrics.polling.interval.secs kafka.metrics.reporters
    leader.imbalance.check.interval.seconds listener.security.protocol.map listeners log.cleaner.backoff.ms
    log.cleaner.dedupe.buffer.size log.cleaner.delete.retention.ms log.cleaner.enable
    log.cleaner.io.buffer.load.factor log.cleaner.io.buffer.size log.cleaner.io.max.bytes.per.second
    log.cleaner.max.compaction.lag.ms log.cleaner.min.cleanable.ratio log.cleaner.min.compaction.lag.ms
    log.cleaner.threads log.cleanup.policy log.dir log.dir.failure.timeout.ms log.dirs log.flush.interval.messages
    log.flush.interval.ms log.flush.offset.checkpoint.interval.ms log.flush.scheduler.interval.ms
    log.flush.start.offset.checkpoint.interval.ms log.index.interval.bytes log.index.size.max.bytes
    log.initial.task.delay.ms log.local.retention.bytes log.local.retention.ms log.message.timestamp.after.max.ms
    log.message.timestamp.before.max.ms log.message.timestamp.type log.preallocate log.retention.bytes
    log.retention.check.interval.ms log.retention.hours log.retention.minutes log.retention.ms log.roll.hours
    log.roll.jitter.hours log.roll.jitter.ms log.roll.ms log.segment.bytes log.segment.delete.delay.ms
    max.connection.creation.rate max.connections max.connections.per.ip max.connections.per.ip.overrides
    max.incremental.fetch.session.cache.slots max.request.partition.size.limit message.max.bytes metadata.log.dir
    metadata.log.max.record.bytes.between.snapshots metadata.log.max.snapshot.interval.ms metadata.log.segment.bytes
    metadata.log.segment.ms metadata.max.idle.interval.ms metadata.max.retention.bytes metadata.max.retention.ms
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms min.insync.replicas
    node.id num.io.threads num.network.threads num.partitions num.recovery.threads.per.data.dir
    num.replica.alter.log.dirs.threads num.replica.fetchers offset.metadata.max.bytes offsets.commit.timeout.ms
    offsets.load.buffer.size offsets.retention.check.interval.ms offsets.retention.minutes
    offsets.topic.compression.codec offsets.topic.num.partitions offsets.topic.replication.factor
    offsets.topic.segment.bytes principal.builder.class process.roles producer.id.expiration.check.interval.ms
    producer.id.expiration.ms producer.purgatory.purge.interval.requests queued.max.request.bytes
    queued.max.requests quota.window.num quota.window.size.seconds remote.fetch.max.wait.ms
    remote.list.offsets.request.timeout.ms remote.log.index.file.cache.total.size.bytes
    remote.log.index.file.cache.ttl.ms remote.log.manager.copier.thread.pool.size
    remote.log.manager.copy.max.bytes.per.second remote.log.manager.copy.quota.window.num
    remote.log.manager.copy.quota.window.size.seconds remote.log.manager.expiration.thread.pool.size
    remote.log.manager.fetch.max.bytes.per.second remote.log.manager.fetch.quota.window.num
    remote.log.manager.fetch.quota.window.size.seconds remote.log.manager.follower.thread.pool.size
    remote.log.manager.task.interval.ms remote.log.manager.task.retry.backoff.max.ms
    remote.log.manager.task.retry.backoff.ms remote.log.manager.task.retry.jitter
    remote.log.manager.thread.pool.size remote.log.metadata.custom.metadata.max.bytes
    remote.log.metadata.manager.class.name remote.log.metadata.manager.class.path
    remote.log.metadata.manager.impl.prefix remote.log.metadata.manager.listener.name
    remote.log.reader.max.pending.tasks remote.log.reader.threads remote.log.storage.manager.class.name
    remote.log.storage.manager.class.path remote.log.storage.manager.impl.prefix remote.log.storage.system.enable
    replica.fetch.backoff.ms replica.fetch.max.bytes replica.fetch.min.bytes replica.fetch.response.max.bytes
    replica.fetch.wait.max.ms replica.high.watermark.checkpoint.interval.ms replica.lag.time.max.ms
    replica.selector.class replica.socket.receive.buffer.bytes replica.socket.timeout.ms
    replication.quota.window.num replication.quota.window.size.seconds request.timeout.ms
    sasl.client.callback.handler.class sasl.enabled.mechanisms sasl.jaas.config sasl.kerberos.kinit.cmd
    sasl.kerberos.min.time.before.relogin sasl.kerberos.principal.to.local.rules sasl.kerberos.service.name
    sasl.kerberos.ticket.renew.jitter sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class
    sasl.login.class sasl.login.connect.timeout.ms sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds
    sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor sasl.login.refresh.window.jitter
    sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism.controller.protocol
    sasl.mechanism.inter.broker.protocol sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud
    sasl.oauthbearer.assertion.claim.exp.seconds sasl.oauthbearer.assertion.claim.iss
    sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
    sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
    sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file
    sasl.oauthbearer.client.credentials.client.id sasl.oauthbearer.client.credentials.client.secret
    sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience sasl.oauthbearer.expected.issuer
    sasl.oauthbearer.jwks.endpoint.refresh.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms
    sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
    sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope
    sasl.oauthbearer.scope.claim.name sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url
    sasl.server.callback.handler.class sasl.server.max.receive.size security.inter.broker.protocol
    security.providers server.max.startup.time.ms share.coordinator.append.linger.ms
    share.coordinator.cached.buffer.max.bytes share.coordinator.cold.partition.snapshot.interval.ms
    share.coordinator.load.buffer.size share.coordinator.snapshot.update.records.per.snapshot
    share.coordinator.state.topic.compression.codec share.coordinator.state.topic.min.isr
    share.coordinator.state.topic.num.partitions share.coordinator.state.topic.prune.interval.ms
    share.coordinator.state.topic.replication.factor share.coordinator.state.topic.segment.bytes
    share.coordinator.threads share.coordinator.write.timeout.ms share.fetch.purgatory.purge.interval.requests
    socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms socket.listen.backlog.size
    socket.receive.buffer.bytes socket.request.max.bytes socket.send.buffer.bytes ssl.allow.dn.changes
    ssl.allow.san.changes ssl.cipher.suites ssl.client.auth ssl.enabled.protocols
    ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm
    ssl.keystore.certificate.chain ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type
    ssl.principal.mapping.rules ssl.protocol ssl.provider ssl.secure.random.implementation
    ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
    ssl.truststore.type telemetry.max.bytes transaction.abort.timed.out.transaction.cleanup.interval.ms
    transaction.max.timeout.ms transaction.partition.verification.enable
    transaction.remove.expired.transaction.cleanup.interval.ms transaction.state.log.load.buffer.size
    transaction.state.log.min.isr transaction.state.log.num.partitions transaction.state.log.replication.factor
    transaction.state.log.segment.bytes transaction.two.phase.commit.enable transactional.id.expiration.ms
    unclean.leader.election.enable unclean.leader.election.interval.ms unstable.api.versions.enable
    unstable.feature.versions.enable
"""

_OTHER_BROKER_KEYS = """
    advertised.host.name advertised.port allow.everyone.if.no.acl.found broker.id.generation.enable
    control.plane.listener.name controlled.shutdown.max.retries controlled.shutdown.retry.backoff.ms
    delegation.token.master.key eligible.leader.replicas.enable follower.replication.throttled.rate
    group.coordinator.new.enable group.share.enable group.share.max.groups host.name inter.broker.protocol.version
    kafka.csv.metrics.dir kafka.csv.metrics.reporter.enabled leader.imbalance.per.broker.percentage
    leader.replication.throttled.rate log.message.downconversion.enable log.message.format.version
    log.message.timestamp.difference.max.ms max.id.map.snapshots metadata.log.segment.min.bytes metrics.jmx.exclude
    metrics.jmx.include offsets.commit.required.acks password.encoder.cipher.algorithm password.encoder.iterations
    password.encoder.key.length password.encoder.keyfactory.algorithm password.encoder.old.secret
    password.encoder.secret port quota.consumer.default quota.producer.default
    replica.alter.log.dirs.io.max.bytes.per.second reserved.broker.max.id sasl.oauthbearer.header.urlencode
    super.users unstable.metadata.versions.enable zookeeper.client.secure zookeeper.connect
    zookeeper.connection.timeout.ms zookeeper.max.in.flight.requests zookeeper.metadata.migration.enable
    zookeeper.metadata.migration.min.batch.size zookeeper.session.timeout.ms zookeeper.set.acl
    zookeeper.ssl.cipher.suites zookeeper.ssl.client.enable zookeeper.ssl.crl.enable zookeeper.ssl.enabled.protocols
    zookeeper.ssl.endpoint.identification.algorithm zookeeper.ssl.keystore.location zookeeper.ssl.keystore.password
    zookeeper.ssl.keystore.type zookeeper.ssl.ocsp.enable zookeeper.ssl.protocol zookeeper.ssl.truststore.location
    zookeeper.ssl.truststore.password zookeeper.ssl.truststore.type zookeeper.sync.time.ms
"""

TOPIC_KEYS = frozenset(_TOPIC_KEYS.split())
BROKER_KEYS = frozenset((*_BROKER_KEYS_4_3.split(), *_OTHER_BROKER_KEYS.split()))

# Keys with these prefixes belong to listeners, plug-ins and their clients: their names are not fixed.
BROKER_PREFIXES = ("listener.name.", "config.providers.", "rlmm.config.", "rsm.config.", "zookeeper.")


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most similar to `name`; None when none is similar."""
    import difflib

    found = difflib.get_close_matches(name.strip().lower().replace("_", "."), candidates, n=1, cutoff=0.7)
    return found[0] if found else None

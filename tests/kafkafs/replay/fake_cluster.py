"""A cluster in memory behind the names of confluent-kafka: it appends what is produced, and fails where a test says."""

import sys
from types import ModuleType, SimpleNamespace
from typing import NamedTuple


class Killed(BaseException):
    """The process is killed: nothing runs after it."""


class Stored(NamedTuple):
    """A message at the cluster, with the methods of the library's."""

    at: int
    stamp: int
    raw_key: bytes | None
    raw_value: bytes | None
    pairs: tuple

    def error(self):
        return None

    def offset(self):
        return self.at

    def timestamp(self):
        return 1, self.stamp

    def key(self):
        return self.raw_key

    def value(self):
        return self.raw_value

    def headers(self):
        return list(self.pairs)

    @property
    def content(self):
        return self.stamp, self.raw_key, self.raw_value, self.pairs


class Log:
    """A partition. `start`: where retention has it begin."""

    def __init__(self):
        self.messages, self.end, self.start = [], 0, 0

    def append(self, timestamp, key, value, headers):
        self.messages.append(Stored(self.end, timestamp, key, value, tuple(headers)))
        self.end += 1
        return self.messages[-1]


class FakeError:
    MSG_SIZE_TOO_LARGE = "MSG_SIZE_TOO_LARGE"

    def __init__(self, name, text="refused"):
        self._name, self._text = name, text

    def name(self):
        return self._name

    def str(self):
        return self._text


class FakeException(Exception):
    pass


class FakeCluster:
    """Topics, the offsets of groups, and which groups are `active`. `acknowledged`: after so many acknowledgements the
    process is killed; `unseen`: so many messages more are appended before. `late`: called before an append. `refused`:
    the errors of the next questions for the end of a log."""

    def __init__(self):
        self.logs, self.config, self.groups, self.created = {}, {}, {}, {}
        self.acknowledged = self.unseen = self.late = None
        self.active, self.producers, self.refused = set(), [], []

    def topic(self, name, partitions=1, **config):
        self.logs |= {(name, number): Log() for number in range(partitions)}
        self.config[name] = {key.replace("_", "."): text for key, text in config.items()}
        return self.logs[name, 0]

    def kill_after(self, acknowledged, unseen=0):
        self.acknowledged, self.unseen = acknowledged, unseen

    def install(self, monkeypatch):
        library, admin = ModuleType("confluent_kafka"), ModuleType("confluent_kafka.admin")
        for name, kind in (("Producer", FakeProducer), ("Consumer", FakeConsumer)):
            setattr(library, name, lambda config, kind=kind: kind(self, config))
        library.KafkaError = FakeError
        library.KafkaException, library.admin = FakeException, admin
        library.TopicPartition = lambda *fields: SimpleNamespace(
            **dict(zip(("topic", "partition", "offset", "metadata"), fields, strict=True)), error=None
        )
        library.ConsumerGroupTopicPartitions = lambda group, places: SimpleNamespace(
            group_id=group, topic_partitions=places
        )
        admin.AdminClient = lambda _config: FakeAdmin(self)
        admin.ConfigResource = _Resource
        admin.NewTopic = lambda name, partitions, config: SimpleNamespace(
            name=name, partitions=partitions, config=config
        )
        monkeypatch.setitem(sys.modules, "confluent_kafka", library)
        monkeypatch.setitem(sys.modules, "confluent_kafka.admin", admin)
        return self


_LED = SimpleNamespace(leader=1)


class _Resource(NamedTuple):
    Type = SimpleNamespace(TOPIC="topic")
    kind: str
    name: str


class Answer:
    """A future that is done."""

    def __init__(self, value=None, error=None):
        self._value, self._error = value, error

    def result(self, _timeout=None):
        if self._error is not None:
            raise FakeException(self._error)
        return self._value


class FakeAdmin:
    def __init__(self, cluster):
        self._cluster = cluster

    def poll(self, _timeout_s):
        return 0

    def list_topics(self, timeout):
        assert timeout > 0
        topics = {}
        for name, number in self._cluster.logs:
            topics.setdefault(name, SimpleNamespace(partitions={})).partitions[number] = _LED
        return SimpleNamespace(topics=topics, cluster_id="fake")

    def describe_configs(self, resources, **_options):
        def entries(name):
            config = self._cluster.config[name]
            return {key: SimpleNamespace(name=key, value=text) for key, text in config.items()}

        return {resource: Answer(entries(resource.name)) for resource in resources}

    def create_topics(self, topics, **_options):
        (topic,) = topics
        self._cluster.topic(topic.name, topic.partitions)
        self._cluster.config[topic.name] = topic.config
        self._cluster.created[topic.name] = topic.partitions, topic.config
        return {topic.name: Answer()}

    def alter_consumer_group_offsets(self, requests):
        (request,) = requests
        if request.group_id in self._cluster.active:
            return {request.group_id: Answer(error=FakeError("UNKNOWN_MEMBER_ID", "has members"))}
        self._cluster.groups[request.group_id] = {
            (place.topic, place.partition): (place.offset, place.metadata) for place in request.topic_partitions
        }
        return {request.group_id: Answer(request)}


class FakeProducer:
    """Appends and acknowledges when it is polled, in order. With `enable.gapless.guarantee` everything fails behind a
    message that failed."""

    def __init__(self, cluster, config):
        assert (config["acks"], config["enable.idempotence"]) == ("all", True)
        self._cluster, self._config, self._waiting, self._fatal = cluster, config, [], False
        self._killed = self._is_purged = False
        cluster.producers.append(self)

    def produce(self, topic, value, key, partition, on_delivery, _other, timestamp, headers):
        if len(self._waiting) >= 5:
            raise BufferError
        self._waiting.append((self._cluster.logs[topic, partition], topic, value, key, on_delivery, timestamp, headers))

    def _limit(self, topic):
        return int(self._cluster.config[topic].get("max.message.bytes", 1 << 20))

    def poll(self, _timeout=0):
        if self._killed:
            return
        if self._waiting and self._cluster.late is not None:
            self._cluster.late, late = None, self._cluster.late
            late()
        waiting, self._waiting = self._waiting, []
        for number, (log, topic, value, key, on_delivery, timestamp, headers) in enumerate(waiting):
            if self._cluster.acknowledged == 0:
                self._killed, self._cluster.acknowledged = True, None
                for log, _, value, key, _, timestamp, headers in waiting[number : number + self._cluster.unseen]:
                    log.append(timestamp, key, value, headers or ())
                raise Killed
            if self._fatal or self._is_purged:
                on_delivery(FakeError("_FATAL" if self._fatal else "_PURGE_QUEUE"), None)
            elif len(value or b"") > self._limit(topic):
                self._fatal = self._config["enable.gapless.guarantee"]
                on_delivery(FakeError("MSG_SIZE_TOO_LARGE", "Broker: Message size too large"), None)
            else:
                if self._cluster.acknowledged is not None:
                    self._cluster.acknowledged -= 1
                stamp = 10**12 if self._cluster.config[topic].get("message.timestamp.type") else timestamp
                on_delivery(None, log.append(stamp, key, value, headers or ()))
        self._is_purged = False

    def flush(self, _timeout=-1):
        self.poll()

    def purge(self):
        """The next poll fails the messages that wait."""
        assert not self._killed
        self._is_purged = True

    def __len__(self):
        return len(self._waiting)

    def __bool__(self):
        return True


class FakeConsumer:
    def __init__(self, cluster, config):
        assert config["isolation.level"] == "read_uncommitted"
        self._cluster, self._place, self._next = cluster, None, 0

    def get_watermark_offsets(self, place, **_options):
        if self._cluster.refused:
            raise FakeException(FakeError(self._cluster.refused.pop(0)))
        log = self._cluster.logs[place.topic, place.partition]
        return log.start, log.end

    def assign(self, places):
        ((self._place),) = places
        self._next = self._place.offset

    def unassign(self):
        self._place = None

    def consume(self, count, timeout):
        assert timeout > 0
        log = self._cluster.logs[self._place.topic, self._place.partition]
        messages = [message for message in log.messages if message.at >= self._next][:count]
        self._next = messages[-1].at + 1 if messages else log.end
        return messages

    def position(self, _places):
        return [SimpleNamespace(offset=self._next)]

    def close(self):
        pass

"""Configuration: Kafka's own keys and meanings, at topic level and at broker level.

See kafkafs/CONTRACT.md, "Configuration".
"""

from storage.config.broker_config import BROKER_KEYS, BrokerConfig
from storage.config.log_config import NEW_TOPIC_OVERRIDES, TOPIC_KEYS, LogConfig, Origin, read_overrides

__all__ = ["BROKER_KEYS", "NEW_TOPIC_OVERRIDES", "TOPIC_KEYS", "BrokerConfig", "LogConfig", "Origin", "read_overrides"]

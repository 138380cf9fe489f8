"""The state of a transactional id in `__transaction_state`. `messages` reads the records.

Sources: the schemas TransactionLogKey and TransactionLogValue of Kafka 4.3, TransactionState.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final, NamedTuple

from storage.errors import UnsupportedFormat
from storage.types import TopicPartition

NO_ID: Final = -1


class TransactionState(IntEnum):
    """Kafka's TransactionState. In the PREPARE states the outcome is certain, and markers are being written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def text(self) -> str:
        """The name that Kafka's tools print: PrepareCommit."""
        return "".join(word.capitalize() for word in self.name.split("_"))


class TransactionMetadata(NamedTuple):
    """The last state of a transactional id. Timestamps in epoch ms, `start_timestamp` -1: no transaction has begun.

    `partitions`: of the transaction, in the PREPARE states those whose marker is not written yet. Ids of -1: none.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...]
    last_update_timestamp: int
    start_timestamp: int
    previous_producer_id: int = NO_ID
    next_producer_id: int = NO_ID
    client_version: int = 0

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> TransactionMetadata:
        """The state in a TransactionLogValue of any version, as `messages` reads it. UnsupportedFormat for a state that
        is not known."""
        number = data["transactionStatus"]
        try:
            state = TransactionState(number)
        except ValueError:
            raise UnsupportedFormat("unknown transaction's state", expected="0 to 7", found=number) from None
        return cls(
            data["producerId"],
            data["producerEpoch"],
            data["transactionTimeoutMs"],
            state,
            tuple(
                TopicPartition(topic["topic"], partition)
                for topic in data["transactionPartitions"] or ()
                for partition in topic["partitionIds"]
            ),
            data["transactionLastUpdateTimestampMs"],
            data["transactionStartTimestampMs"],
            data.get("previousProducerId", NO_ID),
            data.get("nextProducerId", NO_ID),
            data.get("clientTransactionVersion", 0),
        )

"""How the readers report messages that a query should have read and the log no longer has (`failOnDataLoss`)."""

from __future__ import annotations

import logging
from collections.abc import Callable

_log = logging.getLogger("kafkafs.spark")


class DataLoss(RuntimeError):
    """Messages that the query should have read are no longer in the log."""


def report_loss(fail: bool) -> Callable[[str], None]:
    """Return a function that reports lost messages: it raises DataLoss if `fail`, otherwise it logs a warning."""

    def report(text: str) -> None:
        if fail:
            raise DataLoss(f"{text}. Option failOnDataLoss=false reads the rest")
        _log.warning("%s. Going on with the rest (failOnDataLoss is false)", text)

    return report

"""`--where`: only the messages for which an expression of DuckDB is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from storage.types import TopicPartition

if TYPE_CHECKING:
    from kafkafs.arrow.record_filter import Where
    from kafkafs.schemas.places import SchemaPlaces
    from storage.log.log_dir import LogDir

WHERE: Final = click.option(
    "--where",
    "expression",
    metavar="EXPRESSION",
    help="Only messages for which this is true: an expression of DuckDB over the columns that `kafkafs sql` has.",
)


def where_filter(expression: str, log_dir: LogDir, places: SchemaPlaces, targets: list[TopicPartition]) -> Where:
    """The filter of --where. It decodes keys and values if there are schemas, or for Kafka's own topics."""
    from kafkafs.arrow.record_filter import Where
    from kafkafs.arrow.statements import BadQuery
    from kafkafs.schemas.sources import schemas_of
    from kafkafs.schemas.steady_schemas import SteadySchemas
    from storage.format.messages import GROUPS

    if not expression.strip():
        raise click.UsageError("--where: the expression is empty")
    source = schemas_of(log_dir, places)
    decoded = source.registry() or any(tp.topic in GROUPS for tp in targets)
    try:
        return Where(expression, SteadySchemas(source) if decoded else None)
    except (ImportError, BadQuery) as error:
        raise click.UsageError(f"--where: {error}") from None


@contextmanager
def refusals(where: Where | None) -> Iterator[None]:
    """Reports it as wrong usage if an expression fails for a message within the block."""
    if where is None:
        yield
        return
    from kafkafs.arrow.statements import BadQuery

    try:
        yield
    except BadQuery as error:
        raise click.UsageError(f"--where: {error}") from None

"""An expression of DuckDB over the columns of a record as a filter of records, for `--where`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafkafs.arrow import COLUMNS
from kafkafs.arrow.duckdb_connection import connect, require_duckdb
from kafkafs.arrow.error_places import in_text
from kafkafs.arrow.sql_columns import AS_JSON, DECODED_COLUMNS, KEY_JSON, VALUE_JSON, in_microseconds, with_microseconds
from kafkafs.arrow.statements import BadQuery, statements_of
from storage.types import TopicPartition

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from kafkafs.schemas.schema import SchemaLookup
    from storage.format.block import RecordBlock


class Where:
    """DuckDB's expression over a record's columns as a filter. For one thread."""

    def __init__(self, expression: str, schemas: SchemaLookup | None) -> None:
        """`schemas`: decode `key_json` and `value_json`; None: `value_json` is the value if that is JSON. BadQuery;
        ImportError if the extra is not installed."""
        require_duckdb()
        from kafkafs.arrow.block_texts import Decoding
        from kafkafs.arrow.rows import MILLISECONDS, arrow_schema

        import pyarrow as pa  # isort: skip

        columns = [*COLUMNS, *(DECODED_COLUMNS if schemas is not None else ())]
        self._decoding = None if schemas is None else Decoding(schemas)
        self._schema = arrow_schema(columns, {"timestamp": MILLISECONDS, "key": pa.string(), "value": pa.string()})
        self._connection = connect("", allow_files=False)
        casts = "" if schemas is None else f" REPLACE ({KEY_JSON}, {VALUE_JSON})"
        more = f", {AS_JSON}" if schemas is None else ""
        self._expression = expression
        # The expression has lines of its own, which errors show.
        query = f"SELECT row FROM (SELECT *{casts}{more} FROM records) WHERE (\n{expression}\n) ORDER BY row"
        self._query = "; ".join(statement.text for statement in statements_of(query, expression))
        self._chosen(self._schema.empty_table())

    def __call__(self, tp: TopicPartition, block: RecordBlock) -> RecordBlock:
        """The records of the block for which the expression is true. BadQuery, also if it fails for a record."""
        from kafkafs.arrow.rows import arrow_batches

        import pyarrow as pa  # isort: skip

        batches = arrow_batches(iter([(tp, block)]), self._schema, self._decoding, replace_errors=True)
        rows = self._chosen(pa.Table.from_batches(batches, self._schema))
        return block if len(rows) == len(block) else block.select(rows)

    def _chosen(self, records: pa.Table) -> NDArray[np.int64]:
        import duckdb
        import numpy as np
        import pyarrow as pa

        batches = [in_microseconds(batch) for batch in records.to_batches()]
        timely = pa.Table.from_batches(batches, with_microseconds(records.schema))
        numbered = timely.append_column("row", pa.array(np.arange(len(records))))
        try:
            self._connection.register("records", numbered)
            return self._connection.execute(self._query).fetchnumpy()["row"].astype(np.int64)
        except duckdb.Error as error:
            raise BadQuery(in_text(error, self._expression)) from None

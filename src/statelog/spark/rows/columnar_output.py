"""Take the tables that a columnar processor yields."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from statelog.errors import UsageError
from statelog.spark.rows.unfit_output import unfit_output
from statelog.state.encoding.nested import relabelled
from statelog.state.slots import columns_of


class ColumnarOutput:
    """
    Collects tables of output rows.

    Args:
        schema: Names and types of the output.
        batch_id: The micro-batch, for messages.
    """

    def __init__(self, schema: pa.Schema, batch_id: int) -> None:
        self._schema = schema
        self._batch_id = batch_id
        self.items = self._batches = list[pa.RecordBatch]()
        self._rows = 0
        self.unnamed = None

    @property
    def pending(self) -> int:
        """The number of rows that the next batch will have."""
        return self._rows

    def extend(self, produced: Iterable[Any]) -> None:
        """
        Take the tables of one call.

        Raises:
            UnfitOutputError: One has other columns than the output, or a value does not fit.
        """
        for table in produced:
            try:
                columns = columns_of(table, self._schema, -1, "the output")
            except UsageError as error:
                raise unfit_output(str(error), self._batch_id) from error
            typed = map(relabelled, columns, self._schema.types)
            batch = pa.RecordBatch.from_arrays(list(typed), schema=self._schema)
            self._batches.append(batch)
            self._rows += batch.num_rows

    def batch(self) -> pa.RecordBatch:
        """Return all rows as one batch."""
        if len(self._batches) == 1:
            return self._batches[0]
        if not self._batches:
            empty = [pa.array([], field.type) for field in self._schema]
            return pa.RecordBatch.from_arrays(empty, schema=self._schema)
        return pa.concat_batches(self._batches)

    def clear(self) -> None:
        """Drop all rows."""
        self._batches.clear()
        self._rows = 0

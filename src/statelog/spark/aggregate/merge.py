"""The aggregates of one call, over tables of state: combine them and take their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from statelog.spark.aggregate.arrays import one_array
from statelog.spark.aggregate.kind import AggregateKind, Parts
from statelog.state.encoding.values import stored_field


@dataclass(frozen=True, slots=True)
class NamedAggregate:
    """
    One aggregate of a call.

    Args:
        name: Name of the output column.
        kind: Its rules.
        parts: Its parts: the name of each, and of its column among partial results and in the state.
    """

    name: str
    kind: AggregateKind
    parts: tuple[tuple[str, str, str], ...]

    def partial(self, rows: pa.Table) -> Parts:
        """Return the parts in a table of partial results."""
        return {part: one_array(rows.column(column)) for part, column, _ in self.parts}

    def state(self, table: pa.Table) -> Parts:
        """Return the parts in a table of state."""
        return {part: one_array(table.column(column)) for part, _, column in self.parts}


@dataclass(frozen=True, slots=True)
class Merge:
    """
    The aggregates of one call.

    Args:
        aggregates: The aggregates, in the order of the output columns.
        output: The output columns: the keys, then the aggregates.
    """

    aggregates: tuple[NamedAggregate, ...]
    output: pa.Schema

    def combined(self, old: pa.Table, new: pa.Table) -> pa.Table:
        """
        Return the state after the rows of a micro-batch.

        Args:
            old: The state before it, one row for each key; all null where there is none.
            new: The partial results of its rows, in the same order of keys.
        """
        columns: dict[str, pa.Array] = {}
        for one in self.aggregates:
            before, more = one.state(old), one.partial(new)
            # Texts of a micro-batch may be large ones, by a setting of Spark.
            more = {part: _typed(column, before[part].type) for part, column in more.items()}
            combined = one.kind.combine(before, more)
            columns |= {column: combined[part] for part, _, column in one.parts}
        return pa.table(columns)

    def results(self, keys: pa.Table, state: pa.Table) -> pa.Table:
        """
        Return the output rows of some keys.

        Args:
            keys: The keys.
            state: Their state.
        """
        fields = list(self.output)[keys.num_columns :]
        columns: Sequence[pa.Array] = [
            one.kind.result(one.state(state), stored_field(field).type)
            for one, field in zip(self.aggregates, fields, strict=True)
        ]
        return pa.table([*keys.columns, *columns], names=self.output.names)


def _typed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)

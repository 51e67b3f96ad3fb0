"""What a what-if found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from statelog.operations.fork import Fork

_SHOWN: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOutcome:
    """
    One micro-batch in the fork.

    Args:
        batch_id: Its number, the same as in the running query.
        input_rows: Rows that it read.
        output_rows: Rows that the changed processor yielded.
        differences: Rows that only one of the two runs has; None if the rows of the running query are
            not known.
    """

    batch_id: int
    input_rows: int
    output_rows: int
    differences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """
    How the changed processor's output and state differ from the running query's.

    Args:
        fork: The fork, which has the state of the changed processor after the last micro-batch.
        until: The checkpoint of the running query that was compared.
        batches: The micro-batches, ascending.
        outputs: Rows that only one of the runs has: `batch_id`, `change` ("removed": only the running
            query yielded it, "added": only the changed processor), and the columns of the output.
        state: By operator, the keys whose state differs, as `LocationState.changes` returns them:
            *before* is the running query.
        reproducible: Whether `current` led to the state of the running query; None without `current`.
            If False, the processor depends on more than its rows and times, and differences may
            come from that.
    """

    fork: Fork
    until: int
    batches: tuple[BatchOutcome, ...]
    outputs: pa.Table = field(repr=False)
    state: Mapping[str, pa.Table] = field(repr=False)
    reproducible: bool | None = None

    @property
    def not_compared(self) -> tuple[int, ...]:
        """Micro-batches whose output was not compared; pass `current` to compare all."""
        return tuple(batch.batch_id for batch in self.batches if batch.differences is None)

    @property
    def is_same(self) -> bool:
        """Whether nothing differs in what was compared."""
        return not self.outputs.num_rows and not any(each.num_rows for each in self.state.values())

    def __str__(self) -> str:
        first, last = self.batches[0].batch_id, self.batches[-1].batch_id
        rows = sum(batch.input_rows for batch in self.batches)
        lines = [
            f"batches {first} to {last}, {rows:,} input rows, compared with checkpoint {self.until}"
        ]
        counts = dict.fromkeys(("removed", "added"), 0)
        for change in self.outputs["change"].to_pylist() if self.outputs.num_rows else ():
            counts[change] += 1
        compared = len(self.batches) - len(self.not_compared)
        lines.append(
            f"output rows: {counts['added']:,} added, {counts['removed']:,} removed "
            f"({compared} of {len(self.batches)} batches compared)"
        )
        for operator, table in self.state.items():
            lines.append(f"keys whose state differs in {operator}: {table.num_rows:,}")
        if self.reproducible is False:
            lines.append(
                "the current processor did not lead to the state of the running query again"
            )
        for name, table in (("output", self.outputs), *self.state.items()):
            lines += _some_rows(name, table)
        return "\n".join(lines)


def _some_rows(name: str, table: pa.Table) -> list[str]:
    if not table.num_rows:
        return []
    lines = ["", f"{name}:"]
    for row in table.slice(0, _SHOWN).to_pylist():
        texts = (f"{column}={value}" for column, value in row.items() if value is not None)
        lines.append("  " + "  ".join(texts))
    if table.num_rows > _SHOWN:
        lines.append(f"  ... {table.num_rows - _SHOWN:,} more")
    return lines

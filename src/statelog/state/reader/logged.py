"""Collect the operations that a log holds, by variable, in the columns of the present schema."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from statelog.state.columnar.sorted_run import one_batch
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.heap.tables import Overlay
from statelog.state.reader.event_cells import Operations


class LoggedOperations:
    """
    The operations of several checkpoints, in the order in which they are added.

    Args:
        codec: The operator's codec, into whose schema all is converted.
    """

    def __init__(self, codec: OperatorCodec) -> None:
        self._codec = codec
        self._reader = codec.reader()
        self._parts: dict[int, list[tuple[int, int, pa.RecordBatch]]] = {}

    def add(self, checkpoint: int, changes: pa.RecordBatch) -> None:
        """
        Add changes in the order of the log.

        Args:
            checkpoint: Index of the checkpoint in its window; not below that of the call before.
            changes: A batch of `read_change_batches`.

        Raises:
            CorruptionError: A change cannot be read.
            IncompatibleFormatError: A newer statelog wrote it.
        """
        reader = self._reader
        batches = reader.batches(changes.column(0).to_pylist(), changes.column(1).to_pylist())
        if reader.is_present:
            for state_id, parts in batches.items():
                self._parts.setdefault(state_id, []).extend(
                    (checkpoint, key_group, batch) for key_group, batch in parts
                )
            return
        # Of an earlier schema: through the values, which are converted one by one.
        for state_id, parts in batches.items():
            for part in parts:
                for key_group, overlay in reader.overlays({state_id: [part]}).items():
                    self._add_deltas(checkpoint, key_group, overlay)

    def _add_deltas(self, checkpoint: int, key_group: int, overlay: Overlay) -> None:
        for state_id, deltas in enumerate(overlay):
            codec = self._codec.states[state_id]
            if deltas:
                batch = codec.batch(codec.operations(deltas))
                self._parts.setdefault(state_id, []).append((checkpoint, key_group, batch))

    def operations(self) -> dict[int, Operations]:
        """Return the operations by state id."""
        operations = {}
        for state_id, parts in self._parts.items():
            batch = one_batch(pa.Table.from_batches([part for _, _, part in parts]))
            counts = [part.num_rows for _, _, part in parts]
            if batch.num_rows:
                operations[state_id] = Operations(
                    batch,
                    np.repeat(np.array([each for _, each, _ in parts], np.int32), counts),
                    np.repeat(np.array([each for each, _, _ in parts], np.int64), counts),
                )
        return operations

"""
Write a state location with millions of keys without running a query.

One operator with the key `key long` and the value state `total` (n long, amount double), as a job
with some tasks leaves it: a snapshot of each task, sorted as a columnar state writes it, then
checkpoints whose changes are in changelog files.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint import CheckpointCoordinator, CheckpointOptions
from statelog.checkpoint.batch_record import BatchRecord, OperatorRecord
from statelog.format.buffers import checksum
from statelog.metrics.table import BatchFigures
from statelog.model import FileStateHandle, TaskStateSnapshot, split_key_groups
from statelog.model.checkpoint import MaterializedHandle
from statelog.runtime.clock import RandomIds
from statelog.state.columnar.sorted_run import RowLayout, build_run
from statelog.state.encoding.changes import _HEADER, DELTAS, OperatorCodec
from statelog.state.encoding.snapshot_file import parquet_of
from statelog.state.keys.key_hash import hash_columns
from statelog.state.kinds import StateKind
from statelog.state.kinds.kind import OP_CLEAR, OP_SET
from statelog.state.schema import OperatorStateSchema, StateDescriptor
from statelog.store import PATHS, open_store

GROUPS = 128
KEY = pa.schema([("key", pa.int64())])
VALUE = pa.schema([("n", pa.int64()), ("amount", pa.float64())])
SCHEMA = OperatorStateSchema("totals", KEY, (StateDescriptor("total", StateKind.VALUE, VALUE),))


class BigLocation:
    """
    Writes checkpoints of a location.

    Args:
        folder: Where the location is.
        tasks: Into how many ranges the key groups are split.
        retained: Checkpoints that can be read.
    """

    def __init__(self, folder: Path, tasks: int = 4, retained: int = 100) -> None:
        self.store = open_store(folder)
        self.codec = OperatorCodec(SCHEMA)
        self._layout = RowLayout(self.codec)
        self._ranges = split_key_groups(GROUPS, tasks)
        self._ids = RandomIds()
        self._storage = FsStateChangelogStorage(self.store, job_id="")
        self._coordinator = CheckpointCoordinator(
            self.store,
            owner_id="bench",
            max_parallelism=GROUPS,
            options=CheckpointOptions(retained=retained),
            clock_ms=lambda: int(time.time() * 1000),
        )
        self._coordinator.claim()
        self._coordinator.restore()

    def snapshot(self, keys: np.ndarray) -> int:
        """Write a checkpoint with a snapshot of these keys; return its id."""
        groups = _groups(keys)
        tasks = []
        checkpoint_id = self._coordinator.next_checkpoint_id
        for part in self._ranges:
            mine = np.flatnonzero((groups >= part.start) & (groups <= part.end))
            cells = pa.StructArray.from_arrays(_values(keys[mine], 0), fields=list(VALUE))
            table = pa.Table.from_arrays(
                [pa.array(groups[mine], pa.int32()), pa.array(keys[mine]), cells],
                schema=self._layout.table_schema,
            )
            run = build_run(self._layout, part, table)
            rows = pa.Table.from_batches([run.rows]).drop_columns(["$hash"])
            data = parquet_of([rows.cast(self._layout.table_schema)])
            path = PATHS.task_owned(self._ids.new_id())
            self.store.put(path, data)
            handle = FileStateHandle(path, len(data), checksum([data]))
            tasks.append(
                TaskStateSnapshot(part, None, MaterializedHandle(part, checkpoint_id, handle))
            )
        return self._commit(checkpoint_id, tasks)

    def change(self, keys: np.ndarray, deleted: Sequence[int] = ()) -> int:
        """Write a checkpoint that sets new values of these keys, some of them deleted."""
        checkpoint_id = self._coordinator.next_checkpoint_id
        groups = _groups(keys)
        order = np.argsort(groups, kind="stable")
        keys, groups = keys[order], groups[order]
        ops = np.where(np.isin(keys, np.asarray(deleted, np.int64)), OP_CLEAR, OP_SET)
        batch = pa.RecordBatch.from_arrays(
            [pa.array(keys), pa.array(ops, pa.int8()), *_values(keys, checkpoint_id)],
            schema=self.codec.states[0].schema,
        )
        bounds = np.searchsorted(groups, np.arange(GROUPS + 1)).tolist()
        tasks = []
        for part in self._ranges:
            numbers, values = [], []
            for group in part:
                start, stop = bounds[group], bounds[group + 1]
                if stop > start:
                    message = batch.slice(start, stop - start).serialize().to_pybytes()
                    numbers.append(group)
                    values.append(_HEADER.pack(DELTAS, 0) + message)
            with self._storage.create_writer("totals", part) as writer:
                writer.append_meta(self.codec.metadata_change())
                writer.append_batch(np.array(numbers, np.int32), pa.array(values, pa.binary()))
                first = writer.initial_sequence_number()
                log = writer.persist(first, checkpoint_id).result().job_manager_owned
            tasks.append(TaskStateSnapshot(part, log))
        return self._commit(checkpoint_id, tasks)

    def _commit(self, checkpoint_id: int, tasks: Sequence[TaskStateSnapshot]) -> int:
        self._coordinator.trigger(checkpoint_id, self._ranges)
        for task in tasks:
            self._coordinator.acknowledge(checkpoint_id, task)
        operator = OperatorRecord(
            operator_id="totals",
            schema=SCHEMA.to_json(),
            state_entries=0,
        )
        record = BatchRecord(
            query_id="bench",
            batch_id=checkpoint_id,
            location=self._coordinator.timeline.location_id,
            timeline=self._coordinator.timeline.number,
            figures=BatchFigures(tasks=len(self._ranges)),
            delivery="staged",
            time_mode="none",
            now_ms=-1,
            output_files=[],
            operators=(operator,),
        )
        self._coordinator.complete(checkpoint_id, properties=record.to_properties())
        return checkpoint_id

    def close(self) -> None:
        """Close the storage."""
        self._storage.close()


def _groups(keys: np.ndarray) -> np.ndarray:
    hashes = hash_columns([pa.array(keys)], KEY).view(np.int64)
    return np.mod(hashes, GROUPS).astype(np.int32)


def _values(keys: np.ndarray, version: int) -> list[pa.Array]:
    return [pa.array(keys % 1000 + version), pa.array(keys * 0.5 + version)]

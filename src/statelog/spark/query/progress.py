"""The figures of one micro-batch, for the log, for callbacks and for the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """
    One micro-batch.

    Args:
        batch_id: Spark's number of it.
        checkpoint_id: The checkpoint it made.
        replayed: Whether the state had been committed before and only the rows were delivered.
        tasks: Number of tasks.
        rows, keys, output_rows: Input rows, keys touched, rows delivered.
        late_rows: Rows dropped because they came later than the watermark; not among *rows*.
        state_entries: Entries of all state variables before the batch.
        delta_bytes: Bytes of the changes.
        output_bytes: Bytes of the staged rows.
        objects: Objects written to the store, the commit included.
        object_bytes: Their size.
        log_bytes, log_handles: Log behind the snapshots: bytes of changes, number of pieces.
        snapshots, snapshots_failed: Snapshots written; those that could not be.
        largest_key_groups: Up to three with the most rows: `key_group`, `rows`, `share`.
        largest_keys: Keys in them that have many rows: `key`, `key_group`, `rows`, `share`; none
            while the load is even.
        catch_up: Key groups folded from memory, change sets replayed, snapshots restored, key groups
            taken from local files, blocks of key groups put into columns.
        milliseconds: Duration by phase on the driver.
        task_milliseconds: Duration by phase of the slowest task of each; `wait`, for rows, is part
            of `input`.
    """

    batch_id: int
    checkpoint_id: int
    replayed: bool = False
    tasks: int = 0
    rows: int = 0
    late_rows: int = 0
    keys: int = 0
    output_rows: int = 0
    state_entries: int = 0
    delta_bytes: int = 0
    output_bytes: int = 0
    objects: int = 0
    object_bytes: int = 0
    log_bytes: int = 0
    log_handles: int = 0
    snapshots: int = 0
    snapshots_failed: int = 0
    largest_key_groups: Sequence[Mapping[str, Any]] = ()
    largest_keys: Sequence[Mapping[str, Any]] = ()
    catch_up: Mapping[str, int] = field(default_factory=dict)
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    task_milliseconds: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self)

    def __str__(self) -> str:
        phases = " ".join(f"{name}={ms:.0f}" for name, ms in self.milliseconds.items())
        slowest = " ".join(f"{name}={ms:.0f}" for name, ms in self.task_milliseconds.items())
        return (
            f"batch {self.batch_id} checkpoint {self.checkpoint_id}"
            f"{' replayed' if self.replayed else ''}: rows={self.rows} late={self.late_rows} "
            f"keys={self.keys} "
            f"out={self.output_rows} state_entries={self.state_entries} "
            f"delta_bytes={self.delta_bytes} objects={self.objects} "
            f"object_bytes={self.object_bytes} log_behind_snapshot={self.log_bytes}B/"
            f"{self.log_handles} tasks={self.tasks} ms[{phases}] slowest_task_ms[{slowest}]"
        )

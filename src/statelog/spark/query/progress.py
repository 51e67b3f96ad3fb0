"""The figures of one micro-batch, for log, callbacks and report, and the callers' objects that get them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, TypedDict

from statelog.errors import UsageError
from statelog.metrics import Metrics
from statelog.model import JsonObject
from statelog.notebook import facts_as_html


class LargeKeyGroup(TypedDict):
    """A key group with many rows of a micro-batch."""

    key_group: int
    rows: int
    share: float


class LargeKey(LargeKeyGroup):
    """A key with many rows of a micro-batch."""

    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """
    One micro-batch.

    Of a query with several operators, *rows* are those into the first operator and *output_rows* those
    out of the last; the other numbers are sums over all operators.

    Args:
        batch_id: Spark's id of the micro-batch.
        checkpoint_id: The checkpoint that it made.
        replayed: Whether an earlier run committed the state, so that only the rows were delivered.
        tasks: Number of tasks.
        rows, keys, output_rows: Number of input rows, of their keys, of rows delivered.
        late_rows: Rows dropped because they were later than the watermark; *rows* leaves them out.
        failed_keys: Keys whose processing failed and was left out, see the setting `onError`.
        dead_letters: Dead letters of them that were kept.
        side_output_rows: Rows of side outputs.
        state_entries: Entries of all state variables before the batch.
        delta_bytes: Bytes of the changes.
        output_bytes: Bytes of the staged rows.
        objects: Objects written to the store, the commit included.
        object_bytes: Their size.
        uploads, upload_bytes: Uploads of the tasks that succeeded, and their bytes before
            compression: files of changes, snapshots, staged rows and recordings.
        upload_attempts, upload_failures, upload_timeouts: Attempts of all uploads, those that
            raised an error, and those that took longer than the time-out.
        upload_retries: Attempts after the first of the uploads that succeeded.
        slowest_upload_ms: The longest upload, with all its attempts.
        upload_wait_ms: Summed time that tasks waited because too many bytes were in flight.
        repeated_requests: Requests of the tasks and the driver to the store that failed and were sent
            again, inside of those attempts and for claims, commits and reads.
        log_bytes, log_handles: The log after the snapshots: bytes of changes, number of handles.
        snapshots, snapshots_failed: Snapshots that were written; snapshots that failed.
        largest_key_groups: The key groups with the most rows, at most three.
        largest_keys: The keys in them with many rows, at most three; empty while the load is even.
        catch_up: How the tasks brought their state forward: key groups folded from memory, change
            sets replayed, snapshots restored, key groups read from local files, blocks of key groups
            moved into columns.
        milliseconds: Duration by phase on the driver.
        task_milliseconds: Duration by phase, of the slowest task in each; `input` includes `wait`,
            the wait for rows.
    """

    batch_id: int
    checkpoint_id: int
    replayed: bool = False
    tasks: int = 0
    rows: int = 0
    late_rows: int = 0
    keys: int = 0
    output_rows: int = 0
    failed_keys: int = 0
    dead_letters: int = 0
    side_output_rows: int = 0
    state_entries: int = 0
    delta_bytes: int = 0
    output_bytes: int = 0
    objects: int = 0
    object_bytes: int = 0
    uploads: int = 0
    upload_bytes: int = 0
    upload_attempts: int = 0
    upload_failures: int = 0
    upload_timeouts: int = 0
    upload_retries: int = 0
    slowest_upload_ms: float = 0.0
    upload_wait_ms: float = 0.0
    repeated_requests: int = 0
    log_bytes: int = 0
    log_handles: int = 0
    snapshots: int = 0
    snapshots_failed: int = 0
    largest_key_groups: Sequence[LargeKeyGroup] = ()
    largest_keys: Sequence[LargeKey] = ()
    catch_up: Mapping[str, int] = field(default_factory=dict)
    milliseconds: Mapping[str, float] = field(default_factory=dict)
    task_milliseconds: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """Return the JSON form."""
        return asdict(self)

    def _repr_html_(self) -> str:
        phases = {f"{name} (driver)": f"{ms:.0f} ms" for name, ms in self.milliseconds.items()}
        slowest = {
            f"{name} (slowest task)": f"{ms:.0f} ms" for name, ms in self.task_milliseconds.items()
        }
        facts = {
            "checkpoint": f"{self.checkpoint_id}{', replayed' if self.replayed else ''}",
            "rows": f"{self.rows} in, {self.output_rows} out, {self.late_rows} late",
            "keys": self.keys
            if not self.failed_keys
            else f"{self.keys}, {self.failed_keys} failed",
            "tasks": self.tasks,
            "changes": f"{self.delta_bytes} bytes in {self.objects} objects",
            "largest keys": ", ".join(f"{key['key']} ({key['rows']})" for key in self.largest_keys),
            **phases,
            **slowest,
        }
        return facts_as_html(f"micro-batch {self.batch_id}", facts)

    def __str__(self) -> str:
        phases = " ".join(f"{name}={ms:.0f}" for name, ms in self.milliseconds.items())
        slowest = " ".join(f"{name}={ms:.0f}" for name, ms in self.task_milliseconds.items())
        return (
            f"batch {self.batch_id} checkpoint {self.checkpoint_id}"
            f"{' replayed' if self.replayed else ''}: rows={self.rows} late={self.late_rows} "
            f"keys={self.keys} "
            f"out={self.output_rows} failed={self.failed_keys} state_entries={self.state_entries} "
            f"delta_bytes={self.delta_bytes} objects={self.objects} "
            f"object_bytes={self.object_bytes} uploads={self.uploads} "
            f"upload_retries={self.upload_retries} repeated_requests={self.repeated_requests} "
            f"log_behind_snapshot={self.log_bytes}B/"
            f"{self.log_handles} tasks={self.tasks} ms[{phases}] slowest_task_ms[{slowest}]"
        )


OnProgress = Callable[[BatchProgress], None]
"""Called on the driver after each micro-batch."""


@dataclass(frozen=True, slots=True)
class Observers:
    """
    The objects of the caller that observe a query, on the driver.

    Args:
        on_progress: Called after each micro-batch; None for none.
        metrics: Counts checkpoints, snapshots and micro-batches; None for none.
    """

    on_progress: OnProgress | None = None
    metrics: Metrics | None = None

    def after(self, before: Observers) -> Observers:
        """Return them and the observers of earlier operators together; raise `UsageError` for two of a kind."""
        pairs = {
            "onProgress": (self.on_progress, before.on_progress),
            "metrics": (self.metrics, before.metrics),
        }
        for name, pair in pairs.items():
            if None not in pair and pair[0] != pair[1]:
                raise UsageError(
                    f"{name} differs here from an operator before this one; it observes the whole query: give "
                    "it once"
                )
        return Observers(self.on_progress or before.on_progress, self.metrics or before.metrics)


NO_OBSERVERS: Final = Observers()

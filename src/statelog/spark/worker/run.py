"""The run of a processor in a task, and the state it needs, by the face of the processor."""

from __future__ import annotations

from typing import Protocol, cast

from statelog.errors import InvariantError
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.runtime.clock import IdSource
from statelog.spark.query.face import AnyProcessor
from statelog.spark.query.faces import face_of
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.worker.large_input import SpillFile
from statelog.state.cache import AnyState
from statelog.state.columnar.run_files import StateBackendConfig
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.keyed_state import KeyedState


class TaskRun(Protocol):
    """A run of a processor over the keys of a task."""

    @property
    def output(self) -> OutputCollector:
        """Collects what the processor yields."""

    @property
    def key_count(self) -> int:
        """The number of keys so far."""

    def begin(self) -> None:
        """Initialize the processor; raises `ProcessorError` if that fails."""

    def in_parts(self, file: SpillFile) -> bool:
        """Return whether `retire` may be called after each part."""

    def take(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """Run the processor over keys with all their rows; raises `ProcessorError`."""

    def retire(self, changes: ChangeBatch) -> None:
        """Drop the changes so far from memory, which were appended to the log."""

    def end(self) -> None:
        """Run the processor over the timers that are due, and close it; raises `ProcessorError`."""

    def flush(self) -> None:
        """Convert the rest of the output; raises `ProcessorError` if a row does not fit."""

    def next_due_ms(self) -> int:
        """Return when the task's earliest timer is due after this run."""

    def encoded(self) -> ChangeBatch:
        """Return the changes for the log; raises `ProcessorError` if a value does not fit."""

    def stage(self, checkpoint_id: int, base_id: int, state_handle_id: str) -> None:
        """Keep the changes for the next task of this worker."""

    def snapshot(self, key_group_range: KeyGroupRange) -> bytes:
        """Return the state with the changes of this run as a snapshot."""


def new_state(
    processor: AnyProcessor,
    codec: OperatorCodec,
    backend: StateBackendConfig | None = None,
    name: str = "",
    ids: IdSource | None = None,
) -> AnyState:
    """Return an empty state for a processor."""
    make = face_of(processor).new_state
    if backend is None or ids is None:
        return make(codec)
    return make(codec, backend.limits(), backend.opener(name, ids))


def keyed_state(processor: AnyProcessor, state: AnyState) -> KeyedState:
    """Return the state of a processor that is called key by key; raises `InvariantError` for another."""
    if not face_of(processor).handles_single_keys:
        raise InvariantError(f"{type(processor).__name__} is not called key by key")
    return cast("KeyedState", state)

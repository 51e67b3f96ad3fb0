"""
The interface between the worker and extensions.

Each extension with a part in `TaskSpec.extras` is created for the task, and may do this, in order:

    calls                      add methods to the handle that the processor gets
    new_run, wrap              run the processor in another way
    opened, closed, flush      begin and end what calls of the processor add
    leave_out                  forget a key whose processing failed
    failed                     add to the error of a task that fails
    answer                     answer to its half on the driver, in `TaskAck.extras`

What a class leaves out does nothing.  The extensions are called in the order of
`spark.extension_table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import TYPE_CHECKING, ClassVar, Final, Protocol, TypeAlias, cast

from statelog.errors import InvariantError, ProcessorError
from statelog.metrics.table import FigureValue
from statelog.model import ChangeBatch, KeyGroupRange
from statelog.runtime.clock import Stopwatch
from statelog.spark.extension_table import EXTENSIONS, ExtensionRow, loaded
from statelog.spark.query.face import AnyProcessor, face_of
from statelog.spark.rows.interface import KeyedInput, OutputCollector
from statelog.spark.worker.output_parts import Collector, OutputFiles
from statelog.spark.worker.protocol import BatchContext, TaskSpec
from statelog.spark.worker.spill_file import SpillFile
from statelog.state.cache import AnyState
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.kinds import Key
from statelog.store import ObjectStore

if TYPE_CHECKING:
    from statelog.state.keyed_state import KeyedState


class TaskRun(Protocol):
    """A run of a processor over the keys of a task."""

    @property
    def output(self) -> OutputCollector:
        """Collects the processor's results."""

    @property
    def key_count(self) -> int:
        """How many keys have been processed so far."""

    def begin(self) -> None:
        """Initialize the processor; raises `ProcessorError` if that fails."""

    def in_parts(self, file: SpillFile) -> bool:
        """Return whether `retire` may be called after each part."""

    def take(self, rows: KeyedInput, initial: KeyedInput | None = None) -> None:
        """Run the processor over some keys, passing all their rows; raises `ProcessorError`."""

    def retire(self, changes: ChangeBatch) -> None:
        """Discard from memory the changes that have been appended to the log."""

    def end(self) -> None:
        """Run the processor for due timers, then close it; raises `ProcessorError`."""

    def flush(self) -> None:
        """Convert the remaining output; raises `ProcessorError` if a row does not fit."""

    def next_due_ms(self) -> int:
        """Return when the task's earliest timer is due after this run."""

    def encoded(self) -> ChangeBatch:
        """Encode the changes for the log; raises `ProcessorError` if a value does not fit."""

    def stage(self, checkpoint_id: int, base_id: int, state_handle_id: str) -> None:
        """Store the changes for the next task of this worker."""

    def snapshot(self, key_group_range: KeyGroupRange) -> bytes:
        """Return a snapshot of the state, including the changes made in this run."""


def keyed_state(processor: AnyProcessor, state: AnyState) -> KeyedState:
    """
    Return the state for a processor that is called once per key.

    Raises `InvariantError` for another.
    """
    if not face_of(processor).handles_single_keys:
        raise InvariantError(f"{type(processor).__name__} is not called key by key")
    return cast("KeyedState", state)


Calls: TypeAlias = Mapping[str, Callable[..., object]]
"""Methods of the handle of a processor, by name."""


@dataclass(frozen=True, slots=True)
class TaskTools:
    """
    What an extension receives in addition to its part of the task's instructions.

    Args:
        spec: The instructions of the task.
        codec: The codec of the operator.
        files: Writes objects that the task answers with.
        store: The state location.
        figures: What the task counts, by name; an extension adds the figures that its driver half
            declares.
    """

    spec: TaskSpec
    codec: OperatorCodec
    files: OutputFiles
    store: ObjectStore
    figures: dict[str, FigureValue] = field(default_factory=dict)


class TaskExtension(Protocol):
    """
    The worker half of an extension, created for one task.

    Its arguments are its part of `TaskSpec.extras`, and the `TaskTools`.  An extension that adds
    calls to the handle is also made without a part, for the error of a call, and over a batch frame
    without the tools.

    Attributes: `keeps_rows`: whether the rows of a call may be needed again; `phase`: the name of
    the phase in which `answer` is measured, "" for none.

    Thread: the thread of the task.
    """

    keeps_rows: ClassVar[bool] = False
    phase: ClassVar[str] = ""

    def calls(self) -> Calls:
        """Return the methods that the extension adds to the handle, named as in its table row."""
        return {}

    def collectors(self) -> Sequence[Collector]:
        """Return the collectors of what processor calls add."""
        return ()

    def new_run(
        self,
        context: BatchContext,
        state: AnyState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
        extensions: TaskExtensions,
    ) -> TaskRun | None:
        """Return a run that replaces the run of the processor's face, or None."""
        return None

    def wrap(
        self, run: TaskRun, collectors: Sequence[Collector], leave_out: Callable[[int, Key], None]
    ) -> TaskRun:
        """
        Return a run that wraps the given run.

        Args:
            run: The run.
            collectors: What collects what the calls of the processor add, and their output.
            leave_out: Calls `leave_out` of all extensions.
        """
        return run

    def opened(self) -> None:
        """Start collecting what processor calls add; called after the processor's `init`."""

    def closed(self) -> None:
        """Stop collecting what processor calls add; called before the processor's `close`."""

    def flush(self) -> None:
        """Convert what processor calls added; raise `UnfitOutputError` if it does not fit."""

    def leave_out(self, key_group: int, key: Key) -> None:
        """Discard what was added for a key whose processing failed."""

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Return the error that makes the task fail; see also `ExtensionRow.advice`."""
        return error

    def answer(self) -> object | None:
        """
        Return the extension's part of the task's result, or None.

        Blocks: On the store, where it is large.
        """
        return None


class TaskExtensions:
    """
    The extensions of a task, in the order in which they are called.

    Args:
        extras: The parts of the extensions, by name.
        tools: What the extensions get besides their parts; None over a batch frame.

    Attributes: `keeps_rows`: whether the rows of a call may be needed again.
    """

    def __init__(self, extras: Mapping[str, object], tools: TaskTools | None = None) -> None:
        self._tools = tools
        self._by_name: dict[str, TaskExtension] = {
            row.name: loaded(row.worker, type)(extras[row.name], tools)
            for row in EXTENSIONS
            if row.name in extras
        }
        self._all = tuple(self._by_name.values())
        self.keeps_rows = any(extension.keeps_rows for extension in self._all)

    def call(self, row: ExtensionRow, method: str) -> Callable[..., object]:
        """Return a method that an extension adds to the processor's handle."""
        extension = self._by_name.get(row.name)
        if extension is None:
            extension = loaded(row.worker, type)(None, self._tools)
        return extension.calls()[method]

    def new_run(
        self,
        context: BatchContext,
        state: AnyState,
        key_group_range: KeyGroupRange,
        output: OutputCollector,
    ) -> TaskRun:
        """Return the run of a processor over a task's keys."""
        # The first extension with a run of its own replaces the run of the face.
        arguments = context, state, key_group_range, output, self
        for extension in self._all:
            run = extension.new_run(*arguments)
            if run is not None:
                return run
        return face_of(context.processor).new_run(*arguments)

    def wrap(self, run: TaskRun, output: Collector) -> TaskRun:
        """Wrap the run of the task's processor in the extensions' runs."""
        collectors = [output]
        for extension in self._all:
            collectors += extension.collectors()
        for extension in self._all:
            run = extension.wrap(run, collectors, self.leave_out)
        return run

    def opened(self) -> None:
        """Start collecting what processor calls add."""
        for extension in self._all:
            extension.opened()

    def closed(self) -> None:
        """Stop collecting what processor calls add."""
        for extension in self._all:
            extension.closed()

    def flush(self) -> None:
        """Convert what processor calls added."""
        for extension in self._all:
            extension.flush()

    def leave_out(self, key_group: int, key: Key) -> None:
        """Discard what was added for a key whose processing failed."""
        for extension in self._all:
            extension.leave_out(key_group, key)

    def failed(self, error: ProcessorError) -> ProcessorError:
        """Return the error that makes the task fail."""
        for row in EXTENSIONS:
            extension = self._by_name.get(row.name)
            if extension is not None:
                error = extension.failed(error)
            # An extension without a part can still say that it would have helped.
            elif row.advice:
                error = loaded(row.advice, FunctionType)(error)
        return error

    def answers(self, watch: Stopwatch) -> dict[str, object]:
        """
        Return the extensions' results, by name.

        Raises `StoreError` where it is not durable.
        """
        answers: dict[str, object] = {}
        for name, extension in self._by_name.items():
            answer = extension.answer()
            if answer is not None:
                answers[name] = answer
            if extension.phase:
                watch.lap(extension.phase)
        return answers


NO_EXTENSIONS: Final = TaskExtensions({})
"""The empty set of extensions."""

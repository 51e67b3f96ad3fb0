"""
The interface between the driver and extensions.

An extension adds to micro-batches what the engine does not know by name.  The engine calls all of
them at the same points of a micro-batch, in the order of `spark.extension_table`:

    begin                      before the tasks are planned
    task_part                  what the tasks of an operator get, in `TaskSpec.extras`
    attachments                before the commit: the objects that the checkpoint names
    committed                  after the commit
    deliver, deliver_again     after the commit, with the frame of the micro-batch

After an error up to the commit, nothing of the micro-batch is committed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

from pyspark.sql import DataFrame

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.attachments import (
    Addition,
    Attachment,
    AttachmentLog,
    AttachmentPolicy,
    PutObject,
)
from statelog.checkpoint.batch_record import BatchRecord
from statelog.metrics.table import Figure
from statelog.model.handles import FileStateHandle
from statelog.options import ChangelogOptions, Options
from statelog.runtime.clock import RandomIds, wall_clock_ms
from statelog.spark.extension_table import EXTENSIONS, loaded
from statelog.spark.query.delivery import Sink
from statelog.spark.query.query import Query
from statelog.spark.query.settings import QuerySettings
from statelog.spark.worker.output_parts import OutputFiles
from statelog.spark.worker.protocol import TaskAck, part_of
from statelog.store import ObjectStore

Answers: TypeAlias = Mapping[str, Sequence[TaskAck]]
"""The task results of a micro-batch, by operator."""


class BatchStart(NamedTuple):
    """
    A micro-batch that is starting.

    Args:
        batch_id: Spark's id of it.
        checkpoint_id: The checkpoint that it makes.
        base_id: The checkpoint that it continues; None for the first.
        record: The record in that checkpoint.
    """

    batch_id: int
    checkpoint_id: int
    base_id: int | None = None
    record: BatchRecord | None = None

    @property
    def attachments(self) -> tuple[Attachment, ...]:
        """The attachments of all kinds in the previous checkpoint."""
        return () if self.record is None else self.record.attachments


@dataclass(frozen=True, slots=True)
class DriverContext:
    """
    What the driver provides for creating an extension.

    Args:
        query: The query.
        store: The state location.
        put: Writes an object of the location, by the policy of the tasks.
        sinks: Sinks for rows that the engine does not deliver, by name.
        repeated: Returns the micro-batch that Spark repeats at the start of this run, or None.  An
            extension calls it in its `__init__`: later Spark has planned the next micro-batch.
    """

    query: Query
    store: ObjectStore
    put: PutObject
    sinks: Mapping[str, Sink]
    repeated: Callable[[], int | None]


class DriverExtension(Protocol):
    """
    The driver half of an extension, for one run of a query.

    What a class leaves out does nothing.

    Attributes: `name`: the key of its parts in `TaskSpec.extras` and `TaskAck.extras`; `figures`:
    what its tasks count, by name: numbers.

    Thread: Spark's thread of the query.
    """

    name: str
    figures: ClassVar[Mapping[str, Figure]] = {}

    def begin(self, start: BatchStart) -> None:
        """Start a micro-batch."""

    def task_part(self, operator: int, tasks: int) -> object | None:
        """
        Return the part of the instructions for an operator's tasks, or None.

        Args:
            operator: The position of the operator in the query.
            tasks: Number of tasks.
        """
        return None

    def attachments(
        self, start: BatchStart, answers: Answers, attached: Sequence[Attachment], now_ms: int
    ) -> Sequence[Attachment]:
        """
        Write the attachments of a micro-batch, and return those that its checkpoint references.

        Args:
            start: The micro-batch.
            answers: The answers of its tasks.
            attached: What the extensions before this one return.
            now_ms: The wall clock.

        Raises:
            StoreError, UnavailableError: The micro-batch must not be committed.

        Blocks: On the store, where there is something to write.
        """
        return ()

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """Handle the commit of the micro-batch passed to the last call of `attachments`."""

    def deliver(self, frame: DataFrame, batch_id: int, answers: Answers) -> None:
        """Deliver the task results of a committed micro-batch."""

    def deliver_again(self, frame: DataFrame, record: BatchRecord) -> None:
        """Deliver a micro-batch that an earlier run committed."""


class AttachingExtension(DriverExtension):
    """
    An extension whose tasks add to its attachments by returning tuples of `Addition`.

    Args:
        settings: The settings of the query.
        put: Writes an object.
    """

    def __init__(self, settings: QuerySettings, put: PutObject) -> None:
        self._log = AttachmentLog(self.policy(settings), put)

    @staticmethod
    @abstractmethod
    def policy(settings: QuerySettings) -> AttachmentPolicy:
        """Return the policy for writing, joining and retaining the attachments."""

    def additions(self, ack: TaskAck) -> Sequence[Addition]:
        """Return what a task added."""
        return part_of(ack.extras, self.name, tuple) or ()

    def added(self, answers: Answers) -> list[Addition]:
        """Return what all tasks added."""
        return [*chain(*(self.additions(ack) for ack in chain(*answers.values())))]

    def attachments(
        self, start: BatchStart, answers: Answers, attached: Sequence[Attachment], now_ms: int
    ) -> Sequence[Attachment]:
        """See `DriverExtension.attachments`."""
        return self._log.entries(
            start.attachments, self.added(answers), start.checkpoint_id, now_ms
        )

    def committed(self, batch_id: int, acks: Sequence[TaskAck]) -> None:
        """See `DriverExtension.committed`."""
        self._log.committed()


class DriverExtensions:
    """
    The extensions of one run of a query, in the order in which they are called.

    Args:
        extensions: The extensions.
        operators: The names of the operators.

    Attributes: `figures`: the figures that they declare, by name.
    """

    def __init__(self, extensions: Sequence[DriverExtension], operators: Sequence[str]) -> None:
        self._extensions = extensions
        self._operators = operators
        self._start = BatchStart(-1, -1)
        self.figures = {
            name: figure for extension in extensions for name, figure in extension.figures.items()
        }

    def begin(self, start: BatchStart) -> None:
        """Start a micro-batch."""
        self._start = start
        for extension in self._extensions:
            extension.begin(start)

    def task_parts(self, operator: int, tasks: int) -> dict[str, object]:
        """Return the parts for an operator's tasks; see `DriverExtension.task_part`."""
        parts = {
            extension.name: extension.task_part(operator, tasks) for extension in self._extensions
        }
        return {name: part for name, part in parts.items() if part is not None}

    def attachments(self, answers: Sequence[Sequence[TaskAck]]) -> tuple[Attachment, ...]:
        """Write the micro-batch's attachments, and return those that its checkpoint references."""
        attached: list[Attachment] = []
        by_operator = self._by_operator(answers)
        now_ms = wall_clock_ms()
        for extension in self._extensions:
            # In order: an extension may look at what those before it attach.
            attached += extension.attachments(self._start, by_operator, attached, now_ms)
        return tuple(attached)

    def committed(self, answers: Sequence[Sequence[TaskAck]]) -> None:
        """Notify all extensions that the micro-batch has been committed."""
        acks = [*chain(*answers)]
        for extension in self._extensions:
            extension.committed(self._start.batch_id, acks)

    def deliver(self, frame: DataFrame, answers: Sequence[Sequence[TaskAck]]) -> None:
        """Deliver the task results of the committed micro-batch."""
        by_operator = self._by_operator(answers)
        for extension in self._extensions:
            extension.deliver(frame, self._start.batch_id, by_operator)

    def deliver_again(self, frame: DataFrame, record: BatchRecord) -> None:
        """Deliver a micro-batch that an earlier run committed."""
        for extension in self._extensions:
            extension.deliver_again(frame, record)

    def _by_operator(self, answers: Sequence[Sequence[TaskAck]]) -> Answers:
        return dict(zip(self._operators, answers, strict=True))


def driver_extensions(context: DriverContext) -> DriverExtensions:
    """Return the driver halves of all extensions, for one run of a query."""
    operators = [operator.schema.operator_id for operator in context.query.operators]
    return DriverExtensions([loaded(row.driver, type)(context) for row in EXTENSIONS], operators)


class LocationObjects:
    """
    Writes objects to a state location from the driver, with the retry policy of the tasks.

    Args:
        store: The location.
        options: The policy.
    """

    def __init__(self, store: ObjectStore, options: ChangelogOptions) -> None:
        self._store = store
        self._options = Options(changelog=options)

    def put(self, path_of: Callable[[str], str], data: bytes) -> FileStateHandle:
        """
        Write an object to a path that contains a unique name.

        Blocks: On the store.
        """
        # Opened for one put: few micro-batches have one, and no thread remains.
        with FsStateChangelogStorage.from_options(self._options, self._store, job_id="") as storage:
            return OutputFiles(storage.objects.put, RandomIds()).write(path_of, data)

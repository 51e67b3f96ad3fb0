"""
The settings of one stateful query, each declared once.

A field of `QuerySettings` declares a setting: its type and default, its name as users type it, its
kind and range, and the places where it may be set.  `OperatorSettings` has its text.  docs/reference/settings.md is
made from both; `resolve` reads the places and resolves the settings.
"""

from __future__ import annotations

import datetime as dt
import enum
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, TypeVar

from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import DEFAULT_MAX_PARALLELISM
from statelog.options import (
    MIB,
    OPTIONS,
    ChangelogOptions,
    CheckpointOptions,
    SnapshotPolicy,
    task_changelog_options,
)
from statelog.options.declaration import Option, describe_values, option, options_of
from statelog.options.kinds import (
    AS_GIVEN,
    COUNT,
    DURATION,
    NAMES,
    SIZE,
    SWITCH,
    TEXT,
    Kind,
    choice,
)
from statelog.spark.query.broadcast import BROADCASTS, Broadcast
from statelog.spark.query.delivery import Delivery, FileOutput
from statelog.spark.query.error_policy import (
    DEFAULT_LETTER_AGE,
    MAX_ERRORS,
    MaxErrors,
    OnError,
)
from statelog.spark.query.input_columns import AUTO, INPUT_COLUMNS
from statelog.spark.query.record import (
    DEFAULT_AGE,
    DEFAULT_BYTES,
    DEFAULT_CHECKPOINTS,
    RECORD,
    RecordRule,
)
from statelog.state.columnar.run_files import BACKENDS, DEFAULT_BUDGET, StateBackendConfig
from statelog.state.heap import LEAST_BUDGET
from statelog.store.paths import STATE_FOLDER

CONF_PREFIX: Final = "spark.statelog."
OPTION_PREFIX: Final = "statelog."
BESIDE_CHECKPOINT: Final = "checkpoint"
"""The value of stateLocation for this folder, so that a session can choose it."""


class Place(enum.Enum):
    """The places where a setting may be set."""

    SESSION = enum.auto()
    CODE = enum.auto()
    WRITER = enum.auto()


_CODE: Final = (Place.CODE,)
_NOT_BY_WRITER: Final = (Place.SESSION, Place.CODE)
_NOT_BY_SESSION: Final = (Place.CODE, Place.WRITER)


def _checkpoint(value: object) -> int | str:
    return str(value) if value in ("latest", "empty") else COUNT.read(value)


_CHECKPOINT: Final = Kind('"latest", "empty" or a checkpoint id', _checkpoint)
_DROPPED: Final = replace(
    NAMES, name='a list of variables and fields ("total", "total.amount"), or "*"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """
    The settings of one stateful query; `OperatorSettings` documents each field but these.

    Args:
        base_location: Folder with a subfolder for the state of each query, where the session has
            one.
        changelog: The options `changelog.*`: how tasks upload.
        checkpoints: The options `checkpoint.*`.

    Raises:
        InvalidOptionsError: A value is out of range, or two contradict each other.
    """

    state_location: str | None = option(None, "stateLocation", TEXT, values="path or URL")
    base_location: str | None = None
    changelog: ChangelogOptions = field(default_factory=task_changelog_options)
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    delivery: Delivery = option(Delivery.STAGED, "delivery", choice(*Delivery))
    file_output: FileOutput = option(FileOutput.EXACTLY_ONCE, "fileSink", choice(*FileOutput))
    no_data_batches: bool | None = option(None, "noDataBatches", SWITCH)
    tasks: int | None = option(None, "tasks", COUNT, values="1 to maxParallelism", least=1)
    min_tasks: int = option(1, "minTasks", COUNT, values="1 to maxTasks", least=1)
    max_tasks: int | None = option(
        None, "maxTasks", COUNT, values="minTasks to maxParallelism", least=1
    )
    max_parallelism: int = option(
        DEFAULT_MAX_PARALLELISM, "maxParallelism", COUNT, only=_NOT_BY_WRITER, least=1
    )
    operator_id: str | None = option(None, "operator", TEXT, only=_CODE)
    input_columns: str | tuple[str, ...] = option(AUTO, "inputColumns", INPUT_COLUMNS, only=_CODE)
    checkpoint: int | str = option("latest", "checkpoint", _CHECKPOINT, only=_NOT_BY_SESSION)
    adopt: bool = option(False, "adopt", SWITCH, only=_NOT_BY_SESSION)
    drop_state: tuple[str, ...] = option((), "dropState", _DROPPED)
    inline_bytes: int = option(MIB, "inlineBytes", SIZE)
    memory_budget: int = option(DEFAULT_BUDGET, "memoryBudget", SIZE, least=LEAST_BUDGET)
    state_backend: str = option("auto", "stateBackend", choice(*BACKENDS))
    local_directory: str | None = option(None, "localDirectory", TEXT, values="path")
    storage_options: Mapping[str, object] = option(
        dict,
        "storageOptions",
        AS_GIVEN,
        only=_CODE,
        values="mapping; elsewhere one key `storageOptions.<name>` each",
    )
    fsync: bool = option(True, "fsync", SWITCH)
    snapshot_policy: SnapshotPolicy = option(
        SnapshotPolicy(), "snapshotPolicy", AS_GIVEN, only=_CODE, values="a `SnapshotPolicy`"
    )
    record: RecordRule | None = option(None, "record", RECORD)
    record_bytes: int = option(DEFAULT_BYTES, "recordBytes", SIZE, least=1)
    record_checkpoints: int = option(DEFAULT_CHECKPOINTS, "recordCheckpoints", COUNT, least=1)
    record_age: dt.timedelta = option(DEFAULT_AGE, "recordAge", DURATION)
    on_error: OnError = option(OnError.FAIL, "onError", choice(*OnError))
    max_errors: MaxErrors = option(MaxErrors(), "maxErrors", MAX_ERRORS)
    dead_letter_age: dt.timedelta = option(DEFAULT_LETTER_AGE, "deadLetterAge", DURATION)
    side_output_age: dt.timedelta = option(DEFAULT_LETTER_AGE, "sideOutputAge", DURATION)
    broadcast: Mapping[str, Broadcast] = option(
        dict, "broadcast", BROADCASTS, only=_CODE, compare=False
    )

    def __post_init__(self) -> None:
        tasks = {"tasks": "tasks", "minTasks": "min_tasks", "maxTasks": "max_tasks"}
        for name, at in tasks.items():
            value = getattr(self, at)
            if value is not None and value > self.max_parallelism:
                raise InvalidOptionsError(
                    f"{name} must be at most maxParallelism ({self.max_parallelism}), not {value}",
                    fields=(at, "max_parallelism"),
                )
        if self.max_tasks is not None and self.min_tasks > self.max_tasks:
            raise InvalidOptionsError(
                f"minTasks must be at most maxTasks ({self.max_tasks}), not {self.min_tasks}",
                fields=("min_tasks", "max_tasks"),
            )
        _ = self.backend  # made here, so that wrong values are rejected at once
        if self.adopt and self.checkpoint == "empty":
            raise InvalidOptionsError(
                "adopt continues from existing state, checkpoint='empty' requires that there is "
                "none: remove one of them",
                fields=("adopt", "checkpoint"),
            )

    def task_bounds(self, cores: int) -> tuple[int, int]:
        """Return the fewest and the most tasks of a micro-batch."""
        if self.tasks is not None:
            return self.tasks, self.tasks
        most = self.max_tasks or min(cores, self.max_parallelism)
        return self.min_tasks, max(most, self.min_tasks)

    @property
    def backend(self) -> StateBackendConfig:
        """Where the workers keep the state."""
        return StateBackendConfig(self.state_backend, self.memory_budget, self.local_directory)

    def backend_of_each(self, operators: int) -> StateBackendConfig:
        """Return where the workers keep the state of each operator; they share the memory."""
        return replace(
            self.backend, budget_bytes=max(self.memory_budget // operators, LEAST_BUDGET)
        )

    @property
    def is_replayed(self) -> bool:
        """Whether what keys see is kept, so that a changed processor may be run on it."""
        return self.record is not None or self.on_error.keeps_letters

    @property
    def is_beside_checkpoint(self) -> bool:
        """Whether the state is in the checkpointLocation of its query."""
        return (self.state_location or self.base_location or BESIDE_CHECKPOINT) == BESIDE_CHECKPOINT

    def location(
        self, checkpoint_location: str, query_name: str | None, *, temporary: bool = False
    ) -> str:
        """Return where the state of a query is stored."""
        if self.is_beside_checkpoint or (temporary and self.state_location is None):
            return f"{checkpoint_location.rstrip('/')}/{STATE_FOLDER}"
        if self.state_location is not None:
            return self.state_location
        if not query_name or "/" in query_name or query_name in (".", ".."):
            raise UsageError(
                f"{CONF_PREFIX}stateLocation is a base folder: the state of each query is stored in "
                f"it under its name. Give the query a queryName without '/' (it is {query_name!r}), "
                f"or a location of its own by .option('{OPTION_PREFIX}stateLocation', ...)"
            )
        return f"{(self.base_location or '').rstrip('/')}/{query_name}"


SETTINGS: Final[Mapping[str, Option]] = {
    declared.setting or declared.name: declared
    for declared in (*options_of(QuerySettings), *OPTIONS)
    if declared.setting or not declared.section
}
"""The declarations by the names that users type; some set an option of a section."""


# --- the settings as keyword arguments ------------------------------------------------------------
# A type checker and help() read the names here, so they are written out; a test compares them with
# SETTINGS.

Function = TypeVar("Function", bound=Callable[..., object])
_REFERENCE: Final = "`OperatorSettings`."


class OperatorSettings(TypedDict, total=False):
    """
    Settings of an operator beyond Spark's arguments.

    A setting that is left out, or None, is read from the session's configuration
    (`spark.statelog.<name>`), then has its default.

    Args:
        stateLocation: Where the state is stored. Default: the folder `statelog` inside the query's
            checkpointLocation (also by the word "checkpoint"), or
            `<spark.statelog.stateLocation>/<queryName>` where the session names a folder.
        delivery: How output rows reach the sink. staged: rows are committed with the state and
            delivered again identically, exactly once for a sink that honours the batch id. direct: one
            Spark job less, at least once.
        fileSink: How files and tables of files are written. exactly-once: with the log of Spark's
            streaming file sink next to them, so that a micro-batch that is delivered again is written
            once. append: without the log, at least once.
        noDataBatches: Run micro-batches without data when a timer is due or the watermark moved;
            fixed for the lifetime of the query. Default: as the query began; for a new query, whether
            it can have timers.
        tasks: Number of parallel tasks; may change at every restart. Default: chosen for each
            micro-batch by its work, from minTasks to maxTasks; over a batch frame
            `spark.sql.shuffle.partitions`.
        minTasks: Fewest tasks of a micro-batch, where tasks is not set.
        maxTasks: Most tasks of a micro-batch, where tasks is not set. Default: the number of cores.
        maxParallelism: Number of key groups; fixed for the lifetime of the state.
        operator: Name of the operator; the state of another one is rejected. Default:
            `transform_with_state`.
        inputColumns: The columns of the input that the processor reads; the others are not read,
            shuffled or sent. Keys and event time are always sent. auto: what the code of a processor of
            Rows certainly reads, else all; all where keys are recorded or become dead letters.
        checkpoint: The checkpoint to start from. "empty" insists on starting without state. An id
            goes back to an older checkpoint; it does not rewind the sources (see `statelog rewind`).
        adopt: Continue from state that another query wrote.
        dropState: State to drop for good that the checkpoint holds and the processor no longer
            declares, or declares under another name. Default: none; a start that would drop state is
            rejected.
        retainedCheckpoints: Number of the newest checkpoints that are kept, so that they can be
            restored.
        inlineBytes: Deltas and rows of one task up to this size travel through the driver into the
            one object of the micro-batch; larger ones are written to files of their own.
        memoryBudget: Memory that state and rows take in a Python worker. State beyond it is stored
            on the host's local disk.
        stateBackend: Where a worker keeps state. auto: in memory while it fits, else on local disk.
        localDirectory: Folder on each host for state on local disk. Default: a folder of the user
            in the system's temporary directory.
        storageOptions: Client options of the object store (credentials, endpoint, ...).
        fsync: On local disk, make objects durable before they count.
        snapshotPolicy: When to write snapshots.
        record: Record what these keys, this share of all keys, or keys whose processing fails see,
            for `statelog replay`. It is personal data where the rows are. Default: nothing.
        recordBytes: Most bytes recorded in one micro-batch; one key takes at most an eighth.
        recordCheckpoints: Number of the newest checkpoints whose recordings are kept.
        recordAge: Older recordings are deleted, also of keys that failed.
        onError: What happens where the processing of a key fails. fail: the query stops. skip: the
            key's rows are left out. dead-letter: they are kept with the error, to be replayed. freeze:
            so are the later rows of the key. Its state stays as it was; the other keys are not
            affected.
        maxErrors: The most keys of one task and micro-batch that may fail where onError is not
            "fail". With more the query stops.
        deadLetterAge: Older dead letters are deleted.
        sideOutputAge: Older rows of side outputs are deleted.
        broadcast: Small tables that every key sees, by `handle.broadcast(name)`: the same version
            in all calls of a micro-batch, which its checkpoint names.
    """

    stateLocation: str | None
    delivery: str | None
    fileSink: str | None
    noDataBatches: bool | None
    tasks: int | None
    minTasks: int | None
    maxTasks: int | None
    maxParallelism: int | None
    operator: str | None
    inputColumns: str | Sequence[str] | None
    checkpoint: int | str | None
    adopt: bool | None
    dropState: Sequence[str] | str | None
    retainedCheckpoints: int | None
    inlineBytes: int | str | None
    memoryBudget: int | str | None
    stateBackend: str | None
    localDirectory: str | None
    storageOptions: Mapping[str, object] | None
    fsync: bool | None
    snapshotPolicy: SnapshotPolicy | None
    record: Sequence[object] | float | str | None
    recordBytes: int | str | None
    recordCheckpoints: int | None
    recordAge: dt.timedelta | str | None
    onError: str | None
    maxErrors: float | str | None
    deadLetterAge: dt.timedelta | str | None
    sideOutputAge: dt.timedelta | str | None
    broadcast: Mapping[str, object] | None


describe_values(OperatorSettings, SETTINGS)


def names_settings(function: Function) -> Function:
    """Put the names of all settings into the docstring of a function that takes them."""
    names = ", ".join(OperatorSettings.__annotations__)
    lines = textwrap.wrap(f"{names}.  `help(OperatorSettings)` describes each.", 84)
    text = "\n".join([_REFERENCE.replace(".", ":"), *(" " * 12 + line for line in lines)])
    if function.__doc__ is not None:  # it is None under python -OO
        function.__doc__ = function.__doc__.replace(_REFERENCE, text)
    return function

"""
The settings of one stateful query, each declared once.

A field of `QuerySettings` declares a setting: its type and default, its name as users type it, its
parser, the places where it may be set, and its text.  `SETTINGS` is the table of these declarations.
The docstring of `OperatorSettings`, docs/reference/settings.md and the check of unknown names use it;
`resolve` reads the places and resolves the settings.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypedDict, TypeVar

from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import DEFAULT_MAX_PARALLELISM
from statelog.options import (
    ChangelogOptions,
    CheckpointOptions,
    SnapshotPolicy,
    task_changelog_options,
)
from statelog.options.units import (
    parse_bool,
    parse_count,
    parse_duration,
    parse_size,
    parse_text,
)
from statelog.spark.query.broadcast import Broadcast, parse_broadcast
from statelog.spark.query.delivery import Delivery, FileOutput
from statelog.spark.query.error_policy import (
    DEFAULT_LETTER_AGE,
    MaxErrors,
    OnError,
    parse_max_errors,
)
from statelog.spark.query.input_columns import AUTO, parse_input_columns
from statelog.spark.query.record import (
    DEFAULT_AGE,
    DEFAULT_BYTES,
    DEFAULT_CHECKPOINTS,
    RecordRule,
    parse_record,
)
from statelog.spark.query.setting import (
    Place,
    Setting,
    as_given,
    choice_of,
    parse_checkpoint,
    parse_names,
    setting,
)
from statelog.state.backend import DEFAULT_BUDGET, StateBackendConfig
from statelog.state.heap.memory import LEAST_BUDGET
from statelog.store.paths import STATE_FOLDER

CONF_PREFIX: Final = "spark.statelog."
OPTION_PREFIX: Final = "statelog."
BESIDE_CHECKPOINT: Final = "checkpoint"
"""The value of stateLocation for this folder, so that a session can choose it."""

_DEFAULT_INLINE_BYTES: Final = 1024 * 1024

_NOT_BY_WRITER: Final = Place.SESSION | Place.CODE
_NOT_BY_SESSION: Final = Place.CODE | Place.WRITER


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """
    The settings of one stateful query; `SETTINGS` documents each field but these.

    Args:
        base_location: Folder with a subfolder for the state of each query, where the session has
            one.
        changelog: The options `changelog.*`: how tasks upload.

    Raises:
        InvalidOptionsError: A value is out of range, or two contradict each other.
    """

    state_location: str | None = setting(
        "stateLocation",
        parse_text,
        "path or URL",
        "Where the state is stored. Default: the folder `statelog` inside the query's "
        'checkpointLocation (also by the word "checkpoint"), or '
        "`<spark.statelog.stateLocation>/<queryName>` where the session names a folder.",
        default=None,
    )
    base_location: str | None = None
    changelog: ChangelogOptions = field(default_factory=task_changelog_options)
    delivery: Delivery = setting(
        "delivery",
        choice_of(Delivery),
        '"staged" or "direct"',
        "How output rows reach the sink. staged: rows are committed with the state and "
        "delivered again identically, exactly once for a sink that honours the batch id. "
        "direct: one Spark job less, at least once.",
        default=Delivery.STAGED,
    )
    file_output: FileOutput = setting(
        "fileSink",
        choice_of(FileOutput),
        '"exactly-once" or "append"',
        "How files and tables of files are written. exactly-once: with the log of Spark's "
        "streaming file sink next to them, so that a micro-batch that is delivered again is "
        "written once. append: without the log, at least once.",
        default=FileOutput.EXACTLY_ONCE,
    )
    no_data_batches: bool | None = setting(
        "noDataBatches",
        parse_bool,
        "true or false",
        "Run micro-batches without data when a timer is due or the watermark moved; fixed "
        "for the lifetime of the query. Default: as the query began; for a new query, "
        "whether it can have timers.",
        default=None,
    )
    tasks: int | None = setting(
        "tasks",
        parse_count,
        "1 to maxParallelism",
        "Number of parallel tasks; may change at every restart. Default: chosen for each "
        "micro-batch by its work, from minTasks to maxTasks; over a batch frame "
        "`spark.sql.shuffle.partitions`.",
        default=None,
    )
    min_tasks: int = setting(
        "minTasks",
        parse_count,
        "1 to maxTasks",
        "Fewest tasks of a micro-batch, where tasks is not set.",
        default=1,
    )
    max_tasks: int | None = setting(
        "maxTasks",
        parse_count,
        "minTasks to maxParallelism",
        "Most tasks of a micro-batch, where tasks is not set. Default: the number of cores.",
        default=None,
    )
    max_parallelism: int = setting(
        "maxParallelism",
        parse_count,
        "number",
        "Number of key groups; fixed for the lifetime of the state.",
        places=_NOT_BY_WRITER,
        default=DEFAULT_MAX_PARALLELISM,
        least=1,
    )
    operator_id: str | None = setting(
        "operatorId",
        parse_text,
        "text",
        "Name of the operator; the state of another one is rejected. Default: "
        "`transform_with_state`.",
        places=Place.CODE,
        default=None,
    )
    input_columns: str | tuple[str, ...] = setting(
        "inputColumns",
        parse_input_columns,
        '"auto", "all" or a list of columns',
        "The columns of the input that the processor reads; the others are not read, shuffled or "
        "sent. Keys and event time are always sent. auto: what the code of a processor of Rows "
        "certainly reads, else all; all where keys are recorded or become dead letters.",
        places=Place.CODE,
        default=AUTO,
    )
    checkpoint: int | str = setting(
        "checkpoint",
        parse_checkpoint,
        '"latest", "empty" or a checkpoint id',
        'The checkpoint to start from. "empty" insists on starting without state. An id '
        "goes back to an older checkpoint; it does not rewind the sources (see `statelog "
        "rewind`).",
        places=_NOT_BY_SESSION,
        default="latest",
    )
    adopt: bool = setting(
        "adopt",
        parse_bool,
        "true or false",
        "Continue from state that another query wrote.",
        places=_NOT_BY_SESSION,
        default=False,
    )
    drop_state: tuple[str, ...] = setting(
        "dropState",
        parse_names,
        'a list of variables and fields ("total", "total.amount"), or "*"',
        "State to drop for good that the checkpoint holds and the processor no longer declares, or "
        "declares under another name. Default: none; a start that would drop state is rejected.",
        default=(),
    )
    checkpoints: CheckpointOptions = setting(
        "retainedCheckpoints",
        as_given,
        "1 to 65,536",
        "Number of the newest checkpoints that are kept, so that they can be restored.",
        option="checkpoint.retained",
        default_factory=CheckpointOptions,
    )
    inline_bytes: int = setting(
        "inlineBytes",
        parse_size,
        "bytes",
        "Deltas and rows of one task up to this size travel through the driver into the "
        "one object of the micro-batch; larger ones are written to files of their own.",
        default=_DEFAULT_INLINE_BYTES,
        least=0,
    )
    memory_budget: int = setting(
        "memoryBudget",
        parse_size,
        "bytes",
        "Memory that state and rows take in a Python worker. State beyond it is stored on the "
        "host's local disk.",
        default=DEFAULT_BUDGET,
        least=LEAST_BUDGET,
    )
    state_backend: str = setting(
        "stateBackend",
        parse_text,
        '"auto", "memory" or "disk"',
        "Where a worker keeps state. auto: in memory while it fits, else on local disk.",
        default="auto",
    )
    local_directory: str | None = setting(
        "localDirectory",
        parse_text,
        "path",
        "Folder on each host for state on local disk. Default: a folder of the user in "
        "the system's temporary directory.",
        default=None,
    )
    storage_options: Mapping[str, object] = setting(
        "storageOptions",
        as_given,
        "mapping; elsewhere one key `storageOptions.<name>` each",
        "Client options of the object store (credentials, endpoint, ...).",
        places=Place.CODE,
        default_factory=dict,
    )
    fsync: bool = setting(
        "fsync",
        parse_bool,
        "true or false",
        "On local disk, make objects durable before they count.",
        default=True,
    )
    snapshot_policy: SnapshotPolicy = setting(
        "snapshotPolicy",
        as_given,
        "a `SnapshotPolicy`",
        "When to write snapshots.",
        places=Place.CODE,
        default_factory=SnapshotPolicy,
    )
    record: RecordRule | None = setting(
        "record",
        parse_record,
        'a list of keys, 0 to 1, or "failed"',
        "Record what these keys, this share of all keys, or keys whose processing fails see, for "
        "`statelog replay`. It is personal data where the rows are. Default: nothing.",
        default=None,
    )
    record_bytes: int = setting(
        "recordBytes",
        parse_size,
        "bytes",
        "Most bytes recorded in one micro-batch; one key takes at most an eighth.",
        default=DEFAULT_BYTES,
        least=1,
    )
    record_checkpoints: int = setting(
        "recordCheckpoints",
        parse_count,
        "number",
        "Number of the newest checkpoints whose recordings are kept.",
        default=DEFAULT_CHECKPOINTS,
        least=1,
    )
    record_age: dt.timedelta = setting(
        "recordAge",
        parse_duration,
        "duration",
        "Older recordings are deleted, also of keys that failed.",
        default=DEFAULT_AGE,
    )
    on_error: OnError = setting(
        "onError",
        choice_of(OnError),
        '"fail", "skip", "dead-letter" or "freeze"',
        "What happens where the processing of a key fails. fail: the query stops. skip: the key's rows "
        "are left out. dead-letter: they are kept with the error, to be replayed. freeze: so are the "
        "later rows of the key. Its state stays as it was; the other keys are not affected.",
        default=OnError.FAIL,
    )
    max_errors: MaxErrors = setting(
        "maxErrors",
        parse_max_errors,
        "number of keys, or a share of them below 1",
        'The most keys of one task and micro-batch that may fail where onError is not "fail". With '
        "more the query stops.",
        default=MaxErrors(),
    )
    dead_letter_age: dt.timedelta = setting(
        "deadLetterAge",
        parse_duration,
        "duration",
        "Older dead letters are deleted.",
        default=DEFAULT_LETTER_AGE,
    )
    side_output_age: dt.timedelta = setting(
        "sideOutputAge",
        parse_duration,
        "duration",
        "Older rows of side outputs are deleted.",
        default=DEFAULT_LETTER_AGE,
    )
    broadcast: Mapping[str, Broadcast] = setting(
        "broadcast",
        parse_broadcast,
        "a mapping from names to functions, batch frames or `Broadcast`s",
        "Small tables that every key sees, by `handle.broadcast(name)`: the same version in all calls of "
        "a micro-batch, which its checkpoint names.",
        places=Place.CODE,
        default_factory=dict,
        compare=False,
    )

    def __post_init__(self) -> None:
        for name, declared in SETTINGS.items():
            declared.check(getattr(self, name))
        tasks = {"tasks": self.tasks, "minTasks": self.min_tasks, "maxTasks": self.max_tasks}
        for name, value in tasks.items():
            if value is not None and not 1 <= value <= self.max_parallelism:
                raise InvalidOptionsError(
                    f"{name} is 1 to maxParallelism ({self.max_parallelism}); got {value}"
                )
        if self.max_tasks is not None and self.min_tasks > self.max_tasks:
            raise InvalidOptionsError(
                f"minTasks is at most maxTasks ({self.max_tasks}); got {self.min_tasks}"
            )
        _ = self.backend  # made here, so that wrong values are rejected at once
        if self.adopt and self.checkpoint == "empty":
            raise InvalidOptionsError(
                "adopt continues from existing state, checkpoint='empty' requires that there is "
                "none: remove one of them"
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
        """
        Return where the state of a query is stored.

        Args:
            checkpoint_location: The query's checkpointLocation; with a temporary one the state is
                inside it, unless the query itself has a stateLocation.
            query_name: Its name, or None.
            temporary: Whether *checkpoint_location* is deleted with the query.

        Raises:
            UsageError: The session names a base folder, and the query has no name to use in it.
        """
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


SETTINGS: Final[Mapping[str, Setting]] = {
    each.name: each.metadata["setting"]
    for each in dataclasses.fields(QuerySettings)
    if "setting" in each.metadata
}
"""The declarations by the name of their field in `QuerySettings`."""


# --- the settings as keyword arguments ------------------------------------------------------------
# A type checker reads the names here, so they are written out; a test compares them with SETTINGS.

Function = TypeVar("Function", bound=Callable[..., object])
_REFERENCE: Final = "`OperatorSettings`."


class OperatorSettings(TypedDict, total=False):
    """Its docstring is built from SETTINGS."""

    stateLocation: str | None
    delivery: str | None
    fileSink: str | None
    noDataBatches: bool | None
    tasks: int | None
    minTasks: int | None
    maxTasks: int | None
    maxParallelism: int | None
    operatorId: str | None
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


def _documentation() -> str:
    lines = [
        "Settings of an operator beyond Spark's arguments.",
        "",
        "A setting that is left out, or None, is read from the session's configuration",
        "(`spark.statelog.<name>`), then has its default.",
        "",
        "Args:",
    ]
    lines += [
        f"    {setting.name}: ({setting.described_values}) {setting.text}"
        for setting in SETTINGS.values()
    ]
    return "\n".join(lines)


OperatorSettings.__doc__ = _documentation()


def names_settings(function: Function) -> Function:
    """Put the names of all settings into the docstring of a function that takes them."""
    names = ", ".join(setting.name for setting in SETTINGS.values())
    lines = textwrap.wrap(f"{names}.  `help(OperatorSettings)` describes each.", 84)
    text = "\n".join([_REFERENCE.replace(".", ":"), *(" " * 12 + line for line in lines)])
    if function.__doc__ is not None:  # it is None under python -OO
        function.__doc__ = function.__doc__.replace(_REFERENCE, text)
    return function

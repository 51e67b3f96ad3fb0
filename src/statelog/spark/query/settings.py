"""
The settings of a stateful query, each declared once.

A field of `QuerySettings` declares a setting: its type and default, its name as users type it, its
kind and range, and the places where it may be set.  `OperatorSettings` has the question that it
answers.  docs/reference/settings.md is made from both; `resolve` reads the places and resolves the
settings.
"""

from __future__ import annotations

import datetime as dt
import enum
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Final, TypedDict, TypeVar

from statelog.core.task_count import TaskBounds
from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import DEFAULT_MAX_PARALLELISM
from statelog.options import MEMORY_BUDGET, OPTIONS, Options, task_options
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
from statelog.spark.extension_table import BROADCAST_SOURCES, EXTENSIONS, loaded
from statelog.spark.query.delivery import Delivery, FileOutput
from statelog.spark.query.record import RECORD, Record
from statelog.state.heap import LEAST_BUDGET, StateBackendConfig
from statelog.store.paths import STATE_FOLDER

CONF_PREFIX: Final = "spark.statelog."
OPTION_PREFIX: Final = "statelog."
BESIDE_CHECKPOINT: Final = "checkpoint"
"""The value of stateLocation for the folder in the checkpointLocation."""


class Place(enum.Enum):
    """The places where settings can be made."""

    SESSION = enum.auto()
    CODE = enum.auto()
    """An argument, for all operators of the query."""
    OPERATOR = enum.auto()
    """An argument, for one operator."""
    WRITER = enum.auto()


_OPERATOR: Final = (Place.OPERATOR,)
_CODE: Final = (Place.CODE,)
_SESSION: Final = (Place.SESSION,)
_NOT_BY_WRITER: Final = (Place.SESSION, Place.CODE)
_NOT_BY_SESSION: Final = (Place.CODE, Place.WRITER)


def _checkpoint(value: object) -> int | str:
    return str(value) if value in ("latest", "empty") else COUNT.read(value)


def _tasks(value: object) -> tuple[int, int | None]:
    """Parse the minimum and maximum number of tasks; None stands for the number of cores."""
    first, dash, last = str(value).partition("-")
    least = COUNT.read(first)
    most = COUNT.read(last) if last.strip() else None
    if not dash:
        most = least
    if least < 1 or (most is not None and most < least):
        raise ValueError
    return least, most


AUTO: Final = "auto"
ALL: Final = "all"


def _columns(value: object) -> str | tuple[str, ...]:
    if isinstance(value, str):
        if value.lower() in (AUTO, ALL):
            return value.lower()
    elif isinstance(value, Sequence) and all(isinstance(name, str) for name in value):
        return tuple(value)
    raise ValueError


def _count_or_share(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise TypeError
    number = float(value)
    if 0 < number < 1:
        return number
    if not 1 <= number <= 1 << 53 or number != int(number):
        raise ValueError
    return int(number)


def _tables(value: object) -> Mapping[str, object]:
    """Parse the sources of small tables in the way their extension does."""
    sources: Mapping[str, object] = loaded(BROADCAST_SOURCES, FunctionType)(value)
    return sources


_TABLES: Final = Kind("a mapping from names to functions, batch frames or `Broadcast`s", _tables)
_COLUMNS: Final = Kind('"auto", "all" or a list of column names', _columns)
_CHECKPOINT: Final = Kind('"latest", "empty" or a checkpoint id', _checkpoint)
_DROPPED: Final = replace(
    NAMES, name='a list of variables and fields ("total", "total.amount"), or "*"'
)
_TASKS: Final = Kind('a count from 1, or a range such as "1-8" or "4-"', _tasks)
_MOST_FAILED: Final = Kind(
    "number of keys, or a share of them below 1",
    _count_or_share,
    "a number of keys, at least 1, or a share of the keys, between 0 and 1 (onError='fail' allows no "
    "failed key)",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """
    The settings of one stateful query; most fields are documented by `OperatorSettings`.

    Args:
        base_location: In which folder is the state of all queries of a session stored, each in a
            folder of its queryName? Default: each query's state is stored in its
            checkpointLocation.
        options: The options of docs/reference/options.md.

    Raises:
        InvalidOptionsError: A value is out of range, or two contradict each other.
    """

    # What the state is: where it is stored, how it is addressed, from where a start continues.
    state_location: str | None = option(
        None,
        "stateLocation",
        TEXT,
        only=_NOT_BY_SESSION,
        values="path or URL",
        advice="spark.statelog.baseLocation is the folder for all queries of a session",
    )
    base_location: str | None = option(
        None,
        "baseLocation",
        TEXT,
        only=_SESSION,
        values="path or URL",
        advice="it belongs to the session: set spark.statelog.baseLocation",
    )
    storage_options: Mapping[str, object] = option(
        dict,
        "storageOptions",
        AS_GIVEN,
        only=_CODE,
        values="mapping; elsewhere one key `storageOptions.<name>` per option",
    )
    operator_id: str | None = option(None, "operator", TEXT, only=_OPERATOR)
    max_parallelism: int = option(
        DEFAULT_MAX_PARALLELISM, "maxParallelism", COUNT, only=_NOT_BY_WRITER, least=1
    )
    checkpoint: int | str = option("latest", "checkpoint", _CHECKPOINT, only=_NOT_BY_SESSION)
    adopt: bool = option(False, "adopt", SWITCH, only=_NOT_BY_SESSION)
    drop_state: tuple[str, ...] = option((), "dropState", _DROPPED)

    # How a micro-batch runs, and how its rows are delivered.
    tasks: tuple[int, int | None] = option((1, None), "tasks", _TASKS)
    memory_budget: int = option(MEMORY_BUDGET, "memoryBudget", SIZE, least=LEAST_BUDGET)
    input_columns: str | tuple[str, ...] = option(AUTO, "inputColumns", _COLUMNS, only=_OPERATOR)
    broadcast: Mapping[str, object] = option(dict, "broadcast", _TABLES, only=_CODE, compare=False)
    no_data_batches: bool | None = option(None, "noDataBatches", SWITCH)
    delivery: Delivery = option(Delivery.STAGED, "delivery", choice(*Delivery))
    file_output: FileOutput = option(FileOutput.EXACTLY_ONCE, "fileSink", choice(*FileOutput))

    # Keys that fail, and what is retained besides the state.
    on_error: str = option("fail", "onError", choice("fail", "skip", "dead-letter", "freeze"))
    max_errors: float = option(1000, "maxErrors", _MOST_FAILED)
    record: Record = option(
        Record(),
        "record",
        RECORD,
        values="a `Record`; elsewhere one key `record.<name>` per field",
    )
    retention: dt.timedelta = option(dt.timedelta(days=7), "retention", DURATION)

    options: Options = field(default_factory=task_options)

    def __post_init__(self) -> None:
        least, most = self.tasks
        if (most or least) > self.max_parallelism:
            raise InvalidOptionsError(
                f"tasks must be at most maxParallelism ({self.max_parallelism}), not {most or least}",
                fields=("tasks", "max_parallelism"),
            )
        _ = self.backend  # made here, so that wrong values are rejected at once
        if self.adopt and self.checkpoint == "empty":
            raise InvalidOptionsError(
                "adopt continues from existing state, but checkpoint='empty' requires that there is "
                "none: remove one of them",
                fields=("adopt", "checkpoint"),
            )

    def task_bounds(self, cores: int) -> TaskBounds:
        """Return the minimum and maximum number of tasks in a micro-batch."""
        least, most = self.tasks
        return TaskBounds(least, most or max(least, min(cores, self.max_parallelism)))

    @property
    def backend(self) -> StateBackendConfig:
        """Where workers store the state."""
        options = self.options.state
        return StateBackendConfig(options.backend, self.memory_budget, options.local_directory)

    def backend_of_each(self, operators: int) -> StateBackendConfig:
        """Return where workers store the state of each operator; operators share the memory."""
        return replace(
            self.backend, budget_bytes=max(self.memory_budget // operators, LEAST_BUDGET)
        )

    @property
    def keeps_rows(self) -> str:
        """The name of the setting that records rows for a replay, or "" if none is on."""
        keeping = [row.keeps_rows for row in EXTENSIONS if row.keeps_rows]
        keys = (loaded(path, FunctionType)(self) for path in keeping)
        return next(filter(None, keys), "")

    @property
    def is_beside_checkpoint(self) -> bool:
        """Whether the state is stored in the query's checkpointLocation."""
        return (self.state_location or self.base_location or BESIDE_CHECKPOINT) == BESIDE_CHECKPOINT

    def location(
        self, checkpoint_location: str, query_name: str | None, *, temporary: bool = False
    ) -> str:
        """Return the location where a query's state is stored."""
        if self.is_beside_checkpoint or (temporary and self.state_location is None):
            return f"{checkpoint_location.rstrip('/')}/{STATE_FOLDER}"
        if self.state_location is not None:
            return self.state_location
        if not query_name or "/" in query_name or query_name in (".", ".."):
            raise UsageError(
                f"{CONF_PREFIX}baseLocation is a base folder: the state of each query is stored in "
                f"it under its name. Give the query a queryName without '/' (it is {query_name!r}), "
                f"or a separate location with .option('{OPTION_PREFIX}stateLocation', ...)"
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
    The settings of an operator besides Spark's own arguments.

    A setting that is left out, or None, is read from the session's configuration
    (`spark.statelog.<name>`), then has its default.

    Args:
        stateLocation: Where is the state stored? Default: in the folder `statelog` of the query's
            checkpointLocation (also by the word "checkpoint"); in a session with
            `spark.statelog.baseLocation` in that folder, under the queryName.
        storageOptions: How does the client reach the object store (credentials, endpoint, ...)?
            `fsync`, for local disk, is whether objects are durable before they count: true by
            default.
        operator: What is the name of the operator? The state of another one is rejected. Default:
            `transform_with_state`.
        maxParallelism: How many key groups? Fixed for the lifetime of the state.
        checkpoint: From which checkpoint does the query start? "empty" insists on starting without
            state. An id goes back to an older checkpoint; it does not rewind the sources (see
            `statelog rewind`).
        adopt: Continue from state that another query wrote?
        dropState: Which state may be dropped for good? It is in the checkpoint, and the processor
            no longer declares it, or declares it under another name. Default: none; a start that
            would drop state is rejected.
        tasks: How many parallel tasks? May change at every restart. A range: as many in it as the
            work of each micro-batch needs. Without an end it ends at the number of cores. Default:
            "1-"; over a batch frame `spark.sql.shuffle.partitions`, within the range.
        memoryBudget: How much memory do state and rows take in a Python worker? State beyond it is
            stored on the host's local disk.
        inputColumns: Which columns of the input does the processor read? The others are not read,
            shuffled or sent. Keys and event time are always sent. auto: what the code of a
            processor of Rows certainly reads, or what a `ColumnarProcessor` names in its attribute
            `columns`, else all; all where keys are recorded or become dead letters.
        broadcast: Which small tables does every key see? `handle.broadcast(name)` returns one: the
            same version in all calls of a micro-batch, which its checkpoint names.
        noDataBatches: Run micro-batches without data when a timer is due or the watermark moved?
            Fixed for the lifetime of the query. Default: as the query began; for a new query,
            whether it can have timers.
        delivery: How do output rows reach the sink? staged: rows are committed with the state and
            delivered again identically, exactly once for a sink that honours the batch id. direct:
            one Spark job less, at least once.
        fileSink: How are files and tables of files written? exactly-once: with the log of Spark's
            streaming file sink next to them, so that a micro-batch that is delivered again is
            written once. append: without the log, at least once.
        onError: What happens where the processing of a key fails? fail: the query stops. skip: the
            key's rows are left out. dead-letter: they are kept with the error, to be replayed.
            freeze: so are the later rows of the key. Its state stays as it was; the other keys are
            not affected.
        maxErrors: How many keys of one task and micro-batch may fail where onError is not "fail"?
            With more the query stops.
        record: What is recorded of keys, for `statelog replay`? It is personal data where the rows
            are.  Default: nothing.
        retention: For how long are recordings, dead letters and rows of side outputs retained?
            Older ones are deleted.
        retainedCheckpoints: How many of the newest checkpoints are retained, so that they can be
            restored?
    """

    stateLocation: str | None
    storageOptions: Mapping[str, object] | None
    operator: str | None
    maxParallelism: int | None
    checkpoint: int | str | None
    adopt: bool | None
    dropState: Sequence[str] | str | None
    tasks: int | str | None
    memoryBudget: int | str | None
    inputColumns: str | Sequence[str] | None
    broadcast: Mapping[str, object] | None
    noDataBatches: bool | None
    delivery: str | None
    fileSink: str | None
    onError: str | None
    maxErrors: float | str | None
    record: Record | None
    retention: dt.timedelta | str | None
    retainedCheckpoints: int | None


describe_values(OperatorSettings, SETTINGS)


def names_settings(function: Function) -> Function:
    """Add the names of all settings to the docstring of a function that accepts them."""
    names = ", ".join(OperatorSettings.__annotations__)
    lines = textwrap.wrap(f"{names}.  `help(OperatorSettings)` describes each.", 84)
    text = "\n".join([_REFERENCE.replace(".", ":"), *(" " * 12 + line for line in lines)])
    if function.__doc__ is not None:  # it is None under python -OO
        function.__doc__ = function.__doc__.replace(_REFERENCE, text)
    return function

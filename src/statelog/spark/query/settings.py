"""
The settings of one stateful query, out of the places where people write them.

Precedence, the first one counts: an option `statelog.<name>` of the writer, an argument in the
code, `spark.statelog.<name>` in the session's configuration; then, for the options of
`docs/reference/options.md`, the environment; then the defaults.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from statelog.checkpoint.options import CheckpointOptions
from statelog.core.materialization_policy import MaterializationPolicy
from statelog.errors import InvalidOptionsError, UsageError
from statelog.model import DEFAULT_MAX_PARALLELISM
from statelog.options import load_options
from statelog.options.table import ForeignKey, find_option
from statelog.options.units import parse_bool, parse_count, parse_size, parse_text
from statelog.spark.query.delivery import Delivery
from statelog.state.backend import DEFAULT_BUDGET, StateBackend

_log = logging.getLogger("statelog.spark")

CONF_PREFIX: Final = "spark.statelog."
OPTION_PREFIX: Final = "statelog."
STATE_FOLDER: Final = "statelog"
"""Folder inside the checkpointLocation that holds the state unless stateLocation says otherwise."""

BESIDE_CHECKPOINT: Final = "checkpoint"
"""The stateLocation that names this default place, so that a session can ask for it."""

_STORE_OPTIONS: Final = "storeoptions."
_DEFAULT_INLINE_BYTES: Final = 1024 * 1024
_FIXED_AT_THE_OPERATOR: Final = ("maxParallelism", "operatorId")
_NEVER_BY_CONFIGURATION: Final = ("operatorId", "restore", "adopt")
_EFFECTIVE_SECTIONS: Final = ("checkpoint", "materialization")


def _delivery(value: Any, *, key: str) -> Delivery:
    try:
        return Delivery(value.lower())
    except (AttributeError, ValueError):
        modes = " or ".join(mode.value for mode in Delivery)
        raise InvalidOptionsError(f"option {key!r} is {value!r}; it must be {modes}") from None


def _restore(value: Any, *, key: str) -> int | str:
    if value in ("latest", "empty"):
        return str(value)
    try:
        wanted = parse_count(value, key=key)
    except InvalidOptionsError:
        wanted = -1
    if wanted < 0:
        raise InvalidOptionsError(
            f"option {key!r} is {value!r}; it must be 'latest', 'empty' or a checkpoint id"
        )
    return wanted


_SETTINGS: Final[dict[str, tuple[str, Callable[..., Any]]]] = {
    "stateLocation": ("state_location", parse_text),
    "delivery": ("delivery", _delivery),
    "idleTicks": ("idle_ticks", parse_bool),
    "tasks": ("tasks", parse_count),
    "minTasks": ("min_tasks", parse_count),
    "maxTasks": ("max_tasks", parse_count),
    "maxParallelism": ("max_parallelism", parse_count),
    "operatorId": ("operator_id", parse_text),
    "restore": ("restore", _restore),
    "adopt": ("adopt", parse_bool),
    "inlineBytes": ("inline_bytes", parse_size),
    "memoryBudget": ("memory_budget", parse_size),
    "stateBackend": ("state_backend", parse_text),
    "localDirectory": ("local_directory", parse_text),
    "fsync": ("fsync", parse_bool),
}
"""
What a query can be told, beside store options and the options of
`docs/reference/options.md`: the name, its field in `QuerySettings`, and how a value is read.
"""


def _plain(name: str) -> str:
    return name.replace(".", "").replace("-", "").replace("_", "").lower()


_NAMES: Final = {_plain(name): name for name in _SETTINGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySettings:
    """
    The settings of one stateful query.

    Args:
        state_location: Path or URL of the state; None to derive it.
        base_location: Folder that holds the state of each query under its name, where the session
            names one.
        delivery: How rows reach the sink.
        idle_ticks: Whether there are micro-batches without data; None for the default.
        tasks: Number of tasks; None for as many as each micro-batch is worth.
        min_tasks, max_tasks: Bounds of that; None at most for the number of cores.
        max_parallelism: Number of key groups.
        operator_id: Name of the operator; None for the default.
        restore: "latest", "empty", or a checkpoint id.
        adopt: Go on from state that another query wrote.
        inline_bytes: Deltas and rows of a task up to this size travel in its answer.
        memory_budget: Bytes a Python worker may take; see `StateBackend`, also for the next two.
        state_backend: "auto", "memory" or "disk".
        local_directory: Host-local folder for state on disk; None for the default.
        fsync: Make local objects durable.
        store_options: Client options of the store.
        checkpoints: How many to retain, and the like.
        materialization: When to write snapshots.
    """

    state_location: str | None = None
    base_location: str | None = None
    delivery: Delivery = Delivery.STAGED
    idle_ticks: bool | None = None
    tasks: int | None = None
    min_tasks: int = 1
    max_tasks: int | None = None
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    operator_id: str | None = None
    restore: int | str = "latest"
    adopt: bool = False
    inline_bytes: int = _DEFAULT_INLINE_BYTES
    memory_budget: int = DEFAULT_BUDGET
    state_backend: str = "auto"
    local_directory: str | None = None
    fsync: bool = True
    store_options: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: CheckpointOptions = field(default_factory=CheckpointOptions)
    materialization: MaterializationPolicy = field(default_factory=MaterializationPolicy)

    def __post_init__(self) -> None:
        if self.max_parallelism < 1:
            raise InvalidOptionsError(f"maxParallelism is at least 1; got {self.max_parallelism}")
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
        _ = self.backend  # made once, so that it refuses what is wrong
        if self.inline_bytes < 0:
            raise InvalidOptionsError(f"inlineBytes is never negative; got {self.inline_bytes}")
        if self.adopt and self.restore == "empty":
            raise InvalidOptionsError(
                "adopt goes on from state that is there, restore='empty' insists on none: leave "
                "one of them out"
            )

    def task_bounds(self, cores: int) -> tuple[int, int]:
        """Return between how many tasks a micro-batch may have, on so many *cores*."""
        if self.tasks is not None:
            return self.tasks, self.tasks
        most = self.max_tasks or min(cores, self.max_parallelism)
        return self.min_tasks, max(most, self.min_tasks)

    @property
    def backend(self) -> StateBackend:
        """Where the workers keep the state."""
        return StateBackend(self.state_backend, self.memory_budget, self.local_directory)

    @property
    def is_beside_checkpoint(self) -> bool:
        """Whether the state is in the checkpointLocation of its query."""
        return (self.state_location or self.base_location or BESIDE_CHECKPOINT) == BESIDE_CHECKPOINT

    def location(
        self, checkpoint_location: str, query_name: str | None, *, temporary: bool = False
    ) -> str:
        """
        Return where the state of a query lies.

        Args:
            checkpoint_location: The query's; the state of a temporary one is inside of it, unless
                the query itself names another place.
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
                f"{CONF_PREFIX}stateLocation is a base folder: each query keeps its state in it "
                f"under its name. Give the query a queryName without '/' (it is {query_name!r}), "
                f"or its own place by .option('{OPTION_PREFIX}stateLocation', ...)"
            )
        return f"{(self.base_location or '').rstrip('/')}/{query_name}"


@dataclass(slots=True)
class _Found:
    """
    What one place says: settings of queries, store options, options.

    The options are those of `docs/reference/options.md`.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


def settle(
    conf: Mapping[str, str],
    arguments: Mapping[str, Any],
    written: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> QuerySettings:
    """
    Put the settings of a query together.

    Args:
        conf: The session's configuration; only keys that begin with `spark.statelog.` are read.
        arguments: What the code says; None for what it does not say.
        written: Options of the writer, without `statelog.`; None before there is one.
        environ: The environment; None for this process's.

    Raises:
        InvalidOptionsError: A key is unknown or is set twice in one place, a value cannot be
            understood or is out of range, or values contradict each other; the message names the
            place.
    """
    session = _read(
        (
            (key.removeprefix(CONF_PREFIX), value, f"Spark's configuration {key!r}")
            for key, value in conf.items()
            if key.startswith(CONF_PREFIX)
        ),
        refused=_NEVER_BY_CONFIGURATION,
        why="it belongs to one query: give it in the code, or as an option of the writer",
    )
    given = {name: value for name, value in arguments.items() if value is not None}
    policy = given.pop("materialization", None)
    store = given.pop("storeOptions", {})
    code = _read((name, value, f"argument {name!r}") for name, value in given.items())
    writer = _read(
        (
            (name, value, f"writer's option '{OPTION_PREFIX}{name}'")
            for name, value in (written or {}).items()
        ),
        refused=_FIXED_AT_THE_OPERATOR,
        why="it belongs to the operator: give it to transform_with_state",
    )
    options = load_options(
        code.options | writer.options,
        spark_conf={CONF_PREFIX + key: value for key, value in session.options.items()},
        environ=environ,
    )
    values = code.settings | writer.settings
    base = session.settings.pop("stateLocation", None)
    merged: dict[str, Any] = session.settings | values
    return QuerySettings(
        base_location=base,
        store_options={**session.store, **store, **writer.store},
        checkpoints=options.checkpoint,
        materialization=policy or MaterializationPolicy.of(options.materialization),
        **{_SETTINGS[name][0]: value for name, value in merged.items()},
    )


def _read(
    entries: Iterable[tuple[str, Any, str]], refused: tuple[str, ...] = (), why: str = ""
) -> _Found:
    """Understand the settings of one place, none of which may be there twice."""
    found = _Found()
    for key, value, origin in entries:
        if key.lower().startswith(_STORE_OPTIONS):
            found.store[key[len(_STORE_OPTIONS) :]] = value
            continue
        name = _NAMES.get(_plain(key))
        if name is None:
            into, name = found.options, _option(key, origin)
        elif name in refused:
            raise InvalidOptionsError(f"{origin} has no effect there; {why}", key=key)
        else:
            into, value = found.settings, _parsed(name, value, origin)
        if name in into:
            raise InvalidOptionsError(
                f"{origin}: {name} is set a second time; leave one out", key=key
            )
        into[name] = value
    return found


def _parsed(name: str, value: Any, origin: str) -> Any:
    try:
        return _SETTINGS[name][1](value, key=name)
    except InvalidOptionsError as error:
        raise InvalidOptionsError(f"{origin}: {error}", **error.facts) from None


def _option(key: str, origin: str) -> str:
    """
    Return the key of an option of `docs/reference/options.md`, or a key of Flink's as it stands.

    Raises:
        InvalidOptionsError: There is none of this name, or it contradicts how Spark runs.
    """
    try:
        spec = find_option(key)
    except InvalidOptionsError as error:
        near = difflib.get_close_matches(_plain(key), _NAMES, n=1, cutoff=0.7)
        hint = f"unknown setting {key!r}; did you mean {_NAMES[near[0]]!r}?" if near else error
        raise InvalidOptionsError(f"{origin}: {hint}", key=key) from None
    if isinstance(spec, ForeignKey):
        return key
    if spec.key == "changelog.base-path":
        raise InvalidOptionsError(
            f"{origin} has no meaning on Spark: the changelog lies in the state location, which "
            "stateLocation names",
            key=key,
        )
    if spec.section not in _EFFECTIVE_SECTIONS:
        _log.warning("%s has no effect on Spark: tasks upload at the end of a batch", origin)
    return spec.key

"""
The keyed state of a `ProcessorTester`, its log, and the handle of one key.

Source: the handle of PySpark's TwsTester.  Deviations: it has only the state variables that `init`
creates; each call commits its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar
from zlib import crc32

import pyarrow as pa

from statelog.changelog.storage import FsStateChangelogStorage
from statelog.changelog.upload.scheduler import DirectStateChangeUploadScheduler
from statelog.changelog.upload.uploader import StateChangeFsUploader
from statelog.checkpoint.stream_factory import FsCheckpointStreamFactory
from statelog.errors import InvariantError
from statelog.model import DEFAULT_MAX_PARALLELISM, ChangeBatch, ChangelogStateHandle, KeyGroupRange
from statelog.model.checkpoint import ChangelogStateBackendHandle, MaterializedHandle
from statelog.spark.query.ddl import parse_ddl
from statelog.spark.query.declared_state import Declared, declared_by
from statelog.spark.query.face import AnyProcessor
from statelog.spark.query.state_variables import (
    STATE_CLASSES,
    StateVariables,
    WantedVariable,
    bind_variable,
    methods_of,
)
from statelog.spark.rows.spark_errors import (
    MissingStateError,
    UnsupportedOperationError,
    WrongArgumentError,
    WrongTimeError,
)
from statelog.spark.rows.types import make_row
from statelog.spark.worker.handle import TaskHandle
from statelog.state.cache import AnyState
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.snapshot_file import write_snapshot
from statelog.state.heap.tables import Key, Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.key_groups import key_group_of
from statelog.state.objects import BoundState, Cursor, Timers
from statelog.state.recordings.cells import Cells, cells_of
from statelog.state.schema.descriptors import TIMERS_NAME, OperatorStateSchema, StateDescriptor
from statelog.state.schema.evolution import evolve
from statelog.store import PATHS, ObjectStore, open_store

StateT = TypeVar("StateT", bound=AnyState)


class KnownStates(TaskHandle):
    """A handle of one key that says at once which states there are when asked for another one."""

    def _variable(self, asked: WantedVariable) -> BoundState:
        """Return the state object; of a reducing or aggregating state, what is kept."""
        name = asked.name
        names = [state.name for state in self._codec.schema.states if state.name != TIMERS_NAME]
        if name not in names:
            raise WrongArgumentError(
                f"init creates no state {name!r}; it creates {', '.join(names) or 'none'}"
            )
        state_id = self._codec.schema.state_id(name)
        state = self._codec.states[state_id]
        if state.descriptor.kind is not asked.kind:
            raise WrongArgumentError(f"state {name!r} is a {state.descriptor.kind_text} state")
        return bind_variable(self._cursor, state_id, state)

    variable = _variable


Open = Callable[[object], tuple[KnownStates, Callable[[], None]]]


class TesterHandle(StateVariables):
    """
    The handle of a tester, at the key of `setGroupingKey`.

    Args:
        open_key: Returns a handle of a key, and a function that commits its changes.
        states: The state variables.
        drop: Deletes a state variable for all keys.
        time_mode: "none", "processingtime" or "eventtime".
    """

    def __init__(
        self,
        open_key: Open,
        states: Sequence[StateDescriptor],
        drop: Callable[[str], None],
        time_mode: str,
    ) -> None:
        self._open_key = open_key
        self._kinds = {state.name: state.kind for state in states if state.name != TIMERS_NAME}
        self._drop = drop
        self._time_mode = time_mode
        self._watermark_ms = 0
        self.grouping_key: object = None

    def setGroupingKey(self, key: object) -> None:
        """Use the state and timers of *key* from now on."""
        self.grouping_key = key

    def setWatermark(self, watermarkMs: int) -> None:
        """Reject timers up to this watermark; the tester's `setWatermark` calls this."""
        self._watermark_ms = watermarkMs

    def _variable(self, asked: WantedVariable) -> object:
        """Return the state variable of the current key; raises for an unknown one."""
        self._open_key(self.grouping_key)[0].variable(asked)
        return _KEYED[asked.kind](self, asked)

    def call(self, asked: WantedVariable, method: str, *args: object) -> object:
        """Call a method of a state variable, and commit its changes."""
        handle, commit = self._open_key(self.grouping_key)
        result = getattr(handle.variable(asked), method)(*args)
        if isinstance(result, Iterator):
            result = iter(list(result))
        commit()
        return result

    def _timers(self) -> tuple[KnownStates, Callable[[], None]]:
        if self._time_mode == "none":
            raise UnsupportedOperationError(
                "timers need the time mode ProcessingTime or EventTime; this tester has None",
                condition="UNSUPPORTED_OPERATION",
            )
        return self._open_key(self.grouping_key)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key, later than the watermark."""
        handle, commit = self._timers()
        if self._time_mode == "eventtime" and expiryTimestampMs <= self._watermark_ms:
            raise WrongTimeError(
                f"a timer at {expiryTimestampMs} ms is not later than the watermark, "
                f"{self._watermark_ms} ms"
            )
        handle.registerTimer(expiryTimestampMs)
        commit()

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        handle, commit = self._timers()
        handle.deleteTimer(expiryTimestampMs)
        commit()

    def listTimers(self) -> Iterator[int]:
        """Return the timers of the current key, ascending."""
        return self._timers()[0].listTimers()

    def deleteIfExists(self, stateName: str) -> None:
        """Delete a state variable for all keys, if it exists."""
        if stateName in self._kinds:
            self._drop(stateName)

    def deleteState(self, stateName: str) -> None:
        """Delete a state variable of the current key."""
        kind = self._kinds.get(stateName)
        if kind is None:
            raise MissingStateError(
                f"init creates no state {stateName!r}; it creates {', '.join(self._kinds)}",
                condition="STATE_NOT_EXISTS",
            )
        self.call(WantedVariable(stateName, kind, ""), "clear")


def _keyed(sparks: type[BoundState]) -> type:
    """Return a class of state objects that follow the current key of a tester."""

    def method(name: str) -> Callable[..., object]:
        def call(self: Any, *args: Any) -> Any:
            return self._handle.call(self._wanted, name, *args)

        return call

    def begin(self: Any, handle: TesterHandle, asked: WantedVariable) -> None:
        self._handle, self._wanted = handle, asked

    methods = {name: method(name) for name in methods_of(sparks)}
    return type(f"Keyed{sparks.__name__}", (sparks,), {"__init__": begin, **methods})


_KEYED: Final = {classes.plain.kind: _keyed(classes.plain) for classes in STATE_CLASSES}


# The changelog of a `ProcessorTester`, on a store in memory.


class TesterLog:
    """State with its log and its snapshot."""

    def __init__(self, codec: OperatorCodec, key_group_range: KeyGroupRange) -> None:
        self.state = KeyedState(codec)
        self._range = key_group_range
        self._store = open_store("memory:///")
        uploader = StateChangeFsUploader(self._store, paths=PATHS)
        self._storage = FsStateChangelogStorage(
            self._store, job_id="", scheduler=DirectStateChangeUploadScheduler(uploader)
        )
        self._checkpoint_id = -1
        self._snapshots: tuple[MaterializedHandle, ...] = ()
        self._log: list[ChangelogStateHandle] = []
        self._in_form: AnyState | None = None

    def current(self) -> KeyedState:
        """Return the committed state."""
        committed = [handle.state_handle_id for handle in self._log[-1:]]
        self.state.catch_up(self._range, self._checkpoint_id, committed, self._load)
        return self.state

    def _load(self) -> tuple[ObjectStore, ChangelogStateBackendHandle]:
        return self._store, ChangelogStateBackendHandle(
            self._range, self._checkpoint_id, self._snapshots, tuple(self._log)
        )

    def in_form(self, new_state: type[StateT]) -> StateT:
        """Return the committed state in another form, the same in all calls."""
        state = self._in_form
        if not isinstance(state, new_state):
            self._in_form = state = new_state(self.state.codec)
        state.catch_up(self._range, self._checkpoint_id, (), self._load)
        return state

    def commit(self, overlays: Mapping[int, Overlay]) -> None:
        """
        Append the overlays of one batch.

        Raises Arrow's errors if a value does not fit.
        """
        base_id = self._checkpoint_id
        handle = self.append(self.state.codec.encode(overlays))
        if handle is not None:
            self.state.stage(
                self._checkpoint_id, base_id, handle.state_handle_id, self._range, dict(overlays)
            )

    def append(self, changes: ChangeBatch) -> ChangelogStateHandle | None:
        """Append changes as a checkpoint; return their handle, None for no changes."""
        codec = self.state.codec
        if not len(changes):
            return None
        with self._storage.create_writer(codec.schema.operator_id, self._range) as writer:
            writer.append_meta(codec.metadata_change())
            writer.append_batch(changes.key_groups, changes.values)
            persisted = writer.persist(
                writer.initial_sequence_number(), checkpoint_id=self._checkpoint_id + 1
            )
            handle = persisted.result().job_manager_owned
        if handle is None:
            raise InvariantError("changes were appended, so there is a handle")
        self._checkpoint_id += 1
        self._log.append(handle)
        return handle

    def restart(self, codec: OperatorCodec, now_ms: int) -> None:
        """Read the state from the log, then from a snapshot."""
        schema = codec.schema.to_json()
        self._in_form = None
        if self._checkpoint_id < 0:
            return
        for last in (False, True):
            self.state = KeyedState(OperatorCodec(OperatorStateSchema.from_json(schema), make_row))
            state = self.current()
            if last:
                return
            data = write_snapshot(state.codec, state.groups, {}, self._range, now_ms=now_ms)
            streams = FsCheckpointStreamFactory.for_checkpoint(
                self._store, self._checkpoint_id, paths=PATHS
            )
            with streams.create_task_owned_state_stream() as stream:
                stream.write(data)
                snapshot = stream.close_and_get_handle()
            if snapshot is None:
                raise InvariantError("a snapshot cannot be empty: a Parquet file has a footer")
            self._snapshots = (MaterializedHandle(self._range, self._checkpoint_id, snapshot),)
            self._log = []


class TesterState:
    """
    State by key, committed to a changelog in memory.

    Args:
        processor: The processor, whose `init` declares the state variables.
        time_mode: "none", "processingtime" or "eventtime".
        keys: Names and types of the key's columns; None: taken from the first key.
        stored: The schema of the state that the test begins with, which the processor's has to be
            a later form of, and whose key is taken; None for none.
        stored_ms: The time from which a time to live counts that the processor adds.

    Attributes: `key_group_range`: all key groups; `declared`: the declared state variables;
        `side_outputs`: the declared side outputs.

    Raises:
        UsageError: The processor declares a state variable that cannot be kept.
        ProcessorError: `init` failed.
    """

    def __init__(
        self,
        processor: AnyProcessor,
        time_mode: str,
        keys: pa.Schema | None,
        stored: OperatorStateSchema | None = None,
        stored_ms: int = 0,
    ) -> None:
        self._stored = stored
        self._stored_ms = stored_ms
        self._processor = processor
        self._time_mode = time_mode
        self._given_keys = keys if stored is None else stored.key_schema
        self._log: TesterLog | None = None
        self.key_group_range = KeyGroupRange(0, DEFAULT_MAX_PARALLELISM - 1)
        declared = self._declared(pa.schema([]))  # wrong ones are an error at once
        self.declared, self.extras = declared.state.states, declared.extras

    @property
    def has_keys(self) -> bool:
        """Whether a key was used; else there are no rows or timers."""
        return self._log is not None

    def current(self) -> KeyedState:
        """Return the committed state."""
        return self._opened(()).current()

    def commit(self, overlays: Mapping[int, Overlay]) -> None:
        """
        Append the overlays of one batch.

        Raises Arrow's errors if a value does not fit.
        """
        self._opened(()).commit(overlays)

    @property
    def given_keys(self) -> pa.Schema | None:
        """The columns of the key as the test gave them."""
        return self._given_keys

    def in_form(self, new_state: type[StateT]) -> StateT:
        """Return the committed state in the form of a face that takes all keys at once."""
        return self._opened(()).in_form(new_state)

    def append(self, changes: ChangeBatch) -> None:
        """Append the changes of a micro-batch, and commit them."""
        self._opened(()).append(changes)

    def restart(self, now_ms: int) -> None:
        """Read the state from the log, then from a snapshot."""
        if self._log is not None:
            self._log.restart(self._log.state.codec, now_ms)

    def place(self, key: object) -> tuple[int, Key, Key]:
        """Return a key's group, and the key in both its forms."""
        return self.place_values(key if type(key) is tuple and self._is_whole_key(key) else (key,))

    def place_values(self, key_object: Key) -> tuple[int, Key, Key]:
        """Return as `place` the key with these values of its columns."""
        codec = self._opened(key_object).state.codec
        frozen = codec.key.freeze(key_object)
        count = len(self.key_group_range)
        if any(pa.types.is_struct(kind) for kind in codec.key.schema.types):
            # Only Spark can hash a struct; the group makes no difference here.
            return crc32(repr(frozen).encode("utf-8")) % count, frozen, key_object
        return key_group_of(key_object, codec.key.schema, count), frozen, key_object

    def cells(self, values: Key) -> Cells:
        """Return the cells of the key with these values of its columns."""
        group, frozen, _ = self.place_values(values)
        return cells_of(self.current().groups[group], frozen)

    def set_cells(self, values: Key, cells: Cells) -> None:
        """Make *cells* the state of the key with these values of its columns."""
        group, frozen, _ = self.place_values(values)
        state = self.current()
        overlay: Overlay = [{} for _ in state.codec.states]
        for state_id, kind in enumerate(state.codec.kinds):
            cell = cells.get(state_id)
            rules = kind.rules
            overlay[state_id][frozen] = rules.replacing_delta(cell) if cell else rules.clear_delta()
        self.commit({group: overlay})

    @property
    def codec(self) -> OperatorCodec:
        """The codec of the state; a key was used before."""
        return self._opened(()).state.codec

    def drop(self, name: str) -> None:
        """Delete a state variable for all keys."""
        state = self.current()
        state_id = state.codec.schema.state_id(name)
        overlays: dict[int, Overlay] = {}
        for group, content in state.groups.items():
            deltas: Overlay = [{} for _ in state.codec.states]
            kind = state.codec.kinds[state_id]
            deltas[state_id].update(
                (key, kind.rules.clear_delta()) for key in content.tables[state_id]
            )
            if deltas[state_id]:
                overlays[group] = deltas
        self.commit(overlays)

    def open_key(self, key: object, now_ms: int) -> tuple[KnownStates, Callable[[], None]]:
        """Return a handle at *key*, and a function that commits its changes."""
        group, frozen, _ = self.place(key)
        state = self.current()
        codec = state.codec
        overlay: Overlay = [{} for _ in codec.states]
        cursor = Cursor(now_ms)
        timers = None
        if self._time_mode != "none":
            timers_id = codec.schema.state_id(TIMERS_NAME)
            timers = Timers(cursor, timers_id, codec.states[timers_id].value)
        cursor.enter(state.groups[group], overlay)
        cursor.key = frozen
        handle = KnownStates(cursor, codec, timers, lambda state_id: None)
        return handle, lambda: self.commit({group: overlay})

    def _declared(self, keys: pa.Schema) -> Declared:
        name = "tester" if self._stored is None else self._stored.operator_id
        return declared_by(self._processor, name, keys, parse_ddl, time_mode=self._time_mode)

    def _operator(self, keys: pa.Schema) -> OperatorStateSchema:
        stored, expected = self._stored, self._declared(keys).state
        # Without keys only the variables are asked for.
        return (
            expected
            if stored is None or not len(keys)
            else evolve(stored, expected, now_ms=self._stored_ms)
        )

    def _opened(self, first_key: Key) -> TesterLog:
        """
        Return the log.

        Its key has the types of the first key unless they were given.
        """
        if self._log is None:
            keys = self._given_keys
            if keys is None:
                keys = pa.schema([("key", _type_of(first_key[0] if first_key else None))])
            codec = OperatorCodec(self._operator(keys), make_row)
            self._log = TesterLog(codec, self.key_group_range)
        return self._log

    def _is_whole_key(self, value: tuple[object, ...]) -> bool:
        """Return whether a tuple has the values of all key columns."""
        columns = self._given_keys
        if columns is None:
            return False
        return len(columns) > 1 or (len(value) == 1 and not pa.types.is_struct(columns.types[0]))


def _type_of(key: object) -> pa.DataType:
    """
    Return the type of a key.

    For None that of text, though any type would do.
    """
    if key is None:
        return pa.string()
    if type(key) is tuple:
        return pa.struct([(f"_{place}", _type_of(part)) for place, part in enumerate(key, 1)])
    kind = pa.infer_type([key])
    # As in a query, a point in time is kept in UTC, whatever the zone of the first key.
    return pa.timestamp("us", "UTC") if getattr(kind, "tz", None) else kind

"""
Set and delete the state of keys, from Python or Parquet files, and unfreeze keys.

An edit says what state a key has afterwards, so an edit that changes nothing writes nothing, and
the same edit applied again changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from statelog.arguments import instance, whole_number
from statelog.changelog.storage import FsStateChangelogStorage
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.edit import EditSession, edit_session, newest_checkpoint
from statelog.checkpoint.history import open_state
from statelog.errors import InvariantError, UsageError
from statelog.extensions.bad_records.marks import FROZEN_NAME
from statelog.model import (
    ChangelogStateHandle,
    CompletedCheckpoint,
    KeyGroupRange,
    TaskStateSnapshot,
)
from statelog.options import task_options
from statelog.runtime.clock import wall_clock_ms
from statelog.state.encoding.changes import OperatorCodec
from statelog.state.encoding.deltas import StateCodec
from statelog.state.encoding.values import UNENCODABLE
from statelog.state.heap import MemoryLimits, Overlay
from statelog.state.keyed_state import KeyedState
from statelog.state.keys.state_key import StateKey
from statelog.state.kinds import FromPython, Key, Values
from statelog.state.kinds.kind import EXPIRES_FIELD
from statelog.state.kinds.list import POSITION_COLUMN
from statelog.state.reader import StateReader
from statelog.state.schema import TIMERS_NAME
from statelog.store import ObjectStore
from statelog.store.local_disk import check_named_file

StatesByName: TypeAlias = Mapping[str, Mapping[Any, object]]
"""New state by variable and key."""
GroupEdits: TypeAlias = dict[Key, dict[int, object]]
"""The cells after an edit by key and state id; None for a cleared variable."""
_BUDGET_BYTES: Final = 256 * 1024 * 1024
"""Memory in which the state of an edited key group is restored."""
_INLINE_BYTES: Final = 64 * 1024
"""Changes up to this size are stored in the checkpoint's own object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditCounts:
    """
    How many keys an edit changes.

    Args:
        inserted: Keys that had no state, and have some.
        updated: Keys whose state differs.
        deleted: Keys that had state, and have none.
        unchanged: Keys that the edit names and does not change.
    """

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    unchanged: int = 0

    @property
    def changed(self) -> int:
        """The number of keys whose state the edit changes."""
        return self.inserted + self.updated + self.deleted


@dataclass(frozen=True, slots=True, kw_only=True)
class EditReport:
    """
    The changes that an edit made, or would make.

    Args:
        base_id: The checkpoint that was edited.
        checkpoint_id: The new checkpoint; None for a dry run, and where nothing changes.
        counts: Number of keys.
        delta_bytes: Bytes of the changes.
    """

    base_id: int
    checkpoint_id: int | None
    counts: EditCounts
    delta_bytes: int = 0


def edit(
    location: str | os.PathLike[str],
    *,
    set: Mapping[str, Mapping[Any, object]] | None = None,
    delete: Iterable[object] = (),
    operator: str | None = None,
    apply: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> EditReport:
    """
    Set and delete the state of keys in a new checkpoint.

    A query of the location must be stopped; one that runs is fenced, and its next start goes on at
    the same source position from the edited state.

    Example:
        statelog.edit(
            "s3://bucket/jobs/totals", set={"total": {"c1": {"total": 12.5}}}, delete=["c2"], apply=True
        )

    Args:
        location: Path or URL of the state location.
        set: For each variable the new state by key, in the form that `LocationState.get` returns: a
            dict of fields for a value, a list of dicts, a dict of dicts by map key, a list of times
            for `$timers`.  The whole state of the variable is replaced; None deletes it.  With a
            time to live, entries expire one time to live from now, or at `expires_at_ms` of their
            dict.
        delete: Keys whose state is deleted in all variables, timers too; what is set for a key
            counts.
        operator: Name of the operator, where the query has several.
        apply: Make the changes; False only counts them.
        storage_options: Options of the store's client, as for `open_store`.

    Returns:
        The new checkpoint, and how many keys changed.

    Raises:
        UsageError: A variable, key or value does not fit the operator.
        CheckpointNotFoundError: The location does not contain a checkpoint.
        QueryActiveError: The query commits meanwhile.
        FencedError: A query has claimed the location meanwhile; nothing was changed.
        StoreError: The store failed.

    Blocks: On the store; the edited key groups are read.
    """
    store = open_state(location, options=storage_options)
    states = instance(set or {}, "set", Mapping, "a mapping")
    base = newest_checkpoint(store)
    return edit_as("edit", store, base, states, delete, operator=operator, apply=apply)


def edit_as(
    verb: str,
    store: ObjectStore,
    base: CompletedCheckpoint,
    states: StatesByName,
    delete: Iterable[object] = (),
    *,
    operator: str | None,
    apply: bool,
) -> EditReport:
    """Edit keys of *base*, recording *verb* in the audit log; otherwise like `edit`."""
    target = EditTarget(store, base, operator)
    overlays, counts = target.overlays(target.edits(states, delete))
    if not (apply and counts.changed):
        return EditReport(base_id=base.checkpoint_id, checkpoint_id=None, counts=counts)
    with edit_session(store, verb, operator=operator, variables=sorted(states)) as session:
        report = target.commit(session, overlays, counts)
        session.result(checkpoint_id=report.checkpoint_id, **dataclasses.asdict(counts))
    return report


class EditTarget:
    """The operator that an edit changes."""

    def __init__(
        self, store: ObjectStore, base: CompletedCheckpoint, operator: str | None = None
    ) -> None:
        self._store = store
        self._base = base
        reader = StateReader(store, base, operator=operator)
        self.codec = OperatorCodec(reader.schema)
        self.key_groups = reader.key_groups
        self.position = reader.key_groups.start // len(reader.key_groups)
        self._now_ms = max(wall_clock_ms(), BatchRecord.of(base).now_ms)

    @property
    def names(self) -> str:
        """The names of the variables, for error messages."""
        return ", ".join(
            repr(self.codec.states[state_id].descriptor.name) for state_id in self.codec.live
        )

    def state_id(self, name: str) -> int:
        """Return the id of a variable; raise `UsageError` if it does not exist."""
        try:
            return self.codec.schema.state_id(name)
        except KeyError:
            raise UsageError(
                f"operator {self.codec.schema.operator_id} does not have a state "
                f"variable {name!r}; its variables are {self.names or 'none'}"
            ) from None

    def edits(
        self, states_by_name: StatesByName, delete: Iterable[object]
    ) -> dict[int, GroupEdits]:
        """Return the requested edits, grouped by key group."""
        by_group: dict[int, GroupEdits] = {}

        def cells_of(key_values: object) -> dict[int, object]:
            key = StateKey(key_values, self.codec.schema.key_schema)
            edits = by_group.setdefault(key.key_groups(self.key_groups).start, {})
            return edits.setdefault(self.codec.key.to_hashable(key.values), {})

        for key_values in delete:
            cells_of(key_values).update(dict.fromkeys(self.codec.live))
        for name, states in states_by_name.items():
            state_id = self.state_id(name)
            for key_values, state in instance(
                states, f"set[{name!r}]", Mapping, "a mapping"
            ).items():
                cells = cells_of(key_values)
                cells[state_id] = self._cell(self.codec.states[state_id], state) or None
        return by_group

    def overlays(self, edits: Mapping[int, GroupEdits]) -> tuple[dict[int, Overlay], EditCounts]:
        """Return the changes by key group, reading only the affected key groups."""
        overlays: dict[int, Overlay] = {}
        counts: Counter[str] = Counter()
        for key_group, group_edits in sorted(edits.items()):
            overlay = _edited(self._restored(key_group), key_group, group_edits, counts)
            if any(overlay):
                overlays[key_group] = overlay
        return overlays, EditCounts(**counts)

    def _restored(self, key_group: int) -> KeyedState:
        """Return the state of one key group as of the checkpoint."""
        key_groups = KeyGroupRange(key_group, key_group)
        handle = self._base.for_range(key_groups)
        state = KeyedState(self.codec, MemoryLimits(_BUDGET_BYTES))
        state.catch_up(key_groups, self._base.checkpoint_id, (), lambda: (self._store, handle))
        return state

    def commit(
        self, session: EditSession, overlays: Mapping[int, Overlay], counts: EditCounts
    ) -> EditReport:
        """Commit changes as a new checkpoint; raises like `edit`."""
        session.claim(self._base)
        checkpoint_id = session.checkpoint_id
        with contextlib.ExitStack() as closing:
            log, delta_bytes = self._written(overlays, checkpoint_id, closing)
            session.commit(
                [TaskStateSnapshot(self.key_groups, log)],
                timers_changed=self._timers_changed(overlays.values()),
            )
        return EditReport(
            base_id=self._base.checkpoint_id,
            checkpoint_id=checkpoint_id,
            counts=counts,
            delta_bytes=delta_bytes,
        )

    def _written(
        self, overlays: Mapping[int, Overlay], checkpoint_id: int, closing: contextlib.ExitStack
    ) -> tuple[ChangelogStateHandle | None, int]:
        """
        Make the changes durable.

        Return their handle and their bytes, and what closes their files.
        """
        try:
            changes = self.codec.encode(overlays)
        except UNENCODABLE as error:
            raise UsageError(f"a value cannot be stored in its column: {error}") from error
        if not len(changes):
            return None, 0
        storage = FsStateChangelogStorage.from_options(
            task_options(),
            self._store,
            job_id="",
            inline_bytes=_INLINE_BYTES,
        )
        closing.callback(storage.close)
        writer = storage.create_writer(self.codec.schema.operator_id, self.key_groups)
        closing.callback(writer.close)
        start = writer.initial_sequence_number()
        writer.append_meta(self.codec.metadata_change())
        writer.append_batch(changes.key_groups, changes.values)
        handle = writer.persist(start, checkpoint_id).result().job_manager_owned
        return handle, changes.size_bytes

    def _timers_changed(self, overlays: Iterable[Overlay]) -> frozenset[int]:
        """Return the operator's position if any of its timers changed."""
        timers = [
            state_id
            for state_id in self.codec.live
            if self.codec.states[state_id].descriptor.name == TIMERS_NAME
        ]
        changed = any(overlay[state_id] for overlay in overlays for state_id in timers)
        return frozenset([self.position] if changed else [])

    def _cell(self, state: StateCodec, content: object) -> object:
        """Return the cell of a state as Python values; empty or None without state."""
        if content is None:
            return None
        convert = FromPython(
            state.descriptor.name, partial(self._entry, state), partial(_user_key, state)
        )
        return state.kind.from_python(content, convert)

    def _entry(self, state: StateCodec, fields: object, _expiry: object) -> tuple[object, ...]:
        """Convert a value to its stored form."""
        names = state.value.schema.names
        ttl_ms = state.descriptor.ttl_ms
        expires_at_ms = self._now_ms + (ttl_ms or 0)
        if isinstance(fields, Mapping) and ttl_ms is not None and EXPIRES_FIELD not in names:
            fields = dict(fields)
            expires_at_ms = whole_number(fields.pop(EXPIRES_FIELD, expires_at_ms), EXPIRES_FIELD)
        if not isinstance(fields, Mapping) or sorted(fields) != sorted(names):
            raise UsageError(
                f"state {state.descriptor.name!r} takes a dict of the fields {', '.join(names)}, not "
                f"{fields!r:.100}"
            )
        value: Values = state.value.normalize(tuple(fields[name] for name in names))
        return value if ttl_ms is None else (expires_at_ms, value)


def _user_key(state: StateCodec, fields: object) -> Values:
    """Return a map key; if it has a single column, callers may omit the tuple."""
    codec = state.user_key
    if codec is None:
        raise InvariantError(
            f"{state.descriptor.kind_text} state has map keys but no codec for them"
        )
    single = len(codec.schema) == 1
    parts: Any = (fields,) if single and not isinstance(fields, tuple) else fields
    user_key: Values = codec.normalize(parts)
    return user_key


def _edited(state: KeyedState, key_group: int, edits: GroupEdits, counts: Counter[str]) -> Overlay:
    """Return the changes that edits make to a key group, and count the keys that change."""
    state.prepare({key_group: set(edits)})
    tables = state.groups[key_group].tables
    overlay: Overlay = [{} for _ in state.codec.states]
    for key, cells in edits.items():
        had = has = changes = False
        for state_id in state.codec.live:
            kind = state.codec.states[state_id].kind
            before = tables[state_id].get(key)
            after = cells.get(state_id, before)
            had = had or before is not None
            has = has or after is not None
            if after is not before and after != before:
                changes = True
                overlay[state_id][key] = (
                    kind.clear_delta() if after is None else kind.replacing_delta(after)
                )
        if not changes:
            counts["unchanged"] += 1
        elif had:
            counts["updated" if has else "deleted"] += 1
        else:
            counts["inserted"] += 1
    return overlay


# Edits from Parquet files, as `statelog read --to` and batch computations write them.
#
# A file has the rows of one variable, in the columns of `StateReader` (`key.customer`, `value.total`) or
# nested, as Spark has them (`key`, `value`).  A folder of files is read as one, without what Spark hides.
#
# The caller names the files.  A file in the location is still input: its symbolic links are those of who
# writes there, and would bring other files of the caller into the state.  They are not followed.

_STRUCTS: Final = ("key", "value", "user_key")
_OPTIONAL: Final = ("key_group", EXPIRES_FIELD)


def states_in_file(
    reader: StateReader, variable: str, path: str | os.PathLike[str]
) -> dict[Key, object]:
    """Return the state of each key in a file, in the form that `statelog.edit` accepts."""
    schema = reader.arrow_schema(variable)
    descriptor = reader.schema.states[reader.schema.state_id(variable)]
    check_named_file(reader.store.url, path)
    table = _rows(path, schema, f"the file of state {variable!r}, {os.fspath(path)},")
    if POSITION_COLUMN in table.column_names:
        table = table.sort_by(POSITION_COLUMN)
    keys = _keys(table, path)
    kind = descriptor.kind.rules
    columns: dict[str, Sequence[object]] = {
        name: table.column(name).to_pylist()
        for name in kind.row_columns
        if name in table.column_names
    }
    columns["value"] = list(_structs(table, "value"))
    columns["user_key"] = [
        tuple(place.values()) for place in _structs(table, "user_key", with_expiry=False)
    ]
    items: dict[Key, list[object]] = {}
    for key, item in zip(keys, kind.row_items(columns), strict=True):
        items.setdefault(key, []).append(item)
    if kind.is_single and len(items) != len(keys):
        raise UsageError(
            f"{os.fspath(path)} contains {len(keys)} rows for {len(items)} keys; {variable!r} stores one "
            "value per key"
        )
    return {key: kind.from_items(items_of_key) for key, items_of_key in items.items()}


def keys_in_file(reader: StateReader, path: str | os.PathLike[str]) -> list[Key]:
    """Return the keys in a file, ignoring its other columns."""
    schema = pa.schema(
        [pa.field(f"key.{field.name}", field.type) for field in reader.schema.key_schema]
    )
    check_named_file(reader.store.url, path)
    return _keys(_rows(path, schema, f"the file of keys, {os.fspath(path)},", only=True), path)


def other_keys(reader: StateReader, variable: str, states: Mapping[Key, object]) -> Iterator[Key]:
    """Yield the keys that have state in a variable but are not in *states*."""
    seen = set()
    for batch in reader.batches(variable, include_expired=True):
        for key in _keys(pa.Table.from_batches([batch]), variable):
            if key not in states and key not in seen:
                seen.add(key)
                yield key


def _rows(
    path: str | os.PathLike[str], schema: pa.Schema, what: str, *, only: bool = False
) -> pa.Table:
    """Return the rows of a file with the columns of *schema*; *only* ignores other columns."""
    try:
        if not os.path.exists(path):
            raise UsageError(f"{os.fspath(path)}: no such file or folder")
        table = pq.read_table(path, partitioning=None)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{what} cannot be read as Parquet: {error}") from error
    for name in _STRUCTS:
        if name in table.column_names and pa.types.is_struct(table.schema.field(name).type):
            nested = table.select([name]).flatten()
            table = table.drop_columns([name])
            for number, column in enumerate(nested.column_names):
                table = table.append_column(column, nested.column(number))
    needed = [name for name in schema.names if name not in _OPTIONAL]
    missing = [name for name in needed if name not in table.column_names]
    unknown = (
        [] if only else [n for n in table.column_names if n not in (*schema.names, *_OPTIONAL)]
    )
    if missing or unknown:
        problem = (
            f"lacks the column {missing[0]!r}"
            if missing
            else f"has the unknown column {unknown[0]!r}"
        )
        raise UsageError(f"{what} {problem}; the columns must be {', '.join(needed)}")
    names = [name for name in schema.names if name in table.column_names and name != "key_group"]
    types = pa.schema([schema.field(name) for name in names])
    try:
        return table.select(names).cast(types)
    except (pa.ArrowException, ValueError) as error:
        raise UsageError(f"{what} contains values of the wrong type: {error}") from error


def _keys(table: pa.Table, path: str | os.PathLike[str]) -> list[Key]:
    names = [name for name in table.column_names if name.startswith("key.")]
    keys = list(zip(*(table.column(name).to_pylist() for name in names), strict=True))
    try:
        hash(tuple(keys))
    except TypeError as error:
        raise UsageError(
            f"{os.fspath(path)}: keys with nested columns cannot be edited from a file; use "
            "statelog.edit in Python"
        ) from error
    return keys


def _structs(
    table: pa.Table, prefix: str, *, with_expiry: bool = True
) -> Iterator[dict[str, object]]:
    """Yield the columns with a prefix as dicts, with the expiry of values if the file has it."""
    start = len(prefix) + 1
    names = [name for name in table.column_names if name.startswith(f"{prefix}.")]
    columns = {name[start:]: table.column(name).to_pylist() for name in names}
    if with_expiry and EXPIRES_FIELD in table.column_names and EXPIRES_FIELD not in columns:
        columns[EXPIRES_FIELD] = table.column(EXPIRES_FIELD).to_pylist()
    for row in zip(*columns.values(), strict=True) if columns else ({},) * table.num_rows:
        yield dict(zip(columns, row, strict=True))


def unfreeze(
    location: str | os.PathLike[str],
    keys: Iterable[object] | None = None,
    *,
    operator: str | None = None,
    apply: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> EditReport:
    """
    Let a query process frozen keys again, from a new checkpoint on.

    The query must be stopped; one that runs is fenced, and its next start goes on at the same
    source position.  The rows that were kept back are dead letters: they are not handled by this
    call, but sent to the source again.

    Example:
        statelog.unfreeze("s3://bucket/jobs/totals", ["c42"], apply=True)

    Args:
        location: Path or URL of the state location.
        keys: Keys, each as for `LocationState.get`; None for all that are frozen.
        operator: Name of the operator, where the query has several.
        apply: Make the change; False only counts the keys.
        storage_options: Options of the store's client, as for `open_store`.

    Returns:
        The new checkpoint; `counts.changed` keys were frozen, `counts.unchanged` were not.

    Raises:
        UsageError: No query of the operator freezes keys, or a key does not fit its key columns.
        CheckpointNotFoundError: The location does not contain a checkpoint.
        QueryActiveError: The query commits meanwhile.
        FencedError: A query has claimed the location meanwhile; nothing was changed.
        StoreError: The store failed.

    Blocks: On the store; the marks of frozen keys are read, and the key groups of *keys*.
    """
    store = open_state(location, options=storage_options)
    base = newest_checkpoint(store)
    reader = StateReader(store, base, operator=operator)
    schema = reader.schema
    if not any(state.name == FROZEN_NAME and not state.dropped for state in schema.states):
        raise UsageError(
            f"operator {schema.operator_id} of {store.url} does not have frozen keys: no query with "
            "onError='freeze' has run there"
        )
    chosen = other_keys(reader, FROZEN_NAME, {}) if keys is None else keys
    marks = {FROZEN_NAME: dict.fromkeys(chosen)}
    return edit_as("unfreeze", store, base, marks, operator=operator, apply=apply)

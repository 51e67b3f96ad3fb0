"""
Serve the state of streaming queries through Feast: an online store that reads replicas.

A feature view is the state of one operator.  Each process that serves features holds a `Replica` of it,
so it has what the query committed last, and a feature is not written a second time.  Feast is installed by
the extra `feast`.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Final, Literal
from uuid import UUID  # noqa: TID251  # of join keys, not of ours

import pyarrow as pa

from statelog.errors import UsageError
from statelog.extras import require
from statelog.runtime.lock import ThreadLock
from statelog.state.reader import Replica, open
from statelog.state.schema.descriptors import StateDescriptor, schema_text

require("statelog.feast", "feast", "feast")

from feast import Entity, FeatureView
from feast.infra.online_stores.online_store import OnlineStore
from feast.protos.feast.types.EntityKey_pb2 import EntityKey
from feast.protos.feast.types.Value_pb2 import Value
from feast.repo_config import FeastConfigBaseModel, RepoConfig
from feast.type_map import feast_value_type_to_python_type, python_values_to_proto_values
from feast.value_type import ValueType

_Row = tuple[dt.datetime | None, dict[str, Value] | None]
_Written = list[tuple[EntityKey, dict[str, Value], dt.datetime, dt.datetime | None]]


class FeatureViewState(FeastConfigBaseModel):
    """
    The state of one feature view.

    Args:
        location: Its location; None for the folder named after the view.
        operator: Name of the operator, where the query has several.
        features: By feature, the variable or the field that it is, as `variable` or `variable.field`.
        keys: By join key, the key column that it is, where the names differ.
    """

    location: str | None = None
    operator: str | None = None
    features: dict[str, str] = {}
    keys: dict[str, str] = {}


class StatelogOnlineStoreConfig(FeastConfigBaseModel):
    """
    The section `online_store` of feature_store.yaml.

    Args:
        location: Folder with a subfolder for each feature view, like `spark.statelog.stateLocation`.
        views: By feature view, what differs from that.
        refresh_seconds: Time between two looks for a newer checkpoint; 0 looks at each read.
        storage_options: Options of the store's client, as for `statelog.open`.
    """

    type: Literal["statelog.feast.StatelogOnlineStore"] = "statelog.feast.StatelogOnlineStore"
    location: str | None = None
    views: dict[str, FeatureViewState] = {}
    refresh_seconds: float = 1.0
    storage_options: dict[str, object] = {}


class StatelogOnlineStore(OnlineStore):
    """
    Feast's online store over the state of streaming queries.

    It reads only: the state of a feature view is written by its query.  Event timestamps are the processing
    times of micro-batches.  A key without state does not have features.

    Thread: any.
    """

    def __init__(self) -> None:
        self._lock = ThreadLock()
        self._replicas: dict[tuple[object, ...], Future[Replica]] = {}

    def online_read(
        self,
        config: RepoConfig,
        table: FeatureView,
        entity_keys: list[EntityKey],
        requested_features: list[str] | None = None,
    ) -> list[_Row]:
        """
        Return event timestamp and features of each key, as of one checkpoint.

        Raises:
            UsageError: The view does not fit the state: a feature, a type or a join key.
            CheckpointError: The location does not have a checkpoint yet (`reason` "not_found").
            CorruptionError: An object of the location is damaged.
            StoreError: The store failed.

        Blocks: At the first read of a view, until its newest checkpoint is restored.
        """
        replica = self._replica(config, table.name)
        if not config.online_store.refresh_seconds:
            replica.refresh()
        state = _view(config, table.name)
        names = requested_features or [field.name for field in table.features]
        variables = replica.variables()
        features = {
            name: _feature(table, name, state.features.get(name), variables) for name in names
        }
        columns = replica.key_schema.names
        keys = [_key(table.name, entity, state.keys, columns) for entity in entity_keys]
        versions = replica.get_all([*{each.variable for each in features.values()}], keys)
        rows: list[dict[str, Value]] = [{} for _ in versions]
        for name, feature in features.items():
            states = [version.value[feature.variable] for version in versions]
            # A key without a value, or with an empty list or map, does not have the feature.
            present = [row for row, each in zip(rows, states, strict=True) if each]
            for row, value in zip(present, feature.values(filter(None, states)), strict=True):
                row[name] = value
        times = (dt.datetime.fromtimestamp(each.as_of_ms / 1000, dt.UTC) for each in versions)
        return [(time, row) if row else (None, None) for time, row in zip(times, rows, strict=True)]

    def online_write_batch(
        self,
        config: RepoConfig,
        table: FeatureView,
        data: _Written,
        progress: Callable[[int], object] | None,
    ) -> None:
        """Raise `UsageError`: the state of a feature view is written by its query."""
        raise UsageError(
            f"the features of {table.name} are the state of a streaming query in "
            f"{_location(config, table.name)}, and only that query writes it: do not materialize, push "
            "or write this view. statelog.edit corrects single keys of a stopped query"
        )

    def update(
        self,
        config: RepoConfig,
        tables_to_delete: Sequence[FeatureView],
        tables_to_keep: Sequence[FeatureView],
        entities_to_delete: Sequence[Entity],
        entities_to_keep: Sequence[Entity],
        partial: bool,
    ) -> None:
        """Do nothing: `feast apply` does not change state."""

    def teardown(
        self, config: RepoConfig, tables: Sequence[FeatureView], entities: Sequence[Entity]
    ) -> None:
        """Do nothing: `feast teardown` does not delete state."""

    async def close(self) -> None:
        """Close the replicas; a later read opens them again."""
        with self._lock:
            opened, self._replicas = self._replicas, {}
        for future in opened.values():
            future.result().close()

    def _replica(self, config: RepoConfig, view: str) -> Replica:
        """Return the replica of a feature view; the first caller of a process opens it."""
        options, location = config.online_store, _location(config, view)
        operator = _view(config, view).operator
        with self._lock:
            # A forked child does not have the threads of its parent, so it opens its own.
            at = (os.getpid(), location, operator)
            future = self._replicas.get(at)
            is_first = future is None
            if future is None:
                future = self._replicas[at] = Future()
        if is_first:
            try:
                with open(
                    location, operator=operator, storage_options=options.storage_options
                ) as state:
                    future.set_result(state.follow(interval=options.refresh_seconds or None))
            except BaseException as error:
                with self._lock:
                    self._replicas.pop(at, None)
                future.set_exception(error)
        return future.result()


def _view(config: RepoConfig, view: str) -> FeatureViewState:
    state: FeatureViewState = config.online_store.views.get(view) or FeatureViewState()
    return state


def _location(config: RepoConfig, view: str) -> str:
    """Return the location of a feature view; a relative path is relative to the Feast repository."""
    base = config.online_store.location
    location = _view(config, view).location or (base and f"{base.rstrip('/')}/{view}")
    if not location:
        raise UsageError(
            f"feature_store.yaml does not say where the state of the feature view {view} is stored: set "
            f"online_store.views.{view}.location, or online_store.location for all views"
        )
    if "://" in location or config.repo_path is None:
        return str(location)
    return str(Path(config.repo_path) / location)


# --- keys -----------------------------------------------------------------------------------------


def _key(
    view: str, entity: EntityKey, keys: Mapping[str, str], columns: Sequence[str]
) -> tuple[object, ...]:
    """Return an entity key as a key of the operator."""
    values = {
        keys.get(name, name): feast_value_type_to_python_type(value)
        for name, value in zip(entity.join_keys, entity.entity_values, strict=True)
    }
    if set(values) != set(columns):
        raise UsageError(
            f"the join keys of the feature view {view} are {', '.join(values)}; the key columns of its "
            f"state are {', '.join(columns)}: map them by online_store.views.{view}.keys"
        )
    return tuple(
        str(value) if isinstance(value, UUID) else value
        for value in (values[name] for name in columns)
    )


# --- features -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Feature:
    """
    A feature, and the part of a state variable that it is.

    Args:
        name: `view:feature`.
        type: Its type in Feast.
        variable: Name of the state variable.
        part: Returns the feature's part of a state that `Replica.get` returned.
    """

    name: str
    type: ValueType
    variable: str
    part: Callable[..., object]

    def values(self, states: Iterable[object]) -> list[Value]:
        """Return the feature of states in Feast's type."""
        try:
            values: list[Value] = python_values_to_proto_values(
                [self.part(state) for state in states], self.type
            )
        except Exception as error:  # Feast raises classes of many kinds, `Exception` among them
            raise UsageError(
                f"a value of the feature {self.name} cannot be converted to Feast's type "
                f"{self.type.name}: {error}"
            ) from error
        return values


def _feature(
    table: FeatureView, name: str, path: str | None, variables: Sequence[StateDescriptor]
) -> _Feature:
    """
    Return a feature of a view.

    Args:
        table: The view.
        name: The feature.
        path: `variable` or `variable.field`, where the configuration maps it.
        variables: The state variables.
    """
    full_name = f"{table.name}:{name}"
    variable, field = _place(path or name, variables, is_mapped=path is not None)
    if variable is None:
        texts = (f"{each.name} ({schema_text(each.value_schema)})" for each in variables)
        raise UsageError(
            f"the feature {full_name} is not a state variable, nor a field of exactly one value variable; "
            f"the state has {', '.join(texts)}: map it by online_store.views.{table.name}.features"
        )
    (declared,) = (each.dtype for each in table.features if each.name == name)
    feast_type, stored = declared.to_value_type(), _stored_type(variable, field)
    if not _fits(stored, feast_type.name):
        fitting = [each.name for each in ValueType if _fits(stored, each.name)]
        raise UsageError(
            f"the feature {full_name} is declared as {declared}, and stored as {stored}, which fits "
            f"{', '.join(fitting) or 'none of the types of Feast'}"
        )
    return _Feature(full_name, feast_type, variable.name, _part_of(variable, field))


def _place(
    path: str, variables: Sequence[StateDescriptor], *, is_mapped: bool
) -> tuple[StateDescriptor | None, str | None]:
    """Return the variable that *path* names, and its field; a single field need not be named."""
    for variable in variables:
        fields = variable.value_schema.names
        if path == variable.name:
            return variable, fields[0] if len(fields) == 1 else None
        head = f"{variable.name}."
        if is_mapped and path.startswith(head) and path.removeprefix(head) in fields:
            return variable, path.removeprefix(head)
    having = [
        each for each in variables if each.kind.rules.is_single and path in each.value_schema.names
    ]
    if is_mapped or len(having) != 1:
        return None, None
    return having[0], path


def _part_of(variable: StateDescriptor, field: str | None) -> Callable[..., object]:
    """Return what returns a field of a value, of each list element, or of each map value."""
    if field is None:
        return lambda state: state
    if variable.user_key_schema is not None:
        return lambda state: {key: each[field] for key, each in state.items()}
    if variable.kind.rules.is_single:
        return itemgetter(field)
    return lambda state: [each[field] for each in state]


def _stored_type(variable: StateDescriptor, field: str | None) -> pa.DataType:
    """Return the Arrow type of a variable or of its field, as `_part_of` returns it."""
    schema, user_key = variable.value_schema, variable.user_key_schema
    value = pa.struct(list(schema)) if field is None else schema.field(field).type
    if user_key is not None:
        is_single = len(user_key) == 1
        return pa.map_(user_key.field(0).type if is_single else pa.struct(list(user_key)), value)
    if variable.kind.rules.is_single:
        return value
    return pa.list_(value if schema.names else pa.int64())  # timers are times without fields


def _fits(stored: pa.DataType, feast_type: str) -> bool:
    """Return whether Feast's type holds each value of an Arrow type."""
    item = feast_type.removesuffix("_LIST").removesuffix("_SET")
    if item != feast_type:
        return pa.types.is_list(stored) and _fits(stored.value_type, item)
    return any(fits(stored) for fits in _FITTING.get(feast_type, ()))


def _is_named(stored: pa.DataType) -> bool:
    is_map_of_names = pa.types.is_map(stored) and pa.types.is_string(stored.key_type)
    return bool(pa.types.is_struct(stored) or is_map_of_names)


def _is_of_scalars(stored: pa.DataType) -> bool:
    return pa.types.is_map(stored) and not (
        pa.types.is_string(stored.key_type) or pa.types.is_nested(stored.key_type)
    )


_FITTING: Final[Mapping[str, Sequence[Callable[[pa.DataType], bool]]]] = {
    "BOOL": [pa.types.is_boolean],
    "INT32": [pa.types.is_int8, pa.types.is_int16, pa.types.is_int32],
    "INT64": [pa.types.is_signed_integer],
    "FLOAT": [pa.types.is_float32],
    "DOUBLE": [pa.types.is_float32, pa.types.is_float64],
    "DECIMAL": [pa.types.is_decimal],
    "STRING": [pa.types.is_string],
    "UUID": [pa.types.is_string],
    "TIME_UUID": [pa.types.is_string],
    "BYTES": [pa.types.is_binary],
    "PDF_BYTES": [pa.types.is_binary],
    "IMAGE_BYTES": [pa.types.is_binary],
    "UNIX_TIMESTAMP": [pa.types.is_timestamp],
    "ZONED_TIMESTAMP": [pa.types.is_timestamp],
    "JSON": [pa.types.is_string, pa.types.is_nested],
    "MAP": [_is_named],
    "STRUCT": [_is_named],
    "SCALAR_MAP": [_is_of_scalars],
    "VALUE": [pa.types.is_list],
}
"""By type of Feast, the Arrow types whose values it holds; `VALUE` is a list or set of lists."""

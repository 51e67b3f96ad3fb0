"""Feast's own `get_online_features` over state that a query wrote; `make test-feast` installs Feast and runs it."""

from __future__ import annotations

import asyncio
import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from tests.house.sources import ROOT
from tests.snippets import blocks
from tests.unit.state.reader.histories import GROUPS, KEYS, NAMES, History, group_of, key_of
from tests.written_state import WrittenState

from statelog.errors import CheckpointError, UsageError
from statelog.state.kinds import StateKind
from statelog.state.schema.descriptors import (
    TIMERS_NAME,
    OperatorStateSchema,
    StateDescriptor,
)
from statelog.store import open_store

pytest.importorskip("feast", reason="Feast is not installed here: make test-feast")

import yaml
from feast import Entity, FeatureStore, FeatureView, Field, FileSource, ValueType
from feast import types as feast_types
from feast.types import (
    Array,
    Bool,
    Bytes,
    Float32,
    Float64,
    Int32,
    Int64,
    Json,
    Map,
    ScalarMap,
    Set,
    String,
    Struct,
    UnixTimestamp,
)

from statelog.feast import StatelogOnlineStore

MakeStore = Callable[..., FeatureStore]
AT_MS = 1_700_000_000_123


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[MakeStore]:
    """Return a function that makes a Feast repository with a registry in SQLite."""
    stores: list[FeatureStore] = []
    repository = tmp_path / "repository"
    repository.mkdir()

    def make(*objects: Any, **online_store: Any) -> FeatureStore:
        config = {
            "project": "shop",
            "provider": "local",
            "registry": {"registry_type": "sql", "path": f"sqlite:///{repository}/registry.db"},
            "online_store": {"type": "statelog.feast.StatelogOnlineStore", **online_store},
            "entity_key_serialization_version": 3,
        }
        (repository / "feature_store.yaml").write_text(yaml.safe_dump(config))
        store = FeatureStore(repo_path=str(repository))
        stores.append(store)
        store.apply(list(objects))
        return store

    yield make
    for store in stores:
        asyncio.run(store.close())


def source_in(folder: Path) -> FileSource:
    """Return a source of one row, which Feast wants for a view; nothing reads it but materialize."""
    file = folder / "offline.parquet"
    at = pd.Timestamp("2026-01-01", tz="UTC")
    pd.DataFrame({"customer": ["ada"], "amount": [1.0], "at": [at]}).to_parquet(file)
    return FileSource(path=str(file), timestamp_field="at")


def view_of(
    folder: Path, name: str, features: Mapping[str, Any], keys: Mapping[str, ValueType]
) -> list[Any]:
    """Return a feature view and its entities."""
    entities = [Entity(name=key, join_keys=[key], value_type=kind) for key, kind in keys.items()]
    fields = [Field(name=feature, dtype=kind) for feature, kind in features.items()]
    joined = [
        Field(name=key, dtype=feast_types.from_value_type(kind)) for key, kind in keys.items()
    ]
    view = FeatureView(
        name=name, entities=entities, schema=[*fields, *joined], source=source_in(folder)
    )
    return [*entities, view]


def schema_of(*states: StateDescriptor, **keys: pa.DataType) -> OperatorStateSchema:
    return OperatorStateSchema("op", pa.schema(list(keys.items())), states)


def value_state(name: str, **fields: pa.DataType) -> StateDescriptor:
    return StateDescriptor(name, StateKind.VALUE, pa.schema(list(fields.items())))


def online(store: FeatureStore, features: Sequence[str], **keys: list[Any]) -> dict[str, Any]:
    found: dict[str, Any] = store.get_online_features(list(features), keys).to_dict()
    return found


CUSTOMER = {"customer": ValueType.STRING}
TOTALS = schema_of(value_state("total", n=pa.int64(), amount=pa.float64()), customer=pa.string())


def test_features_are_the_fields_of_the_state_and_follow_it(
    tmp_path: Path, make_store: MakeStore
) -> None:
    state = WrittenState(tmp_path / "jobs" / "totals", TOTALS)
    state.commit({("ada",): {"total": (2, 40.0)}, ("bo",): {"total": (1, None)}}, AT_MS)
    store = make_store(
        *view_of(tmp_path, "totals", {"n": Int64, "amount": Float64}, CUSTOMER),
        location=str(tmp_path / "jobs"),
        refresh_seconds=0,
    )
    features = ["totals:n", "totals:amount"]
    response = store.get_online_features(
        features, [{"customer": name} for name in ("zoe", "bo", "ada", "ada")]
    )
    assert response.to_dict() == {
        "customer": ["zoe", "bo", "ada", "ada"],
        "n": [None, 1, 2, 2],
        "amount": [None, None, 40.0, 40.0],
    }
    n, amount = response.proto.results[1:]
    assert [0, AT_MS, AT_MS, AT_MS] == [each.ToMilliseconds() for each in n.event_timestamps]
    assert ["NOT_FOUND", "PRESENT", "PRESENT", "PRESENT"] == names_of(n.statuses)
    assert names_of(n.statuses) == names_of(amount.statuses)

    state.commit({("ada",): {"total": (3, 45.5)}, ("bo",): {"total": None}})
    found = online(store, features, customer=["ada", "bo"])
    assert [3, None] == found["n"]
    assert [45.5, None] == found["amount"]


def names_of(statuses: Sequence[int]) -> list[str]:
    from feast.protos.feast.serving.ServingService_pb2 import FieldStatus

    return [FieldStatus.Name(status) for status in statuses]


def test_a_replica_looks_for_newer_checkpoints_by_itself(
    tmp_path: Path, make_store: MakeStore
) -> None:
    state = WrittenState(tmp_path / "state", TOTALS)
    state.commit({("ada",): {"total": (2, 40.0)}})
    view = view_of(tmp_path, "any", {"n": Int64}, CUSTOMER)
    store = make_store(
        *view, views={"any": {"location": str(tmp_path / "state")}}, refresh_seconds=0.02
    )
    assert [2] == online(store, ["any:n"], customer=["ada"])["n"]
    state.commit({("ada",): {"total": (3, 40.0)}})
    pause = threading.Event()
    for _ in range(500):
        if online(store, ["any:n"], customer=["ada"])["n"] == [3]:
            break
        pause.wait(0.02)
    else:
        pytest.fail("the new checkpoint was not served in ten seconds")


TYPED: Mapping[str, tuple[pa.DataType, Any, list[Any], Any]] = {
    # by field: stored type, its type in Feast, values, what Feast returns if it differs
    "small": (pa.int16(), Int32, [7, -7, None], None),
    "int": (pa.int32(), Int32, [2**31 - 1, 0, None], None),
    "wide": (pa.int32(), Int64, [-(2**31), 0, None], None),
    "long": (pa.int64(), Int64, [-(2**63), 2**63 - 1, None], None),
    "float": (pa.float32(), Float32, [0.5, 0.0, None], None),
    "double": (pa.float64(), Float64, [0.1, 0.0, None], None),
    "flag": (pa.bool_(), Bool, [True, False, None], None),
    "text": (pa.string(), String, ["é", "", None], None),
    "code": (pa.string(), feast_types.Uuid, ["1b4e28ba-2fa1-11d2-883f-0016d3cca427"] * 3, None),
    "raw": (pa.binary(), Bytes, [b"\x00\xff", b"", None], None),
    "price": (
        pa.decimal128(10, 2),
        feast_types.Decimal,
        [Decimal("1.10"), Decimal("0.00"), None],
        None,
    ),
    "at": (
        pa.timestamp("us", tz="UTC"),
        UnixTimestamp,
        [dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)] * 2 + [None],
        None,
    ),
    "local": (
        pa.timestamp("us"),
        UnixTimestamp,
        [dt.datetime(2026, 1, 2, 3, 4, 5)] * 2 + [None],
        [dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)] * 2 + [None],
    ),
    "days": (pa.list_(pa.int64()), Array(Int64), [[1, 2], [3], None], None),
    "tags": (pa.list_(pa.string()), Array(String), [["a"], ["b", ""], None], None),
    "kinds": (pa.list_(pa.string()), Set(String), [["a", "a"], ["b"], None], [{"a"}, {"b"}, None]),
    "matrix": (
        pa.list_(pa.list_(pa.float64())),
        Array(Array(Float64)),
        [[[1.0], [2.0, 3.0]], [[4.0]], None],
        None,
    ),
    "pair": (
        pa.struct([("x", pa.int64()), ("y", pa.string())]),
        Struct({"x": Int64, "y": String}),
        [{"x": 1, "y": "a"}, {"x": 2, "y": None}, None],
        None,
    ),
    "json": (
        pa.struct([("x", pa.int64())]),
        Json,
        [{"x": 1}, {"x": None}, None],
        None,
    ),
}


def test_values_have_the_types_of_feast(tmp_path: Path, make_store: MakeStore) -> None:
    fields = {name: stored for name, (stored, *_) in TYPED.items()}
    state = WrittenState(
        tmp_path / "typed", schema_of(value_state("value", **fields), customer=pa.string())
    )
    names = ["ada", "bo", "cy"]
    rows = zip(*(values for _, _, values, _ in TYPED.values()), strict=True)
    state.commit(
        {
            (name,): {"value": tuple(map(as_stored, row))}
            for name, row in zip(names, rows, strict=True)
        }
    )
    types = {name: kind for name, (_, kind, *_) in TYPED.items()}
    store = make_store(*view_of(tmp_path, "typed", types, CUSTOMER), location=str(tmp_path))
    found = online(store, [f"typed:{name}" for name in types], customer=names)
    for name, (_, kind, values, returned) in TYPED.items():
        expected = returned or values
        if kind is feast_types.Uuid:
            expected = [str(each) for each in expected]
            found[name] = [str(each) for each in found[name]]
        assert expected == found[name], name


def as_stored(value: Any) -> Any:
    """Return a value as a processor gives it: structs as tuples."""
    return tuple(value.values()) if isinstance(value, dict) else value


def test_lists_maps_and_timers_are_features(tmp_path: Path, make_store: MakeStore) -> None:
    text, number = pa.schema([("u", pa.string())]), pa.schema([("u", pa.int32())])
    schema = schema_of(
        StateDescriptor("recent", StateKind.LIST, pa.schema([("id", pa.int64())])),
        StateDescriptor(
            "events", StateKind.LIST, pa.schema([("id", pa.int64()), ("kind", pa.string())])
        ),
        StateDescriptor("countries", StateKind.MAP, pa.schema([("n", pa.int64())]), text),
        StateDescriptor("hours", StateKind.MAP, pa.schema([("n", pa.int64())]), number),
        StateDescriptor(
            "shops", StateKind.MAP, pa.schema([("n", pa.int64()), ("sum", pa.float64())]), text
        ),
        value_state("pair", x=pa.int64(), y=pa.string()),
        StateDescriptor(TIMERS_NAME, StateKind.TIMER, pa.schema([])),
        customer=pa.string(),
    )
    WrittenState(tmp_path / "v", schema).commit(
        {
            ("ada",): {
                "recent": [(1,), (2,)],
                "events": [(1, "buy"), (2, "return")],
                "countries": {("DE",): (3,), ("FR",): (4,)},
                "hours": {(7,): (1,)},
                "shops": {("Bonn",): (1, 2.5)},
                "pair": (1, "a"),
                TIMERS_NAME: [5000, 1000],
            },
            ("bo",): {"recent": [], "countries": {}, "pair": (2, None)},
        }
    )
    types = {
        "recent": Array(Int64),
        "events": Array(Map),
        "event_kinds": Array(String),
        "countries": Map,
        "hours": ScalarMap,
        "shops": Map,
        "shop_sums": Map,
        "pair": Map,
        "due": Array(Int64),
    }
    mapped = {"event_kinds": "events.kind", "shop_sums": "shops.sum", "due": TIMERS_NAME}
    store = make_store(
        *view_of(tmp_path, "v", types, CUSTOMER),
        location=str(tmp_path),
        views={"v": {"features": mapped}},
    )
    found = online(store, [f"v:{name}" for name in types], customer=["ada", "bo", "cy"])
    del found["customer"]
    assert {name: values[0] for name, values in found.items()} == {
        "recent": [1, 2],
        "events": [{"id": 1, "kind": "buy"}, {"id": 2, "kind": "return"}],
        "event_kinds": ["buy", "return"],
        "countries": {"DE": 3, "FR": 4},
        "hours": {7: 1},
        "shops": {"Bonn": {"n": 1, "sum": 2.5}},
        "shop_sums": {"Bonn": 2.5},
        "pair": {"x": 1, "y": "a"},
        "due": [1000, 5000],
    }
    pairs = found.pop("pair")
    assert [{"x": 2, "y": None}, None] == pairs[1:]
    assert all(values[1:] == [None, None] for values in found.values())


FEAST_TYPES = {pa.int64(): Int64, pa.string(): String, pa.list_(pa.int64()): Array(Int64)}


def features_of(schema: OperatorStateSchema) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a feature for each field of each variable, and what each is."""
    types: dict[str, Any] = {}
    paths: dict[str, str] = {}
    for state in schema.states:
        if state.kind is StateKind.TIMER:
            types["timers"], paths["timers"] = Array(Int64), TIMERS_NAME
            continue
        for field in state.value_schema:
            feature, kind = f"{state.name}_{field.name}", FEAST_TYPES[field.type]
            types[feature] = {StateKind.LIST: Array(kind), StateKind.MAP: Map}.get(state.kind, kind)
            paths[feature] = f"{state.name}.{field.name}"
    return types, paths


def as_feature(kind: StateKind, entries: Sequence[tuple[Any, ...]], field: str) -> Any:
    """Return what Feast returns for the rows of a key in the model."""
    if not entries:
        return None
    values = [value[field] for _, value, _ in entries]
    if kind is StateKind.VALUE:
        return values[0]
    if kind is StateKind.MAP:
        return {row[0]: value for row, value in zip(entries, values, strict=True)}
    # In a list, Feast stores an empty text, number or list instead of null.
    return values


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_are_served_as_their_model(
    seed: int, tmp_path: Path, make_store: MakeStore
) -> None:
    history = History(f"feast {seed}", open_store(tmp_path / "h", fsync=False), retained=3)
    history.value = lambda name: NOT_NULL[name](history.rng)  # type: ignore[method-assign]
    history.micro_batch()
    types, paths = features_of(history.model.schema)
    keys = {"number": ValueType.INT64, "name": ValueType.STRING}
    store = make_store(
        *view_of(tmp_path, "h", types, keys),
        location=str(tmp_path),
        views={"h": {"features": paths, "keys": {"number": "k"}}},
        refresh_seconds=0,
    )
    numbers = [each for each in range(KEYS) if key_of(each)[1] is not None]
    entities = {
        "number": [*numbers, 1, 999],
        "name": [*(key_of(each)[1] for each in numbers), "another", "key 999"],
    }
    compared = 0
    for _ in range(6):
        model, now_ms = history.model, history.last_ms
        found = online(store, [f"h:{name}" for name in types], **entities)
        for feature, path in paths.items():
            variable, _, field = path.partition(".")
            rows = model.rows(variable, now_ms)
            if variable == TIMERS_NAME:
                expected = [[row[0] for row in rows.get(each, [])] or None for each in numbers]
            else:
                kind = NAMES[variable]
                expected = [as_feature(kind, rows.get(each, []), field) for each in numbers]
            assert [*expected, None, None] == found[feature], feature
            compared += sum(each is not None for each in expected)
        history.micro_batch()
    assert compared > 20
    assert {group_of(each) for each in numbers} == set(range(GROUPS))


NOT_NULL: Mapping[str, Callable[[Any], Any]] = {
    "a": lambda rng: rng.randrange(9),
    "b": lambda rng: f"text {rng.randrange(9)}",
    "c": lambda rng: [rng.randrange(9)],
}


def test_many_threads_open_one_replica(tmp_path: Path, make_store: MakeStore) -> None:
    WrittenState(tmp_path / "totals", TOTALS).commit({("ada",): {"total": (2, 40.0)}})
    store = make_store(*view_of(tmp_path, "totals", {"n": Int64}, CUSTOMER), location=str(tmp_path))
    start, found = threading.Barrier(8), []

    def read() -> None:
        start.wait()
        found.append(online(store, ["totals:n"], customer=["ada"])["n"])

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [[2]] * 8 == found
    online_store = store._get_provider().online_store
    assert isinstance(online_store, StatelogOnlineStore)
    assert 1 == len(online_store._replicas)


def test_feast_does_not_write_state(tmp_path: Path, make_store: MakeStore) -> None:
    state = WrittenState(tmp_path / "totals", TOTALS)
    state.commit({("ada",): {"total": (2, 40.0)}})
    objects = view_of(tmp_path, "totals", {"amount": Float64}, CUSTOMER)
    store = make_store(*objects, location=str(tmp_path))
    refused = "only that query writes it: do not materialize"
    with pytest.raises(UsageError, match=refused):
        store.materialize(dt.datetime(2025, 1, 1), dt.datetime(2027, 1, 1))
    rows = pd.DataFrame({"customer": ["ada"], "amount": [1.0], "at": [pd.Timestamp("2026-01-01")]})
    with pytest.raises(UsageError, match=refused):
        store.write_to_online_store("totals", rows)
    before = sorted(path for path in (tmp_path / "totals").rglob("*"))
    store.apply(objects, objects_to_delete=[], partial=False)
    store.teardown()
    assert before == sorted(path for path in (tmp_path / "totals").rglob("*"))


@pytest.mark.parametrize(
    ("features", "keys", "state", "message"),
    [
        (
            {"sum": Int64},
            CUSTOMER,
            {},
            r"the state has total \(n int64, amount double\): map it by",
        ),
        (
            {"n": Int32},
            CUSTOMER,
            {},
            r"totals:n is declared as Int32, and stored as int64, .*INT64",
        ),
        ({"total": Int64}, CUSTOMER, {}, r"stored as struct<n: int64, amount: double>.*STRUCT"),
        ({"n": Int64}, {"client": ValueType.STRING}, {}, "join keys .* are client; .* customer"),
        ({"n": Int64}, {"customer": ValueType.INT64}, {}, "'customer' takes string, not int"),
        ({"n": Int64}, CUSTOMER, {"features": {"n": "total.m"}}, "n is not a state variable"),
        ({"n": Int64}, CUSTOMER, {"operator": "other"}, "other"),
    ],
)
def test_a_view_that_does_not_fit_is_refused(
    features: Mapping[str, Any],
    keys: Mapping[str, ValueType],
    state: Mapping[str, Any],
    message: str,
    tmp_path: Path,
    make_store: MakeStore,
) -> None:
    WrittenState(tmp_path / "totals", TOTALS).commit({("ada",): {"total": (2, 40.0)}})
    store = make_store(
        *view_of(tmp_path, "totals", features, keys),
        location=str(tmp_path),
        views={"totals": dict(state)},
    )
    entity = {name: [1 if kind is ValueType.INT64 else "ada"] for name, kind in keys.items()}
    with pytest.raises(UsageError, match=message):
        online(store, [f"totals:{name}" for name in features], **entity)


def test_a_state_that_is_not_there_is_named(tmp_path: Path, make_store: MakeStore) -> None:
    view = view_of(tmp_path, "totals", {"n": Int64}, CUSTOMER)
    nowhere = make_store(*view)
    with pytest.raises(UsageError, match=r"set online_store\.views\.totals\.location"):
        online(nowhere, ["totals:n"], customer=["ada"])
    absent = make_store(*view, location="jobs")  # relative to the repository
    with pytest.raises(UsageError, match="repository/jobs/totals"):
        online(absent, ["totals:n"], customer=["ada"])
    begun = WrittenState(tmp_path / "repository" / "jobs" / "totals", TOTALS)
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        online(absent, ["totals:n"], customer=["ada"])
    begun.commit({("ada",): {"total": (2, 40.0)}})  # an error is not kept
    assert [2] == online(absent, ["totals:n"], customer=["ada"])["n"]


def test_a_wrong_configuration_is_refused(make_store: MakeStore) -> None:
    with pytest.raises(Exception, match="refresh"):
        make_store(refresh_second=1)


def test_the_page_shows_a_configuration_and_a_view_that_work(
    tmp_path: Path, make_store: MakeStore
) -> None:
    page = blocks(ROOT / "docs" / "how-to" / "read-state.md")
    (text,) = [each.text for each in page if each.language == "yaml"]
    online_store = yaml.safe_load(text.replace("s3://bucket", f"{tmp_path}"))["online_store"]
    schema = schema_of(value_state("total", total=pa.float64()), customer=pa.string())
    state = WrittenState(tmp_path / "jobs" / "totals", replace(schema, operator_id="totals"))
    state.commit({("c42",): {"total": (420.0,)}})
    del online_store["type"], online_store["storage_options"]  # those are of a bucket
    store = make_store(
        *view_of(tmp_path, "customers", {"spent": Float64}, {"customer_id": ValueType.STRING}),
        **online_store,
    )
    (code,) = [each.text for each in page if "FeatureView" in each.text]
    names = {"source": source_in(tmp_path), "store": store, **globals()}
    *lines, answer = code.splitlines()
    exec("\n".join([*lines[:-1], f"answer = {lines[-1]}"]), names)
    assert answer == f"# {names['answer']}"
    assert [420.0] == online(store, ["customers:spent"], customer_id=["c42"])["spent"]

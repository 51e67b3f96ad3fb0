"""`statelog.open` against the model of a random history, and what it refuses."""

import datetime as dt
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.support.locations.histories import (
    GROUPS,
    KEY,
    KEYS,
    NAMES,
    TTL_MS,
    History,
    Tiny,
    as_python,
    group_of,
    key_of,
    live_names,
    local,
    rows_of,
)

import statelog as sl
from statelog.checkpoint.batch_record import BatchRecord
from statelog.errors import CheckpointError, ClosedError, UsageError
from statelog.extensions.read.location_state import LocationState
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.keys.state_key import StateKey, key_from_text
from statelog.state.kinds import StateKind
from statelog.state.reader import StateReader, location, state_reader
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.campaign


@pytest.fixture(params=["at once", "in portions", "in columns"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore all key groups together, or few of them; in dictionaries or in columns."""
    if request.param == "in portions":
        monkeypatch.setattr(state_reader, "_PORTION_BYTES", 500)
        monkeypatch.setattr(state_reader, "_BATCH_ROWS", 2)
    elif request.param == "in columns":
        monkeypatch.setattr(state_reader, "MemoryLimits", lambda budget: Tiny(budget))


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("seed", range(3))
def test_tables_keys_and_histories_are_those_of_the_model(seed: int) -> None:
    history = History(f"open {seed}", FaultyStore(), retained=3)
    history.run(7)
    state = LocationState(history.store)
    retained = list(history.expected)[-3:]
    assert retained == [
        checkpoint.checkpoint_id for checkpoint in state.checkpoints() if checkpoint.is_retained
    ]
    found_anything = 0
    values: dict[tuple[str, int], dict[int, Any]] = {}
    for checkpoint_id in retained:
        model = history.expected[checkpoint_id]
        taken_at_ms = history.taken_at_ms[checkpoint_id]
        assert live_names(model) == [variable.name for variable in state.variables(checkpoint_id)]
        for name in live_names(model):
            for now_ms in (None, taken_at_ms + TTL_MS // 2, taken_at_ms + 2 * TTL_MS):
                rows = model.rows(name, taken_at_ms if now_ms is None else now_ms)
                assert rows == rows_of(state.table(name, checkpoint_id, now_ms=now_ms))
                for number in range(KEYS) if now_ms is None else (5, 6):
                    wanted = as_python(name, rows.get(number, []))
                    key = key_of(number)
                    assert wanted == state.get(name, key, checkpoint_id, now_ms=now_ms)
                    found_anything += bool(wanted)
                    if now_ms is None:
                        values.setdefault((name, number), {})[checkpoint_id] = wanted
    assert found_anything > 20
    for (name, number), by_checkpoint in values.items():
        versions = state.history(name, key_of(number))
        assert retained == [version.checkpoint_id for version in versions]
        assert [by_checkpoint.get(number) for number in retained] == [
            version.value for version in versions
        ]
        assert [history.taken_at_ms[number] for number in retained] == [
            version.as_of_ms for version in versions
        ]


@pytest.mark.usefixtures("mode")
def test_a_key_is_found_without_the_other_key_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History("one group", FaultyStore())
    history.run(6)
    restored: list[KeyGroupRange] = []
    original = StateReader._keys

    def noted(self: StateReader, key_groups: KeyGroupRange) -> Any:
        restored.append(key_groups)
        return original(self, key_groups)

    monkeypatch.setattr(StateReader, "_keys", noted)
    state = LocationState(history.store)
    for number in range(KEYS):
        state.get(TIMERS_NAME, key_of(number))
    assert [KeyGroupRange(groups, groups) for groups in map(group_of, range(KEYS))] == restored
    assert len({groups.start for groups in restored}) == GROUPS


# --- changes --------------------------------------------------------------------------------------


# --- several operators ----------------------------------------------------------------------------


def with_two_operators(
    history: History, second: OperatorStateSchema | None = None
) -> CompletedCheckpoint:
    """Return the newest checkpoint as of a query with two operators, `op` and `second`."""
    latest = history.coordinator.latest
    assert latest is not None
    record = BatchRecord.of(latest)
    other = replace(history.model.schema if second is None else second, operator_id="second")
    two = [
        {"operator_id": name, "schema": schema, "rows": 0, "keys": 0}
        | {"output_rows": 0, "state_entries": 0}
        for name, schema in (("op", history.model.schema.to_json()), ("second", other.to_json()))
    ]
    properties = {**record.to_properties(), "operators": two}
    return replace(latest, properties=properties)


def test_a_variable_of_one_operator_needs_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    history = History("chain", FaultyStore())
    history.run(5)
    first = history.model.schema
    timers = [variable for variable in first.states if variable.name == "$timers"]
    other = StateDescriptor("other", StateKind.VALUE, pa.schema([("n", pa.int64())]))
    checkpoint = with_two_operators(history, replace(first, states=(*timers, other)))
    monkeypatch.setattr(location, "find_checkpoint", lambda *_: checkpoint)
    key = key_of(1)
    with LocationState(history.store) as state:
        named = LocationState(history.store, operator="op")
        assert named.table("total") == state.table("total")
        assert named.get("total", key) == state.get("total", key)
        assert "second" == state.reader(variable="other").schema.operator_id
        assert 0 == state.table("other").num_rows
        for use in (
            lambda: state.table("$timers"),
            lambda: state.get("missing", key),
            lambda: state.get(key=key),
            lambda: state.reader(),
        ):
            with pytest.raises(UsageError, match="several operators; name one of op, second"):
                use()
        query = (
            "select (select count(*) from total) as total, (select count(*) from other) as other"
        )
        assert [{"total": state.table("total").num_rows, "other": 0}] == state.sql(
            query
        ).to_pylist()
        with pytest.raises(UsageError, match="timers"):
            state.sql("from timers")


def test_an_operator_of_several_is_read_by_name() -> None:
    history = History("chain", FaultyStore())
    history.run(5)
    checkpoint = with_two_operators(history)
    with pytest.raises(UsageError, match="has several operators; name one of op, second"):
        StateReader(history.store, checkpoint)
    half = GROUPS // 2
    for name, start in (("op", 0), ("second", half)):
        reader = StateReader(history.store, checkpoint, operator=name)
        assert reader.key_groups == KeyGroupRange(start, start + half - 1)
        for number in range(KEYS):
            key = StateKey(key_of(number), KEY)
            wanted = start + sl_group(number, half)
            assert key.key_groups(reader.key_groups) == KeyGroupRange(wanted, wanted)


def sl_group(number: int, groups: int) -> int:
    from statelog.state.keys.key_groups import key_group_of

    return key_group_of(key_of(number), KEY, groups)


# --- keys -----------------------------------------------------------------------------------------

TYPES = pa.schema([("k", pa.int32()), ("t", pa.timestamp("us", "UTC")), ("d", pa.decimal128(9, 2))])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((), r"a key requires a value for each of \(k int64, name string\); got 0"),
        (5, "1 given"),
        ((5, "key 5", None), "3 given"),
        (("5", "key 5"), "key column 'k' takes int64, not str '5'"),
        ((5.5, "key 5"), "key column 'k' takes int64, not float 5.5"),
        ((True, "key 5"), "key column 'k' takes int64, not bool True"),
        ((2**70, "key 5"), "key column 'k' takes int64, not int"),
        ((5, 5), "key column 'name' takes string, not int 5"),
    ],
)
def test_a_key_of_other_columns_is_refused(key: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StateKey(key, KEY)


def test_a_key_in_another_type_of_python_is_the_same_key() -> None:
    zone = dt.timezone(dt.timedelta(hours=2))
    time = dt.datetime(2024, 5, 1, 12, tzinfo=zone)
    key = StateKey((7, time, 3), TYPES).values
    assert key == (7, dt.datetime(2024, 5, 1, 10, tzinfo=dt.UTC), Decimal("3.00"))
    assert key == StateKey((7, time.astimezone().replace(tzinfo=None), Decimal(3)), TYPES).values
    assert key == key_from_text(["7", "2024-05-01T10:00:00Z", "3.00"], TYPES)


@pytest.mark.parametrize("texts", [["x", "2024-05-01T10:00:00Z", "3"], ["7"], ["7", "noon", "3"]])
def test_text_that_is_not_a_key_is_rejected(texts: list[str]) -> None:
    with pytest.raises(UsageError, match=r"key column|a key requires"):
        key_from_text(texts, TYPES)


@pytest.mark.parametrize("value", [math.nan, -0.0, 1.5, None])
def test_special_numbers_are_found(value: float | None) -> None:
    schema = pa.schema([("x", pa.float64())])
    column = pa.array([1.5, math.nan, 0.0, None], pa.float64())
    batch = pa.RecordBatch.from_arrays([column], names=["key.x"])
    (selected,) = StateKey(value, schema).select(batch).column(0).to_pylist()
    assert repr(selected) == repr(value).replace("-0.0", "0.0")


def test_a_type_that_only_spark_hashes_is_refused_and_says_so() -> None:
    schema = pa.schema([("s", pa.struct([("a", pa.int64())]))])
    with pytest.raises(UsageError, match="only Spark can compute the key group"):
        StateKey({"a": 1}, schema).key_groups(KeyGroupRange(0, 5))


# --- a location -----------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Path, History]:
    for seed in range(100):
        folder = tmp_path / str(seed)
        folder.mkdir()
        history = History(f"stored {seed}", local(folder))
        history.run(6)
        if {*NAMES} <= {*live_names(history.model)} and history.model.rows("total", None):
            return folder, history
    raise AssertionError("no seed has all variables")


def test_a_location_is_opened_and_closed(stored: tuple[Path, History]) -> None:
    folder, history = stored
    with sl.open(folder) as state:
        last = state.checkpoints()[-1]
        assert (last.checkpoint_id, last.batch_id) == (history.checkpoint_id, 0)
        assert last.created_at is not None
        assert last.created_at.timestamp() * 1000 == last.created_at_ms
        newest = rows_of(state.table("total"))
        assert history.model.rows("total", history.last_ms) == newest
        history.micro_batch()
        assert state.reader().checkpoint_id == history.checkpoint_id
        number = next(iter(history.model.timers))
        of_key = state.table(TIMERS_NAME, key=list(key_of(number)))
        assert {number} >= set(rows_of(of_key))
    state.close()
    for question in (state.checkpoints, state.variables, lambda: state.get("total", key_of(1))):
        with pytest.raises(ClosedError, match="open it again"):
            question()


def test_names_that_are_not_there_are_answered_with_those_that_are(
    stored: tuple[Path, History], tmp_path: Path
) -> None:
    folder, history = stored
    newest = history.checkpoint_id
    state = sl.open(str(folder))
    for question in (
        lambda: state.table("totals"),
        lambda: state.get("totals", key_of(1)),
        lambda: state.history("totals", key_of(1)),
        lambda: state.changes(newest - 1, newest, "totals"),
    ):
        with pytest.raises(
            UsageError, match=r"not have a state variable 'totals'; its variables are .*'total'"
        ):
            question()
    with pytest.raises(CheckpointError, match="checkpoint 99 does not exist"):
        state.table("total", 99)
    with pytest.raises(UsageError, match="checkpoint must be a whole number"):
        state.table("total", 1.5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="checkpoint is 'newest', which is not an id, not a tag"):
        state.table("total", "newest")
    with pytest.raises(UsageError, match="does not have an operator 'other'; name one of op"):
        sl.open(folder, operator="other").variables()
    with pytest.raises(UsageError, match=r"the directory .* does not exist"):
        sl.open(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert sl.open(tmp_path / "empty").checkpoints() == []
    for question in (
        lambda: sl.open(tmp_path / "empty").table("total"),
        lambda: sl.open(tmp_path / "empty").history("total", 1),
    ):
        with pytest.raises(CheckpointError, match="does not contain a checkpoint"):
            question()


def test_a_history_passes_over_a_checkpoint_that_is_deleted_meanwhile(
    stored: tuple[Path, History], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, history = stored
    state = sl.open(folder)
    listed = state.checkpoints()
    ids = [checkpoint.checkpoint_id for checkpoint in listed if checkpoint.is_retained]
    history.micro_batch()
    monkeypatch.setattr(location, "list_checkpoints", lambda *_: listed)
    seen = [version.checkpoint_id for version in state.history(TIMERS_NAME, key_of(1))]
    assert ids[1:] == seen


def test_few_readers_are_kept_open(stored: tuple[Path, History]) -> None:
    folder, _ = stored
    state = sl.open(folder)
    ids = [checkpoint.checkpoint_id for checkpoint in state.checkpoints() if checkpoint.is_retained]
    assert len(ids) == 3
    readers = [state.reader(checkpoint_id) for checkpoint_id in ids]
    assert state.reader(ids[2]) is readers[2]
    with pytest.raises(ClosedError):
        readers[0].table("total")
    assert state.reader(ids[0]) is not readers[0]

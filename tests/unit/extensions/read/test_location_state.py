"""`statelog.open` against the model of a random history, and what it refuses."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from tests.support.locations.edited_history import location_of
from tests.support.locations.histories import (
    GROUPS,
    KEYS,
    TTL_MS,
    History,
    as_python,
    first_history,
    group_of,
    has_all_variables,
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
from statelog.state.kinds import StateKind
from statelog.state.reader import StateReader, location
from statelog.state.schema import TIMERS_NAME, OperatorStateSchema, StateDescriptor
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.campaign


def retained_ids(state: LocationState) -> list[int]:
    return [entry.checkpoint_id for entry in state.checkpoints() if entry.is_retained]


@pytest.mark.parametrize("seed", range(3))
def test_tables_keys_and_histories_are_those_of_the_model(seed: int) -> None:
    history = History(f"open {seed}", FaultyStore(), retained=3)
    history.run(7)
    state = LocationState(history.store)
    retained = list(history.expected)[-3:]
    assert retained == retained_ids(state)
    compared = 0
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
                    value = as_python(name, rows.get(number, []))
                    assert value == state.get(name, key_of(number), checkpoint_id, now_ms=now_ms)
                    compared += bool(value)
                    if now_ms is None:
                        values.setdefault((name, number), {})[checkpoint_id] = value
    assert compared > 20
    for (name, number), by_checkpoint in values.items():
        versions = state.history(name, key_of(number))
        assert [
            (checkpoint_id, by_checkpoint.get(checkpoint_id), history.taken_at_ms[checkpoint_id])
            for checkpoint_id in retained
        ] == [(version.checkpoint_id, version.value, version.as_of_ms) for version in versions]


def test_a_key_is_found_without_the_other_key_groups() -> None:
    history = History("one group", FaultyStore())
    history.run(6)
    state, read_keys = LocationState(history.store), StateReader._keys
    with mock.patch.object(StateReader, "_keys", autospec=True, side_effect=read_keys) as restored:
        for number in range(KEYS):
            state.get(TIMERS_NAME, key_of(number))
    groups = [call.args[1] for call in restored.call_args_list]
    assert [KeyGroupRange(group, group) for group in map(group_of, range(KEYS))] == groups
    assert len(set(groups)) == GROUPS


# --- several operators ----------------------------------------------------------------------------


def with_two_operators(
    history: History, second: OperatorStateSchema | None = None
) -> CompletedCheckpoint:
    """Return the newest checkpoint as of a query with two operators, `op` and `second`."""
    latest = history.coordinator.latest
    assert latest is not None
    first = history.model.schema
    counts = dict.fromkeys(("rows", "keys", "output_rows", "state_entries"), 0)
    operators = [
        {"operator_id": name, "schema": replace(schema, operator_id=name).to_json(), **counts}
        for name, schema in (("op", first), ("second", second or first))
    ]
    properties = {**BatchRecord.of(latest).to_properties(), "operators": operators}
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
        query = "select (select count(*) from total) as n, (select count(*) from other) as m"
        count = state.table("total").num_rows
        assert [{"n": count, "m": 0}] == state.sql(query).to_pylist()
        with pytest.raises(UsageError, match="timers"):
            state.sql("from timers")


# --- a location -----------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Return a history with all variables, and state in `total`, on disk."""

    def is_fit(history: History) -> bool:
        return has_all_variables(history) and bool(history.model.rows("total", None))

    return first_history("stored", lambda seed: local(tmp_path / str(seed)), is_fit)


@pytest.fixture
def state(history: History) -> Iterator[LocationState]:
    with sl.open(location_of(history)) as state:
        yield state


def test_a_location_is_opened_and_closed(history: History) -> None:
    with sl.open(Path(location_of(history))) as state:
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
    history: History, state: LocationState, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    empty, other = sl.open(tmp_path / "empty"), sl.open(location_of(history), operator="other")
    newest, no_variable = history.checkpoint_id, "variable 'totals'; its variables are .*'total'"
    questions: list[tuple[Callable[[], object], str]] = [
        (lambda: state.table("totals"), no_variable),
        (lambda: state.get("totals", key_of(1)), no_variable),
        (lambda: state.history("totals", key_of(1)), no_variable),
        (lambda: state.changes(newest - 1, newest, "totals"), no_variable),
        (lambda: state.table("total", 99), "checkpoint 99 does not exist"),
        (lambda: state.table("total", 1.5), "must be a whole number"),  # type: ignore[arg-type]
        (lambda: state.table("total", "newest"), "must be an id, a tag of .*; got 'newest'"),
        (other.variables, "does not have an operator 'other'; name one of op"),
        (lambda: sl.open(tmp_path / "absent"), "the directory .* does not exist"),
        (lambda: empty.table("total"), "does not contain a checkpoint"),
        (lambda: empty.history("total", 1), "does not contain a checkpoint"),
    ]
    for question, said in questions:
        with pytest.raises((UsageError, CheckpointError), match=said):
            question()
    assert empty.checkpoints() == []


def test_a_history_passes_over_a_checkpoint_that_is_deleted_meanwhile(
    history: History, state: LocationState, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed, ids = state.checkpoints(), retained_ids(state)
    history.micro_batch()
    monkeypatch.setattr(location, "list_checkpoints", lambda *_: listed)
    seen = [version.checkpoint_id for version in state.history(TIMERS_NAME, key_of(1))]
    assert ids[1:] == seen


def test_few_readers_are_kept_open(state: LocationState) -> None:
    ids = retained_ids(state)
    assert len(ids) == 3
    readers = [state.reader(checkpoint_id) for checkpoint_id in ids]
    assert state.reader(ids[2]) is readers[2]
    with pytest.raises(ClosedError):
        readers[0].table("total")
    assert state.reader(ids[0]) is not readers[0]

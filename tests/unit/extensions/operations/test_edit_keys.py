"""Keys set and deleted from Python, against the model of a random history."""

import copy
import random
from typing import Any

import pytest
from tests.support.locations.edited_history import (
    forget_in_model,
    location_of,
    newest_id,
    restarted,
    states,
)
from tests.support.locations.histories import (
    KEYS,
    NAMES,
    Entry,
    History,
    first_history,
    key_of,
    live_names,
    local,
)

import statelog
from statelog.checkpoint.batch_record import BatchRecord
from statelog.checkpoint.history import Entries
from statelog.errors import CheckpointError, FencedError, UsageError
from statelog.extensions.operations.edit_keys import EditTarget
from statelog.state.kinds import StateKind

NOW_MS = 2_000_000_000_000


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr("statelog.extensions.operations.edit_keys.wall_clock_ms", lambda: NOW_MS)


def value_of(history: History, name: str) -> tuple[dict[str, Any], int | None]:
    schema = history.model.schema
    variable = schema.states[schema.state_id(name)]
    value = {field: history.value(field) for field in variable.value_schema.names}
    return value, None if variable.ttl_ms is None else NOW_MS + variable.ttl_ms


def random_edit(history: History, rng: random.Random) -> tuple[dict, list]:
    """Return an edit, and apply it to the model."""
    model = history.model
    delete = [key for key in range(KEYS) if rng.random() < 0.2]
    for key in delete:
        forget_in_model(model, key)
    new_cells: dict[str, dict] = {}
    for name in live_names(model):
        if rng.random() < 0.4:
            continue
        for key in range(KEYS):
            if rng.random() < 0.7:
                continue
            cells = new_cells.setdefault(name, {})
            if name == "$timers":
                times = {rng.randrange(9) for _ in range(rng.randrange(3))}
                cells[key_of(key)] = sorted(times, reverse=True)
                model.timers[key] = times
                continue
            entries = model.entries.setdefault(name, {})
            if rng.random() < 0.2:
                cells[key_of(key)] = None
                entries.pop(key, None)
            elif NAMES[name] is StateKind.VALUE:
                value, expires = value_of(history, name)
                cells[key_of(key)] = value
                entries[key] = [Entry(value, expires)]
            elif NAMES[name] is StateKind.LIST:
                values = [value_of(history, name) for _ in range(rng.randrange(3))]
                cells[key_of(key)] = [value for value, _ in values]
                entries[key] = [Entry(value, expires) for value, expires in values]
            else:
                by_place = {place: value_of(history, name) for place in rng.sample("pqr", 2)}
                cells[key_of(key)] = {place: value for place, (value, _) in by_place.items()}
                entries[key] = [
                    Entry(value, expires, place) for place, (value, expires) in by_place.items()
                ]
    return new_cells, [key_of(key) for key in delete]


def check_state(history: History) -> None:
    """Check that the stored state is that of the model, whatever the order of a map."""

    def in_order(rows: dict) -> dict:
        return {key: sorted(entries, key=lambda row: str(row[0])) for key, entries in rows.items()}

    model = history.model
    expected = {name: in_order(model.rows(name, history.now_ms)) for name in live_names(model)}
    assert {name: in_order(rows) for name, rows in states(history).items()} == expected


def keys_with_state(state: dict) -> set[int]:
    return {key for rows in state.values() for key in rows}


@pytest.mark.parametrize("seed", range(15))
def test_an_edit_agrees_with_the_model_and_the_query_continues(history_of, seed):
    history = history_of(seed)
    before = states(history)
    new_cells, delete = random_edit(history, random.Random(seed))
    location = location_of(history)
    planned = statelog.edit(location, set=new_cells, delete=delete, apply=False)
    assert planned.checkpoint_id is None
    assert states(history) == before
    base = Entries(history.store).newest()
    report = statelog.edit(location, set=new_cells, delete=delete, apply=True)
    assert report.counts == planned.counts
    check_state(history)
    newest = Entries(history.store).newest()
    if report.counts.changed:
        # The edit claims the number after the checkpoint, and commits the next one.
        assert newest.checkpoint_id == report.checkpoint_id == base.checkpoint_id + 2
        assert newest.retained == (*base.retained, newest.checkpoint_id)[-3:]
        record, was = BatchRecord.of(newest), BatchRecord.of(base)
        for name in ("batch_id", "query_id", "position"):
            assert getattr(record, name) == getattr(was, name)
    if not any(variable.ttl_ms for variable in history.model.schema.states):
        # Expired entries that are still stored count as state.
        old_keys, new_keys = keys_with_state(before), keys_with_state(states(history))
        assert report.counts.inserted == len(new_keys - old_keys)
        assert report.counts.deleted == len(old_keys - new_keys)
        again = statelog.edit(location, set=new_cells, delete=delete, apply=True)
        assert again.counts.changed == 0
        assert newest_id(history) == (report.checkpoint_id or base.checkpoint_id)
    if not report.counts.changed:
        return
    model = copy.deepcopy(history.model)
    with pytest.raises(FencedError):
        history.micro_batch()
    history.model = model
    restarted(history).run(2)
    check_state(history)


def test_values_that_do_not_fit_are_rejected_before_the_claim(tmp_path):
    history = first_history("edit", lambda seed: local(tmp_path / str(seed)), batches=2)
    location = location_of(history)
    epoch = history.coordinator.epoch
    key = key_of(1)
    for cells, message in (
        ({"other": {key: {}}}, "does not have a state variable 'other'; its variables are"),
        ({"total": {key: {"x": 1}}}, "takes a dict of the fields"),
        ({"total": {key: (1,)}}, "takes a dict of the fields"),
        ({"total": {("x",): {}}}, "a key requires a value for each"),
        ({"total": {("x", 1): {}}}, "key column 'k' takes int64"),
        ({"counts": {key: [1]}}, "expected a dict by map key"),
        ({"$timers": {key: ["soon"]}}, "a timer must be a whole number"),
        ({"total": [key]}, r"set\['total'\] must be a mapping"),
    ):
        with pytest.raises(UsageError, match=message):
            statelog.edit(location, set=cells, apply=True)
    with pytest.raises(UsageError, match="does not have an operator 'x'"):
        statelog.edit(location, delete=[key], operator="x", apply=True)
    history.micro_batch()
    assert history.coordinator.epoch == epoch
    with pytest.raises(UsageError, match=r"the directory .* does not exist"):
        statelog.edit(location + "-not", delete=[key], apply=True)


def test_a_query_that_commits_meanwhile_is_not_overwritten(history_of, monkeypatch):
    history = history_of("meanwhile")
    overlays = EditTarget.overlays

    def slowly(self, edits):
        history.micro_batch()
        return overlays(self, edits)

    monkeypatch.setattr(EditTarget, "overlays", slowly)
    with pytest.raises(CheckpointError, match="its query committed in the meantime"):
        statelog.edit(location_of(history), delete=[key_of(n) for n in range(KEYS)], apply=True)
    assert newest_id(history) == history.checkpoint_id

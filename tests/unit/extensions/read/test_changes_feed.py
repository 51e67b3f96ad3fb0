"""The change feed: applied to one checkpoint it gives the other, for all kinds of state."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.support.locations.histories import GROUPS, History, Tiny

from statelog.checkpoint.restore import find_checkpoint
from statelog.errors import CheckpointError, UsageError
from statelog.extensions.read import changes, window
from statelog.extensions.read.joining import comparable
from statelog.extensions.read.location_state import LocationState
from statelog.model import KeyGroupRange
from statelog.state.reader import state_reader
from statelog.state.reader.checkpoint_chain import as_of_ms
from statelog.state.reader.state_reader import StateReader
from statelog.store import PATHS
from statelog.testing.faulty_store import FaultyStore

pytestmark = pytest.mark.campaign

Cells = dict[Any, dict[str, Any]]
"""The state of each key by variable, as Python values."""


@pytest.fixture(params=["whole", "in small windows", "in columns", "by comparison"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take all checkpoints and key groups together, or few; restore dictionaries or columns."""
    if request.param == "in small windows":
        monkeypatch.setattr(state_reader, "_PORTION_BYTES", 500)
        monkeypatch.setattr(changes, "_WINDOW_BYTES", 400)
        monkeypatch.setattr(window, "EVENTS", 3)
        monkeypatch.setattr(window, "_ELEMENTS", 5)
    elif request.param == "by comparison":
        odd = changes.is_logged
        monkeypatch.setattr(
            changes,
            "is_logged",
            lambda checkpoint, part: checkpoint.checkpoint_id % 2 and odd(checkpoint, part),
        )
    elif request.param == "in columns":
        monkeypatch.setattr(state_reader, "MemoryLimits", lambda budget: Tiny(budget))


def state_of(last: StateReader, history: History, checkpoint_id: int) -> Cells:
    """Return a state with what has expired, in the schema of *last*."""
    checkpoint = find_checkpoint(history.store, checkpoint_id)
    by_key: Cells = {}
    for batch in last.of(checkpoint).keys(include_expired=True):
        for row in batch.to_pylist():
            cells = {name: cell for name, cell in row.items() if not name.startswith("key")}
            by_key[key_in(row)] = cells
    return by_key


def live(cell: Any, now_ms: int) -> Any:
    """Return a cell without what has expired; None for an empty one."""

    def is_live(entry: Any) -> bool:
        if isinstance(entry, int):
            return True
        value = entry["value"] if "key" in entry else entry
        expires_at_ms = value.get("expires_at_ms")
        return expires_at_ms is None or expires_at_ms > now_ms

    if isinstance(cell, list):
        return [value for value in cell if is_live(value)] or None
    return cell if cell is not None and is_live(cell) else None


def shown(cells: Cells, now_ms: int) -> Any:
    """Return the state that is there at a time, in a comparable form."""
    by_key = {}
    for key, variables in cells.items():
        live_cells = {name: live(cell, now_ms) for name, cell in variables.items()}
        if any(value is not None for value in live_cells.values()):
            by_key[key] = comparable(live_cells)
    return by_key


def key_in(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(value for name, value in row.items() if name.startswith("key"))


def cells_in(row: dict[str, Any], side: str) -> dict[str, Any]:
    """Return the cells of a row before or after a change, by variable."""
    return {
        name.removeprefix(f"{side}."): cell for name, cell in row.items() if name.startswith(side)
    }


def applied(state: Cells, batches: list[pa.RecordBatch], history: History) -> list[str]:
    """Apply a feed to a state, and check what it says about the state before."""
    last_of_key: dict[Any, int] = {}
    kinds = []
    for batch in batches:
        assert batch.num_rows > 0
        for row in batch.to_pylist():
            key, checkpoint_id, kind = key_in(row), row["checkpoint_id"], row["change"]
            assert last_of_key.get(key, -1) < checkpoint_id
            last_of_key[key] = checkpoint_id
            now_ms = history.taken_at_ms[checkpoint_id]
            old_cells, new_cells = cells_in(row, "before"), cells_in(row, "after")
            before = shown({key: state.get(key, {})}, now_ms)
            assert before == shown({key: old_cells}, -1), "before is what was there"
            after = shown({key: new_cells}, -1)
            assert after == shown({key: new_cells}, now_ms), "nothing expired is shown"
            assert before != after
            assert kind == ("insert" if not before else "update" if after else "delete")
            state[key] = new_cells
            kinds.append(kind)
    return kinds


@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize("seed", [0, 2, 3, 5])
def test_a_feed_applied_to_one_checkpoint_gives_the_other(seed: int) -> None:
    history = History(f"feed {seed}", FaultyStore(), retained=6)
    history.run(9)
    retained = list(history.expected)[-6:]
    kinds = []
    with LocationState(history.store) as location:
        for number, before in enumerate(retained):
            for after in retained[number:]:
                last = location.reader(after)
                now_ms = as_of_ms(last.checkpoint)
                state = state_of(last, history, before)
                expected = shown(state_of(last, history, after), now_ms)
                batches = list(location.feed(before, after))
                kinds += applied(state, batches, history)
                assert expected == shown(state, now_ms)
                if before == after:
                    assert batches == []
        assert {"insert", "update", "delete"} == set(kinds)


def test_a_feed_of_one_variable_and_of_some_key_groups() -> None:
    history = History("part", FaultyStore(), retained=6)
    history.run(8)
    first, *_, last = list(history.expected)[-6:]
    location = LocationState(history.store)
    whole = pa.Table.from_batches(location.feed(first, last))

    def changes_of(name: str, table: pa.Table) -> dict[tuple[int, int], tuple[Any, Any]]:
        """Return the cells of a variable before and after each change of it, by checkpoint and key."""
        changes = {}
        for row in table.to_pylist():
            before, after = comparable(row[f"before.{name}"]), comparable(row[f"after.{name}"])
            if before != after:
                changes[row["checkpoint_id"], row["key.k"]] = (before, after)
        return changes

    for variable in location.variables(last):
        name = variable.name
        table = pa.Table.from_batches(location.feed(first, last, name))
        assert table.column_names[-2:] == [f"before.{name}", f"after.{name}"]
        assert changes_of(name, table) == changes_of(name, whole)
        assert len(changes_of(name, table)) == table.num_rows
    rows = 0
    for half in (KeyGroupRange(0, 2), KeyGroupRange(3, GROUPS - 1)):
        for batch in location.feed(first, last, key_groups=half):
            assert {*batch.column("key_group").to_pylist()} <= {*half}
            rows += batch.num_rows
    assert rows == whole.num_rows


def test_a_checkpoint_whose_snapshot_took_the_place_of_its_log_is_found() -> None:
    history = History("hidden", FaultyStore(), retained=9)
    history.run(9)
    hidden = 0
    for checkpoint_id in list(history.expected)[-9:]:
        checkpoint = find_checkpoint(history.store, checkpoint_id)
        # The log has all changes, also those that a snapshot of the checkpoint covers.
        assert changes.is_logged(checkpoint, KeyGroupRange(0, GROUPS - 1))
        before = [handle for handle in checkpoint.log if handle.checkpoint_id != checkpoint_id]
        without_log = replace(checkpoint, log=tuple(before))
        for snapshot in checkpoint.materialized:
            if snapshot.checkpoint_id == checkpoint_id:
                assert not changes.is_logged(without_log, snapshot.key_group_range)
                hidden += 1
    assert hidden > 2


def test_a_feed_without_its_checkpoints_is_an_error() -> None:
    history = History("gone", FaultyStore(), retained=4)
    history.run(7)
    location = LocationState(history.store)
    retained = list(history.expected)[-4:]
    with pytest.raises(UsageError, match="is newer than"):
        location.feed(retained[-1], retained[0])
    with pytest.raises(UsageError, match="does not have a state variable 'other'"):
        location.feed(retained[0], variable="other")
    history.store.delete([PATHS.metadata(retained[1])])
    with pytest.raises(CheckpointError, match=f"checkpoint {retained[1]} was deleted") as caught:
        location.feed(retained[0], retained[3])
    assert caught.value.reason == "subsumed"

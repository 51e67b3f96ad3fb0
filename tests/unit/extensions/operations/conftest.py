"""Locations with a known model, and owners that follow an edit."""

import pytest
from tests.support.locations.histories import History, rows_of

from statelog.checkpoint.history import Entries
from statelog.state.reader import StateReader
from statelog.store import open_store


@pytest.fixture
def made(tmp_path):
    """Return a maker of histories, each in a folder of its own."""

    def make(seed, batches=5, retained=3) -> History:
        store = open_store(tmp_path / f"state {seed}", storage_options={"fsync": False})
        history = History(f"edit {seed}", store, retained)
        history.run(batches)
        return history

    return make


def location_of(history: History) -> str:
    return history.store.local_root


def states(history: History, checkpoint_id: int | None = None) -> dict:
    """Return the rows of all variables that have not expired at the last micro-batch."""
    with StateReader.open(location_of(history), checkpoint_id) as reader:
        return {
            one.name: rows_of(reader.table(one.name, now_ms=history.now_ms))
            for one in reader.variables()
        }


def restarted(history: History) -> History:
    """Let the query of a history start again."""
    base = history.restart()
    history.checkpoint_id = base.checkpoint_id
    history.taken_at_ms[base.checkpoint_id] = history.now_ms
    return history


def newest_id(history: History) -> int:
    return Entries(history.store).newest().checkpoint_id

"""Locations with a known model, and owners that follow an edit."""

import pytest
from tests.support.locations.histories import History, local
from tests.support.locations.rewound_query import Query


@pytest.fixture
def history_of(tmp_path):
    """Return a maker of histories, each in a folder of its own."""

    def make(seed, batches=5, retained=3) -> History:
        store = local(tmp_path / f"state {seed}")
        history = History(f"edit {seed}", store, retained)
        history.run(batches)
        return history

    return make


@pytest.fixture
def query(tmp_path) -> Query:
    """Return a query that has run batches 0 to 4, and retains the last two checkpoints."""
    query = Query(tmp_path, retained=2)
    query.run(0, 4)
    query.driver.clean_up()
    return query

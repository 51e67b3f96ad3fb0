"""Locations with a known model, and owners that follow an edit."""

import pytest
from tests.support.locations.histories import History

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

import pytest
from tests.support.locations.checkpoints import memory_url

from statelog.store import ObstoreStore, open_store


@pytest.fixture(params=["memory", "disk"])
def store(request, tmp_path) -> ObstoreStore:
    if request.param == "disk":
        return open_store(str(tmp_path / "location"))
    return open_store(memory_url())

"""Workers that begin without state: tasks run in this process."""

from collections.abc import Iterator

import pytest

from statelog.spark.worker import task
from statelog.spark.worker.kept_states import KeptStates


@pytest.fixture(autouse=True)
def new_worker() -> Iterator[None]:
    task._states = KeptStates()
    yield
    for state in task._states._by_name.values():
        state.close()
    task._states = KeptStates()

"""Readers show what one Arrow array cannot hold in parts, or say what is too large."""

from collections.abc import Callable
from functools import partial

import pyarrow as pa
import pytest
from tests.support.locations.histories import History

from statelog.errors import CapacityError
from statelog.extensions.read.changes import Differences
from statelog.extensions.read.location_state import LocationState
from statelog.format import arrow_limits
from statelog.state.reader.checkpoint_chain import as_of_ms
from statelog.testing.faulty_store import FaultyStore


def small(limit: int, read: Callable[[], pa.Table]) -> pa.Table:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_limits, "ARRAY_BYTES", limit)
        return read()


@pytest.mark.parametrize("seed", range(4))
def test_state_and_differences_are_the_same_with_small_arrays(seed: int) -> None:
    history = History(f"small arrays {seed}", FaultyStore(), retained=4)
    history.run(6)
    state = LocationState(history.store)
    retained = list(history.expected)[-4:]
    readers = [state.reader(retained[at]) for at in (0, -1)]
    names = [variable.name for variable in readers[1].variables()]
    times = [as_of_ms(reader.checkpoint) for reader in readers]
    whole = [reader.table(name) for reader in readers[1:] for name in names]
    compared = Differences(readers[0], readers[1], names).table(*times)
    refused = 0
    for limit in (60, 45, 30):
        again = LocationState(history.store)
        fresh = [again.reader(retained[at]) for at in (0, -1)]
        assert whole == [small(limit, partial(fresh[1].table, name)) for name in names]
        try:
            differences = Differences(fresh[0], fresh[1], names)
            seen = small(limit, partial(differences.table, *times))
            assert compared.sort_by("key_group").equals(seen.sort_by("key_group"))
        except CapacityError as error:
            assert "the state of one key group, column" in str(error)
            refused += 1
    assert refused < 3

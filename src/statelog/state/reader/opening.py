"""Open the state of a location by its path or URL."""

from __future__ import annotations

import os
from collections.abc import Mapping

from statelog.checkpoint.open_state import open_state
from statelog.renamed import renamed
from statelog.state.reader.location_state import LocationState


@renamed(store_options="storage_options")
def open(
    location: str | os.PathLike[str],
    *,
    operator: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> LocationState:
    """
    Open the state of a location, to read it.

    Example:
        with statelog.open("s3://bucket/jobs/totals") as state:
            print(state.get("total", "c1"))

    Args:
        location: Path or URL of the state location, or of the checkpointLocation of a query whose
            state is in it.
        operator: Name of the operator (its operatorId), where the query has several.
        storage_options: Options of the store's client, as for `open_store`.

    Raises:
        UsageError: There is no such directory.
        StoreError: The store failed.

    Blocks: On the store, a listing.
    """
    store = open_state(location, options=storage_options)
    return LocationState(store, operator=operator)

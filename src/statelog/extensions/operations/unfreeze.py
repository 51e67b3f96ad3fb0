"""
Release keys that a query has frozen, because their processing failed.

A query with `onError="freeze"` marks such keys in a state variable; see `spark.query.declared_state`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from statelog.checkpoint.edit import newest_checkpoint
from statelog.checkpoint.history import open_state
from statelog.errors import UsageError
from statelog.extensions.operations.edit_files import other_keys
from statelog.extensions.operations.edit_keys import EditReport, edit_as
from statelog.state.reader import StateReader
from statelog.state.schema import FROZEN_NAME


def unfreeze(
    location: str | os.PathLike[str],
    keys: Iterable[object] | None = None,
    *,
    operator: str | None = None,
    apply: bool = False,
    storage_options: Mapping[str, object] | None = None,
) -> EditReport:
    """
    Let a query handle frozen keys again, as a new checkpoint.

    The query must be stopped; one that runs is fenced, and its next start goes on at the same source
    position.  The rows that were kept back are dead letters: they are not handled by this call, but sent
    to the source again.

    Example:
        statelog.unfreeze("s3://bucket/jobs/totals", ["c42"], apply=True)

    Args:
        location: Path or URL of the state location.
        keys: Keys, each as for `LocationState.get`; None for all that are frozen.
        operator: Name of the operator, where the query has several.
        apply: Make the change; False only counts the keys.
        storage_options: Options of the store's client, as for `open_store`.

    Returns:
        The new checkpoint; `counts.changed` keys were frozen, `counts.unchanged` were not.

    Raises:
        UsageError: No query of the operator freezes keys, or a key does not fit its key columns.
        CheckpointNotFoundError: The location does not contain a checkpoint.
        QueryActiveError: The query commits meanwhile.
        FencedError: A query has claimed the location meanwhile; nothing was changed.
        StoreError: The store failed.

    Blocks: On the store; the marks of frozen keys are read, and the key groups of *keys*.
    """
    store = open_state(location, options=storage_options)
    base = newest_checkpoint(store)
    reader = StateReader(store, base, operator=operator)
    schema = reader.schema
    if not any(state.name == FROZEN_NAME and not state.dropped for state in schema.states):
        raise UsageError(
            f"operator {schema.operator_id} of {store.url} cannot have frozen keys: no query with "
            "onError='freeze' has run on it"
        )
    chosen = other_keys(reader, FROZEN_NAME, {}) if keys is None else keys
    marks = {FROZEN_NAME: dict.fromkeys(chosen)}
    return edit_as("unfreeze", store, base, marks, operator=operator, apply=apply)

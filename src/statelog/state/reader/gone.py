"""Explain an object of a checkpoint that turns out to be missing while the checkpoint is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from statelog.checkpoint.tags import retained_checkpoints
from statelog.errors import CheckpointError, ObjectNotFoundError, StatelogError
from statelog.store import ObjectStore


@contextmanager
def explained(store: ObjectStore, checkpoint_id: int) -> Iterator[None]:
    """
    Raise a missing object as what became of its checkpoint.

    Raises:
        CheckpointError: The query deleted the checkpoint (`reason` "subsumed"), or an object of it
            is missing ("objects_missing").
    """
    try:
        yield
    except ObjectNotFoundError as error:
        try:
            retained_now = retained_checkpoints(store)
        except StatelogError:
            retained_now = ()
        facts = {"checkpoint_id": checkpoint_id, "path": error.facts.get("path", "")}
        if retained_now and checkpoint_id not in retained_now:
            retained = ", ".join(map(str, retained_now))
            raise CheckpointError(
                f"checkpoint {checkpoint_id} of {store.url} was deleted while it was "
                f"read: the query that writes there retains {retained} now. Open the newest one, or "
                "let the query retain more checkpoints (retainedCheckpoints), or keep one by "
                "`statelog tag`",
                reason="subsumed",
                **facts,
            ) from error
        raise CheckpointError(
            f"checkpoint {checkpoint_id} of {store.url} cannot be read: {error}",
            reason="objects_missing",
            missing=(facts["path"],),
            **facts,
        ) from error

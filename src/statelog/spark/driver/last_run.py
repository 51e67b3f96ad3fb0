"""The newest checkpoint in which an operator ran, for the tasks that follow it."""

from __future__ import annotations

from typing import Final, NamedTuple

from statelog.model.checkpoint import CompletedCheckpoint


class LastRun(NamedTuple):
    """
    The newest checkpoint in which an operator ran.

    Args:
        checkpoint_id: Its id; -1 for none.
        handles: Ids of the log handles that it added.
    """

    checkpoint_id: int
    handles: tuple[str, ...]


NEVER_RAN: Final = LastRun(-1, ())


def last_run_of(base: CompletedCheckpoint) -> LastRun:
    """Return *base* as the last run of an operator."""
    own = base.checkpoint_id
    return LastRun(own, tuple(log.state_handle_id for log in base.log if log.checkpoint_id == own))

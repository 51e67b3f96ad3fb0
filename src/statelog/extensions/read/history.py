"""
The history of one key: its state as of each retained checkpoint.

`KeyVersion` is what the state of one key was at a retained checkpoint.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from statelog.checkpoint.listing import CheckpointState, CheckpointSummary
from statelog.errors import CheckpointError, CheckpointNotFoundError
from statelog.state.reader.location import LocationReader, has_variable, state_of_key

_UNREADABLE: Final = (CheckpointState.DAMAGED, CheckpointState.INCOMPATIBLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyVersion:
    """
    The state of one key as of one checkpoint.

    Args:
        checkpoint_id: The checkpoint.
        batch_id: Number of the micro-batch that made it.
        as_of_ms: What expires at or before this time is left out, in milliseconds since 1970.
        value: The state, as `LocationState.get` returns it; None too where the checkpoint does not
            have the variable.
    """

    checkpoint_id: int
    batch_id: int
    as_of_ms: int
    value: Any


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """
    The history of a key, as far as it can be read.

    Args:
        versions: The state as of each checkpoint that can be read, ascending.
        unreadable: The checkpoints that cannot be read.
    """

    versions: list[KeyVersion]
    unreadable: tuple[CheckpointSummary, ...]

    def checked(self) -> list[KeyVersion]:
        """
        Return the versions of a history without gaps.

        Raises:
            CheckpointError: A checkpoint cannot be read; the message names all of them.
        """
        if not self.unreadable:
            return self.versions
        ids = ", ".join(str(each.checkpoint_id) for each in self.unreadable)
        first = self.unreadable[0]
        damaged = any(each.state is CheckpointState.DAMAGED for each in self.unreadable)
        raise CheckpointError(
            f"the history has gaps: checkpoint {ids} cannot be read ({first.problem}). `statelog "
            "verify` says what is damaged; the state as of another checkpoint can be read by its id",
            reason="damaged" if damaged else "incompatible",
            checkpoint_id=first.checkpoint_id,
        )


def key_history(
    state: LocationReader, variable: str, key: object, now_ms: int | None
) -> KeyHistory:
    """Return the state of one key as of each retained checkpoint; see `LocationState.history`."""
    versions: list[KeyVersion] = []
    was_present = False
    listed = state.checkpoints()
    for entry in listed:
        if not entry.is_retained:
            continue
        with suppress(CheckpointNotFoundError):  # it was deleted since it was listed
            reader = state.reader(entry.checkpoint_id, variable=variable)
            time_ms = reader.as_of_ms if now_ms is None else now_ms
            present = has_variable(reader, variable)
            value = state_of_key(reader, variable, key, time_ms) if present else None
            was_present = was_present or present
            versions.append(
                KeyVersion(
                    checkpoint_id=entry.checkpoint_id,
                    batch_id=reader.batch_id,
                    as_of_ms=time_ms,
                    value=value,
                )
            )
    if not was_present:
        state.reader(variable=variable).arrow_schema(variable)  # raises: it names the variables
    return KeyHistory(versions, tuple(entry for entry in listed if entry.state in _UNREADABLE))

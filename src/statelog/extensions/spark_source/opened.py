"""The location that a read is of: its store, and the checkpoints that options name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from statelog.checkpoint.at_time import checkpoint_id_of
from statelog.checkpoint.history import open_state
from statelog.checkpoint.listing import list_checkpoints
from statelog.checkpoint.restore import find_checkpoint
from statelog.errors import CheckpointError, InvalidOptionsError
from statelog.model import CompletedCheckpoint, KeyGroupRange
from statelog.state.reader import StateReader
from statelog.store import ObjectStore

_PARTITION_BYTES: Final = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Location:
    """A state location, which tasks open each on their own."""

    path: str
    options: Mapping[str, object] = field(default_factory=dict, repr=False)

    def store(self) -> ObjectStore:
        """Open the store; raises `UsageError` if there is no such directory."""
        return open_state(self.path, options=self.options)

    def newest(self) -> CompletedCheckpoint:
        """
        Return the newest checkpoint.

        Raises:
            CheckpointError: There is none, or it is damaged.

        Blocks: On the store.
        """
        return find_checkpoint(self.store())

    def checkpoint(self, given: str | None) -> int | None:
        """
        Return the id that an option names; None for none, which is the newest one.

        Raises:
            UsageError: It is no id, no tag and no time.
            CheckpointError: There is none that is old enough, or none at all.

        Blocks: On the store, except for an id.
        """
        return None if given is None else checkpoint_id_of(self.store(), given)

    def checkpoint_of_batch(self, batch_id: int) -> int:
        """
        Return the newest retained checkpoint that a micro-batch committed, in the query's history.

        Raises:
            CheckpointError: No retained checkpoint is of that micro-batch (`reason` "not_found").

        Blocks: On the store.
        """
        retained = [
            summary
            for summary in list_checkpoints(self.store())
            if summary.is_retained and not summary.is_given_up
        ]
        for each in reversed(retained):
            if each.batch_id == batch_id:
                return each.checkpoint_id
        batches = ", ".join(str(each.batch_id) for each in retained) or "none"
        raise CheckpointError(
            f"{self.path} does not retain a checkpoint of micro-batch {batch_id} (micro-batches of the "
            f"retained ones: {batches})",
            reason="not_found",
        )

    def reader(self, checkpoint_id: int | None, operator: str | None) -> StateReader:
        """Open the reader of a checkpoint; errors: see `StateReader.open`."""
        return StateReader.open(
            self.path, checkpoint_id, storage_options=self.options, operator=operator
        )


def ranges_of(
    reader: StateReader, given: KeyGroupRange | None, partitions: int | None
) -> tuple[KeyGroupRange, ...]:
    """
    Return the key groups of each partition of a read.

    Raises:
        InvalidOptionsError: *given* are not all key groups of the operator.
    """
    key_groups = given or reader.key_groups
    if key_groups.intersection(reader.key_groups) != key_groups:
        raise InvalidOptionsError(
            f"keyGroups {key_groups} is not inside {reader.key_groups}, the key groups of "
            f"operator {reader.schema.operator_id}"
        )
    stored = sum(each.handle.size_bytes for each in reader.checkpoint.materialized)
    stored += sum(each.size_bytes for each in reader.checkpoint.log)
    return key_groups.split(partitions or 1 + max(stored, 0) // _PARTITION_BYTES)


def only_variable(reader: StateReader) -> str:
    """Return the variable of an operator that has only one; timers do not count."""
    variables = reader.variables()
    declared = [variable.name for variable in variables if not variable.kind.rules.fires]
    names = declared or [each.name for each in variables]
    if len(names) != 1:
        texts = ", ".join(each.name for each in variables) or "none"
        raise InvalidOptionsError(
            f"operator {reader.schema.operator_id} has the state variables {texts}; name one by "
            "the option stateVarName"
        )
    return names[0]

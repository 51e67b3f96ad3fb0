"""A job of one task that commits what it is told to."""

from tests.support.locations.checkpoints import log_inline

from statelog.checkpoint import CheckpointCoordinator
from statelog.model import KeyGroupRange, StateChange, TaskStateSnapshot

ALL = KeyGroupRange(0, 7)


def commit(owner: CheckpointCoordinator, checkpoint_id: int) -> list[StateChange]:
    """Complete a checkpoint with two changes in it, and return them."""
    changes = [(3, b"first of %d" % checkpoint_id), (5, b"second of %d" % checkpoint_id)]
    snapshot = TaskStateSnapshot(ALL, log_inline(ALL, [changes], checkpoint_id))
    owner.trigger(checkpoint_id, [ALL])
    owner.acknowledge(checkpoint_id, snapshot)
    owner.complete(checkpoint_id, properties={})
    return [StateChange(key_group, value) for key_group, value in changes]

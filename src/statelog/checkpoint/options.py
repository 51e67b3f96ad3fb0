"""How the coordinator keeps checkpoints; the class lives with all other options."""

from statelog.options import CheckpointOptions

__all__ = ["CheckpointOptions"]

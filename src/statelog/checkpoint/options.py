"""How the coordinator keeps checkpoints."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from statelog.errors import InvalidOptionsError


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """
    Settings of a `CheckpointCoordinator`.

    Args:
        retained: How many of the newest checkpoints can be restored; >= 1.
        compress_metadata: Snappy-frame the change sets inside `_metadata`.  Where what stands
            beside them passes 16 MiB, the file is written plain all the same.
        min_age_of_orphans: A sweep leaves younger objects alone, because a checkpoint under way may
            need them.  Must exceed the longest time from the upload of a change set to the commit
            of its checkpoint.

    Raises:
        InvalidOptionsError: A value is out of range.
    """

    retained: int = 3
    compress_metadata: bool = True
    min_age_of_orphans: dt.timedelta = dt.timedelta(hours=1)

    def __post_init__(self) -> None:
        if self.retained < 1:
            raise InvalidOptionsError(f"retained is {self.retained}; at least 1 checkpoint is kept")
        if self.min_age_of_orphans < dt.timedelta(0):
            raise InvalidOptionsError(f"min_age_of_orphans {self.min_age_of_orphans} is negative")

"""The interface of a published table, which each table format implements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from statelog.errors import StatelogError, StoreError
from statelog.model import KeyGroupRange

CHECKPOINT: Final = "statelog.checkpoint-id"
"""The id of the checkpoint, in the facts of a version."""
POSITION: Final = "statelog.position"
"""The position of the checkpoint, in the facts of a version; see `CheckpointPosition`."""
KEY_GROUP: Final = "key_group"
FILE_BYTES: Final = 64 * 1024 * 1024
"""About how many bytes of rows one data file contains."""


class CommitConflictError(StatelogError):
    """A different process changed the table after it was loaded."""


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """
    What a table contains.

    Args:
        facts: The facts of its newest published version; without one, the facts of the source.
        is_current: Whether that version is the newest one: nothing else was written after it.
        checkpoints: The checkpoint of each published version, by the version, oldest first.
        row_count: Rows of the table.
    """

    facts: Mapping[str, str]
    is_current: bool
    checkpoints: Mapping[int, int]
    row_count: int

    @property
    def newest(self) -> int | None:
        """The newest published checkpoint, or None if there is none."""
        return int(self.facts[CHECKPOINT]) if CHECKPOINT in self.facts else None


@dataclass(frozen=True, slots=True)
class Replacement:
    """
    Rows that replace rows of a table.

    Args:
        schema: The columns; `key_group` is the first one.
        is_new_schema: Whether the columns of the table change.  Then all rows are replaced.
        key_groups: The key groups whose rows are replaced; None for all rows.
        rows: Returns the new rows of these key groups, in their order.
        source: What identifies the state; part of *facts*.
        facts: What the new version records.
    """

    schema: pa.Schema
    is_new_schema: bool
    key_groups: Sequence[KeyGroupRange] | None
    rows: Callable[[], Iterator[pa.RecordBatch]]
    source: Mapping[str, str]
    facts: Mapping[str, str]

    @property
    def predicate(self) -> str | None:
        """The SQL condition for the rows to replace, or None for all rows."""
        if self.key_groups is None:
            return None
        parts = [
            f"({KEY_GROUP} >= {key_range.start} and {KEY_GROUP} <= {key_range.end})"
            for key_range in self.key_groups
        ]
        return " or ".join(parts) or f"{KEY_GROUP} < 0"

    def reader(self) -> pa.RecordBatchReader:
        """Return the rows as a stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self.rows())


class PublishableTable(Protocol):
    """
    A table in which each version is a checkpoint of a location.

    Thread: one at a time.
    """

    @property
    def kind(self) -> str:
        """The table format, in lower-case letters."""
        ...

    @property
    def name(self) -> str:
        """The name of the table, for messages."""
        ...

    def close(self) -> None:
        """Close all connections. Further calls do nothing."""
        ...

    def load(self) -> PublishedTable | None:
        """Read what the table contains, or return None if it does not exist."""
        ...

    def replace(self, rows: Replacement, tags: Mapping[str, int], retain: int) -> None:
        """Commit a new version of the loaded table, creating the table if it is missing."""
        ...

    def tidy(self, tags: Mapping[str, int], retain: int) -> PublishedTable:
        """
        Remove versions of the loaded table that are not retained, and delete their files.

        Returns:
            What the table contains then.
        """
        ...


def retained_versions(
    checkpoints: Mapping[int, int], tags: Mapping[str, int], retain: int
) -> dict[int, int]:
    """Return the newest and the tagged published versions, each with its checkpoint."""
    newest = set([*checkpoints][-retain:])
    return {
        version: checkpoint
        for version, checkpoint in checkpoints.items()
        if version in newest or checkpoint in tags.values()
    }


@contextmanager
def explained(what: str, *conflicts: type[Exception]) -> Iterator[None]:
    """Convert the errors of a table library to statelog errors."""
    try:
        yield
    except StatelogError:
        raise
    except Exception as error:
        kind = CommitConflictError if isinstance(error, conflicts) else StoreError
        raise kind(f"{what}: {type(error).__name__}: {error}") from error
